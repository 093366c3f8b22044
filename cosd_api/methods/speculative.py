"""Speculative decoding: a draft writes ahead, and the tokens are distributed as if the assistant had drawn them.

The module `sampled` describes the steps. The greedy form is `CoSD(verifier=MatchVerifier())`, which is Algorithm 1 with
a verifier that replaces every differing token. If both models are greedy, each distribution has all its probability on
one token. Keeping a token with probability min(1, q/p) (Leviathan et al., ICML 2023) then means keeping the token if
both models write the same one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from cosd_api.alignment import Unit
from cosd_api.checks import check_count, check_temperature
from cosd_api.decoding.answer_job import AnswerJob, Run
from cosd_api.decoding.model import Model
from cosd_api.decoding.tokenwise import TokenwiseAnswer
from cosd_api.errors import SettingError
from cosd_api.methods.base import Method
from cosd_api.methods.cost import (
    Assumptions,
    Cost,
    Plan,
    Reading,
    assistant_cost,
    draft_cost,
    draft_first_assumptions,
)
from cosd_api.methods.gated_mixture import AHEAD
from cosd_api.methods.needs import Models, check_sampling, lists_needed
from cosd_api.methods.sampled import SampledDraft, Test
from cosd_providers.errors import UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Speculative(Method):
    """Speculative decoding: draws from the assistant's distribution, sped up by a draft (Leviathan et al., ICML 2023).

    This is a baseline of the CoSD paper. The answer's tokens are distributed as if the assistant had drawn them. The
    draft affects only the cost; `acceptance_rate` is the share of the draft's tokens that are kept. The method needs
    one assistant with the draft's tokenizer, and asks it about every token. For the assistant's greedy
    text, use `CoSD(verifier=MatchVerifier())`.

    Attributes:
        sampled_draft: True if the draft draws its tokens, too, which means that more of them are kept; False if the
            draft writes its most probable tokens.
        test: the test of a draft token. `"ratio"` keeps the token with probability min(1, q/p), which preserves the
            assistant's distribution. `"cosd"` is the test as it appears in the CoSD paper: both models write their most
            probable tokens, and the assistant's token replaces the draft's if p/q is less than a random number from
            [0, 1).
        listed: the number of tokens to list at each place, at least 1. Unlisted tokens are never drawn; a warning
            states a bound on the resulting distance from the assistant's distribution (in total variation).
        temperature: must be 1, because the method draws.

    Raises:
        SettingError: a setting is invalid.
    """

    name: ClassVar[str] = "speculative"
    accepts: ClassVar[frozenset[str]] = Method.accepts | {"draft_length", "max_ahead", "unit"}
    decides: ClassVar[str] = "chance, by the probabilities of both models"
    most_models: ClassVar[int | None] = 2
    compares_tokenizers: ClassVar[bool] = True
    one_tokenizer: ClassVar[bool] = True

    sampled_draft: bool = True
    test: Test = "ratio"
    listed: Annotated[int, check_count] = 20
    temperature: float = 1.0  # pyright: ignore[reportIncompatibleMethodOverride]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "temperature", check_temperature(self.temperature))
        if not self.temperature:
            words = f"temperature=0 is not accepted by the method {self.name!r}, which draws. For the assistant's"
            raise SettingError(f"{words} greedy text, use CoSD(verifier=MatchVerifier()), or --verifier match")

    def _at(self, temperature: float) -> Method:
        return replace(self, temperature=temperature)

    @property
    def own_paths(self) -> bool:
        """True, because the answer sends each model its own path; see `Method.own_paths`."""
        return True

    @property
    def _draws(self) -> bool:
        """True if the draft draws its tokens."""
        return self.test == "ratio" and self.sampled_draft

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:  # noqa: ARG002
        """Refuse a model that does not report probabilities, draw tokens or list tokens; see `Method.examine`."""
        if self.test == "ratio":
            showing = [one for one in models if one[0] != "draft" or self.sampled_draft]
            check_sampling(showing, "speculative decoding")
            lists_needed(showing, self.name)
        for name, info in models:
            if not info.capabilities.probs:
                words = f"the {name} does not report the probabilities of its tokens, and is not asked token by token"
                hint = 'method="cosd" with verifier=AgreementVerifier(alpha=0.5) works with such an assistant.'
                raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
        return tuple(
            f"{name} does not report the probability of its end of sequence: the end of an answer is the draft's"
            for name, info in models
            if self.test == "cosd" and not info.capabilities.end_prob
        )

    def start(self, job: AnswerJob) -> Run:
        """Create the `Run` that writes one answer."""

        async def write(answer: TokenwiseAnswer, *models: Model) -> None:
            draft = SampledDraft(answer, models, drawn=self._draws, test=self.test, listed=self.listed)
            await draft.write()

        return TokenwiseAnswer(job, write)

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """Forecast the cost of one answer at one model, if the assistant is asked about every token.

        See `Method.cost`.
        """
        plan = _asked_about_all(plan)
        return draft_cost(plan, prompt) if model == 0 else assistant_cost(plan, model, prompt, always=True)

    def assumptions(self, plan: Plan) -> Assumptions:
        """Describe in words what `cost` assumes."""
        return draft_first_assumptions(_asked_about_all(plan))


def _asked_about_all(plan: Plan) -> Plan:
    return replace(plan, skip=False, pace=replace(plan.pace, draft_length=plan.pace.draft_length or AHEAD))
