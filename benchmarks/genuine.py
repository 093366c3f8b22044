"""A fusion of two real models of different families, compared with the draft alone and with lockstep.

In *lockstep*, both models write a token each for every token of the answer. Its time is the sum of both models' times
for a token, each measured alone in the same run. Over a network, every token costs a round trip to each model. Lockstep
is also measured as a client without any lookahead experiences it: with one request for every token.

Every prompt is answered in all ways, one directly after the other, before the next prompt; the order is reversed in
every second round. All servers' caches are empty before each answer. To compare versions of the library, name other
checkouts with `--library`: their answers alternate on the same servers.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import httpx
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks.cpu import CHECKOUT, Bare, Measured, child, library_of
from benchmarks.cpu import Case as Traffic
from benchmarks.proxy import delayed
from benchmarks.report import Cell, Options, Table
from benchmarks.simulated import simulated
from cosd_api.apps.demo.servers import serve

__all__ = ["Case", "Record", "cases", "measured", "tabled"]

ROUND_TRIP = 0.02
DEFAULT, EVERYWHERE, NEVER = (0.5, 0.5), (1.0, 1.0), (0.0, 0.5)
PROMPTS = (
    "The three largest cities of Japan are",
    "Question: Why is the sky blue?\nAnswer:",
    "def is_leap_year(year):\n",
    "It was already dark when the two brothers reached the harbour, and",
    "How to repair a flat bicycle tyre:\n\n1.",
    "| Animal | Legs |\n|--------|------|\n| Ant | 6 |\n|",
    "Dear Sir or Madam,\n\nI am writing to you because",
    "Water boils at a temperature of",
    '{"name": "Ada Lovelace", "born":',
    "Translate to French: The train leaves at nine.\nFrench:",
    "The most important reasons for the fall of the Roman Empire were",
    "A shopping list for a birthday party:\n- candles\n-",
)
TITLE = "Two real models of different families"
COLUMNS = (
    *("", "x alone", "lockstep: x alone", "fusion / lockstep", "fusion / lockstep by single requests"),
    *("drafted per token kept", "questions per token", "replaced, %"),
    *("draft: uncached tokens per token", "assistant: uncached tokens per token"),
    *("client, ms per token", "client / plain httpx"),
)

Record = Mapping[str, Any]
"""One measurement: `row`, `round`, `prompt` (a number), `way` and the figures, with `library` if `way` is `fused`.

`way` is also `alone` (the draft), `other` (the assistant alone), `draft singly` or `assistant singly`.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """The case that a row of the table measures.

    Attributes:
        name: the name in the table.
        part: the value of `--only` that selects it.
        draft, assistant: names of the servers.
        rule: alpha and beta.
        round_trip: seconds.
        chat: whether the prompts are messages to a chat model, and *alone* is the same client, which never asks.
    """

    name: str
    part: str
    draft: str
    assistant: str
    rule: tuple[float, float] = DEFAULT
    round_trip: float = 0.0
    chat: bool = False


def cases(parts: Sequence[str]) -> list[Case]:
    """The cases of the parts with these names; all of them if there is no name."""
    both = (("SmolLM2", "Gemma 3"), ("Gemma 3", "SmolLM2"))
    found = [Case(f"{one} <- {two}", "genuine", one, two) for one, two in both]
    away = f", {1000 * ROUND_TRIP:g} ms of round trip"
    found += [Case(f"{one} <- {two}{away}", "proxy", one, two, round_trip=ROUND_TRIP) for one, two in both]
    itself = ("SmolLM2", "SmolLM2 again")
    found.append(Case("SmolLM2 with itself, default rule", "itself", *itself, chat=True))
    found.append(Case("SmolLM2 with itself, every place", "itself", *itself, rule=EVERYWHERE, chat=True))
    return [case for case in found if not parts or case.part in parts]


