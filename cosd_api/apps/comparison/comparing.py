"""`compare`: each model, every way to fuse the models, and baselines answer questions; the answers are graded."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio

from cosd_api import CoSD, Example, Fusion, FusionResult, GradingError, RandomVerifier, SettingError
from cosd_api.apps.comparison.contestants import (
    COSD,
    EVERYWHERE,
    ORACLE,
    RANDOM,
    SELF_CONSISTENCY,
    Chosen,
    Contestant,
    LeftOut,
    SelfConsistency,
    alone,
    baseline_names,
    contestants_of,
    turned,
)
from cosd_api.apps.comparison.graders import Grader, check_grader, group_of, repeated_prompts
from cosd_api.apps.comparison.journal import AnswerUsage, GradedAnswer, Journal, JournalHeader
from cosd_api.apps.comparison.prices import ComparisonEstimate, Prices, checked_prices, estimated
from cosd_api.apps.comparison.standings import Comparison, FailedAnswer, standings_of
from cosd_api.apps.training.dataset import check_examples
from cosd_api.checks import check_stop, check_unit
from cosd_api.common.wording import counted, with_article
from cosd_api.extend import Endpoints, SharedLimit, Unit, check_count
from cosd_api.settings import DEFAULT_MAX_TOKENS, AnswerOptions
from cosd_providers import BudgetError, ContextLengthError, Provider, ProviderError, UnsupportedError

DEVELOPMENT = 0.2
"""Share of the questions that is held out to set the baselines, if there are baselines."""
MOST_SAMPLES = 40
"""Maximum number of samples for self-consistency; more would change little, even if CoSD's bill would pay for them."""
NOT_CONFIRMED = "it was not confirmed"
"""The reason why a comparison has no result if its cost was declined."""
_IN_A_ROW = 8
"""Number of consecutive failures after which a comparison stops, because a server is probably down."""
_QUESTIONS = 3
"""Minimum number of different questions that failed in a row, because one bad question fails for every contestant."""


