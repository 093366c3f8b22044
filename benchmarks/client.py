"""The client's cost by HTTP library, on a busy machine and in long answers, and the delay of its event loop.

The measurements work as in `cpu.py`: the servers run in a separate process with
simulated models, and are reached over real HTTP.
Each measurement runs in a fresh process, and only that process's time counts. The compared cases take turns.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

import anyio

from benchmarks.cpu import SPEECH, Bare, Case, Measured, child, traffic
from benchmarks.invented import prompt_of
from benchmarks.report import Cell, Options, Table
from benchmarks.simulated import Simulated, Speeds, simulated
from cosd_api import Fusion, RuleVerifier
from cosd_api.common.event_loop import event_loop_name
from cosd_providers.engines.llama_cpp import LlamaCpp

__all__ = ["bare", "burning", "carriers", "late", "long_answers", "loops", "run", "starved"]

TARGETS = {"aiohttp": 200, "httpx": 350}
"""Target for the processor time per fused token, in microseconds, with 64 fusions and 512 tokens of context."""

COMMAND = "with `fast`, in a `cosd` command"

WASTE = 1.6
"""Target for a busy machine: the maximum number of drafted tokens for each fused token."""

WITHOUT_BOUND = 9999
"""A `max_ahead` that no answer reaches, so that the draft is never stopped."""

SLEEP = 0.01
"""The interval at which the event loop's delay is measured, in seconds."""

QUICKER = Speeds(first=0.0125, rate=240, verify=0.015)
"""Speeds for long answers, four times the usual speeds."""