async def measured(options: Options, files: Mapping[str, Path], chats: Sequence[str], missing: str = "") -> Table:
    """Measure the parts that the options name, and return the table.

    Args:
        files: the models' files, by the names of servers.
        chats: messages to the chat model.
        missing: why a model is missing; cases that need it are left out.
    """
    libraries = dict(options.libraries) or {"": CHECKOUT}
    wanted = [case for case in cases(options.only) if {case.draft, case.assistant} <= {*files}]
    records: list[Record] = []
    load = os.getloadavg()[0]
    if wanted:
        async with AsyncExitStack() as stack:
            urls = {name: stack.enter_context(_served(files, name)) for name in files if _needed(name, wanted)}
            fusers = {name: await stack.enter_async_context(_fuser(at)) for name, at in libraries.items()}
            client = await stack.enter_async_context(httpx.AsyncClient(timeout=600, trust_env=False))
            bench = _Bench(options, urls, fusers, client)
            for case in wanted:
                ends = [urls[case.draft], urls[case.assistant]]
                if case.round_trip:
                    ends = [await stack.enter_async_context(delayed(url, case.round_trip)) for url in ends]
                asked = [[{"role": "user", "content": one}] for one in chats] if case.chat else PROMPTS
                records += await bench.rounds(case, ends[0], ends[1], asked[: options.prompts])
    if not options.only or "client" in options.only:
        records += await _traffic(options, libraries)
    table = tabled(records, f"Load average: {load:.1f} before, {os.getloadavg()[0]:.1f} after. {missing}".rstrip())
    for name, digests in table.figures["texts"].items():
        options.say(f"texts of {name}: {digests}")
    return table


@dataclass(frozen=True, slots=True)
class _Bench:
    options: Options
    urls: Mapping[str, str]
    fusers: Mapping[str, Callable[[Record], Awaitable[dict[str, Any]]]]
    client: httpx.AsyncClient

    async def rounds(self, case: Case, draft: str, assistant: str, prompts: Sequence[Any]) -> list[Record]:
        """Measure a case in all rounds."""
        job = {"draft": draft, "assistant": assistant, "rule": case.rule, "tokens": self.options.tokens}
        rules = [case.rule, NEVER] if case.chat else [case.rule]
        for fuse in self.fusers.values():
            for rule in rules:  # so that the servers are known and everything is imported
                await fuse({**job, "rule": rule, "prompt": prompts[0], "tokens": 2})
        found: list[Record] = []
        for number in range(self.options.rounds):
            self.options.say(f"real: {case.name}, round {number + 1}")
            for at, prompt in enumerate(prompts):
                ways: list[tuple[str, str, Callable[[], Awaitable[dict[str, Any]]]]] = []
                for library, fuse in self.fusers.items():
                    ways.append(("fused", library, partial(fuse, {**job, "prompt": prompt})))
                    if case.chat:
                        ways.append(("alone", library, partial(fuse, {**job, "prompt": prompt, "rule": NEVER})))
                if not case.chat:
                    for way, url in (("alone", draft), ("other", assistant)):
                        ways.append((way, "", partial(self._alone, url, prompt)))
                    for way, url in (("draft singly", draft), ("assistant singly", assistant)):
                        ways.append((way, "", partial(self._singly, url, prompt)))
                for way, library, measure in ways if number % 2 == 0 else ways[::-1]:
                    for name in {case.draft, case.assistant}:
                        await self._forget(self.urls[name])
                    figures = await measure()
                    about = {"row": case.name, "round": number, "prompt": at, "way": way, "library": library}
                    found.append({**about, "round trip": case.round_trip, **figures})
        return found

    async def _alone(self, url: str, prompt: str) -> dict[str, Any]:
        """One answer of a model alone, in one request."""
        began = time.perf_counter()
        answer = await self._post(url, prompt=prompt, n_predict=self.options.tokens, return_tokens=True)
        return {"seconds": time.perf_counter() - began, "tokens": answer["tokens_predicted"], "ids": answer["tokens"]}

    async def _singly(self, url: str, prompt: str) -> dict[str, Any]:
        """The same answer, in one request a token."""
        ids, began = list[int](), time.perf_counter()
        while len(ids) < self.options.tokens:
            answer = await self._post(url, prompt=[prompt, *ids], n_predict=1, return_tokens=True)
            ids += answer["tokens"]
            if answer["stop_type"] == "eos" or not answer["tokens"]:
                break
        return {"seconds": time.perf_counter() - began, "tokens": len(ids)}

    async def _forget(self, url: str) -> None:
        """Fill each of a server's slots with another prompt."""
        slots = (await self.client.get(f"{url}/props")).json()["total_slots"]
        for slot in range(slots):
            await self._post(url, prompt=[1, 2, 3], n_predict=1, cache_prompt=False, id_slot=slot)

    async def _post(self, url: str, **body: Any) -> Any:
        greedy = {"temperature": 0, "samplers": ["temperature"], "cache_prompt": True}
        while True:
            with suppress(httpx.RemoteProtocolError):  # a delayed server has just closed the connection
                answer = await self.client.post(f"{url}/completion", json=greedy | body)
                return answer.raise_for_status().json()


