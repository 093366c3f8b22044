"""`cosd batch` on a Ray cluster of this machine beside one process, where `make test-ray` has put Ray; else left out.

The servers are invented models in processes of their own (`simulated.py`), reached by real HTTP. They are quick, and
many lines are asked at a time, so that nobody waits for them.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio

from benchmarks.client import QUICKER
from benchmarks.cpu import SPEECH
from benchmarks.invented import prompt_of
from benchmarks.report import HERE, Cell, Options, Table
from benchmarks.simulated import simulated
from benchmarks.vllm import installed
from cosd_api.batch.summary import BatchSummary
from cosd_api.wording import counted

__all__ = ["LEFT_OUT", "Case", "Measured", "environment", "fed", "measured", "run", "ways"]

LEFT_OUT = Table(
    "Batches on Ray",
    ["lines answered by"],
    [],
    ["Left out: Ray is not installed here. `make test-ray` installs it (0.8 GB), and COSD_RAY_ENV says where."],
)
_CONTEXT = 128


@dataclass(frozen=True, slots=True)
class Case:
    """A batch: its number of lines, those asked at a time, and the tokens of each answer."""

    lines: int
    at_once: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of the command.

    Attributes:
        lines: lines answered a second.
        tokens: fused tokens a second.
        seconds: from the first line asked to the last one written, in which both rates are.
        start: all other seconds of the command: until there are actors, and after the last line.
        servers: processors that the servers kept busy meanwhile; the time that they took to start is in it.
    """

    lines: float
    tokens: float
    seconds: float
    start: float
    servers: float


async def run(options: Options) -> list[Table]:
    """The rates, and what feeding takes; one table without rows where Ray is not installed."""
    folder = environment()
    if folder is None:
        return [LEFT_OUT]
    case, repeats = (Case(24, 8, 16), 1) if options.quick else (Case(384, 64, 64), 3)
    processors, load = os.cpu_count() or 1, os.getloadavg()[0]
    found: dict[str, list[Measured]] = {}
    for _ in range(repeats):  # taking turns
        for name, more in ways(processors).items():
            options.say(f"ray: {case.lines} lines by {name}")
            found.setdefault(name, []).append(await measured(folder / "bin" / "python", case, more))
    best = {name: max(several, key=lambda one: one.tokens) for name, several in found.items()}
    alone = next(iter(best.values()))
    rows: list[list[Cell]] = [
        [name, one.lines, one.tokens, f"{one.tokens / alone.tokens:.2f}", one.start, f"{one.servers:.2f}"]
        for name, one in best.items()
    ]
    columns = ["lines answered by", "lines a second", "fused tokens a second", "times one process"]
    columns += ["seconds to start and end", "processors taken by the servers"]
    about = (
        f"`cosd batch` on {case.lines} lines of {_CONTEXT} tokens, answers of {case.tokens}, {case.at_once} lines at a "
        f"time, on a machine with {processors} processors, which the servers, Ray and the process that feeds the "
        f"actors share with them; the best of {repeats} that took turns. The rates are of the time from the first line "
        "asked to the last one written; starting Python and Ray, and ending them, stands apart. Simulated: the models "
        f"({QUICKER.rate:g} tokens a second, {1000 * QUICKER.verify:g} ms a verification; acceptance 0.9). Load "
        f"average when the run began: {load:.1f}; of a busy machine more processes get a larger part."
    )
    figures = {name: [*map(asdict, one)] for name, one in found.items()}
    table = Table("Batches on Ray", columns, rows, [about], figures)
    return [table, await fed(folder / "bin" / "python", options, max(1, min(2, processors)))]


def environment() -> Path | None:
    """The folder that Ray is installed in; None without one."""
    return installed("ray_cluster")


def ways(processors: int) -> dict[str, list[str]]:
    """Options of the command, by name: one process, and actors, of which each takes a processor."""
    found: dict[str, list[str]] = {"one process": []}
    for actors in (1, 2, 4, 8, 16):
        if actors <= processors:
            found[counted(actors, "actor")] = ["--engine", "ray", "--ray-address", "local", "--actors", str(actors)]
    return found


async def fed(python: Path | str, options: Options, actors: int) -> Table:
    """The cost of giving lines to actors and writing their answers, which is what bounds the number of actors."""
    lines, repeats = (100, 1) if options.quick else (3000, 3)
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    for at_once in (16, 256):
        options.say(f"ray: {lines:,} lines fed, {at_once} at a time")
        command = [str(python), "-m", "benchmarks.feeding", *map(str, (lines, at_once, actors))]
        found: list[tuple[float, float]] = []
        for _ in range(repeats):
            done = await anyio.run_process(command, check=False, env=_environment())
            found.append(_printed(done, command))
        figures[str(at_once)] = found
        rows.append([at_once, min(used for used, _ in found), max(rate for _, rate in found)])
    columns = ["lines at a time", "processor time of the feeding process for a line, us", "lines a second"]
    about = (
        f"{lines:,} lines, to which {counted(actors, 'actor')} of scripted models answer one token each; the least "
        f"time and the highest rate of {repeats}. The processor time is that of reading the input, of Ray in this "
        "process, and of writing the output."
    )
    return Table("Feeding actors", columns, rows, [about], figures)


async def measured(python: Path | str, case: Case, more: Sequence[str]) -> Measured:
    """Run the command once, over servers of its own.

    Raises:
        RuntimeError: it failed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [{"prompt": prompt_of(_CONTEXT, seed)} for seed in range(case.lines)]
        (folder / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        async with simulated(QUICKER) as drafting, simulated(QUICKER) as assisting:
            draft, assistant = drafting.model(SPEECH, "draft", "a"), assisting.model(SPEECH, "assistant", "a")
            config = folder / "fusion.json"
            settings = {"draft": draft, "assistants": [assistant], "unit": "token"}
            config.write_text(json.dumps(settings), encoding="utf-8")
            command = [
                str(python),
                "-m",
                "cosd_api",
                "batch",
                str(folder / "in.jsonl"),
                "-o",
                str(folder / "out.jsonl"),
            ]
            command += ["--config", str(config), "--json", "--max-tokens", str(case.tokens)]
            command += ["--concurrency", str(case.at_once), *more]
            started = time.monotonic()
            done = await anyio.run_process(command, check=False, env=_environment(), cwd=folder)
            took = time.monotonic() - started
            before = _processor_time()
        servers = _processor_time() - before
    summary = BatchSummary.model_validate(_printed(done, command))
    rates = summary.answered / summary.seconds, summary.tokens / summary.seconds
    return Measured(*rates, summary.seconds, took - summary.seconds, servers / summary.seconds)


def _printed(done: subprocess.CompletedProcess[bytes], command: Sequence[str]) -> Any:
    """The JSON that a command has printed.

    Raises:
        RuntimeError: it failed.
    """
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode(errors='replace')[-2000:]}")
    return json.loads(done.stdout)


def _environment() -> dict[str, str]:
    """That of the command: this library from the checkout, and a Ray that reports nothing and starts at its leisure."""
    paths = os.pathsep.join(str(HERE.parent / one) for one in (".", "providers"))
    more = {"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}
    return {**os.environ, **more}


def _processor_time() -> float:
    """Seconds of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
