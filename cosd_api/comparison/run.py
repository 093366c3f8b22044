"""One run of `compare`: it reuses known answers, requests the missing ones, and grades and stores them."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio

from cosd_api import Example, Fusion, FusionResult, GradingError, Message, SettingError
from cosd_api.comparison.contestants import SELF_CONSISTENCY, Contestant, LeftOut, baselines_of
from cosd_api.comparison.grading import Grader, identity_of
from cosd_api.comparison.journal import AnswerUsage, GradedAnswer, Journal, grading_key
from cosd_api.comparison.prices import ComparisonEstimate, Later, Price, checked_prices, estimated
from cosd_api.comparison.settings import ComparisonSettings, Tally
from cosd_api.extend import AnswerOptions, Endpoints, Facts, SharedLimit, Speed, concurrently, measure_speeds
from cosd_providers import BudgetError, ContextLengthError, ProviderError, UnsupportedError

_IN_A_ROW = 8
"""Number of consecutive failures after which a comparison stops, because a server is probably down."""
_QUESTIONS = 3
"""Minimum number of different questions that failed in a row, because one bad question fails for every contestant."""


@dataclass
class Failures:
    """Failed questions, and for each endpoint and the grader, the consecutive failures that it may have caused."""

    _why: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])  # by contestant and question
    _rows: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # questions, by endpoint or grader

    def add(self, contestant: str, question: str, words: str, who: Sequence[str]) -> str | None:
        """Record a failure that any of `who` may have caused; if the run must stop, return the reason."""
        self._why.setdefault(contestant, {})[question] = words
        rows = [self._rows.setdefault(name, []) for name in who]
        for row in rows:
            row.append(question)
        if any(len(row) >= _IN_A_ROW and len({*row}) >= _QUESTIONS for row in rows):
            return f"{_IN_A_ROW} answers in a row have failed, the last one with: {words}"
        return None

    def works(self, who: str) -> None:
        """Record that an endpoint or the grader works, which ends its sequence of failures."""
        self._rows[who] = []

    def forget(self, contestant: str) -> None:
        """Forget the failures of a contestant that is left out."""
        self._why.pop(contestant, None)

    def of(self, questions: set[str]) -> Mapping[str, Mapping[str, str]]:
        """The reasons why these questions failed, keyed by contestant, then by question."""
        return {name: {key: why[key] for key in why if key in questions} for name, why in self._why.items()}


@dataclass(frozen=True)
class JournalAnswers:
    """Access to the answers of a journal by contestant and question.

    Questions with the same prompt share a text, but each question has its own grade.

    Attributes:
        journal: the journal.
        judge: the grader.
        models: the models' names on their servers: first the draft, then the assistants.
        settings: settings of the run.
    """

    journal: Journal
    judge: Grader
    models: Sequence[str]
    settings: ComparisonSettings
    _keys: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str], init=False)

    def key(self, one: Contestant, example: Example) -> str:
        """The identity of the text of a contestant's answer."""
        if (known := self._keys.get((one.name, example.key))) is not None:
            return known
        prompt = example.model_dump(mode="json", include={"prompt"})
        limits = self.settings
        drawn = limits.seed if one.method is not None and one.method.temperature else None
        made = one.key([*self.models], limits.max_tokens, [*limits.stop], drawn, limits.unit, prompt)
        self._keys[one.name, example.key] = made
        return made

    def grading(self, example: Example) -> str:
        """The identity of the grading for answers to this question."""
        return grading_key(example, identity_of(self.judge) or self.judge.name)

    def answer(self, one: Contestant, example: Example) -> GradedAnswer | None:
        """The contestant's answer, graded or not; None if there is no answer yet."""
        key = self.key(one, example)
        found = self.journal.answers.get(key)
        if found is None:
            return None
        grading = self.grading(example)
        own = {"contestant": one.name, "question": example.key, "graded": grading}
        return found.model_copy(update={**own, "right": self.journal.grades[key].get(grading)})

    def answers(self, one: Contestant, questions: Sequence[Example]) -> dict[str, GradedAnswer]:
        """The contestant's answers to these questions, graded or not, keyed by question."""
        several = ((example.key, self.answer(one, example)) for example in questions)
        return {key: answer for key, answer in several if answer is not None}

    def complete(self, one: Contestant, questions: Sequence[Example]) -> dict[str, GradedAnswer]:
        """The contestant's complete answers to these questions, keyed by question."""
        return {key: answer for key, answer in self.answers(one, questions).items() if answer.complete}

    def missing(self, one: Contestant, questions: Sequence[Example]) -> list[Example]:
        """The questions for which the contestant has no text yet."""
        return [example for example in questions if not self.has(one, example)]

    def has(self, one: Contestant, example: Example) -> bool:
        """Test whether the contestant has a text for a question, graded or not."""
        return self.key(one, example) in self.journal.answers