def _needed(name: str, wanted: Sequence[Case]) -> bool:
    return any(name in (case.draft, case.assistant) for case in wanted)


@contextmanager
def _served(files: Mapping[str, Path], name: str) -> Iterator[str]:
    """Run a server; the first one has a core of its own, and the others, of which only one works, share another."""
    with serve(files[name], context=2048, slots=4, cache=0, swa_full=True) as server:
        pin(server.pid, min([*files].index(name), 1))
        yield server.url


def pin(process: int, core: int) -> None:
    """Keep all threads of a process on one core, if the system can and has so many."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > core:
        for task in Path(f"/proc/{process}/task").iterdir():
            os.sched_setaffinity(int(task.name), {core})


@asynccontextmanager
async def _fuser(checkout: Path) -> AsyncIterator[Callable[[Record], Awaitable[dict[str, Any]]]]:
    """Run `fuser.py` with a checkout's library during the block, and yield a function that passes it a job."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("fuser.py"))]
    async with await anyio.open_process(command, stderr=None, env=library_of(checkout)) as process:
        assert process.stdin is not None and process.stdout is not None
        standard_input, lines = process.stdin, BufferedByteReceiveStream(process.stdout)

        async def fuse(job: Record) -> dict[str, Any]:
            await standard_input.send(json.dumps(job).encode() + b"\n")
            try:
                found: dict[str, Any] = json.loads(await lines.receive_until(b"\n", 1 << 20))
            except anyio.IncompleteRead:
                raise RuntimeError(f"the library of {checkout} failed: its own words are above") from None
            return found

        yield fuse


async def _traffic(options: Options, libraries: Mapping[str, Path]) -> list[Record]:
    """The client's processor time in simulated fusions over httpx, next to the same traffic without the library."""
    case, found = Traffic(16, 512, 128), list[Record]()
    async with simulated() as server:
        for number in range(options.rounds):
            options.say(f"real: the client, round {number + 1}")
            bare = Bare(**await child(server, "bare", case))
            for library, checkout in libraries.items():
                one = Measured(**await child(server, "fusions", case, http="httpx", checkout=checkout))
                figures = {"client": one.cpu / 1e6, "plain": bare.of(one) / 1e6, "questions": one.requests}
                row = {"row": "simulated models, client only", "round": number, "way": "client", "library": library}
                found.append({**row, **figures})
    return found


