"""The client's processor time for each fused token.

The servers are invented models in a process of their own (`simulated.py`), at realistic speeds, reached by real HTTP on
loopback in llama.cpp's native protocol. Each case runs in a fresh process, so the measured processor time is that of
this library and its dependencies. For comparison, the same traffic is measured with httpx alone: the same numbers of
streams, chunks and requests, which are read and parsed as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx

from benchmarks.invented import Speech, prompt_of
from benchmarks.simulated import Simulated
from cosd_api import Fusion, RuleVerifier
from cosd_api.common.event_loop import run_async
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.http.clients import carrier

__all__ = ["CHECKOUT", "SPEECH", "Bare", "Case", "Measured", "child", "fusions", "library_of", "traffic"]

_SETTLED = 0.5  # seconds until the server has noticed which streams were closed
SPEECH = Speech()  # acceptance 0.9


@dataclass(frozen=True, slots=True)
class Case:
    """A number of concurrent fusions, and the lengths of prompt and answer in tokens.

    Attributes:
        answers: number of answers that each fusion writes, one after another.
        max_ahead: the fusion's setting of this name; 0 for the default.
    """

    fusions: int
    context: int
    tokens: int
    answers: int = 1
    max_ahead: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one case.

    Attributes:
        cpu: microseconds of the client's processor time for each fused token.
        drafted: tokens drafted for each fused token, which is also the number of chunks read.
        drafts: streams opened for each fused token.
        requests: requests to the assistant for each fused token.
        wall: wall time in seconds.
        written: tokens that the draft's server wrote for each fused token, even if the client did not read them.
        billed: tokens that all servers together read (cached or not) or wrote for each fused token.
        carrier: the library that carried HTTP.
    """

    cpu: float
    drafted: float
    drafts: float
    requests: float
    wall: float
    written: float
    billed: float
    carrier: str


@dataclass(frozen=True, slots=True)
class Bare:
    """Processor time of bare HTTP traffic in microseconds: per stream, per chunk of a stream, and per request."""

    stream: float
    piece: float
    request: float

    def of(self, measured: Measured) -> float:
        """Microseconds per fused token that the traffic in `measured` takes without this library."""
        traffic = measured.drafts * self.stream + measured.drafted * self.piece
        return traffic + measured.requests * self.request

    @classmethod
    def least(cls, bares: Sequence[Bare]) -> Bare:
        """The minimum of several measurements, because other load can only increase them."""
        return cls(*(min(getattr(bare, name) for bare in bares) for name in ("stream", "piece", "request")))


CHECKOUT = Path(__file__).parent.parent


