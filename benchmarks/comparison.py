"""The section `simulated`: all methods on a pair of invented models of realistic speeds, behind simulated networks.

Every method runs in a process of its own and in real time; several processes run at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import count

import anyio

from benchmarks.invented import Speech, prompt_of
from benchmarks.methods import METHODS, Method
from benchmarks.proxy import delayed
from benchmarks.report import Options
from benchmarks.simulated import Simulated, Speeds, simulated
from benchmarks.worker import Job, Run, working

__all__ = ["CASES", "Case", "Measured", "compare"]


@dataclass(frozen=True, slots=True)
class Case:
    """The parameters of one comparison.

    Attributes:
        acceptance: share of the draft's tokens that are kept, in [0, 1].
        round_trip: round trip in seconds.
        context: length of the prompt in tokens.
        length: length of an answer in tokens.
        seeds: seeds of the prompts; each prompt gets one answer.
        hit: share of replacements that are the draft's second choice.
    """

    acceptance: float = 0.9
    round_trip: float = 0.02
    context: int = 512
    length: int = 512
    seeds: tuple[int, ...] = (1, 2, 3)
    hit: float = 0.7

    @property
    def title(self) -> str:
        """A description of the case."""
        where = f"{self.round_trip * 1000:g} ms, {self.context:,} tokens of context"
        return f"Acceptance {self.acceptance:g}, round trip {where}"

    @property
    def speech(self) -> Speech:
        """The pair of models."""
        return Speech(acceptance=self.acceptance, hit=self.hit)

    def typical(self) -> Case:
        """The same case with the first prompts whose texts match the acceptance and hit rate to within one token."""
        replaced = (1 - self.acceptance) * self.length
        seeds: list[int] = []
        for seed in count(1):
            found, hits = self.speech.replaced(prompt_of(self.context, seed).encode(), self.length)
            if abs(found - replaced) <= 1 and abs(hits - self.hit * found) <= 1:
                seeds.append(seed)
                if len(seeds) == len(self.seeds):
                    break
        return replace(self, seeds=tuple(seeds))


CASES = (
    Case(acceptance=0.7),
    Case(round_trip=0.08),
    Case(acceptance=0.8),
    Case(),
    Case(acceptance=0.98),
    Case(context=4000),
    Case(round_trip=0.001),
)
QUICK = (Case(length=160, seeds=(1,)),)

ALONE = next(method.name for method in METHODS if method.alone)
LIBRARY = "a: cosd-api"
SLOW_AT = 0.9
"""The only acceptance at which (c) runs, because (c) always takes several times as long as the other methods."""

_AT_ONCE = 10  # number of processes that run at the same time; they mostly sleep


@dataclass(slots=True)
class Measured:
    """The results of all methods on one case: for each method, one answer per seed, in the order of the seeds."""

    case: Case
    speeds: Speeds
    runs: dict[str, list[Run]] = field(default_factory=dict[str, list[Run]])

    def alone(self) -> list[Run]:
        """The runs of (d)."""
        return self.runs[ALONE]

    def verification(self) -> float:
        """Seconds from a question to its answer: the round trip and the assistant's time."""
        return self.case.round_trip + self.speeds.verify

    def restart(self) -> float:
        """Seconds from a request to its first token, on an open connection."""
        return self.case.round_trip + self.speeds.first

    def replacements(self) -> list[int]:
        """The number of replacements in each text, which is the same for all methods that replace tokens."""
        return [run.answer.replacements for run in self.runs[LIBRARY]]

    def floor(self, *, twice: bool = False) -> list[float]:
        """The lower bound in seconds for each seed: (d), plus one verification and one restart per replacement.

        The first token of a restart is also one of (d)'s tokens. It is counted once, or twice if `twice` is set.
        """
        each = self.verification() + self.restart() - (0.0 if twice else self.speeds.token)
        return [run.answer.seconds + times * each for run, times in zip(self.alone(), self.replacements(), strict=True)]

    def seconds(self, name: str) -> list[float]:
        """Seconds that a method took, for each seed."""
        return [run.answer.seconds for run in self.runs[name]]

    def best_of_rounds(self) -> list[float]:
        """Seconds that (b) took for each seed, with the K that is best over all seeds."""
        names = [method.name for method in METHODS if (method.length or 0) > 1 and method.name in self.runs]
        return self.seconds(min(names, key=lambda name: statistics.median(self.seconds(name))))

    def expected_seconds(self, method: Method) -> float:
        """The approximate number of seconds that a method takes for all texts, used to start the longest jobs first."""
        kept, length = self.case.acceptance, method.length or 1
        rounds = self.case.length * (1 - kept) / (1 - kept**length) if method.length else self.case.length * (1 - kept)
        each = self.verification() + self.restart() + self.speeds.token * length
        return len(_seeds(self.case, method)) * (self.case.length * self.speeds.token + rounds * each)

    def check(self) -> None:
        """Check that all methods have written the same text of the right length, with the same number of replacements.

        Raises:
            AssertionError: a text or a number differs.
        """
        for name, runs in self.runs.items():
            for seed, run, reference in zip(self.case.seeds, runs, self.alone(), strict=False):
                if run.answer.tokens != self.case.length or run.answer.text != reference.answer.text:
                    raise AssertionError(f"{self.case.title}: {name} has written a different text at seed {seed}")
            if name != ALONE and [run.answer.replacements for run in runs] != self.replacements()[: len(runs)]:
                raise AssertionError(f"{self.case.title}: {name} counts different replacements")


