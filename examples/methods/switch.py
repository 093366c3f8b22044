"""ModelSwitch (arXiv 2504.00762): one model answers several times; if it disagrees with itself, other models vote, too.

::

    1   the first model draws `samples` complete texts                                             `_sampled`
    2   the part of each sample that `answer` matches is its answer; equal parts count as one      `found_in`
    3   if the share of samples with the same answer is at least `threshold`, no other model
        is asked; otherwise, steps 1 to 3 are repeated with the next model                         `is_consistent`
    4   each sample votes for its answer, with its model's weight times its model's consistency    `consistency`
    5   the answer with the most votes wins, and the first sample with this answer is written      `vote`

**Consistency.** If a model's n answers include m different ones, the model's consistency is
1/n + (1 - 1/n) (1 - H / log m). H is the entropy of the shares of the different answers. The consistency is 1 if m = 1,
and 1/n if all different answers are equally frequent.

**The same answer.** By default, an answer is the whole text, without white space at its ends. If `answer`, a regular
expression, is given, the answer is its last match in the text, or the first group of that match, also without white
space at its ends. A text that is empty or has no match votes for nothing, and in step 3 it counts as different from
every other text.

**Ties.** If several answers have the same number of votes, the answer that came first wins, in the order of the models
and then of their samples. If no sample has an answer, the first sample of the first model is taken.

**Draws.** A model's samples are drawn from its own distribution if its server is known to do that. Otherwise, for
example with hosted models, the server may change the distribution before it draws. If a model accepts only messages, a
text prompt is sent to it as one user message.

Sample s of model i (both counted from 0) has its own seed, which `Chance` computes as a hash of `("sample", i, s)`. So
the answer depends neither on the order in which samples arrive nor on the other models that are asked. A server that is
not known to draw from the model's own distribution may draw different tokens for the same seed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, ClassVar

from cosd_api import SettingError
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
    Passage,
    Plan,
    Reading,
    RoleNeeds,
    Weighted,
    check_count,
    readable,
)
from cosd_providers import Message

ROUNDING = 1e-9  # the largest relative difference between two sums of votes at which they count as equal
_DISAGREE = 0.5  # the assumed share of prompts for which a model's samples disagree
_SHORT = 40  # only answers of at most this number of characters are quoted in a reason


@dataclass(frozen=True, kw_only=True)
class Switch(Weighted):
    r"""Switch: one model answers several times; if it disagrees with itself, the next model answers, too, and all vote.

    This is ModelSwitch (arXiv 2504.00762, AAAI 2026). It needs two or more models with any tokenizers, listed in the
    order in which to ask them. The models only have to draw tokens; they need not report probabilities or continue a
    partial answer. A warning names the models that are not known to draw from their own distribution
    (`Capabilities.draws` without `sampling`). The answer is not streamed. The `seed` of an answer determines all draws,
    provided that the servers draw the same tokens for the same seed.

    Attributes:
        weights: the weights of the models' votes, in the order of the models; numbers of at least 0, not all 0. Only
            their ratios count. None weighs all models equally; `"route"` weighs them by the perplexity of the prompt.
        tau: the temperature of the weights for `weights="route"`, above 0.
        samples: the number of answers that each model draws, at least 1.
        threshold: if at least this share of a model's samples agree, no other model is asked; in (0, 1].
        answer: a regular expression that finds the answer in a text. The last match counts, or its first group if the
            expression has one. For example, `r"-?\d+(?:\.\d+)?"` compares the last number in each text. None compares
            whole texts, without white space at their ends.

    Raises:
        SettingError: a setting is invalid.
    """

    name: ClassVar[str] = "switch"
    decides: ClassVar[str] = "a vote of whole answers"
    ordered: ClassVar[bool] = True
    accepts_messages_only: ClassVar[bool] = True
    needs: ClassVar[RoleNeeds] = {"models": ("draws",)}

    samples: Annotated[int, check_count] = 5
    threshold: float = 1.0
    answer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        number = isinstance(self.threshold, int | float) and not isinstance(self.threshold, bool)
        if not number or not 0 < self.threshold <= 1:
            raise SettingError(f"threshold must be a number above 0 and at most 1, not {self.threshold!r}")
        if self.answer is not None:
            try:
                re.compile(self.answer)
            except (re.error, TypeError) as error:
                raise SettingError(f"answer must be a regular expression, not {self.answer!r}: {error}") from error

    @property
    def temperature(self) -> float:
        """Always 1, because every token is drawn."""
        return 1.0

    async def write(self, answer: Answer, *models: Model) -> None:
        """Write the answer."""
        found: dict[int, list[DrawnAnswer]] = {}
        for model in answer.models:
            with suppress(Lost):
                found[model.index] = await self._sampled(answer, model)
                if self.is_consistent([one.answer for one in found[model.index]]):
                    break
        answers = [one.answer for several in found.values() for one in several if one.answer is not None]
        if len(answers) > 1 and len({*answers}) == len(answers):
            words = f"no two of {len(answers)} samples have the same answer, so that the vote decides nothing"
            more = "" if self.answer is not None else ": answer=, a regular expression, says what an answer is"
            answer.warn(f"{words}{more}")
        winner, segment = vote(found, self.shares(found), len(models))
        answer.append(winner.passage, segment, whole=True)

    async def _sampled(self, answer: Answer, model: Model) -> list[DrawnAnswer]:
        """Steps 1 and 2: let a model draw its samples; return them in the order of their numbers."""
        plain = answer.conversation is None and not await model.continues()
        prompt = await model.rendered([Message("user", answer.prompt)]) if plain else None

        async def draw(number: int) -> DrawnAnswer:
            passage = await model.write(draw=("sample", model.index, number), prompt=prompt)
            alone = answer.alone(passage)
            return DrawnAnswer(passage, alone.data, alone.ends, self.read(answer, readable(alone.data)))

        return await model.several(draw, range(self.samples))

    def read(self, answer: Answer, text: str) -> str | None:  # noqa: ARG002 - a hook
        """Step 2: return the answer for which a sample votes; None if it votes for nothing."""
        return found_in(text, self.answer)

    def is_consistent(self, answers: Sequence[str | None]) -> bool:
        """Step 3: test whether enough of a model's samples have the same answer; if so, no other model is asked."""
        counts = Counter(answer for answer in answers if answer is not None)
        return max(counts.values(), default=0) >= self.threshold * len(answers) * (1 - ROUNDING)

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """Forecast the cost at one model, which is asked only if all models before it disagree with themselves.

        See `Method.cost`.
        """
        n, expected = plan.max_tokens, self.samples * _DISAGREE**model
        low = self.samples if model == 0 else 0
        tokens = Bounds(
            low * (prompt.least + 1),
            expected * (prompt.expected + n),
            2 * self.samples * (prompt.most + FINER * n),
        )
        return self.with_weights(Cost(Bounds(low, expected, 2 * self.samples), tokens, expected * n), prompt)

    def assumptions(self, plan: Plan) -> Assumptions:
        """Describe in words what `cost` assumes."""
        words = Assumptions(
            f"each sample has {plan.max_tokens} tokens; a model's samples disagree for {_DISAGREE:.0%} of the prompts "
            "that it is asked about, and then the next model is asked",
            f"every model draws {self.samples} answers, and each of them takes a second request for its last token",
        )
        return self.with_measure(words)


