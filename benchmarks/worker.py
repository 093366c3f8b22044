"""A process that runs one method on one case, so that the method's processor time and memory can be measured.

Before the process reports that it is ready, it writes a short answer, so that everything is imported, the servers are
detected, and connections are open. The measurement begins at a signal.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import anyio
from anyio.abc import Process

from benchmarks.invented import Role, Speech, prompt_of
from benchmarks.methods import METHODS, Answer, Method
from benchmarks.simulated import Counts, Simulated

__all__ = ["Job", "Run", "Worker", "working"]

_SETTLE = 0.3  # seconds until even a distant server has noticed a cancellation
_BEAT = 0.25  # seconds between two measurements of the event loop's delay
_WARM = 8  # number of tokens in the warm-up answer


@dataclass(frozen=True, slots=True)
class Job:
    """The job of a worker process.

    Attributes:
        method: name of the method.
        name: name under which the server counts its requests.
        server: the URL of the simulated server.
        base: the server's URL through the proxy.
        speech: the pair of models.
        context: length of each prompt in tokens.
        length: length of each answer in tokens.
        seeds: seeds of the prompts; each prompt gets one answer.
    """

    method: str
    name: str
    server: str
    base: str
    speech: Speech
    context: int
    length: int
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """The measurements of one answer by one method.

    Attributes:
        answer: the method's answer.
        draft: counts of the draft's server.
        assistant: counts of the assistant's server.
        cpu: processor seconds of the client.
        memory: peak memory of the client in bytes.
        late: 95th percentile of the delay of the client's event loop, in seconds.
    """

    answer: Answer
    draft: Counts
    assistant: Counts
    cpu: float
    memory: int
    late: float

    @property
    def thrown_away(self) -> int:
        """The number of draft tokens that were discarded."""
        return self.draft.completion_tokens - (self.answer.tokens - self.answer.replacements)


@dataclass(slots=True)
class Worker:
    """A process that carries out a job.

    Attributes:
        job: the job of the process.
    """

    job: Job
    _process: Process
    _data: bytes = b""

    async def ready(self) -> None:
        """Wait until the process is ready."""
        await self._line()

    async def done(self) -> list[Run]:
        """Start the measurement, and return one run for each seed."""
        assert self._process.stdin is not None
        await self._process.stdin.send(b"\n")
        return [_read(await self._line()) for _ in self.job.seeds]

    async def _line(self) -> str:
        """The next line of the process's output.

        Raises:
            RuntimeError: the process failed; its standard error explains why.
        """
        assert self._process.stdout is not None
        while b"\n" not in self._data:
            try:
                self._data += await self._process.stdout.receive()
            except anyio.EndOfStream:
                raise RuntimeError(f"{self.job.name} failed") from None
        line, _, self._data = self._data.partition(b"\n")
        return line.decode()


@asynccontextmanager
async def working(job: Job) -> AsyncIterator[Worker]:
    """Run a process for a job, and end the process at the end of the block."""
    command = [sys.executable, "-m", "benchmarks.worker", json.dumps(asdict(job))]
    async with await anyio.open_process(command, stderr=None, cwd=Path(__file__).parent.parent) as process:
        try:
            yield Worker(job, process)
        finally:
            if process.returncode is None:
                process.terminate()


def _read(line: str) -> Run:
    found = json.loads(line)
    draft, assistant = Counts(**found.pop("draft")), Counts(**found.pop("assistant"))
    return Run(Answer(**found.pop("answer")), draft, assistant, **found)


# The worker process.


@dataclass(slots=True)
class _Beats:
    """Measurements of the event loop's delay."""

    late: list[float] = field(default_factory=list[float])

    async def watch(self) -> None:
        while True:
            due = time.perf_counter() + _BEAT
            await anyio.sleep(_BEAT)
            self.late.append(max(time.perf_counter() - due, 0.0))

    def take(self) -> float:
        late, self.late = self.late, []
        return statistics.quantiles(late, n=20)[-1] if len(late) > 1 else 0.0


def _method(name: str) -> Method:
    return next(method for method in METHODS if method.name == name)


async def _work(job: Job) -> None:
    method, server, beats = _method(job.method), Simulated(job.server), _Beats()
    roles: tuple[Role, Role] = ("alone", "alone") if method.alone else ("draft", "assistant")
    mine, theirs = (server.model(job.speech, role, job.name, base=job.base) for role in roles)
    async with method.open(mine, theirs) as write, anyio.create_task_group() as group:
        group.start_soon(beats.watch)
        await write(prompt_of(job.context, 0), _WARM)
        before = await _counted(server, roles, job.name)
        print("ready", flush=True)
        await anyio.to_thread.run_sync(_told)
        for seed in job.seeds:
            beats.take()
            prompt, cpu = prompt_of(job.context, seed), time.process_time()
            answer = await write(prompt, job.length)
            cpu, late = time.process_time() - cpu, beats.take()
            after = await _counted(server, roles, job.name)
            draft, assistant = (_less(*both) for both in zip(after, before, strict=True))
            before = after
            run = Run(answer, draft, Counts() if method.alone else assistant, cpu, _memory(), late)
            print(json.dumps(asdict(run)), flush=True)
        group.cancel_scope.cancel()


async def _counted(server: Simulated, roles: tuple[Role, Role], name: str) -> list[Counts]:
    await anyio.sleep(_SETTLE)
    return [await server.counts(role, name) for role in roles]


def _less(after: Counts, before: Counts) -> Counts:
    earlier = asdict(before)
    return replace(after, **{name: value - earlier[name] for name, value in asdict(after).items()})


def _memory() -> int:
    """Peak memory of this process in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _told() -> None:
    """Wait for the signal to begin; then end this process when its parent ends."""
    os.read(sys.stdin.fileno(), 1)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # the parent writes nothing more, so this returns when the parent has ended
    os._exit(1)


def _job(text: str) -> Job:
    found = json.loads(text)
    return Job(**{**found, "speech": Speech(**found["speech"]), "seeds": tuple(found["seeds"])})


if __name__ == "__main__":
    anyio.run(_work, _job(sys.argv[1]))