async def compare(
    examples: Iterable[Example | Mapping[str, Any]],
    *,
    draft: str | Provider,
    assistant: str | Provider | Sequence[str | Provider],
    methods: Chosen = "all",
    both_ways: bool = True,
    baselines: bool = True,
    grader: str | Grader | Callable[[Example, str], Any] = "exact",
    path: str | Path | None = None,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    stop: str | Sequence[str] | None = None,
    seed: int = 0,
    unit: Unit | None = None,
    concurrency: int = 4,
    max_billed_tokens: int | None = None,
    prices: Prices | None = None,
    confirm: Callable[[ComparisonEstimate], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
    dry_run: bool = False,
) -> Comparison:
    """Let each model alone, every way to fuse them, and baselines answer questions; grade and compare the answers.

    Methods that these endpoints cannot serve are left out; `Comparison.left_out` gives the reasons. With several
    assistants, every method fuses all of the models. Methods that support only two models are then left out of `"all"`,
    and naming one is an error. A question at which an endpoint fails counts as failed, neither right nor wrong, and is
    asked again when the comparison is resumed. After eight failures in a row, the comparison stops.

    Args:
        examples: `Example` objects, or dictionaries with the same fields. Questions with the same `group` count as one
            in intervals and tests. Questions with the same prompt, `answer` and `ends` are
            asked only once.
        assistant: a URL or a provider, or several of them.
        methods: `"all"` for all methods with their defaults; or several methods, given as names, as objects such as
            `CoSD(verifier=tree)`, or as a mapping whose values are such names or objects.
        both_ways: whether each method is also run with each assistant as the draft; the other models then assist, in
            the order given.
        baselines: whether to add the baselines `random gate` and `self-consistency`, if `"cosd"` is among the methods.
            A fifth of the questions is held out to set them, and does not count in any standing. CoSD answers these
            questions once more, and asks the assistants at every place.
        grader: judge of the answers, given as a name (see `grader_named`), a `Grader`, or a function of an example and
            a text.
        path: a JSON lines file, to which each answer is appended when it is complete; it is locked against other runs.
            The same call resumes an interrupted comparison. Known texts are graded again, and models are asked again
            only for self-consistency if the grader has changed, because its vote depends on the grader.
        concurrency: number of answers that are requested at the same time. Latencies are measured under this load.
        max_billed_tokens: limit on the tokens that the whole comparison may bill, including those recorded in `path`.
            The comparison stops before an answer that would exceed the limit.
        prices: price of a million tokens read and of a million tokens written at each endpoint, as in
            `{"draft": (0.2, 0.6), "assistant": (3, 15)}`. If there are several assistants, they are named
            `"assistant 1"` and so on.
        confirm: called with the estimated cost of the missing answers, before any of them is requested; returning False
            ends the run.
        progress: called at the start and after each answer, with the number of answers so far and of all answers.
        dry_run: end after passing the estimate to `confirm`, without asking for answers. The file at `path` need not
            exist. It is only read, so another run may have it open.

    The other arguments are described at `Fusion.generate`, and hold for each answer.

    Returns:
        The comparison; if it is not complete, `stopped` says why.

    Raises:
        SettingError: an argument or an example is invalid; a named method does not support this number of models; or
            the file is not a journal of these models.
        UnsupportedError: an endpoint cannot answer at all.
        ProviderError: an endpoint failed at discovery.
        OSError: the file cannot be read or written.
    """
    run = ComparisonRun(
        [*check_examples(examples).values()],
        Endpoints(draft, assistant, unit=unit, method=alone()[0].method),
        check_grader(grader),
        path=None if path is None else Path(path),
        write=not dry_run,
        max_tokens=max_tokens,
        stop=check_stop(stop),
        seed=seed,
        unit=unit,
        concurrency=concurrency,
        max_billed_tokens=max_billed_tokens,
        prices=prices,
        progress=progress,
    )
    async with run:
        chosen, run.left_out = contestants_of(methods, len(run.names), both_ways=both_ways)
        await run.add([*alone(len(run.names)), *chosen])
        if baselines and all(one.name != COSD for one in run.contestants):
            baselines, reason = False, f"it is made after {COSD}, which has not answered"
            run.left_out += [LeftOut(name, reason) for name in (SELF_CONSISTENCY, RANDOM)]
        held, test = split(run.examples) if baselines else ([], run.examples)
        choosing = [one for one in run.contestants if one.kind == "alone"]
        if baselines:
            turns = [COSD + turned(first, len(run.names)) for first in range(len(run.names))]
            cosd = [one for one in run.contestants if one.name in turns]
            pilots = [replace(one, name=EVERYWHERE + one.name.removeprefix(COSD), kind="pilot") for one in cosd]
            await run.grade(held, choosing)
            choosing += [*(one for one in cosd if one.name == COSD), *await run.add(pilots)]
        tested = [one for one in run.contestants if one.kind != "pilot"]
        run.expect(held, choosing)
        run.expect(test, tested)
        made = await run.add_baselines(held, test, sure=True) if baselines else []
        if confirm is not None and not confirm(await run.estimate(test if baselines else [])):
            run.stopped = NOT_CONFIRMED
        if dry_run:
            run.stopped = "no question was asked, in a dry run"
        else:
            await run.ask(held, choosing)
            made += await run.add_baselines(held, test, sure=False) if baselines else []
            order = baseline_names(len(run.names))
            made.sort(key=lambda one: order.index(one.name))
            await run.ask(test, [*tested, *made])
        return run.result(held, test, [one for one in [*tested, *made] if one in run.contestants])


def split(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Split questions into development questions, which set the baselines, and test questions; see `Comparison`.

    Raises:
        SettingError: there is only one question.
    """
    if len(examples) < 2:
        raise SettingError("a comparison with baselines needs at least two questions: one to set them, one to test")
    count = max(1, round(DEVELOPMENT * len(examples)))
    held = {*sorted(example.key for example in examples)[:count]}
    return [one for one in examples if one.key in held], [one for one in examples if one.key not in held]


@dataclass
class ComparisonRun:
    """One run of `compare`: it reuses known answers, requests the missing ones, and grades and stores them.

    Entering this context manager opens the endpoints and the journal; there are no contestants yet.

    Attributes:
        models: the endpoints of the models.
        write: whether answers are written to the journal.
        contestants: contestants that answer.
        left_out: contestants that the endpoints cannot serve.
        stopped: the reason why the run ended early; None while it continues.
        failures: the reasons why questions failed, keyed by contestant, then by question.

    The other attributes are arguments of `compare`.

    Raises:
        SettingError: an argument or an example is invalid or, on entering, the file is not a journal of these models.
        ProviderError: on entering, an endpoint failed.
    """

    examples: Sequence[Example]
    models: Endpoints
    judge: Grader
    path: Path | None = None
    write: bool = True
    max_tokens: int = DEFAULT_MAX_TOKENS
    stop: tuple[str, ...] = ()
    seed: int = 0
    unit: Unit | None = None
    concurrency: int = 4
    max_billed_tokens: int | None = None
    prices: Prices | None = None
    progress: Callable[[int, int], None] | None = None
    contestants: list[Contestant] = field(default_factory=list[Contestant])
    left_out: list[LeftOut] = field(default_factory=list[LeftOut])
    stopped: str | None = None
    failures: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

    def __post_init__(self) -> None:
        check_count("max_tokens", self.max_tokens)
        check_count("seed", self.seed, least=0)
        check_count("concurrency", self.concurrency)
        if self.max_billed_tokens is not None:
            check_count("max_billed_tokens", self.max_billed_tokens)
        check_unit(self.unit)
        for number, example in enumerate(self.examples, 1):
            try:
                self.judge.check(example)
            except SettingError as error:
                raise SettingError(f"example {number}: {error}") from None
        self._stack = AsyncExitStack()
        self._fusions: dict[str, Fusion] = {}
        self._asked: dict[str, list[Example]] = {}  # the questions of each contestant
        self._done: dict[str, int] = {}  # how many of them it has answered, or failed at
        self._keys: dict[tuple[str, str], str] = {}
        self._grades: dict[tuple[str, str], bool] = {}  # by the keys of text and question
        self._in_a_row: dict[str, list[str]] = {}  # failed questions, by the endpoint or grader that may be the cause
        self._locks: dict[str, anyio.Lock] = {}  # one for each text, because several questions may share it

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.models)
            self.facts = await self.models.discover()
            first, *more = self.facts.assistants
            header = JournalHeader(draft=self.facts.draft, assistant=first, more_assistants=tuple(more))
            self.journal = stack.enter_context(Journal(self.path, header, write=self.write))
            self.known_prices = checked_prices(self.prices, {one.name: one.model for one in header.models})
            self._stack = stack.pop_all()
        self.names = [one.name for one in header.models]
        self.before = self.journal.billed
        self.limit = SharedLimit(self.max_billed_tokens, lambda: self.journal.billed)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    # Contestants.

    async def add(self, several: Sequence[Contestant]) -> list[Contestant]:
        """Add and return the contestants that the endpoints can serve; record why the rest are left out."""
        added: list[Contestant] = []
        for one in several:
            try:
                fusion = one.fusion([self.models.draft, *self.models.assistants], self.unit)
                await self._stack.enter_async_context(fusion)
                await fusion.endpoints.discover()
            except (UnsupportedError, SettingError) as error:
                if one.kind == "alone":
                    raise
                self.left_out.append(LeftOut(one.name, _reason(error)))
                continue
            self._fusions[one.name] = fusion
            self._asked[one.name], self._done[one.name] = [], 0
            added.append(one)
        self.contestants += added
        return added

    def expect(self, questions: Sequence[Example], several: Sequence[Contestant]) -> None:
        """Announce that these contestants will be asked these questions, for the estimate and the progress."""
        for one in several:
            self._asked[one.name] += questions

    async def add_baselines(self, held: Sequence[Example], test: Sequence[Example], *, sure: bool) -> list[Contestant]:
        """Add and return the missing baselines; with `sure`, only those whose settings no further answer can change."""
        known = {one.name: self.answers(one, held) for one in self.contestants}
        there = {*known, *(one.name for one in self.left_out)}
        found: list[Contestant] = []
        for name in baseline_names(len(self.names)):
            votes = name == SELF_CONSISTENCY
            after = COSD if votes else EVERYWHERE + name.removeprefix(RANDOM)
            answers = known.get(after, {})
            needed = [after, *(self.names if votes else ())]
            if name in there or (sure and any(len(known.get(one, {})) < len(held) for one in needed)):
                continue
            if answers and votes:
                found.append(self._vote(held, known))
            elif answers:
                differing = sum(one.differing or 0 for one in answers.values())
                rate = sum(len(one.replaced) for one in answers.values()) / differing if differing else 0.0
                gate = CoSD(verifier=RandomVerifier(rate=rate, seed=self.seed))
                first = next(one.first for one in self.contestants if one.name == after)
                found.append(Contestant(name, "baseline", gate, first))
            elif self.stopped is None and after in known:
                self.left_out.append(LeftOut(name, f"it is made after {after}, which has not answered"))
        added = await self.add(found)
        self.expect(test, added)
        return added

    def _vote(self, held: Sequence[Example], known: Mapping[str, Mapping[str, GradedAnswer]]) -> Contestant:
        """Make self-consistency: the better model draws as many samples as CoSD's billed tokens pay for."""
        models = [one for one in self.contestants if one.kind == "alone"]
        _, better = standings_of(models, held, {one.name: self.answers(one, held, graded=True) for one in models})
        common = known[COSD].keys() & known[better].keys()
        bills = (sum(known[name][key].billed for key in common) for name in (COSD, better))
        method = SelfConsistency(samples=equal_bill(*bills), grader=self.judge.name, reads=self._reads)
        return Contestant(SELF_CONSISTENCY, "baseline", method, self.names.index(better))

    def _reads(self, prompt: str, text: str) -> str | None:
        """Read a sample's vote: the answer that the grader reads, else the stripped text."""
        example = next((one for one in self.examples if _plain(one) == prompt), None)
        found = None if example is None else self.judge.reads(example, text)
        return found if found is not None else text.strip() or None

    # Known answers.

    def key(self, one: Contestant, example: Example) -> str:
        """The identity of the text of a contestant's answer."""
        if (one.name, example.key) not in self._keys:
            prompt = example.model_dump(mode="json", include={"prompt"})
            drawn = self.seed if one.method is not None and one.method.temperature else None
            made = one.key(
                [one.model for one in self.journal.header.models],
                self.max_tokens,
                [*self.stop],
                drawn,
                self.unit,
                prompt,
            )
            self._keys[one.name, example.key] = made
        return self._keys[one.name, example.key]

    def answer(self, one: Contestant, example: Example) -> GradedAnswer | None:
        """The contestant's answer, graded or not; None if there is no answer yet."""
        key = self.key(one, example)
        if (found := self.journal.answers.get(key)) is None:
            return None
        right = self._grades.get((key, example.key))
        return found.model_copy(update={"contestant": one.name, "question": example.key, "right": right})

    def answers(
        self, one: Contestant, questions: Sequence[Example], *, graded: bool = False
    ) -> dict[str, GradedAnswer]:
        """The contestant's answers to these questions, keyed by question; with `graded`, only those with a grade."""
        several = ((example.key, self.answer(one, example)) for example in questions)
        return {key: found for key, found in several if found and not (graded and found.right is None)}

    async def estimate(self, test: Sequence[Example] = ()) -> ComparisonEstimate:
        """Estimate the cost of the missing answers.

        Args:
            test: the test questions, if baselines that are not added yet will answer them.
        """
        known = {one.name: self.answers(one, self._asked[one.name]) for one in self.contestants}
        to_come = {name: [one for one in self._asked[name] if one.key not in there] for name, there in known.items()}
        costs, roles = {name: name for name in known}, {one.name: one.role(self.names) for one in self.contestants}
        for name in baseline_names(len(self.names)) if test else ():
            bill = COSD + name.removeprefix(RANDOM) if name != SELF_CONSISTENCY else COSD  # which pays for the samples
            if bill in known and name not in {*known, *(one.name for one in self.left_out)}:
                to_come[name], costs[name] = [*test], bill
        return await estimated(
            {name: self._fusions[bill] for name, bill in costs.items()},
            to_come,
            rough={*costs} - {*known},
            roles={name: roles[bill] for name, bill in costs.items()},
            prices=self.known_prices,
            max_tokens=self.max_tokens,
            known=[one.tokens for several in known.values() for one in several.values()],
            questions=len(self.examples),
            most=self.max_billed_tokens,
        )

    # Asking.

    async def ask(self, questions: Sequence[Example], several: Sequence[Contestant]) -> None:
        """Let these contestants answer the questions, one question after the other.

        The order of the contestants varies with the question, because the first contestant to answer is slower: no
        server has the prompt in its cache yet. Known texts are processed first; they are graded even after the run has
        stopped asking. Questions that failed in an earlier run come last, so that they do not stop every run at the
        same point.
        """

        def place(one: Contestant, example: Example) -> bytes:
            return hashlib.sha256(f"{self.seed} {example.key} {one.name}".encode()).digest()

        pairs = [
            (one, example) for example in questions for one in sorted(several, key=partial(place, example=example))
        ]
        pairs.sort(key=lambda pair: (self.key(*pair) in self.journal.failed, self.answer(*pair) is None))
        waiting = deque(pairs)
        errors: list[Exception] = []

        async def work() -> None:
            while waiting:
                one, example = waiting.popleft()
                if one not in self.contestants or (self.stopped is not None and self.answer(one, example) is None):
                    continue
                try:
                    await self._take(one, example)
                    self._report()
                except Exception as error:  # noqa: BLE001 - raised below, after the answers in flight are kept
                    errors.append(error)
                    waiting.clear()
            self.limit.ended()

        self._report()
        self.limit.workers = min(self.concurrency, len(waiting))
        async with anyio.create_task_group() as group:
            for _ in range(self.limit.workers):
                group.start_soon(work)
        if errors:
            raise errors[0]
        if self.limit.reached and self.stopped is not None:  # answers in progress were billed meanwhile
            self.stopped = self.limit.words()

    def _report(self) -> None:
        if self.progress is not None:
            total = sum(map(len, self._asked.values()))
            self.progress(sum(self._done.values()), total)

    async def _take(self, one: Contestant, example: Example) -> None:
        """Process one question for one contestant: reuse or request the answer, grade it and count it."""
        async with self._locks.setdefault(self.key(one, example), anyio.Lock()):
            if self.answer(one, example) is None:
                await self._request(one, example)
            answer = self.answer(one, example)
            if answer is None:
                return
            self.limit.note(one.name, answer.billed)
            error = await self._grade(answer, example)
        if one not in self.contestants:
            return  # another task has dropped the contestant
        if error is None:
            self._done[one.name] += 1
        else:
            self._fail(one, example, error, ("grader",))

    async def grade(self, questions: Sequence[Example], several: Sequence[Contestant]) -> None:
        """Grade the known answers of these contestants, before the estimate is shown."""
        for one in several:
            for example in questions:
                if (answer := self.answer(one, example)) is not None:
                    await self._grade(answer, example)

    async def _grade(self, answer: GradedAnswer, example: Example) -> str | None:
        """Grade an answer; if the grader failed, return the reason."""
        if answer.right is not None:
            return None
        try:
            right = await self.judge(example, answer.text)
        except (GradingError, ProviderError) as error:
            return f"it was not graded: {error}"
        except Exception as error:
            error.add_note(f"when the grader {self.judge.name} read the answer of {answer.contestant!r}")
            raise
        self._grades[answer.key, example.key] = bool(right)
        self._in_a_row["grader"] = []
        return None

    async def _request(self, one: Contestant, example: Example) -> None:
        """Request the contestant's answer, and add it to the journal without a grade.

        The tokens billed for failed requests are recorded in the journal, too.
        """
        fusion, role = self._fusions[one.name], one.role(self.names)
        keys: dict[str, Any] = {"key": self.key(one, example), "contestant": one.name, "question": example.key}
        limits: AnswerOptions = {"max_tokens": self.max_tokens, "stop": self.stop}
        if fusion.settings.method.temperature:
            limits["seed"] = self.seed
        least = 0
        while True:
            guess = len(str(example.prompt)) + self.max_tokens  # upper estimate for the first answer
            allowed = await self.limit.share(one.name, guess, least, lambda: self.stopped is None)
            if self.limit.reached:
                self.stopped = self.stopped or self.limit.words()
            if allowed is None and self.limit.most is not None:
                return
            if allowed is not None:
                limits["max_billed_tokens"] = allowed
            self.limit.take(allowed)
            try:
                result = await fusion.generate(example.prompt, **limits)
                answer = GradedAnswer.of(result, role, **keys)
                self.journal.add(answer)  # counted before it is graded, because grading may never end
            except ProviderError as error:
                cut, usage = isinstance(error, BudgetError), dict[str, AnswerUsage]()
                if isinstance(error.partial, FusionResult):
                    usage = {role[name]: AnswerUsage.of(one) for name, one in error.partial.usage.items()}
                line = GradedAnswer(type="cut" if cut else "failed", usage=usage, error=str(error), **keys)
                if line.billed or not cut:
                    self.journal.add(line)
                if not cut:
                    self._give_up(one, example, error)
                    return
                least = (allowed or 0) + 1  # retry only if the limit now allows more tokens
            else:
                self._in_a_row |= {name: [] for name, spent in answer.usage.items() if spent.requests}
                return
            finally:
                self.limit.give_back(allowed)

    def _give_up(self, one: Contestant, example: Example, error: ProviderError) -> None:
        """Count a failed answer, or drop a contestant that the endpoints cannot serve.

        Raises:
            UnsupportedError: the contestant is a model alone, and no comparison is possible without it.
        """
        if one not in self.contestants:
            return  # another task has dropped the contestant
        if not isinstance(error, UnsupportedError) or self._done[one.name] > len(self.failures.get(one.name, ())):
            about_one = isinstance(error, ContextLengthError)  # does not suggest that a server is down
            self._fail(one, example, str(error), () if about_one else self.names)
            return
        if one.kind == "alone":
            raise error
        self.contestants.remove(one)
        self.failures.pop(one.name, None)
        del self._asked[one.name], self._done[one.name]
        self.left_out.append(LeftOut(one.name, _reason(error)))

    def _fail(self, one: Contestant, example: Example, words: str, who: Sequence[str]) -> None:
        """Count a failure that any of `who` may have caused; many failures in a row stop the comparison."""
        self._done[one.name] += 1
        self.failures.setdefault(one.name, {})[example.key] = words
        for row in [self._in_a_row.setdefault(name, []) for name in who]:
            row.append(example.key)
            if len(row) >= _IN_A_ROW and len({*row}) >= _QUESTIONS:
                over = f"{_IN_A_ROW} answers in a row have failed, the last one with: {words}"
                self.stopped = self.stopped or over

    # The result.

    def result(self, held: Sequence[Example], test: Sequence[Example], contestants: Sequence[Contestant]) -> Comparison:
        """Make the result so far, complete or not, with standings of these contestants."""
        keys = {one.key for one in held}
        failures = [
            FailedAnswer(contestant=name, question=key, error=words, development=key in keys)
            for name, why in self.failures.items()
            for key, words in why.items()
        ]
        questions, count = [*held, *test], len(self.names)
        answers = {one.name: self.answers(one, questions, graded=True) for one in self.contestants}
        ordered = [*contestants[:count], Contestant(ORACLE, "derived"), *contestants[count:]]
        standings, better = standings_of(ordered, test, answers, failures, self.known_prices)
        if self.stopped is None:
            lost = [one.name for one in standings if one.asked != len(test)]
            assert not lost, f"complete, but not all questions of {', '.join(lost)} were answered or failed"
        first, *more = self.facts.assistants
        return Comparison(
            draft=self.facts.draft,
            assistant=first,
            more_assistants=tuple(more),
            questions=len(test),
            groups={one.key: group_of(one) for one in test if one.group is not None},
            development=tuple(one.key for one in held),
            better=better,
            grader=self.judge.name,
            max_tokens=self.max_tokens,
            stop=self.stop,
            seed=self.seed,
            unit=self.unit,
            standings=tuple(standings),
            left_out=tuple(self.left_out),
            stopped=self.stopped,
            billed_tokens=self.journal.billed,
            spent_tokens=self.journal.billed - self.before,
            answers=tuple(by[one.key] for one in questions for by in answers.values() if one.key in by),
            failures=tuple(failures),
            warnings=tuple(self._warnings(questions, answers)),
        )

    def _warnings(self, questions: Sequence[Example], answers: Mapping[str, Mapping[str, GradedAnswer]]) -> list[str]:
        """Warn about prompts, about answers cut off by `max_tokens`, and about repeated prompts."""
        words = [*dict.fromkeys(words for one in questions for words in self.facts.warnings_for(one.prompt))]
        for name in self.names:
            cut = sum(one.finish_reason == "length" for one in answers[name].values())
            if cut and cut * 10 >= len(answers[name]):
                mine = f"{counted(cut, 'answer')} of {len(answers[name])} of {with_article(name)} alone"
                words.append(f"{mine} ended at max_tokens")
        if repeated := repeated_prompts(questions):
            words.append(
                f"{counted(repeated, 'question')} share their prompts with others: if they ask for the same thing, "
                "give them one group, or the intervals are too narrow"
            )
        return words


def _plain(example: Example) -> str:
    prompt = example.prompt
    return prompt if isinstance(prompt, str) else "\n\n".join(message.content for message in prompt)


def equal_bill(pays: int, one: int) -> int:
    """Number of answers that a bill pays for, from 1 to `MOST_SAMPLES`, if one costs `one` tokens."""
    return min(MOST_SAMPLES, max(1, round(pays / one))) if one else 1


def _reason(error: UnsupportedError | SettingError) -> str:
    """Say why a contestant is left out, without the endpoint's address."""
    hint = getattr(error, "hint", "")
    return f"{error.args[0]}. {hint}" if hint else str(error.args[0])