_BURNER = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True: pass
"""

_MANY = (16, 32, 64, 128, 256)
_LENGTHS = (Case(8, 512, 128, 8), Case(8, 512, 1024), Case(8, 512, 4096))
_SHARES = ("drafted per fused token", "streams per fused token", "assistant requests per fused token")


async def run(options: Options) -> list[Table]:
    """Return the tables; with `quick`, the sizes are too small for reliable figures."""
    load = f"The machine's load average at the start was {os.getloadavg()[0]:.1f}, on {os.cpu_count()} processors."
    repeats = 1 if options.quick else 2
    tables = [await carriers(Case(8, 512, 16) if options.quick else Case(64, 512, 128), repeats, load)]
    options.say(tables[-1].markdown())  # if the run is interrupted, this table has at least been printed
    tables.append(await starved(Case(8, 512, 32) if options.quick else Case(64, 512, 64), repeats))
    options.say(tables[-1].markdown())
    lengths = (Case(4, 512, 16), Case(4, 512, 64)) if options.quick else _LENGTHS
    tables.append(await long_answers(lengths))
    options.say(tables[-1].markdown())
    many = [Case(2, 512, 16), Case(4, 512, 16)] if options.quick else [Case(many, 512, 128) for many in _MANY]
    return [*tables, await loops(many, load)]


async def carriers(case: Case, repeats: int, load: str) -> Table:
    """Processor time with each HTTP library, and the processor time of the same traffic without `cosd_api`."""
    found: dict[str, list[Measured]] = {}
    bares: dict[str, list[Bare]] = {"httpx alone": [], "a bare `asyncio.Protocol`": []}
    async with simulated() as server:
        for _ in range(repeats):
            for what, http in (("fusions", ""), ("command", ""), ("fusions", "httpx")):
                measured = Measured(**await child(server, what, case, http=http))
                name = COMMAND if what == "command" else measured.carrier
                found.setdefault(name, []).append(measured)
            for name, module in zip(bares, ("benchmarks.cpu", "benchmarks.client"), strict=True):
                bares[name].append(Bare(**await child(server, "bare", case, module=module)))
    best = {name: min(several, key=lambda one: one.cpu) for name, several in found.items()}
    names = {
        "aiohttp": "with `fast` (aiohttp)",
        COMMAND: f"{COMMAND} ({event_loop_name()})",
        "httpx": "`COSD_HTTP=httpx`",
    }
    rows = [[names[name], one.cpu, TARGETS.get(name), *_shares(one)] for name, one in best.items()]
    same = next(iter(best.values()))
    rows += [[f"that traffic: {name}", Bare.least(one).of(same), None, *_shares(same)] for name, one in bares.items()]
    figures = {name: [*map(asdict, several)] for name, several in found.items()}
    figures |= {name: [*map(asdict, several)] for name, several in bares.items()}
    about = (
        f"{case.fusions} fusions run at once, with {case.context} tokens of context and answers of {case.tokens} "
        f"tokens. Each figure is the minimum of {repeats} alternating runs. {load} *That traffic* means that a plain "
        "client sends and receives the same streams, chunks and requests as in the first row, and parses them as JSON."
    )
    columns = ["", "CPU per fused token, us", "target", *_SHARES]
    return Table("Client CPU by carrier", columns, rows, [about], figures)


async def starved(case: Case, repeats: int) -> Table:
    """The numbers of drafted and billed tokens while other processes keep all processors busy."""
    before, after = f"before: `max_ahead={WITHOUT_BOUND}`", "after: the default"
    cases = {before: Case(case.fusions, case.context, case.tokens, 1, WITHOUT_BOUND), after: case}
    found: dict[str, list[Measured]] = {before: [], after: []}
    with burning(os.cpu_count() or 1) as burners:
        async with simulated() as server:
            for _ in range(repeats):
                for name, one in cases.items():
                    found[name].append(Measured(**await child(server, "fusions", one)))
    fields = ("written", "drafted", "drafts", "requests", "billed", "wall", "cpu")
    rows: list[list[Cell]] = [
        [name, *(_range([getattr(one, field) for one in several]) for field in fields)]
        for name, several in found.items()
    ]
    columns = ["drafting ahead", "written by the draft's server per fused token", *_SHARES]
    columns += ["billed per fused token", "seconds", "CPU per fused token, us"]
    about = (
        f"{case.fusions} fusions run at once, with {case.context} tokens of context and answers of {case.tokens} "
        f"tokens, while {burners} other processes keep the processors busy. The ranges are the minimum and maximum of "
        f"{repeats} alternating runs. The simulated servers run on the same processors. Target: at most {WASTE} tokens "
        "written by the draft's server per fused token. Billed tokens are all tokens that the two servers read, cached "
        "or not, and all tokens that they wrote."
    )
    figures = {name: [*map(asdict, several)] for name, several in found.items()}
    return Table("Client on a busy machine", columns, rows, [about], figures)


async def long_answers(cases: Sequence[Case]) -> Table:
    """Processor time per token in answers of several lengths."""
    async with simulated(QUICKER) as server:
        found = [Measured(**await child(server, "fusions", case)) for case in cases]
    rows: list[list[Cell]] = [
        [case.tokens, one.cpu, one.cpu / found[0].cpu, *_shares(one)] for case, one in zip(cases, found, strict=True)
    ]
    columns = ["tokens of an answer", "CPU per fused token, us", "times the first", *_SHARES]
    about = (
        f"{cases[0].fusions} fusions run at once, over {found[0].carrier}, with {cases[0].context} tokens of context. "
        "The models are four times as fast as in the other tables of this section. Each request contains the whole "
        "text so far, so requests grow with the answer."
    )
    figures = {str(case.tokens): asdict(one) for case, one in zip(cases, found, strict=True)}
    return Table("Client CPU by length", columns, rows, [about], figures)


async def loops(cases: Sequence[Case], load: str) -> Table:
    """The delay of the event loop as the number of fusions in one process grows."""
    async with simulated() as server:
        found = [await child(server, "loop", case, module="benchmarks.client") for case in cases]
    rows: list[list[Cell]] = [[case.fusions, *one.values()] for case, one in zip(cases, found, strict=True)]
    columns = ["fusions at once", "loop late by, ms: median", "95th percentile", "most"]
    columns += ["fused tokens a second, each", "all together", "the client's processor, %", "the server's, %"]
    about = (
        f"The answers have {cases[0].tokens} tokens, after {cases[0].context} tokens of context, and all start at the "
        f"same time; a draft alone writes {Speeds().rate:g} tokens a second. From the first request until the last "
        f"token, a task that repeatedly sleeps for {1000 * SLEEP:g} ms records how late it wakes up. {load} The "
        "simulated server is a single process; if it uses one processor fully, it is the bottleneck. Target: at most "
        "50 ms at the 95th percentile, with 256 fusions at once."
    )
    return Table("Event loop with many fusions", columns, rows, [about])


@contextmanager
def burning(count: int) -> Iterator[int]:
    """Run `count` processes that each keep a processor busy during the block; they also end if this process ends."""
    burners = [subprocess.Popen([sys.executable, "-c", _BURNER], stdin=subprocess.PIPE) for _ in range(count)]
    try:
        yield count
    finally:
        for burner in burners:
            burner.kill()
            burner.communicate()


def _shares(measured: Measured) -> list[Cell]:
    return [f"{value:.2f}" for value in (measured.drafted, measured.drafts, measured.requests)]


def _range(values: Sequence[float]) -> str:
    low, high = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


# In the fresh process.


class _Exchange(asyncio.Protocol):
    """One request and its answer, which is parsed as JSON while it arrives."""

    def __init__(self, path: str, body: dict[str, Any]) -> None:
        self._streamed, data = "stream" in body, json.dumps(body).encode()
        self._sent = f"POST {path} HTTP/1.1\r\nHost: server\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        self._got = b""
        self._transport: asyncio.BaseTransport
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._sent)

    def data_received(self, data: bytes) -> None:
        self._got += data
        if self._streamed:
            *events, self._got = self._got.split(b"\n\n")
            for event in events:
                json.loads(event.partition(b"data: ")[2])
            return
        head, _, body = self._got.partition(b"\r\n\r\n")
        length = head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]
        if length and len(body) == int(length):
            json.loads(body)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(exc)


async def bare(url: str, case: Case) -> dict[str, Any]:
    """Measure a fusion's traffic on bare sockets; the request bodies are as large as those of the fusion."""
    prompt, loop = prompt_of(case.context, 0), asyncio.get_running_loop()
    draft, assistant = (urlsplit(Simulated(url).model(SPEECH, role, "bare")) for role in ("draft", "assistant"))

    async def exchange(path: str, body: dict[str, Any]) -> None:
        _, protocol = await loop.create_connection(lambda: _Exchange(path, body), "127.0.0.1", draft.port or 80)
        await protocol.done

    async def stream(tokens: int) -> None:
        await exchange(
            f"{draft.path}/completion", {"prompt": prompt, "n_predict": tokens, "n_probs": 1, "stream": True}
        )

    async def ask() -> None:
        await exchange(f"{assistant.path}/completion", {"prompt": [prompt], "n_predict": 1, "n_probs": 5})

    return asdict(await traffic(stream, ask, case))