@dataclass
class ComparisonRun:
    """One run of `compare`: it asks the models, and grades and stores the answers.

    Attributes:
        models: the open endpoints of the models.
        facts: facts about the servers.
        judge: the grader.
        journal: the journal that stores the answers.
        settings: settings of the run.
        stack: exit stack that closes the fusions.
        contestants: contestants that answer, in the order of the standings.
        left_out: contestants that the endpoints cannot serve.
        stopped: the reason why the run ended early; None while it continues.
        failures: the questions that failed.
        known: the answers in the journal.
        notes: notes that the result should show as warnings.
        prices: the price of each model, keyed by the model's name.
    """

    models: Endpoints
    facts: Facts
    judge: Grader
    journal: Journal
    settings: ComparisonSettings
    stack: AsyncExitStack
    contestants: list[Contestant] = field(default_factory=list[Contestant])
    left_out: list[LeftOut] = field(default_factory=list[LeftOut])
    stopped: str | None = None

    def __post_init__(self) -> None:
        self._fusions: dict[str, Fusion] = {}
        self._tallies: dict[str, Tally] = {}
        self._asked: dict[str, anyio.Lock] = {}  # a lock for each text, because several questions may share it
        self._limit = SharedLimit(self.settings.max_billed_tokens, lambda: self.journal.billed)
        self._before = self.journal.billed
        self.known = JournalAnswers(self.journal, self.judge, [*self.named.values()], self.settings)
        self._speeds: Mapping[str, Speed] | None = None
        self.failures = Failures()
        self.notes: list[str] = []
        self.prices: Mapping[str, Price] | None = checked_prices(self.settings.prices, self.named)

    async def take_in(self, several: Sequence[Contestant]) -> list[Contestant]:
        """Add and return the contestants that the endpoints can serve; record why the rest are left out."""
        added: list[Contestant] = []
        providers = [self.models.draft, *self.models.assistants]
        for one in several:
            try:
                fusion = one.fusion(providers, self.settings.unit)
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
        """The models' names on their servers, keyed by `"draft"` and `"assistant"`, or `"assistant 1"` and so on."""
        return {one.name: one.model for one in (self.facts.draft, *self.facts.assistants)}

    @property
    def names(self) -> tuple[str, ...]:
        """The models' names in a comparison, in order."""
        return tuple(self.named)

    @property
    def tested(self) -> list[Contestant]:
        """The contestants that answer the test questions."""
        return [one for one in self.contestants if one.kind != "pilot"]

    @property
    def spent(self) -> int:
        """Number of tokens billed in this run."""
        return self.journal.billed - self._before

    def expect(self, questions: Sequence[Example], several: Sequence[Contestant]) -> None:
        """Add these questions to the totals that the progress of these contestants shows."""
        for one in several:
            self._tallies[one.name].questions += len(questions)

    async def estimate(
        self, held: Sequence[Example], test: Sequence[Example], *, baselines: bool
    ) -> ComparisonEstimate:
        """Estimate the cost of the missing answers; with `baselines`, include baselines that are not added yet."""
        questions = [*held, *test]
        asked = {
            one.name: held if one.kind == "pilot" else questions[-self._tallies[one.name].questions :]
            for one in self.contestants
        }
        gone = {*asked, *(one.name for one in self.left_out)}
        later = {one.name: one.bill for one in baselines_of(len(self.names)) if one.name not in gone}
        later = {name: bill for name, bill in later.items() if baselines and bill in asked}
        votes = later.pop(SELF_CONSISTENCY, None)
        return await self._estimated(asked, len(questions), Later(later, votes), test)

    async def forecast(self, several: Sequence[Contestant], questions: Sequence[Example]) -> ComparisonEstimate:
        """Estimate the cost of these contestants' missing answers to these questions."""
        return await self._estimated({one.name: questions for one in several}, len(questions), Later({}), [])

    async def _estimated(
        self, asked: Mapping[str, Sequence[Example]], questions: int, later: Later, test: Sequence[Example]
    ) -> ComparisonEstimate:
        several = [one for one in self.contestants if one.name in asked]
        to_come = {one.name: self.known.missing(one, asked[one.name]) for one in several}
        return await estimated(
            self._fusions,
            to_come | dict.fromkeys(later.names, test),
            self.settings.max_tokens,
            models=self.names,
            roles={one.name: one.role(self.names) for one in several},
            prices=self.prices,
            later=later,
            known=[found.tokens for one in several for found in self.known.answers(one, asked[one.name]).values()],
            questions=questions,
            most=self.settings.max_billed_tokens,
            concurrency=self.settings.concurrency,
            measure=self._measure if self.settings.dry_run else None,
        )

    async def _measure(self, prompt: str | Sequence[Message], at_once: int) -> Mapping[str, Speed]:
        """Measure the models' speeds at the first call, and return them at every call; see `measure_speeds`."""
        if self._speeds is None:
            self._speeds = await measure_speeds(self.models, prompt, at_once=at_once, reading=True)
        return self._speeds

    async def ask(self, questions: Sequence[Example], several: Sequence[Contestant]) -> None:
        """Let these contestants answer the questions, one question after the other.

        The order of the contestants varies with the question, because the first contestant to answer is slower: no
        server has the prompt in its cache yet. Known texts are processed first. If the grader's grades are not kept,
        known texts are graded even after the run has stopped asking. Questions that failed in an earlier run come last,
        so that they do not stop every run at the same point.
        """
        pairs = [(one, example) for example in questions for one in self._in_order(several, example)]
        pairs.sort(key=lambda pair: (self.known.key(*pair) in self.journal.failed, not self.known.has(*pair)))
        free = identity_of(self.judge) is None
        waiting = deque(pairs)
        errors: list[Exception] = []

        async def work() -> None:
            while waiting:
                one, example = waiting.popleft()
                over = self.stopped is not None and not (free and self.known.has(one, example))
                if over or one not in self.contestants:
                    continue
                try:
                    await self._take(one, example)
                    self._report()
                except Exception as error:  # noqa: BLE001 - raised below, after the answers in flight are kept
                    errors.append(error)
                    waiting.clear()
            self._limit.ended()

        self._report()
        self._limit.workers = min(self.settings.concurrency, len(waiting))
        async with anyio.create_task_group() as group:
            for _ in range(self._limit.workers):
                group.start_soon(work)
        if errors:
            raise errors[0]
        if self._limit.reached and self.stopped is not None:  # answers in progress were billed meanwhile
            self.stopped = self._limit.words()

    async def grade(self, questions: Sequence[Example], several: Sequence[Contestant]) -> None:
        """Grade the known answers of these contestants, before the estimate is shown.

        A grader whose grades are kept is not called here, because it may be expensive.
        """
        if identity_of(self.judge) is not None:
            return

        async def grade(one: Contestant, example: Example) -> None:
            answer = self.known.answer(one, example)
            if answer is not None and not answer.complete:
                await self._grade(answer, example)

        work = [partial(grade, one, example) for one in several for example in questions]
        await concurrently(work, self.settings.concurrency)

    def _report(self) -> None:
        if self.settings.progress is not None:
            self.settings.progress([*self._tallies.values()])

    def _in_order(self, several: Sequence[Contestant], example: Example) -> list[Contestant]:
        def place(one: Contestant) -> bytes:
            return hashlib.sha256(f"{self.settings.seed} {example.key} {one.name}".encode()).digest()

        return sorted(several, key=place)

    async def _take(self, one: Contestant, example: Example) -> None:
        """Process one question for one contestant: reuse or request the answer, grade it and count it."""
        key = self.known.key(one, example)
        async with self._asked.setdefault(key, anyio.Lock()):
            answer = self.known.answer(one, example)
            if answer is None:
                keys = {"key": key, "graded": self.known.grading(example), "question": example.key}
                answer = await self._answer(one, example, keys)
                if answer is not None:
                    self._note_asked(one, answer)
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

    def _note_asked(self, one: Contestant, answer: GradedAnswer) -> None:
        """Count an answer that the models have given in this run."""
        if (tally := self._tallies.get(one.name)) is not None:
            tally.asked += 1
            tally.spent += answer.billed
            tally.money += answer.money(self.prices) or 0.0

    async def _answer(self, one: Contestant, example: Example, keys: Mapping[str, Any]) -> GradedAnswer | None:
        """Request the contestant's answer, and add it to the journal without a grade; None if there is no answer.

        The tokens billed for failed requests are recorded in the journal, too.
        """
        limits: AnswerOptions = {"max_tokens": self.settings.max_tokens, "stop": self.settings.stop}
        fusion, role = self._fusions[one.name], one.role(self.names)
        if fusion.settings.method.temperature:
            limits["seed"] = self.settings.seed
        answer, least = None, 0
        while answer is None:
            guess = len(str(example.prompt)) + self.settings.max_tokens  # upper estimate for the first answer
            allowed = await self._limit.share(one.name, guess, least, lambda: self.stopped is None)
            if self._limit.reached:
                self.stopped = self.stopped or self._limit.words()
            if allowed is None and self._limit.most is not None:
                return None
            if allowed is not None:
                limits["max_billed_tokens"] = allowed
            self._limit.take(allowed)
            try:
                result = await fusion.generate(example.prompt, **limits)
            except ProviderError as error:
                cut = isinstance(error, BudgetError)
                usage = _usage_of(error.partial, role)
                line = GradedAnswer(
                    type="cut" if cut else "failed", contestant=one.name, usage=usage, error=str(error), **keys
                )
                if line.billed or not cut:
                    self.journal.add(line)
                if cut:
                    least = (allowed or 0) + 1  # retry only if the limit now allows more tokens
                    continue
                self._give_up(one, example, error)
                return None
            else:  # count the answer towards the limit before it is graded, because grading may never end
                answer = GradedAnswer.of(result, one.name, role, **keys)
                self.journal.add(answer)
            finally:
                self._limit.give_back(allowed)
        for name, spent in answer.usage.items():
            if spent.requests:
                self.failures.works(name)
        return answer

    async def _grade(self, answer: GradedAnswer, example: Example) -> GradedAnswer:
        """Grade the answer, and record the grade; see `graded`."""
        found = await graded(self.judge, answer, example)
        self.journal.grade(found)
        if found.right is not None:
            self.failures.works("grader")
        return found

    def _give_up(self, one: Contestant, example: Example, error: ProviderError) -> None:
        """Count a failed answer, or drop a contestant that the endpoints cannot serve.

        Raises:
            UnsupportedError: the contestant is a model alone, and no comparison is possible without it.
        """
        if one not in self.contestants:
            return  # another task has dropped the contestant
        if not isinstance(error, UnsupportedError) or self._tallies[one.name].answered:
            about_one = isinstance(error, ContextLengthError)  # does not suggest that a server is down
            self._fail(one, example, str(error), () if about_one else self.names)
            return
        if one.kind == "alone":
            raise error
        self.contestants.remove(one)
        self.failures.forget(one.name)
        del self._tallies[one.name]
        self.left_out.append(LeftOut(one.name, _reason(error)))

    def _fail(self, one: Contestant, example: Example, words: str, who: Sequence[str]) -> None:
        """Count a failure that any of `who` may have caused; many failures in a row stop the comparison."""
        self._tallies[one.name].failed += 1
        over = self.failures.add(one.name, example.key, words, who)
        self.stopped = self.stopped or over


def _reason(error: UnsupportedError | SettingError) -> str:
    """Say why a contestant is left out, without the endpoint's address."""
    hint = getattr(error, "hint", "")
    return f"{error.args[0]}. {hint}" if hint else str(error.args[0])


def _usage_of(partial: object, role: Mapping[str, str]) -> dict[str, AnswerUsage]:
    """The usage of an incomplete answer, keyed by endpoint."""
    if not isinstance(partial, FusionResult):
        return {}
    return {role[name]: AnswerUsage.of(usage) for name, usage in partial.usage.items()}


async def graded(judge: Grader, answer: GradedAnswer, example: Example) -> GradedAnswer:
    """Return the answer with its grade or, if the grader failed, with the reason for the failure."""
    try:
        right = await judge(example, answer.text)
    except (GradingError, ProviderError) as error:
        return answer.model_copy(update={"right": None, "error": f"it was not graded: {error}"})
    except Exception as error:
        error.add_note(f"when the grader {judge.name} read the answer of {answer.contestant!r}")
        raise
    return answer.model_copy(update={"right": bool(right), "error": None})
