"""The method `cosd`: Collaborative Speculative Decoding, with the verifiers and units that it accepts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from cosd_api.alignment import Unit
from cosd_api.checks import check_temperature, check_unit, check_verifier
from cosd_api.decoding.answer_job import AnswerJob, Run
from cosd_api.decoding.model import Model
from cosd_api.decoding.tokenwise import TokenwiseAnswer
from cosd_api.errors import SettingError
from cosd_api.methods.base import DEFAULT_IS_GREEDY, DraftFirst, Method
from cosd_api.methods.cost import Assumptions, Cost, Plan, Reading, assistant_cost
from cosd_api.methods.gated_mixture import AHEAD, GatedDraws, check_gate
from cosd_api.methods.needs import Models
from cosd_api.verification import RuleVerifier, Verifier, decides_by_place, needs_of
from cosd_providers.contract import ServerInfo
from cosd_providers.errors import UnsupportedError

_DRAWN = 0.3  # the assumed share of drawn tokens about which an assistant is asked: they lead to less probable texts
_SURE = 0.99  # a verifier that contests a token with this probability contests nearly every token


@dataclass(frozen=True, kw_only=True)
class CoSD(DraftFirst):
    """Collaborative Speculative Decoding: Algorithm 1 of the paper (arXiv 2502.08020), with its rule or its tree.

    The draft writes greedily. If the verifier prefers an assistant's token or word, that token or word replaces the
    draft's, and the draft continues after it. With `unit="token"`, the result is the greedy decoding of a well-defined
    next-token distribution; see `log_likelihood`.

    Attributes:
        verifier: decides each disagreement between the draft and an assistant. The default is `RuleVerifier()`;
            `RuleVerifier.paper()` has the paper's thresholds.
        unit: the unit of text that is judged, `"token"`, `"word"` or `"literal"`. None chooses by comparing the
            tokenizers; see `Fusion`.
        temperature: 0 for Algorithm 1; 1 to draw every token at random from the next-token distribution that
            `log_likelihood` describes, which requires `unit="token"`.

    Raises:
        SettingError: a setting is invalid.
    """

    name: ClassVar[str] = "cosd"
    accepts: ClassVar[frozenset[str]] = DraftFirst.accepts | {
        "verifier",
        "unit",
        "tie",
        "on_draft_error",
        "response_format",
    }
    hoisted: ClassVar[tuple[str, ...]] = ("verifier", "unit", "temperature")
    decides: ClassVar[str] = "the probability of one token of the draft and one of the assistant"
    compares_tokenizers: ClassVar[bool] = True
    why_greedy: ClassVar[str] = DEFAULT_IS_GREEDY

    verifier: Verifier = field(default_factory=RuleVerifier)
    unit: Unit | None = None
    temperature: float = 0.0  # pyright: ignore[reportIncompatibleMethodOverride]

    def __post_init__(self) -> None:
        check_verifier(self.verifier)
        check_unit(self.unit)
        object.__setattr__(self, "temperature", check_temperature(self.temperature))
        if self.temperature and self.unit in ("word", "literal"):
            words = "words" if self.unit == "word" else "tokens of two vocabularies"
            raise SettingError(f'temperature=1 is for unit="token": {words} have no next-token distribution')
        if self.temperature and (looks := needs_of(self.verifier).looks_at):
            words = f"temperature=1 is not defined for a {type(self.verifier).__name__}"
            raise SettingError(f"{words}, which also looks at {looks} the draft's token: leave out temperature")

    def _at(self, temperature: float) -> Method:
        return replace(self, temperature=temperature)

    def with_unit(self, unit: Unit | None) -> Method:
        """Return the same method with this unit, unless it already has one; see `Method.with_unit`."""
        return self if self.unit is not None else replace(self, unit=unit)

    def start(self, job: AnswerJob) -> Run:
        """Create the `Run` that writes one answer.

        Raises:
            UnsupportedError: the method cannot judge by the unit of this answer; see `examine_unit`.
        """
        if not self.temperature:
            self.examine_unit(job.drafts.unit, job.turns[0].provider.name)
            return super().start(job)
        prompt = job.turns[0]
        self.examine_unit(job.drafts.unit, prompt.provider.name)

        async def write(answer: TokenwiseAnswer, *models: Model) -> None:
            await GatedDraws(answer, models, self.verifier, prompt.prompt).write()

        return TokenwiseAnswer(job, write)

    def examine_unit(self, unit: Unit, endpoint: str) -> None:
        """Refuse `unit="word"` if tokens are drawn, or if the verifier needs data about single tokens.

        Raises:
            UnsupportedError: the unit is refused; see `Method.examine_unit`.
        """
        if unit != "word":
            return
        if self.temperature:
            words = "the models are not known to have one tokenizer, and a mixture of their tokens is not defined"
            hint = 'If you know that they have, give unit="token"; without a temperature any models can be fused.'
            raise UnsupportedError(words, endpoint=endpoint, hint=hint)
        if looks := needs_of(self.verifier).looks_at:
            words = f"the verifier looks at {looks} each draft token, and words are judged"
            hint = (
                'If you know that the models have one tokenizer, give unit="token"; unit="literal" compares the tokens '
            )
            hint += "of any models as text. RuleVerifier and DiffVerifier judge words."
            raise UnsupportedError(words, endpoint=endpoint, hint=hint)

    def options(self) -> dict[str, Any]:
        """Return no options, because a result records the verifier and the unit in separate fields."""
        return {}

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:
        """Refuse a model that does not report the probabilities that the verifier uses; see `Method.examine`."""
        if self.temperature:
            check_gate(models)
            return ()
        for name, info in models:
            if info.capabilities.probs:
                continue
            words = f"the {name} does not report the probabilities of its tokens"
            if name == "draft":
                words += ", which show where it is unsure"
                hint = "It can be an assistant, with verifier=AgreementVerifier(alpha=0.5): let the other model draft."
                raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
            if needs_of(self.verifier).q:
                words += ", which the verifier compares"
                hint = "verifier=AgreementVerifier(alpha=0.5) decides without them, by the draft's probability alone."
                raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
            if unit in ("token", "literal"):
                words += ', and can be asked in unit="word" only'
                raise UnsupportedError(words, endpoint=info.endpoint, hint=f'Leave out unit="{unit}".')
        warnings = [
            f"{name} does not report the probability of its end of sequence: no answer's end is ever contested by it"
            for name, info in models
            if info.capabilities.probs and not info.capabilities.end_prob
        ]
        if wanted := needs_of(self.verifier).alternatives:
            for name, info in models[1:]:
                _check_lists(name, info, wanted)
            warnings.append(
                "the assistants are asked about every token of the draft: Fusion.estimate predicts the cost"
            )
        check_draft(models[0][1], self.verifier)
        return tuple(warnings)

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """Forecast the cost of one answer at one model; see `Method.cost`."""
        plan = self._plan(plan)
        cost = super().cost(plan, model, prompt)
        if model or not self.temperature:
            return cost
        # Where the draft is unsure, its lists may not show its most probable token, for which it is asked.
        return cost + assistant_cost(plan, model, prompt, always=False)

    def assumptions(self, plan: Plan) -> Assumptions:
        """Describe in words what `cost` assumes."""
        found = super().assumptions(self._plan(plan))
        if not self.temperature:
            return found
        return replace(found, expected=f"{found.expected}; the draft is asked about the same places")

    def _plan(self, plan: Plan) -> Plan:
        if self.temperature and plan.pace.draft_length is None:
            plan = replace(plan, pace=replace(plan.pace, draft_length=AHEAD))
        needs = needs_of(self.verifier)
        if needs.alternatives:
            return replace(plan, skip=False)
        if needs.contested is not None:
            return replace(plan, contested=needs.contested)
        every = not decides_by_place(self.verifier) and self.verifier.contestable(_SURE)
        if every:
            return replace(plan, contested=1.0)
        return replace(plan, contested=_DRAWN) if self.temperature else plan

    @property
    def asks_by_ids(self) -> bool:
        """True unless tokens are drawn at random, or the verifier uses hidden states."""
        return not self.temperature and not needs_of(self.verifier).draft_states

    @property
    def judge(self) -> Verifier:
        """The verifier."""
        return self.verifier


def _check_lists(name: str, info: ServerInfo, wanted: int) -> None:
    """Refuse an assistant that lists fewer tokens at a place than the verifier needs.

    Raises:
        UnsupportedError: the assistant is refused; the message names a remedy.
    """
    most = info.capabilities.top_k
    if most < wanted:
        words = f"the {name} lists {most or 'no'} other tokens at a place, and the verifier needs {wanted}"
        hint = "RuleVerifier and DiffVerifier need none."
        if most:
            hint = f"SurpriseVerifier needs no more with a gamma above {1 / (most + 1):.3g}. {hint}"
        raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)


def check_draft(info: ServerInfo, verifier: Verifier) -> None:
    """Refuse a draft that does not report the lists of tokens or the hidden states that the verifier needs.

    Raises:
        UnsupportedError: the draft is refused; the message names a remedy.
    """
    needs, can = needs_of(verifier), info.capabilities
    wanted, most = needs.draft_alternatives, can.top_k
    if most < wanted:
        words = f"the draft lists {most or 'no'} other tokens at a place, and the gate looks at {wanted}"
        hint = 'method="cosd" needs no lists.'
        if most:
            hint = f"Train a gate with listed={most}. {hint}"
        raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
    wanted, width = needs.draft_states, can.hidden_states
    if width == wanted or not wanted:
        return
    if width:
        words = f"a hidden state of the draft has {width} numbers, and the gate was trained on {wanted}"
        hint = "Train a gate for this model: cosd train-deferral --hidden-states."
    else:
        words = "the draft does not report hidden states, which the gate looks at"
        server = "Start its server" if info.engine == "llama.cpp" else "llama.cpp's own server does, if it is started"
        hint = f"{server} with --embeddings --pooling none."
    hint = f"{hint} A gate that cosd train-deferral makes without --hidden-states looks at lists of tokens."
    raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
