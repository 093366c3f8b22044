"""Tokens that a server generates after the client has cancelled a stream, on real servers.

The servers do the counting: llama.cpp reports the tokens in a slot (`/slots`), vLLM all tokens that it has generated
(`/metrics`). Tokens that the client received before the cancellation are subtracted; tokens that were still in transit
count as generated after the cancellation. A stream is ended as a fusion ends it: its task is cancelled. Each HTTP
library is measured in a fresh process.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import anyio
import httpx

from benchmarks import vllm
from benchmarks.cpu import Case, child
from benchmarks.report import Cell, Options, Table
from benchmarks.simulated import Simulated
from cosd_api.demo.servers import bundled_pair
from cosd_providers import connect
from cosd_providers.contract import Context, Provider, Token
from cosd_providers.http.stack import carrier
from cosd_providers.usage import Usage

__all__ = ["LONGEST", "PROMPT", "Cancelled", "Count", "counter", "leave", "run"]

PROMPT = "aaaaaaaaa"
"""A prompt after which the bundled models write until the token limit."""

LONGEST = 400
"""The number of tokens requested from each stream."""

READ, TIMES, QUICK = 16, 20, 2
"""The number of tokens read from each stream, the number of streams, and the number of streams with `--quick`."""

_ABOUT = (
    f"Streams of {LONGEST} tokens run one at a time, and each task is cancelled after it has received {READ} tokens. "
    "The figures show how many tokens the server had generated when it became idle, minus the number of tokens that "
    "the client received. The bundled models are small and fast; the server of a large model would generate fewer "
    "tokens in the same time. The servers and the client share one machine, so a server whose processes have to wait "
    "for a processor notices a cancelled stream late."
)
_WITHOUT = "vLLM is left out because it is not installed (`make test-vllm` installs it)."


@dataclass(frozen=True, slots=True)
class Cancelled:
    """One cancelled stream.

    Attributes:
        read: tokens that the client received before the cancellation.
        after: further tokens that the server generated.
        rate: tokens per second at which the client received them.
    """

    read: int
    after: int
    rate: float


class Count(Protocol):
    """The number of tokens that a server has generated."""

    async def begin(self) -> None:
        """Record the count before a stream."""
        ...

    async def generated(self, prompt: int) -> int:
        """Wait until the server is idle; return the tokens generated since `begin`, for a prompt of `prompt` tokens."""
        ...


async def run(options: Options) -> list[Table]:
    """Return the table, which includes vLLM if it is installed."""
    case = Case(1, 0, READ, QUICK if options.quick else TIMES)
    found: list[tuple[str, list[Cancelled]]] = []
    with bundled_pair() as pair:
        options.say("cancelled: llama.cpp")
        found += await _measured("llama.cpp", pair.sums, case)
    folder = vllm.environment()
    if folder is not None:
        with ExitStack() as stack:
            options.say("cancelled: vLLM")
            found += await _measured("vLLM on the CPU", vllm.servers(stack, folder, "sums")["sums"], case)
    rows: list[list[Cell]] = [
        [
            *name.split(", "),
            len(several),
            f"{statistics.median(one.after for one in several):g}",
            max(one.after for one in several),
            statistics.median(one.rate for one in several),
        ]
        for name, several in found
    ]
    columns = ["server", "HTTP by", "streams", "tokens after the cancellation: median", "most", "tokens a second"]
    figures = {name: [*map(asdict, several)] for name, several in found}
    notes = [_ABOUT, *([] if folder else [_WITHOUT])]
    return [Table("Tokens generated after a cancellation", columns, rows, notes, figures)]


async def _measured(server: str, url: str, case: Case) -> list[tuple[str, list[Cancelled]]]:
    """Measure streams from one server with each HTTP library."""
    found: list[tuple[str, list[Cancelled]]] = []
    for http in ("", "httpx"):
        done = await child(Simulated(url), "leave", case, http=http, module="benchmarks.cancelled")
        found.append((f"{server}, {done['carrier']}", [Cancelled(**one) for one in done["streams"]]))
    return found


# In the fresh process.


class _Slots:
    """The token count of a llama.cpp server, read from its slots."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def begin(self) -> None: ...

    async def generated(self, prompt: int) -> int:
        while any(slot["is_processing"] for slot in await self._slots()):  # noqa: ASYNC110
            await anyio.sleep(0.02)
        latest = max(await self._slots(), key=lambda slot: int(slot.get("id_task", -1)))
        return int(latest["n_prompt_tokens"]) - prompt + 1  # the slot contains all tokens except the last

    async def _slots(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._client.get("/slots")).json()
        return found


