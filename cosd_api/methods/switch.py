"""ModelSwitch: one model answers several times, and another model only if these answers disagree; then all vote.

::

    1   the model draws `samples` whole answers                                                    `_sampled`
    2   of each sample only the part that `answer` finds counts; equal parts are one answer        `found_in`
    3   if at least a share `threshold` of the samples has one answer, no other model is
        asked; otherwise the next model goes through 1 to 3                                        `is_consistent`
    4   each sample votes for its answer: with the weight of its model times the model's
        consistency                                                                                `consistency`
    5   the answer with the most votes is taken, in the words of its first sample                  `vote`

**Consistency** of a model with n answers: 1/n + (1 - 1/n) (1 - H / log m), where H is the entropy of the shares of its
m different answers; 1 where m = 1. So answers that all differ, equally often, weigh 1/n each.

**The same answer.** By default an answer is the whole text, without white space at its ends. With `answer`, a regular
expression, it is the last match in the text, or the match of its first group, again without white space around. A text
that is empty, or has no match, votes for nothing, and counts as another answer in 3.

**Ties** go to the answer that came first: by the order of the models, then of the samples. If no sample has an answer,
the first sample of the first model is taken.

**Draws** are from the model's own distribution if its server is known to do that, else in the server's own way, as with
hosted models. A model that takes messages only gets a text as one message of the user.

Sample number s of model i (from 0) is drawn by a seed of its own, hash `("sample", i, s)` of `Chance`, so the answer
depends neither on the order in which samples come nor on the other models asked. A server that draws in its own way may
draw other tokens for the same seed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from cosd_api.alignment import Unit
from cosd_api.checks import check_count
from cosd_api.decoding.commands import Contender, DecidedSegment, Finish
from cosd_api.decoding.passage import Passage
from cosd_api.decoding.writer import AnswerWriter
from cosd_api.errors import SettingError
from cosd_api.methods.base import Models
from cosd_api.methods.cost import FINER, Assumptions, Bounds, Cost, Plan, Reading
from cosd_api.methods.gated import check_draws
from cosd_api.methods.lists import ROUNDING
from cosd_api.methods.weighted import Weighted
from cosd_providers.concurrency import concurrently
from cosd_providers.messages import Message, RenderedPrompt
from cosd_providers.text import readable

_DISAGREE = 0.5  # of the prompts, by assumption
_SHORT = 40  # characters of an answer that is named


@dataclass(frozen=True, kw_only=True)
class Switch(Weighted):
    r"""One model answers several times; if it does not agree with itself the next model answers, too, and all samples
    vote.

    ModelSwitch (arXiv 2504.00762, AAAI 2026). It takes two or more models with any tokenizers, in the order in which
    they are asked. They only have to draw: they need not report probabilities or continue a partial answer. A warning
    names the models that are not known to draw from their own distribution (`Capabilities.draws` without `sampling`).
    The answer comes at once. The `seed` of an answer decides all draws, as far as the servers repeat theirs.

    Attributes:
        weights: of the models' votes, in their order; equal by default. Only their ratios count.
            `"route"` weighs the models by the prompt, as `Route` does.
        tau: the temperature of these weights by the prompt.
        samples: answers that each model draws.
        threshold: the share of a model's samples that have to agree, so that no other model is asked.
        answer: a regular expression for the part of a text that is its answer: the last match counts, by its first
            group if it has one. `r"-?\d+(?:\.\d+)?"` compares the last number. None compares whole texts, without
            white space at their ends.

    Raises:
        SettingError: a setting is invalid.
    """

    name: ClassVar[str] = "switch"
    decides: ClassVar[str] = "a vote of whole answers"
    ordered: ClassVar[bool] = True
    accepts_messages_only: ClassVar[bool] = True

    samples: int = 5
    threshold: float = 1.0
    answer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("samples", self.samples)
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
        """1: every token is drawn."""
        return 1.0

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:
        """Refuse a model that does not draw, and warn of a model that draws in its own way; see `Method.examine`."""
        return check_draws(models, f"{self.name!r}") + super().examine(models, unit)

    async def write(self, writer: AnswerWriter) -> None:
        """Write the answer."""
        found: dict[int, list[DrawnAnswer]] = {}
        for model in [*writer.models]:

            async def draw(model: int) -> list[DrawnAnswer]:
                return await self._sampled(writer, model)

            found |= await writer.ask_all(draw, [model])
            if model in found and self.is_consistent([one.answer for one in found[model]]):
                break
        answers = [one.answer for several in found.values() for one in several if one.answer is not None]
        if len(answers) > 1 and len({*answers}) == len(answers):
            words = f"no two of {len(answers)} samples have the same answer, so that the vote decides nothing"
            more = "" if self.answer is not None else ": answer=, a regular expression, says what an answer is"
            writer.warn(f"{words}{more}")
        winner, segment = vote(found, self.shares(writer.count, [*found]), writer.count)
        passage = winner.passage
        writer.write(passage.tokens, winner.model, number=passage.number, segment=segment)
        writer.end_with(passage)
        if not writer.over:  # it has that number of the server's own tokens
            writer.end(Finish("length", "max_tokens"))

    async def _sampled(self, writer: AnswerWriter, model: int) -> list[DrawnAnswer]:
        """Steps 1 and 2: a model's answers, in the order of their numbers."""
        drawn: dict[int, DrawnAnswer] = {}
        turn: RenderedPrompt | None = None
        if writer.conversation is None and not await writer.continues(model):
            turn = await writer.rendered(model, [Message("user", writer.prompt)])

        async def draw(number: int) -> None:
            passage = await writer.continuation(
                model,
                b"",
                max_tokens=writer.left,
                enough=writer.stops,
                temperature=1,
                seed=writer.chance.seed("sample", model, number),
                turn=turn,
            )
            alone = writer.response_of(passage.tokens)
            ends = bool(alone.tokens) and alone.tokens[-1].token.end
            text = bytes(alone.text)
            drawn[number] = DrawnAnswer(model, passage, text, ends, self.read(writer, readable(text)))

        await concurrently([partial(draw, number) for number in range(self.samples)])
        return [drawn[number] for number in range(self.samples)]

    def read(self, writer: AnswerWriter, text: str) -> str | None:  # noqa: ARG002 - a hook
        """Step 2: the answer for which a sample votes; None for nothing."""
        return found_in(text, self.answer)

    def is_consistent(self, answers: Sequence[str | None]) -> bool:
        """Step 3: test whether enough of a model's samples have one answer, so that no other model is asked."""
        counts = Counter(answer for answer in answers if answer is not None)
        return max(counts.values(), default=0) >= self.threshold * len(answers) * (1 - ROUNDING)

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """Samples of the first model, and of each later model if all before it disagree; see `Method.cost`."""
        n, expected = plan.max_tokens, self.samples * _DISAGREE**model
        low = self.samples if model == 0 else 0
        tokens = Bounds(
            low * (prompt.least + 1),
            expected * (prompt.expected + n),
            2 * self.samples * (prompt.most + FINER * n),
        )
        return self.with_weights(Cost(Bounds(low, expected, 2 * self.samples), tokens, expected * n), prompt)

    def assumptions(self, plan: Plan) -> Assumptions:  # noqa: ARG002
        """The basis of `cost`."""
        words = Assumptions(
            f"each sample has max_tokens tokens; a model's samples disagree for {_DISAGREE:.0%} of the prompts that it "
            "is asked about, and then the next model is asked",
            f"every model draws {self.samples} answers, and each of them takes a second request for its last token",
        )
        return self.with_measure(words)


@dataclass(frozen=True, slots=True)
class DrawnAnswer:
    """One sample.

    Attributes:
        model: the model that drew it.
        passage: its tokens.
        text: its bytes, before a stop string.
        end: whether the model ended it.
        answer: the answer for which it votes; None for nothing.
    """

    model: int
    passage: Passage
    text: bytes
    end: bool
    answer: str | None


def found_in(text: str, pattern: str | None) -> str | None:
    """Step 2: the answer in a text; None if there is none."""
    if pattern is None:
        return text.strip() or None
    matches = [*re.finditer(pattern, text)]
    if not matches:
        return None
    last = matches[-1]
    return ((last[1] or "") if last.re.groups else last[0]).strip() or None


def consistency(answers: Sequence[str]) -> float:
    """Step 4: a model's agreement with itself, from 1 / n for n answers that all differ, to 1."""
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
    """Steps 4 and 5: the sample that is taken, and the record of the vote, of `count` models in all."""
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
        return first, DecidedSegment((entry,), 0, "no sample has an answer: the first one stands")
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