@dataclass(frozen=True, slots=True)
class DrawnAnswer:
    """One sample.

    Attributes:
        passage: the tokens of the sample.
        text: the bytes of the sample before any stop string.
        end: whether the model ended the sample with its end of sequence.
        answer: the answer for which the sample votes; None if it votes for nothing.
    """

    passage: Passage
    text: bytes
    end: bool
    answer: str | None

    @property
    def model(self) -> int:
        """The index of the model that drew the sample."""
        return self.passage.model.index


def found_in(text: str, pattern: str | None) -> str | None:
    """Step 2: find the answer in a text; return None if the text contains no answer."""
    if pattern is None:
        return text.strip() or None
    matches = [*re.finditer(pattern, text)]
    if not matches:
        return None
    last = matches[-1]
    return ((last[1] or "") if last.re.groups else last[0]).strip() or None


def consistency(answers: Sequence[str]) -> float:
    """Step 4: compute a model's consistency: 1 if all its answers are equal, 1 / n if all n answers differ."""
    counts = Counter(answers)
    if len(counts) <= 1:
        return 1.0
    shares = [count / len(answers) for count in counts.values()]
    entropy = -math.fsum(share * math.log(share) for share in shares)
    least = 1 / len(answers)
    return least + (1 - least) * (1 - entropy / math.log(len(counts)))


def vote(
    found: Mapping[int, Sequence[DrawnAnswer]], weights: Mapping[int, float], count: int
) -> tuple[DrawnAnswer, DecidedSegment]:
    """Steps 4 and 5: return the winning sample, and a record of the vote; `count` is the number of all models."""
    votes: dict[str, float] = {}
    firsts: dict[str, DrawnAnswer] = {}
    for model, samples in found.items():
        own = [one.answer for one in samples if one.answer is not None]
        weight = weights[model] * consistency(own)
        for one in samples:
            if one.answer is not None:
                firsts.setdefault(one.answer, one)
                votes[one.answer] = votes.get(one.answer, 0.0) + weight
    if not votes:
        first = next(iter(found.values()))[0]
        entry = Contender((first.model - 1,), first.text, first.end)
        return first, DecidedSegment((entry,), 0, "no sample has an answer: the first one is taken")
    best, total = next(iter(votes)), math.fsum(votes.values())
    for answer, sum_ in votes.items():
        if sum_ > votes[best] * (1 + ROUNDING):
            best = answer
    entries: list[Contender] = []
    for answer, one in firsts.items():
        by_model = {model: sum(sample.answer == answer for sample in samples) for model, samples in found.items()}
        sources = [one.model, *(model for model, number in by_model.items() if number and model != one.model)]
        scores = tuple(float(by_model[model]) if model in by_model else None for model in range(count))
        against = 1 - votes[answer] / total if total else 1.0
        entries.append(Contender(tuple(model - 1 for model in sources), one.text, one.end, scores, against))
    share = votes[best] / total if total else 0.0
    if len(entries) == 1:
        reason = "all samples have the same answer"
    else:
        name = repr(best) if len(best) <= _SHORT else "the answer"
        reason = f"{name} has {share:.3g} of the votes, of {len(entries)} answers"
    return firsts[best], DecidedSegment(tuple(entries), [*firsts].index(best), reason)