def tabled(records: Sequence[Record], remark: str = "") -> Table:
    """The table of all records: medians over the rounds, and the range; `figures` also has digests of the texts."""
    rows: list[list[Cell]] = []
    texts = dict[str, str]()
    for name in dict.fromkeys(one["row"] for one in records):
        mine = [one for one in records if one["row"] == name]
        for library in dict.fromkeys(one["library"] for one in mine if one["way"] in ("fused", "client")):
            shown = f"{name}, {library}" if library else str(name)
            of_library = [one for one in mine if one["library"] in ("", library)]
            if of_library[0]["way"] == "client":
                rows.append(_client_row(shown, of_library))
            else:
                rows.append(_row(shown, of_library))
                texts[shown] = _digests(of_library)
    notes = [_ABOUT, *([remark] if remark else [])]
    return Table(TITLE, COLUMNS, rows, notes, {"texts": texts, "records": [dict(one) for one in records]})


def _row(name: str, records: Sequence[Record]) -> list[Cell]:
    alone, lockstep, quotient, singly = (list[float]() for _ in range(4))
    for number in sorted({one["round"] for one in records}):
        took = {way: _per_token(records, number, way) for way in _WAYS}
        alone.append(took["fused"] / took["alone"])
        if took["other"]:
            trips = 2 * records[0]["round trip"]
            lockstep.append((took["alone"] + took["other"] + trips) / took["alone"])
            quotient.append(alone[-1] / lockstep[-1])
            singly.append(took["fused"] / (took["draft singly"] + took["assistant singly"]))
    fused = [one for one in records if one["way"] == "fused"]
    tokens = sum(one["tokens"] for one in fused)

    def share(field: str) -> float:
        return float(sum(one[field] for one in fused) / tokens)

    return [
        name,
        *map(spread, (alone, lockstep, quotient, singly)),
        f"{share('drafted') * tokens / sum(one['kept'] for one in fused):.2f}",
        f"{share('questions'):.3f}",
        f"{100 * share('replaced'):.1f}",
        *(f"{sum(one['read'][end] for one in fused) / tokens:.2f}" for end in (0, 1)),
        f"{1000 * share('client'):.2f}",
        None,
    ]


_WAYS = ("fused", "alone", "other", "draft singly", "assistant singly")


def _per_token(records: Sequence[Record], number: int, way: str) -> float:
    """Seconds per token in one round; 0 if this was not measured."""
    found = [one for one in records if one["round"] == number and one["way"] == way]
    seconds: float = sum(one["seconds"] for one in found)
    return seconds / sum(one["tokens"] for one in found) if found else 0.0


def _client_row(name: str, records: Sequence[Record]) -> list[Cell]:
    share = spread([one["client"] / one["plain"] for one in records])
    spent = f"{1000 * median([one['client'] for one in records]):.2f}"
    questions = f"{median([one['questions'] for one in records]):.3f}"
    return [name, *[None] * 5, questions, *[None] * 3, spent, share]


def _digests(records: Sequence[Record]) -> str:
    """A digest of each prompt's text; several texts, if the rounds differ, are divided by slashes."""
    texts: dict[int, dict[str, None]] = {}
    for one in records:
        if one["way"] == "fused":
            texts.setdefault(one["prompt"], {})[hashlib.sha256(one["text"].encode()).hexdigest()[:8]] = None
    return " ".join("/".join(texts[at]) for at in sorted(texts))


def spread(values: Sequence[float]) -> str | None:
    """The median and, if there are several values, their range; None without any value."""
    if not values:
        return None
    return f"{median(values):.2f}" + (f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else "")


_ABOUT = (
    "SmolLM2-135M-Instruct (Q4_1) and Gemma 3 270M (Q4_K_M, `--swa-full`) on llama.cpp, one thread and one core per "
    "server; `draft <- assistant`. Figures are medians over the rounds, with the range. *Lockstep* is the time of both "
    "models for a token, each alone, and a round trip to each if there is one. *Single requests* means lockstep with "
    "a request for every token. *Alone* means the draft's answer in one request and, for SmolLM2 with itself, the same "
    "client with a rule that never asks. *Uncached* counts the prompt's first reading. *Plain httpx* reads the same "
    "traffic and parses it as JSON."
)
