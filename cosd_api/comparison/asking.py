"""Contestants that are asked: what is known already, what is sent, and what is kept."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio

from cosd_api.alignment import Unit
from cosd_api.comparison.contestants import (
    ASSISTANT_ALONE,
    COSD,
    DRAFT_ALONE,
    RANDOM,
    REVERSED,
    SELF_CONSISTENCY,
    Contestant,
    LeftOut,
    derived,
)
from cosd_api.comparison.forecast import estimated
from cosd_api.comparison.grades import graded, grading_key
from cosd_api.comparison.grading import Grader, identity_of
from cosd_api.comparison.journal import AnswerUsage, GradedAnswer, Journal
from cosd_api.comparison.known import Known
from cosd_api.comparison.prices import ComparisonEstimate, Price
from cosd_api.comparison.result import Comparison, Gathered, comparison_of
from cosd_api.comparison.shared_limit import SharedLimit
from cosd_api.endpoints import Endpoints, Facts
from cosd_api.errors import SettingError
from cosd_api.fusion import Fusion
from cosd_api.result import FusionResult
from cosd_api.settings import AnswerOptions
from cosd_api.training.dataset import Example
from cosd_api.wording import counted
from cosd_providers.concurrency import concurrently
from cosd_providers.errors import BudgetError, ContextLengthError, ProviderError, UnsupportedError
from cosd_providers.usage import Usage

__all__ = ["Asking", "Tally"]

_IN_A_ROW = 8
"""Answers that fail one after the other before a comparison stops: a server is down."""
_QUESTIONS = 3
"""Different questions among them, at least: one that nobody can take fails for every contestant."""
_BASELINES = {SELF_CONSISTENCY: COSD, RANDOM: COSD, RANDOM + REVERSED: COSD + REVERSED}
"""Baselines that are made after the development questions, by the contestant whose bill theirs is about."""


@dataclass(slots=True)
class Tally:
    """The progress of one contestant.

    Attributes:
        name: its name.
        questions: that it is to answer, for development too.
        answered: number of graded answers.
        right: number of right ones.
        failed: number of failed ones.
        billed: tokens that its answers have billed.
    """

    name: str
    questions: int
    answered: int = 0
    right: int = 0
    failed: int = 0
    billed: int = 0


@dataclass
class Asking:
    """One run of `compare`: asks, grades and keeps.

    Attributes:
        contestants: that answer, in the order of the standings.
        left_out: those that cannot.
        stopped: why the run is over before its end; None while it is not.
    """

    models: Endpoints
    facts: Facts
    judge: Grader
    journal: Journal
    max_tokens: int
    stop: tuple[str, ...]
    seed: int
    unit: Unit | None
    stack: AsyncExitStack
    most: int | None
    contestants: list[Contestant] = field(default_factory=list[Contestant])
    left_out: list[LeftOut] = field(default_factory=list[LeftOut])
    stopped: str | None = None

    def __post_init__(self) -> None:
        self._fusions: dict[str, Fusion] = {}
        self._tallies: dict[str, Tally] = {}
        self._failed: dict[str, dict[str, str]] = {}
        self._asked: dict[str, anyio.Lock] = {}  # one at a time asks for a text, which several questions may have
        self._in_a_row: dict[str, list[str]] = {}  # questions that failed, by endpoint, and at the grader
        self._limit = SharedLimit(self.most, lambda: self.journal.billed)
        self._before = self.journal.billed
        self._known = Known(self.journal, self.judge, self.facts, self.max_tokens, self.stop, self.seed, self.unit)
        self.notes: list[str] = []

    async def take_in(self, several: Sequence[Contestant]) -> list[Contestant]:
        """Add the contestants that the endpoints can serve, and note why others cannot; returns those added."""
        added: list[Contestant] = []
        for one in several:
            try:
                fusion = one.fusion(self.models.draft, self.models.assistants[0], self.unit)
                await self.stack.enter_async_context(fusion)
                await fusion.endpoints.discover()
            except (UnsupportedError, SettingError) as error:
                if one.kind == "alone":
                    raise
                self.left_out.append(LeftOut(one.name, _reason(error)))
                continue
            self._fusions[one.name] = fusion
            self._tallies[one.name] = Tally(one.name, 0)
            added.append(one)
        self.contestants += added
        return added

    @property
    def named(self) -> dict[str, str]:
        """The models' names, by `"draft"` and `"assistant"`."""
        return {DRAFT_ALONE: self.facts.draft.model, ASSISTANT_ALONE: self.facts.assistants[0].model}

    @property
    def tested(self) -> list[Contestant]:
        """The contestants that answer the test questions."""
        return [one for one in self.contestants if one.kind != "pilot"]

    def expect(self, questions: Sequence[Example], several: Sequence[Contestant]) -> None:
        """Note that these questions are to be asked, for the progress."""
        for one in several:
            self._tallies[one.name].questions += len(questions)

    async def estimate(
        self,
        prices: Mapping[str, Price] | None,
        held: Sequence[Example],
        test: Sequence[Example],
        *,
        baselines: bool,
    ) -> ComparisonEstimate:
        """The cost of what is still to be asked, with the baselines that are made later, if there are to be any."""
        questions = [*held, *test]
        asked = {
            one.name: held if one.kind == "pilot" else questions[-self._tallies[one.name].questions :]
            for one in self.contestants
        }
        gone = {*asked, *(one.name for one in self.left_out)}
        later = {name: by for name, by in _BASELINES.items() if baselines and name not in gone and by in asked}
        to_come = {one.name: self._known.missing(one, asked[one.name]) for one in self.contestants}
        return await estimated(
            self._fusions,
            to_come | dict.fromkeys(later, test),
            self.max_tokens,
            roles={one.name: one.role for one in self.contestants},
            prices=prices,
            alike={name: by for name, by in later.items() if name != SELF_CONSISTENCY},
            votes={name: by for name, by in later.items() if name == SELF_CONSISTENCY},
            known=sum(map(len, asked.values())) - sum(map(len, to_come.values())),
            questions=len(questions),
            most=self.most,
        )

    async def forecast(
        self, several: Sequence[Contestant], questions: Sequence[Example], prices: Mapping[str, Price] | None
    ) -> ComparisonEstimate:
        """The cost of what these contestants are still to answer of these questions."""
        to_come = {one.name: self._known.missing(one, questions) for one in several}
        return await estimated(
            self._fusions,
            to_come,
            self.max_tokens,
            roles={one.name: one.role for one in several},
            prices=prices,
            alike={},
            votes={},
            known=len(several) * len(questions) - sum(map(len, to_come.values())),
            questions=len(questions),
            most=self.most,
        )

    # ------------------------------------------------------------------------------------------------------- answers

    async def ask(
        self,
        questions: Sequence[Example],
        several: Sequence[Contestant],
        concurrency: int,
        progress: Callable[[Sequence[Tally]], None] | None,
    ) -> None:
        """Let these contestants answer the questions, one question after the other.

        The order of the contestants depends on the question, as the first ones read a prompt that no server has in its
        cache yet. Texts that are known come first: they are graded, also where nothing is to be asked any more and the
        grader keeps no grades. What failed in an earlier run comes last, so that it does not end every run at the same
        place.
        """
        pairs = [(one, example) for example in questions for one in self._in_order(several, example)]
        pairs.sort(key=lambda pair: (self._known.key(*pair) in self.journal.failed, not self._known.has(*pair)))
        free = identity_of(self.judge) is None
        waiting = deque(pairs)
        errors: list[Exception] = []

        def report() -> None:
            if progress is not None:
                progress([*self._tallies.values()])

        async def work() -> None:
            while waiting:
                one, example = waiting.popleft()
                over = self.stopped is not None and not (free and self._known.has(one, example))
                if over or one not in self.contestants:
                    continue
                try:
                    await self._take(one, example)
                    report()
                except Exception as error:  # noqa: BLE001 - raised below, when the answers in flight are kept, too
                    errors.append(error)
                    waiting.clear()
            self._limit.ended()

        report()
        self._limit.workers = min(concurrency, len(waiting))
        async with anyio.create_task_group() as group:
            for _ in range(self._limit.workers):
                group.start_soon(work)
        if errors:
            raise errors[0]
        if self._limit.reached and self.stopped is not None:  # answers in flight have been billed since
            self.stopped = self._limit.words()

    async def grade(self, questions: Sequence[Example], several: Sequence[Contestant], concurrency: int) -> None:
        """Grade what these contestants are known to have answered, before anything is confirmed or shown.

        A grader that keeps its grades is not asked: it may be dear.
        """
        if identity_of(self.judge) is not None:
            return

        async def grade(one: Contestant, example: Example) -> None:
            answer = self._known.answer(one, example)
            if answer is not None and not answer.complete:
                await self._grade(answer, example)

        await concurrently([partial(grade, one, example) for one in several for example in questions], concurrency)

    def _in_order(self, several: Sequence[Contestant], example: Example) -> list[Contestant]:
        def place(one: Contestant) -> bytes:
            return hashlib.sha256(f"{self.seed} {example.key} {one.name}".encode()).digest()

        return sorted(several, key=place)

    async def _take(self, one: Contestant, example: Example) -> None:
        """One question of one contestant: known, graded, or asked."""
        key = self._known.key(one, example)
        async with self._asked.setdefault(key, anyio.Lock()):
            answer = self._known.answer(one, example)
            if answer is None:
                keys = {"key": key, "graded": grading_key(self.judge, example), "question": example.key}
                answer = await self._answer(one, example, keys)
            if answer is None:
                return
            self._limit.note(one.name, answer.billed)
            if not answer.complete:
                answer = await self._grade(answer, example)
        if one not in self.contestants:
            return
        tally = self._tallies[one.name]
        if answer.complete:
            tally.answered += 1
            tally.right += bool(answer.right)
        else:
            self._fail(one, example, answer.error or "", ("grader",))
        tally.billed += answer.billed

    async def _answer(self, one: Contestant, example: Example, keys: Mapping[str, Any]) -> GradedAnswer | None:
        """The contestant's answer, not graded; None if there is none. The journal has it, and what was billed."""
        limits: AnswerOptions = {"max_tokens": self.max_tokens, "stop": self.stop}
        fusion = self._fusions[one.name]
        if fusion.settings.method.temperature:
            limits["seed"] = self.seed
        answer, least = None, 0
        while answer is None:
            guess = len(str(example.prompt)) + self.max_tokens  # of the first answer
            allowed = await self._limit.share(one.name, guess, least, lambda: self.stopped is None)
            if self._limit.reached:
                self.stopped = self.stopped or self._limit.words()
            if allowed is None and self.most is not None:
                return None
            if allowed is not None:
                limits["max_billed_tokens"] = allowed
            self._limit.take(allowed)
            try:
                result = await fusion.generate(example.prompt, **limits)
            except ProviderError as error:
                cut = isinstance(error, BudgetError)
                usage = _usage_of(error.partial, one)
                line = GradedAnswer(
                    type="cut" if cut else "failed", contestant=one.name, usage=usage, error=str(error), **keys
                )
                if line.billed or not cut:
                    self.journal.add(line)
                if cut:
                    least = (allowed or 0) + 1  # again, with all that is left, if that is more than it had
                    continue
                self._give_up(one, example, error)
                return None
            else:  # it counts in the limit at once: its grading may take long, or never end
                answer = GradedAnswer.of(result, one, **keys)
                self.journal.add(answer)
            finally:
                self._limit.give_back(allowed)
        for name, spent in answer.usage.items():
            if spent.requests:
                self._in_a_row[name] = []
        return answer

    async def _grade(self, answer: GradedAnswer, example: Example) -> GradedAnswer:
        """The answer with its grade; see `grades.graded`."""
        found = await graded(self.judge, answer, example)
        self.journal.grade(found)
        if found.right is not None:
            self._in_a_row["grader"] = []
        return found

    def _give_up(self, one: Contestant, example: Example, error: ProviderError) -> None:
        """Count an answer that failed, or leave its contestant out."""
        if one not in self.contestants:
            return  # left out meanwhile
        if isinstance(error, UnsupportedError) and not self._tallies[one.name].answered:
            self._leave_out(one, error)
        else:
            about_one = isinstance(error, ContextLengthError)  # no sign that a server is down
            self._fail(one, example, str(error), () if about_one else (DRAFT_ALONE, ASSISTANT_ALONE))

    def _leave_out(self, one: Contestant, error: UnsupportedError) -> None:
        """Ask a contestant no more, which the endpoints turned out not to serve.

        Raises:
            UnsupportedError: it is a model alone, without which there is no comparison.
        """
        if one.kind == "alone":
            raise error
        if one in self.contestants:
            self.contestants.remove(one)
            self._failed.pop(one.name, None)
            del self._tallies[one.name]
            self.left_out.append(LeftOut(one.name, _reason(error)))

    def _fail(
        self, one: Contestant, example: Example, words: str, who: Sequence[str] = (DRAFT_ALONE, ASSISTANT_ALONE)
    ) -> None:
        """Count a failure; `who` may be to blame, and ends the comparison after many in a row."""
        self._failed.setdefault(one.name, {})[example.key] = words
        self._tallies[one.name].failed += 1
        for name in who:
            self._in_a_row.setdefault(name, []).append(example.key)
        if any(len(row) >= _IN_A_ROW and len({*row}) >= _QUESTIONS for row in map(self._in_a_row.__getitem__, who)):
            self.stopped = self.stopped or f"{_IN_A_ROW} answers in a row have failed, the last one with: {words}"

    def texts(self, one: Contestant, questions: Sequence[Example]) -> dict[str, GradedAnswer]:
        """The answers of a contestant to these questions, graded or not, by question."""
        return self._known.answers(one, questions)

    def answered(self, one: Contestant, questions: Sequence[Example]) -> dict[str, GradedAnswer]:
        """The complete answers of a contestant to these questions, by question."""
        return self._known.complete(one, questions)

    # ---------------------------------------------------------------------------------------------------- the result

    def gathered(
        self,
        held: Sequence[Example],
        test: Sequence[Example],
        prices: Mapping[str, Price] | None,
        contestants: Sequence[Contestant] | None = None,
    ) -> Gathered:
        """All that is known; with `contestants`, of these alone."""
        asked = {example.key for example in [*held, *test]}
        every = self.contestants if contestants is None else contestants
        failed = {name: {key: why[key] for key in why if key in asked} for name, why in self._failed.items()}
        return Gathered(
            test=test,
            development=held,
            contestants=[*self.tested[:2], *derived(), *self.tested[2:]] if contestants is None else contestants,
            answers={one.name: self.answered(one, [*held, *test]) for one in every},
            failed={one.name: failed[one.name] for one in every if one.name in failed},
            prices=prices,
        )

    def comparison(
        self,
        held: Sequence[Example],
        test: Sequence[Example],
        prices: Mapping[str, Price] | None,
        contestants: Sequence[Contestant] | None = None,
    ) -> Comparison:
        """The result; with `contestants`, of these alone."""
        found = self.gathered(held, test, prices, contestants)
        return comparison_of(
            found,
            draft=self.facts.draft,
            assistant=self.facts.assistants[0],
            grader=self.judge.name,
            max_tokens=self.max_tokens,
            stop=self.stop,
            seed=self.seed,
            unit=self.unit,
            left_out=tuple(self.left_out),
            stopped=self.stopped,
            billed_tokens=self.journal.billed,
            spent_tokens=self.journal.billed - self._before,
            warnings=(
                *dict.fromkeys(words for one in [*held, *test] for words in self.facts.warnings_for(one.prompt)),
                *getattr(self.judge, "warnings", ()),
                *_warnings(found),
                *self.notes,
                *_judging(self.judge),
            ),
        )


