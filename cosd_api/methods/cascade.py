"""Cascade: the draft answers, and the assistant answers instead if the draft was unsure.

::

    1   the draft answers alone, greedily, up to its end of sequence, a stop string or
        max_tokens
    2   Q is a quantile of the negative log probabilities (natural logarithms) of the
        answer's tokens                                                                     `level`
    3   if Q > tau, the assistant answers alone, and its answer is taken; otherwise, the
        draft's answer is taken                                                             `defers`

This is a language model cascade as in arXiv 2404.10136. It decides by a quantile of the tokens' uncertainty, because
the mean over a whole answer hides the few tokens that matter.

**The quantile** is computed by nearest rank: of n values in ascending order, it is the value at rank
ceil(quantile * n); for quantile 0, it is the first value. So Q is always the value of one of the tokens: quantile 1
selects the most surprising token, and quantile 0.5 the (lower) median.

**Tokens** are the draft's own tokens; a character that consists of several tokens counts as one token. A stop string
and everything after it are first cut off. If the cut splits a token, the token counts with its whole probability. If
the answer ends by itself, its end of sequence is one of the tokens. A token whose probability is unknown does not
count; on some servers, the end of sequence is such a token. If no token counts, the draft's answer is taken. If Q
exceeds tau only by a rounding error, Q and tau count as equal.

With `on_assistant_error="draft"`, the draft's answer is taken if the assistant fails before it has written anything. If
the assistant fails later, the draft continues the text that has been written so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from cosd_api.alignment import Unit
from cosd_api.checks import check_between
from cosd_api.decoding.commands import DRAFT, Contender, DecidedSegment
from cosd_api.decoding.writer import AnswerWriter
from cosd_api.methods.base import Models, Written
from cosd_api.methods.cost import FINER, Assumptions, Bounds, Cost, Plan, Reading
from cosd_api.methods.perplexity import ROUNDING
from cosd_providers.contract import Token
from cosd_providers.errors import UnsupportedError

_DEFERRED = 0.5  # the assumed share of answers that the assistant writes


@dataclass(frozen=True, kw_only=True)
class Cascade(Written):
    """Cascade: the draft answers, and the assistant answers instead if the draft was unsure.

    The draft was unsure if a quantile of the negative log probabilities of its answer's tokens is above `tau`. This is
    a cascade of two language models with any tokenizers (arXiv 2404.10136). Only the draft has to report the
    probabilities of its tokens. The draft's answer is not streamed: it arrives when it is complete. The assistant's
    answer is streamed.

    Attributes:
        quantile: the quantile that decides, in [0, 1]; 1 is the largest negative log probability.
        tau: the threshold for the quantile, in nats, at least 0. For example, 0.69 corresponds to a probability of one
            half.

    Raises:
        SettingError: a setting is out of its range.
    """

    name: ClassVar[str] = "cascade"
    decides: ClassVar[str] = "the probabilities of the draft's whole answer"
    most_models: ClassVar[int | None] = 2
    accepts_messages_only: ClassVar[bool] = True

    quantile: float = 0.9
    tau: float = 1.0

    def __post_init__(self) -> None:
        check_between("quantile", self.quantile, 0, 1)
        check_between("tau", self.tau, 0, math.inf)

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:  # noqa: ARG002
        """Refuse a draft that does not report probabilities; see `Method.examine`."""
        name, info = models[0]
        if not info.capabilities.probs:
            words = f"the {name} does not report the probabilities of its tokens, by which 'cascade' decides"
            hint = "It can be the assistant, which needs none: let the other model draft."
            raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
        if not info.capabilities.end_prob:
            return (f"{name} does not report the probability of its end of sequence, which does not count",)
        return ()

    async def write(self, writer: AnswerWriter) -> None:
        """Write the answer."""
        passage = await writer.continuation(0, b"", max_tokens=writer.left, enough=writer.stops)
        answer = writer.response_of(passage.tokens)
        tokens = [placed.token for placed in answer.tokens]
        found = level(tokens, self.quantile)
        mine = Contender((DRAFT,), bytes(answer.text), bool(tokens) and tokens[-1].end, (found, None), found)
        other = Contender((0,), b"", False, (), self.tau)
        segment = DecidedSegment((mine, other), 0, self._reason(found))
        if len(writer.models) == 1:
            segment = DecidedSegment((mine,), 0, "no assistant is heard")
        elif self.defers(found):
            await writer.relay(1, DecidedSegment((mine, other), 1, self._reason(found)))
            segment = DecidedSegment((mine,), 0, "the assistant has failed")
        if writer.over:
            return
        if writer.segments:  # the assistant failed after it had begun to write
            await writer.relay(0, segment)
        else:
            writer.write(passage.tokens, 0, number=passage.number, segment=segment)
            writer.end_with(passage)

    def defers(self, found: float | None) -> bool:
        """Step 3: test whether the assistant answers."""
        return found is not None and found - self.tau > ROUNDING * self.tau

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """Forecast the cost of one answer at one model; see `Method.cost`."""
        n, most = plan.max_tokens, prompt.most + FINER * plan.max_tokens
        if model == 0:
            return Cost(Bounds(1, 1, 2), Bounds(prompt.least + 1, prompt.expected + n, 2 * most), n)
        return Cost(Bounds(0, _DEFERRED, 1), Bounds(0, _DEFERRED * (prompt.expected + n), most), _DEFERRED * n)

    def assumptions(self, plan: Plan) -> Assumptions:
        """Describe in words what `cost` assumes."""
        return Assumptions(
            f"the draft writes {plan.max_tokens} tokens, and the assistant answers again {_DEFERRED:.0%} of the time",
            "the assistant answers, fails at the last token, and the draft writes on",
        )

    def _reason(self, found: float | None) -> str:
        if found is None:
            return "no token of the draft's answer has a known probability: the answer is kept"
        words = f"the {self.quantile:g} quantile of the NLL of the draft's tokens"
        return f"{words} is {found:.4g} {'>' if self.defers(found) else '<='} {self.tau:g}"


def level(tokens: Sequence[Token], quantile: float) -> float | None:
    """Step 2: return the quantile of the tokens' negative log probabilities; None if no probability is known."""
    surprises = sorted(
        -math.log(token.prob) + 0.0 if token.prob else math.inf for token in tokens if token.prob is not None
    )
    if not surprises:
        return None
    rank = math.ceil(round(quantile * len(surprises), 9))  # rounded, because 0.07 * 100 is slightly above 7
    return surprises[max(rank, 1) - 1]