async def compare(
    cases: Sequence[Case],
    methods: Sequence[Method] = METHODS,
    speeds: Speeds = Speeds(),  # noqa: B008 - frozen
    options: Options = Options(),  # noqa: B008
) -> list[Measured]:
    """Run all methods on all cases, ten at a time, and check that the texts are equal.

    Raises:
        AssertionError: the texts differ.
        RuntimeError: a method failed.
    """
    found = [Measured(case, speeds) for case in cases]
    async with simulated(speeds) as server, AsyncExitStack() as stack:
        trips = {case.round_trip for case in cases}
        bases = {trip: await stack.enter_async_context(delayed(server.url, trip)) for trip in trips}
        jobs = [
            (measured, method, _job(server, bases[measured.case.round_trip], measured.case, method))
            for measured in found
            for method in methods
            if method.length != 1 or measured.case.acceptance == SLOW_AT
        ]
        await _measure(jobs, options)
    for measured in found:
        measured.check()
    return found


async def _measure(jobs: Sequence[tuple[Measured, Method, Job]], options: Options) -> None:
    """Run the jobs, several at a time, the longest first."""
    limit, starting, begin = anyio.Semaphore(_AT_ONCE), anyio.Lock(), anyio.Event()
    ready = over = 0

    async def take(measured: Measured, method: Method, job: Job) -> None:
        nonlocal ready, over
        async with limit, AsyncExitStack() as stack:
            # Starting a process keeps a processor busy for a second, so start them one by one, before any measurement.
            async with starting:
                worker = await stack.enter_async_context(working(job))
                await worker.ready()
            ready += 1
            if ready >= min(_AT_ONCE, len(jobs)):
                begin.set()
            await begin.wait()
            measured.runs[method.name] = await worker.done()
        over += 1
        options.say(f"simulated: {over} of {len(jobs)} done; {job.name}")

    async with anyio.create_task_group() as group:
        for measured, method, job in sorted(jobs, key=lambda one: one[0].expected_seconds(one[1]), reverse=True):
            group.start_soon(take, measured, method, job)


def _job(server: Simulated, base: str, case: Case, method: Method) -> Job:
    name = f"{method.name} {case.title}"
    return Job(method.name, name, server.url, base, case.speech, case.context, case.length, _seeds(case, method))


def _seeds(case: Case, method: Method) -> tuple[int, ...]:
    return case.seeds[:1] if method.length == 1 else case.seeds  # (c) takes several times as long as the other methods