def _reason(error: UnsupportedError | SettingError) -> str:
    """The reason why a contestant is left out, without the endpoint's address."""
    hint = getattr(error, "hint", "")
    return f"{error.args[0]}. {hint}" if hint else str(error.args[0])


def _usage_of(partial: object, one: Contestant) -> dict[str, AnswerUsage]:
    """The cost of an answer that was not completed."""
    if not isinstance(partial, FusionResult):
        return {}
    return {one.role[name]: AnswerUsage.of(usage) for name, usage in partial.usage.items()}


def _judging(judge: Grader) -> list[str]:
    """A note on what a model that judges has cost in this run."""
    usage = getattr(judge, "usage", None)
    if not isinstance(usage, Usage) or not usage.requests:
        return []
    tokens = usage.prompt_tokens + usage.completion_tokens
    words = f"grading took {counted(usage.requests, 'request')} and {counted(tokens, 'billed token')} of the judge"
    return [f"{words}, which are not in the bill above"]


def _warnings(found: Gathered) -> list[str]:
    """Notes for the reader."""
    words: list[str] = []
    for name in (DRAFT_ALONE, ASSISTANT_ALONE):
        answers = [*found.answers.get(name, {}).values()]
        cut = sum(one.finish_reason == "length" for one in answers)
        if answers and cut * 10 >= len(answers):
            words.append(f"{counted(cut, 'answer')} of {len(answers)} of the {name} alone ended at max_tokens")
    held = {one.key for one in found.development}
    if failed := {key for name in (DRAFT_ALONE, ASSISTANT_ALONE) for key in found.failed.get(name, {}) if key in held}:
        without = f"without {len(failed)} of the {counted(len(held), 'development question')}"
        words.append(f"the better model was chosen {without}, at which one of the two failed: it may be the other one")
    return words