class _Metrics:
    """The token count of a vLLM server, read from its metrics."""

    def __init__(self, client: httpx.AsyncClient, model: str) -> None:
        self._client, self._model = client, model
        self._before = self._asked = 0

    async def begin(self) -> None:
        self._before = await self._settled()

    async def generated(self, prompt: int) -> int:
        del prompt
        return await self._settled() - self._before

    async def _settled(self) -> int:
        """Wait until nothing else is generated; return the count without the tokens that this check requests.

        The metric is updated only when the engine takes a step, so each check requests a token.
        """
        counts: list[int] = []
        while len(counts) < 2 or counts[-2] != counts[-1]:
            await anyio.sleep(0.05)
            body = {"model": self._model, "prompt": "a", "max_tokens": 1}
            (await self._client.post("/v1/completions", json=body)).raise_for_status()
            self._asked += 1
            lines = (await self._client.get("/metrics")).text.splitlines()
            [value] = [line.rpartition(" ")[2] for line in lines if line.startswith("vllm:generation_tokens_total{")]
            counts.append(int(float(value)) - self._asked)
        return counts[-1]


def counter(client: httpx.AsyncClient, engine: str, model: str) -> Count:
    """A counter for a server, which reads the count with a client that has the server's URL."""
    counters: dict[str, Count] = {"llama.cpp": _Slots(client), "vllm": _Metrics(client, model)}
    return counters[engine]


async def leave(provider: Provider, count: Count, *, read: int = READ, longest: int = LONGEST) -> Cancelled:
    """Cancel a stream of `longest` tokens after `read` tokens; a stream that ends earlier is not cancelled."""
    usage, times = Usage(), list[float]()
    await count.begin()
    with anyio.CancelScope() as scope:
        async for item in provider.generate(Context(PROMPT, b""), max_tokens=longest, usage=usage):
            times += [time.perf_counter()] * isinstance(item, Token)
            if len(times) == read:
                scope.cancel()
    before = times[:read]  # tokens that arrived before the cancellation are still delivered
    after = await count.generated(usage.prompt_tokens) - len(before)
    return Cancelled(len(before), after, (len(before) - 1) / max(before[-1] - before[0], 1e-9))


async def _leave(url: str, case: Case) -> dict[str, Any]:
    async with connect(url) as provider, httpx.AsyncClient(base_url=url, timeout=60) as client:
        info = await provider.describe()
        count = counter(client, info.engine, info.model)
        await leave(provider, count, longest=READ)  # a first stream opens the connections and fills the prompt cache
        streams = [await leave(provider, count, read=case.tokens) for _ in range(case.answers)]
    return {"carrier": carrier(), "streams": [*map(asdict, streams)]}


async def check(url: str, *, most: int = READ, seconds: float = 60) -> None:
    """Check, for tests, that the count is right and that at least one stream wastes at most `most` tokens.

    Raises:
        AssertionError: the count is wrong.
        TimeoutError: for `seconds`, every stream wasted more tokens.
    """
    async with connect(url) as provider, httpx.AsyncClient(base_url=url, timeout=60) as client:
        info = await provider.describe()
        count = counter(client, info.engine, info.model)
        for longest in (1, 7, READ - 1):
            whole = await leave(provider, count, longest=longest)
            assert (whole.read, whole.after) == (longest, 0), whole
        with anyio.fail_after(seconds):
            while not 0 <= (await leave(provider, count)).after <= most:
                pass


def main(arguments: Sequence[str]) -> None:
    """Measure the server at a URL."""
    print(json.dumps(anyio.run(_leave, arguments[1], Case(*map(int, arguments[2:])))))


if __name__ == "__main__":
    main(sys.argv[1:])
