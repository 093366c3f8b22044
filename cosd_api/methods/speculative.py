"""Greedy speculative decoding: a draft writes ahead, and what the assistant would not write is replaced.

::

    1   the draft writes greedily: x~_1, x~_2, ...
    2   the assistant says what it would write in each place, by its own encoding of the text before: x^_1, x^_2, ...
    3   x~_i stands if and only if x~_i = x^_i
    4   at the first difference x^_i stands in its place, and the draft writes again from there

The draft is greedy, so its own distribution is one-hot, and a greedy assistant's is, too: to keep a token with
probability min(1, q/p) (Leviathan et al., ICML 2023) is then to keep it where the two are equal. These are the steps of
Algorithm 1 with a verifier that replaces whatever differs, so the decoder is that of `CoSD`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from cosd_api.alignment import Unit
from cosd_api.decoding.commands import Decoder
from cosd_api.decoding.run import Work
from cosd_api.errors import SettingError
from cosd_api.methods.base import DraftFirst, Models
from cosd_api.methods.cosd import CoSDDecoder
from cosd_api.methods.cost import Cost, Plan, Reading, assistant_cost, draft_cost
from cosd_api.verification import MatchVerifier
from cosd_providers.errors import UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Speculative(DraftFirst):
    """Greedy speculative decoding: the assistant's own text, written with a draft's help (the paper's baseline).

    The text is the assistant's greedy one, encoded again behind each of its tokens; the draft decides about the cost
    alone, and `acceptance_rate` tells how often the two agree. It takes one assistant with the draft's tokenizer, which
    is asked about every token.

    Attributes:
        greedy: True, the only form: both models write their most probable tokens.

    Raises:
        SettingError: `greedy` is not True.
    """

    name: ClassVar[str] = "speculative"
    takes: ClassVar[frozenset[str]] = DraftFirst.takes - {"ask"} | {"unit"}
    decides: ClassVar[str] = "whether both models write the same token"
    most_models: ClassVar[int | None] = 2
    compares_tokenizers: ClassVar[bool] = True
    one_tokenizer: ClassVar[bool] = True

    greedy: Literal[True] = True

    def __post_init__(self) -> None:
        if self.greedy is not True:
            raise SettingError(f"greedy must be True, not {self.greedy!r}: a sampled draft is not supported")

    @property
    def judge(self) -> MatchVerifier:
        """The verifier that replaces whatever differs."""
        return MatchVerifier()

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:  # noqa: ARG002
        """Refuse a model that does not report probabilities: tokens are compared with these; see `Method.examine`."""
        for name, info in models:
            if not info.capabilities.probs:
                words = f"the {name} does not report the probabilities of its tokens, and is not asked token by token"
                hint = 'method="cosd" with verifier=AgreementVerifier(alpha=0.5) works with such an assistant.'
                raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
        return tuple(
            f"{name} does not report the probability of its end of sequence: the end of an answer is the draft's"
            for name, info in models
            if name == "draft" and not info.capabilities.end_prob
        )

    def decoder(self, work: Work) -> Decoder:
        """The decoder of one answer."""
        return CoSDDecoder.of(work, self.judge, unit="token")

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """The cost of an answer at one model, which is asked about every token; see `Method.cost`."""
        everything = replace(plan, skip=False)
        if model == 0:
            return draft_cost(everything, prompt)
        return assistant_cost(everything, prompt, always=True)
