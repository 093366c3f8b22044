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
from typing import Annotated, ClassVar

from cosd_api.extend import (
    FINER,
    Answer,
    Assumptions,
    Bounds,
    Contender,
    Cost,
    DecidedSegment,
    Lost,
    Model,
    Models,
    Plan,
    Program,
    Reading,
    RoleNeeds,
    Unit,
    between,
)
from cosd_providers import Token

ROUNDING = 1e-9  # the largest relative difference between Q and tau at which they count as equal
_DEFERRED = 0.5  # the assumed share of answers that the assistant writes


@dataclass(frozen=True, kw_only=True)
class Cascade(Program):
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
    accepts_messages_only: ClassVar[bool] = True
    needs: ClassVar[RoleNeeds] = {"draft": ("probs",)}

    quantile: Annotated[float, between(0, 1)] = 0.9
    tau: Annotated[float, between(0)] = 1.0

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:
        """Refuse a draft that does not report probabilities; see `Method.examine`."""
        warnings, (name, info) = super().examine(models, unit), models[0]
        if info.capabilities.end_prob:
            return warnings
        return (*warnings, f"{name} does not report the probability of its end of sequence, which does not count")

    async def write(self, answer: Answer, draft: Model, assistant: Model) -> None:
        """Write the answer."""
        own = await draft.write()
        alone = answer.alone(own)
        found = level(alone.tokens, self.quantile)
        mine = Contender((-1,), alone.data, alone.ends, (found, None), found)
        both = (mine, Contender((0,), b"", False, (), self.tau))
        why = DecidedSegment(both, 0, self._reason(found))
        if not assistant.alive:
            why = DecidedSegment((mine,), 0, "no assistant is heard")
        elif self.defers(found):
            try:
                await assistant.finish(DecidedSegment(both, 1, self._reason(found)))
            except Lost:
                why = DecidedSegment((mine,), 0, "the assistant has failed")
                if answer.text:
                    await draft.finish(why)
        answer.append(own, why, whole=True)

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