async def late(url: str, case: Case) -> dict[str, float]:
    """Measure the figures of one row of `loops`."""
    server, name = Simulated(url), f"loop-{os.getpid()}"
    draft, assistant = (LlamaCpp(server.model(SPEECH, role, name)) for role in ("draft", "assistant"))
    loop, late, fused = asyncio.get_running_loop(), list[float](), list[int]()

    async def sleep() -> None:
        while True:
            due = loop.time() + SLEEP
            await asyncio.sleep(SLEEP)
            late.append(max(0.0, loop.time() - due))

    async def one(prompt: str) -> None:
        fused.append(len((await fusion.generate(prompt, max_tokens=case.tokens)).tokens))

    first, *prompts = (prompt_of(case.context, seed) for seed in range(-1, case.fusions))

    async with Fusion(draft=draft, assistant=assistant, verifier=RuleVerifier.paper(), unit="token") as fusion:
        await one(first)
        fused.clear()
        theirs = await server.processor_seconds()
        began, cpu = time.perf_counter(), time.process_time()
        async with anyio.create_task_group() as watching:
            watching.start_soon(sleep)
            async with anyio.create_task_group() as group:
                for prompt in prompts:
                    group.start_soon(one, prompt)
            watching.cancel_scope.cancel()
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        theirs = await server.processor_seconds() - theirs
    cuts = statistics.quantiles(late, n=20, method="inclusive")
    return {
        "median": 1000 * cuts[9],
        "95th": 1000 * cuts[18],
        "most": 1000 * max(late),
        "each": sum(fused) / seconds / case.fusions,
        "together": sum(fused) / seconds,
        "client": 100 * cpu / seconds,
        "server": 100 * theirs / seconds,
    }


if __name__ == "__main__":
    _measure = {"bare": bare, "loop": late}[sys.argv[1]]
    print(json.dumps(anyio.run(_measure, sys.argv[2], Case(*map(int, sys.argv[3:])))))
