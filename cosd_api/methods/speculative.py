"""Speculative decoding: a draft writes ahead, and what the assistant would not write is replaced. Here: greedily.

::

    1   the draft writes greedily: x~_1, x~_2, ...
    2   the assistant says what it would write in each place, by its own encoding of the text before: x^_1, x^_2, ...
    3   x~_i stands if and only if x~_i = x^_i
    4   at the first difference x^_i stands in its place, and the draft writes again from there

The draft is greedy, so its own distribution is one-hot, and a greedy assistant's is, too: to keep a token with
probability min(1, q/p) (Leviathan et al., ICML 2023) is then to keep it where the two are equal. These are the steps of
Algorithm 1 with a verifier that replaces whatever differs, so the decoder is that of `CoSD`. `sampled` has the steps
of the sampled forms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cosd_api.alignment import Unit
from cosd_api.checks import check_choice, check_count
from cosd_api.decoding.commands import Decoder
from cosd_api.decoding.judged import JudgedWriter
from cosd_api.decoding.run import AnswerJob, Run
from cosd_api.errors import SettingError
from cosd_api.methods.base import DraftFirst, Method, Models
from cosd_api.methods.cosd import CoSDDecoder
from cosd_api.methods.cost import Cost, Plan, Reading, assistant_cost, draft_cost
from cosd_api.methods.gated import AHEAD, check_sampling
from cosd_api.methods.lists import lists_needed
from cosd_api.methods.sampled import SampledDraft, Test
from cosd_api.verification import MatchVerifier
from cosd_providers.errors import UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Speculative(DraftFirst):
    """Speculative decoding: the assistant's own text, written with a draft's help (the paper's baseline).

    Greedy, the text is the assistant's greedy one, encoded again behind each of its tokens. Sampled (`greedy=False`, or
    `temperature=1`), its tokens are distributed as if the assistant had drawn them. The draft decides about the cost
    alone, and `acceptance_rate` tells how much of it stands. It takes one assistant with the draft's tokenizer, which
    is asked about every token.

    Attributes:
        greedy: whether both models write their most probable tokens; otherwise tokens are drawn.
        sampled_draft: whether the draft draws its tokens, too, of which more are kept; else it writes its most probable
            ones. Of sampled decoding alone, as the next two.
        test: `"ratio"` keeps a token with probability min(1, q/p), which makes the assistant's distribution. `"cosd"`
            is the test that the CoSD paper prints: both write their most probable tokens, and the assistant's replaces
            the draft's where p/q is less than a number drawn from [0, 1).
        listed: tokens to list in each place. What is beyond is not drawn; a warning bounds the total variation.

    Raises:
        SettingError: one of them is invalid.
    """

    name: ClassVar[str] = "speculative"
    accepts: ClassVar[frozenset[str]] = DraftFirst.accepts - {"ask"} | {"unit"}
    decides: ClassVar[str] = "whether both models write the same token, or by chance"
    most_models: ClassVar[int | None] = 2
    compares_tokenizers: ClassVar[bool] = True
    one_tokenizer: ClassVar[bool] = True

    greedy: bool = True
    sampled_draft: bool = True
    test: Test = "ratio"
    listed: int = 20

    def __post_init__(self) -> None:
        for name in ("greedy", "sampled_draft"):
            if not isinstance(getattr(self, name), bool):
                raise SettingError(f"{name} must be True or False, not {getattr(self, name)!r}")
        check_choice("test", self.test, Test)
        check_count("listed", self.listed)
        if self.greedy and (self.test, self.sampled_draft) != ("ratio", True):
            words = "sampled_draft and test are for sampled decoding"
            raise SettingError(f"{words}: give greedy=False, too, and no temperature=0")

    @property
    def temperature(self) -> float:
        """1 if tokens are drawn."""
        return 0.0 if self.greedy else 1.0

    def _at(self, temperature: float) -> Method:
        return replace(self, greedy=not temperature)

    def options(self) -> dict[str, Any]:
        """Its own settings, as a result records them."""
        return {"greedy": True} if self.greedy else super().options()

    @property
    def asks_by_ids(self) -> bool:
        """True where it is greedy."""
        return self.greedy

    @property
    def judge(self) -> MatchVerifier | None:
        """The verifier that replaces whatever differs; None where chance decides."""
        return MatchVerifier() if self.greedy else None

    @property
    def _draws(self) -> bool:
        """True if the draft draws."""
        return self.test == "ratio" and self.sampled_draft

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:  # noqa: ARG002
        """Refuse a model that does not report probabilities: tokens are compared with these; see `Method.examine`."""
        if self.temperature and self.test == "ratio":
            showing = [one for one in models if one[0] != "draft" or self.sampled_draft]
            check_sampling(showing, "sampled speculative decoding")
            lists_needed(showing, self.name)
        for name, info in models:
            if not info.capabilities.probs:
                words = f"the {name} does not report the probabilities of its tokens, and is not asked token by token"
                hint = 'method="cosd" with verifier=AgreementVerifier(alpha=0.5) works with such an assistant.'
                raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
        compared = {"draft"} if self.greedy else {name for name, _ in models} if self.test == "cosd" else set[str]()
        return tuple(
            f"{name} does not report the probability of its end of sequence: the end of an answer is the draft's"
            for name, info in models
            if name in compared and not info.capabilities.end_prob
        )

    def decoder(self, job: AnswerJob) -> Decoder:
        """The decoder of one answer."""
        return CoSDDecoder.of(job, MatchVerifier())

    def start(self, job: AnswerJob) -> Run:
        """The run of one answer."""
        if self.greedy:
            return super().start(job)
        drawn, test, listed = self._draws, self.test, self.listed
        return JudgedWriter(job, lambda writer: SampledDraft(writer, drawn=drawn, test=test, listed=listed).write())

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """The cost of an answer at one model, which is asked about every token; see `Method.cost`."""
        everything = replace(plan, skip=False)
        if self.temperature and plan.pace.draft_length is None:
            everything = replace(everything, pace=replace(plan.pace, draft_length=AHEAD))
        if model == 0:
            return draft_cost(everything, prompt)
        return assistant_cost(everything, model, prompt, always=True)