async def child(
    server: Simulated,
    what: str,
    case: Case,
    *,
    http: str | None = None,
    module: str = "benchmarks.cpu",
    checkout: Path = CHECKOUT,
) -> dict[str, Any]:
    """Run a measurement in a fresh process.

    Args:
        http: the process's `COSD_HTTP`, which is inherited by default.
        checkout: the checkout of this repository that is measured.
    """
    args = [sys.executable, "-m", module, what, server.url, *map(str, asdict(case).values())]
    environment = library_of(checkout) | ({} if http is None else {"COSD_HTTP": http})
    done = await anyio.run_process(args, stderr=None, cwd=checkout, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def library_of(checkout: Path) -> dict[str, str]:
    """The environment in which Python imports the library of a checkout."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (checkout, checkout / "providers")))}


# In the fresh process.


async def fusions(url: str, case: Case, *, beside: AbstractContextManager[object] | None = None) -> dict[str, Any]:
    """Measure the fusions of a case in this process; the context manager `beside` is active meanwhile."""
    server, name = Simulated(url), f"cpu-{os.getpid()}"
    draft, assistant = (LlamaCpp(server.model(SPEECH, role, name)) for role in ("draft", "assistant"))
    ahead, rule = case.max_ahead or None, RuleVerifier.paper()
    async with Fusion(draft=draft, assistant=assistant, verifier=rule, unit="token", max_ahead=ahead) as fusion:
        await fusion.generate(prompt_of(case.context, -1), max_tokens=16)
        prompts = [prompt_of(case.context, seed) for seed in range(case.fusions * case.answers)]
        results: list[Any] = []

        async def several(first: int) -> None:
            for prompt in prompts[first : first + case.answers]:
                results.append(await fusion.generate(prompt, max_tokens=case.tokens))  # noqa: PERF401 - one by one

        written, billed = await _counted(server, name)
        start, cpu = time.perf_counter(), time.process_time()
        with beside or nullcontext():
            async with anyio.create_task_group() as group:
                for number in range(case.fusions):
                    group.start_soon(several, number * case.answers)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - start
    await anyio.sleep(_SETTLED)
    written_now, billed_now = await _counted(server, name)
    fused = sum(len(result.tokens) for result in results)
    return asdict(
        Measured(
            cpu=1e6 * cpu / fused,
            drafted=sum(result.drafted_tokens for result in results) / fused,
            drafts=sum(result.draft_requests for result in results) / fused,
            requests=sum(result.assistant_requests for result in results) / fused,
            wall=wall,
            written=(written_now - written) / fused,
            billed=(billed_now - billed) / fused,
            carrier=carrier(),
        )
    )


async def _counted(server: Simulated, name: str) -> tuple[int, int]:
    """The tokens that the draft wrote, and the tokens that both models read or wrote."""
    draft, assistant = await server.counts("draft", name), await server.counts("assistant", name)
    billed = sum(one.prompt_tokens + one.completion_tokens for one in (draft, assistant))
    return draft.completion_tokens, billed


async def _bare(url: str, case: Case) -> dict[str, Any]:
    """Measure a fusion's traffic with httpx alone; the request bodies are as large as those of the fusion."""
    server, prompt = Simulated(url), prompt_of(case.context, 0)
    draft, assistant = (server.model(SPEECH, role, "bare") + "/completion" for role in ("draft", "assistant"))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=4)
    async with httpx.AsyncClient(timeout=600, limits=limits) as client:

        async def stream(tokens: int) -> None:
            body = {"prompt": prompt, "n_predict": tokens, "n_probs": 1, "stream": True}
            async with client.stream("POST", draft, json=body, headers={"Connection": "close"}) as response:
                rest = b""
                async for piece in response.aiter_raw():
                    *events, rest = (rest + piece).split(b"\n\n")
                    for event in events:
                        json.loads(event.removeprefix(b"data: "))

        async def ask() -> None:
            json.loads((await client.post(assistant, json={"prompt": [prompt], "n_predict": 1, "n_probs": 5})).content)

        return asdict(await traffic(stream, ask, case))


async def traffic(stream: Callable[[int], Awaitable[None]], ask: Callable[[], Awaitable[None]], case: Case) -> Bare:
    """Measure the cost of requests, and of streams with as many tokens as in the case."""
    short, long = await _each(partial(stream, 1), case, 3), await _each(partial(stream, 51), case, 1)
    piece = (long - short) / 50
    return Bare(stream=short - piece, piece=piece, request=await _each(ask, case, 5))


async def _each(do: Callable[[], Awaitable[object]], case: Case, times: int) -> float:
    """Microseconds of processor time per call of `do`; as many calls run at once as the case has fusions."""
    times *= 1 + 4 // case.fusions

    async def often() -> None:
        for _ in range(times):
            await do()

    await do()
    cpu = time.process_time()
    async with anyio.create_task_group() as group:
        for _ in range(case.fusions):
            group.start_soon(often)
    return 1e6 * (time.process_time() - cpu) / (times * case.fusions)


if __name__ == "__main__":
    _measure = {"fusions": fusions, "command": fusions, "bare": _bare}[sys.argv[1]]
    _run = run_async if sys.argv[1] == "command" else anyio.run
    print(json.dumps(_run(_measure, sys.argv[2], Case(*map(int, sys.argv[3:])))))
