"""Batches: their memory and speed on a long input, and the effect of the prompts' order on llama.cpp's caches."""

from __future__ import annotations

import gc
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import anyio

from benchmarks.prompts import MAX_TOKENS, OTHERS
from benchmarks.report import Cell, Options, Table
from cosd_api import Fusion, RuleVerifier
from cosd_api.batch.job import BatchJob
from cosd_api.batch.lines import BatchLine
from cosd_api.batch.reply import Answerer, Reply
from cosd_api.batch.summary import BatchTally
from cosd_api.demo.questions import sample
from cosd_api.demo.servers import MODELS, serve
from cosd_providers.testing import ScriptedProvider, TextModel

__all__ = ["cached", "long_batch", "mixed_lines", "one_token", "run", "write_lines"]

FUSED, REPEATED = 200_000, 1_000_000
"""The number of lines that are fused, and of lines that only repeat the first answer, to measure the batch's own
work."""
QUICK = 2_000
STEPS = 5
SLOTS = 4
BEGINNINGS, EACH = 12, 8
"""The number of different beginnings of prompts, and the number of prompts that share each beginning."""

_LONG_ABOUT = (
    "`cosd batch` answers plain lines, 8 at a time, with scripted models that write one token. In the rows *repeated*, "
    "every line after the first gets a copy of the first answer without asking a model. Memory is the resident memory "
    "of the process after it has written the number of lines in the second column. *Lines a second* is the number of "
    "lines per second of the process's processor time, which includes the work of the fusion and of the scripted "
    "models."
)
_CACHE_ABOUT = (
    "The file contains {count} questions in random order, which share {beginnings} beginnings of about 200 tokens. The "
    "llama.cpp servers are real, with {slots} slots and no additional cache for prompts. *Tokens read* counts the "
    "prompt tokens of all requests to the endpoint, and *cached* counts the prompt tokens that the endpoint had in its "
    "cache."
)


class _Ending(TextModel):
    """A scripted model that ignores everything before the last colon of a prompt."""

    def next(self, ids: Any) -> Any:
        """The probabilities of the next token, given the text from the last colon on."""
        text = b"".join(self.tokens[one] for one in ids[-8:])
        return super().next(self.encode(text[text.rfind(b":") :]))


class _Nowhere(list[Any]):
    """A list that discards the recorded calls of a scripted model, which would fill the memory."""

    def append(self, value: Any) -> None:
        """Discard the value."""


async def run(options: Options) -> list[Table]:
    """Return a table of memory and a table of cached tokens."""
    return [_long(options), await cached(options)]


def _long(options: Options) -> Table:
    """The memory in use after each fifth of a long input, measured in a separate process."""
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    for name, most in (("fused", FUSED), ("repeated", REPEATED)):
        lines = QUICK if options.quick else most
        options.say(f"batch: {lines:,} lines, {name}")
        code = f"from benchmarks.batch import long_batch; long_batch({lines}, repeated={name == 'repeated'})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        figures[name] = json.loads(done.stdout)
        rows += [[name, f"{int(count):,}", round(size), round(rate)] for count, size, rate in figures[name]]
    columns = ["answers", "lines written", "resident memory, MB", "lines a second"]
    return Table("A long batch", columns, rows, [_LONG_ABOUT], figures)


def long_batch(lines: int, *, repeated: bool) -> None:
    """Run a batch; after each fifth, print the lines written, the megabytes in use, and lines per processor second."""
    looks: list[tuple[int, float, float]] = []
    if repeated:
        _repeat()
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        write_lines(source, lines)
        started = time.process_time()

        def look(tally: BatchTally) -> None:
            if tally.answered >= (len(looks) + 1) * lines // STEPS:
                seconds = time.process_time() - started
                looks.append((tally.answered, _resident(), tally.answered / seconds))

        async def answer() -> None:
            async with one_token() as fusion:
                found = await BatchJob(source, target, progress=look).run(fusion)
            if not found.complete:
                raise RuntimeError(f"the batch is not complete: {found}")

        anyio.run(answer)
    print(json.dumps(looks))


def write_lines(path: Path, count: int) -> None:
    """Write an input file of plain-text lines that end with a colon."""
    with path.open("w", encoding="utf-8") as file:
        for at in range(count):
            file.write(f'{{"custom_id": "line-{at}", "prompt": "Text number {at:07}, which is one of many:"}}\n')


def one_token() -> Fusion:
    """A fusion of scripted models that write one token after a colon."""
    models = {name: _Ending({":": [" yes"]}) for name in ("small", "large")}
    draft, assistant = (ScriptedProvider(one, name=name, calls=_Nowhere()) for name, one in models.items())
    return Fusion(draft=draft, assistant=assistant, verifier=RuleVerifier.paper(), unit="token")


def _repeat() -> None:
    """Replace fusing by repeating the first answer for every line."""
    first: list[Reply] = []
    asked = Answerer.answer

    async def answer(self: Answerer, line: BatchLine, allowed: int | None) -> Reply:
        if not first:
            first.append(await asked(self, line, allowed))
        return replace(first[0], asked=line)

    Answerer.answer = answer  # type: ignore[method-assign]


def _resident() -> float:
    """The memory of this process in megabytes, or its peak if the system does not report the current value."""
    status = Path("/proc/self/statm")
    if status.exists():
        gc.collect()
        return int(status.read_text().split()[1]) * resource.getpagesize() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # macOS reports bytes


def mixed_lines(beginnings: int, each: int, seed: int = 3) -> list[dict[str, str]]:
    """Lines in random order: each is a question preceded by one of several blocks of answered questions."""
    rng = random.Random(seed)
    before = ["".join(rng.sample(OTHERS, 6)) for _ in range(beginnings)]
    asked = [one.prompt for one in sample("mixed", beginnings * each, seed)]
    found = [{"prompt": before[at % beginnings] + prompt} for at, prompt in enumerate(asked)]
    rng.shuffle(found)
    return found


async def cached(options: Options) -> Table:
    """The share of tokens that came from the servers' caches, for each order of the lines."""
    beginnings, each = (3, 2) if options.quick else (BEGINNINGS, EACH)
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    for concurrency, (order, window) in product((1, SLOTS), (("of the file", 1), ("alike together", 1000))):
        options.say(f"batch: {concurrency} at a time, order {order}")
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            source, target = Path(name) / "in.jsonl", Path(name) / "out.jsonl"
            lines = mixed_lines(beginnings, each)
            source.write_text("".join(f"{json.dumps(one)}\n" for one in lines), encoding="utf-8")
            urls = [
                stack.enter_context(serve(MODELS / f"{one}.gguf", slots=SLOTS, cache=0)).url
                for one in ("sums", "facts")
            ]
            async with Fusion(draft=urls[0], assistant=urls[1], verifier=RuleVerifier.paper()) as fusion:
                fusion.limits = {"max_tokens": MAX_TOKENS, "stop": "\n"}
                found = await BatchJob(source, target, concurrency=concurrency, window=window).run(fusion)
        for endpoint, one in found.usage.items():
            share = f"{one.cached_tokens / one.prompt_tokens:.0%}"
            rows.append([concurrency, order, endpoint, one.requests, one.prompt_tokens, one.cached_tokens, share])
        figures[f"{concurrency}, {order}"] = found.model_dump(mode="json")
    about = _CACHE_ABOUT.format(count=beginnings * each, beginnings=beginnings, slots=SLOTS)
    columns = ["at a time", "order", "endpoint", "requests", "tokens read", "cached", "share"]
    return Table("Prompts that begin alike", columns, rows, [about], figures)
