"""The gateway's cost: what it adds to the first text, and to each token of a stream, on top of the library.

Every part runs in a fresh process: the gateway with scripted models, a client that only records times, the library
alone with the same models, and a plain pass-through, which relays the gateway's stream as it arrives. All processes
share a clock. The time added to a token can therefore be measured from the moment when the library yielded it, or the
pass-through read it, to the moment when the client received it.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import uvicorn
from anyio.streams.buffered import BufferedByteReceiveStream
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from benchmarks.report import Options, Table
from cosd_api import Fusion, RuleVerifier
from cosd_api.apps.gateway import Gateway
from cosd_api.apps.gateway.server import listening, run_gateway
from cosd_api.common.event_loop import event_loop_name, run_async
from cosd_api.stream import FusionStream
from cosd_providers.http.clients import event_loop
from cosd_providers.testing import ScriptedProvider

__all__ = ["run"]

_TOKEN_SECONDS = 0.02
_SHORT, _LONG = 8, 108  # tokens per answer; the two lengths separate the cost per answer from the cost per token
_STREAMS = (1, 16, 64)
_PATH = "/v1/completions"
_TIMES = "/times"

_APART = 0.01  # seconds between the starts of two streams

_HOW = (
    f"The processes, HTTP over the loopback interface, and uvicorn with h11 on {event_loop_name()} are real. The "
    f"models are scripted: they run in the gateway's own process and write {1 / _TOKEN_SECONDS:.0f} tokens a second. "
    "CPU is the processor time of the measured process (the minimum of all repetitions); for `cosd serve`, it is only "
    "the processor time in addition to that of the library alone. *CPU an answer* is the part of the processor time "
    "that does not grow with the answer's length."
)
_BESIDE = (
    "The pass-through consists of 20 lines of code with Starlette and httpx that relay bytes, without keys, limits, "
    "usage counts or token boundaries."
)
_LOADED = (
    "Other programs on the machine affect the times in milliseconds, which include waiting for a processor, but "
    "hardly affect the CPU time. Targets: 5 ms to the first text, and 50 us of CPU time per token."
)


@dataclass(frozen=True, slots=True)
class Visited:
    """The times that a client recorded for one stream: that of the request, and that of each token."""

    asked: float
    came: Sequence[float]


@dataclass(frozen=True, slots=True)
class Observed:
    """Streams of one length from one server.

    Attributes:
        cpu: processor seconds of the server.
        first: seconds added to the first text of each stream.
        each: seconds added to each later token.
    """

    cpu: float
    first: Sequence[float] = ()
    each: Sequence[float] = ()


async def run(options: Options) -> list[Table]:
    """Measure all cases."""
    cases, repeats = ((16,), 1) if options.quick else (_STREAMS, 3)
    rows: list[list[Any]] = []
    figures: dict[str, Any] = {}
    for streams in cases:
        options.say(f"gateway: {streams} streams")
        found = {what: {size: await _often(what, streams, size, repeats) for size in (_SHORT, _LONG)} for what in _ASK}
        library = _costs(found["library"], streams)
        rows.append([streams, "the library", *library, None, None, None, None])
        for what, name in _NAMES.items():
            token, answer = _costs(found[what], streams)
            if what != "relay":
                token, answer = token - library[0], answer - library[1]
            first = [1e3 * one for each in found[what][_LONG] for one in each.first]
            tokens = [1e3 * one for each in found[what][_LONG] for one in each.each]
            rows.append([streams, name, token, answer, *_centiles(first), *_centiles(tokens)])
        figures[str(streams)] = {
            what: {str(size): [one.cpu for one in each] for size, each in sizes.items()}
            for what, sizes in found.items()
        }
    return [_table(rows, figures)]


def _table(rows: Sequence[Sequence[Any]], figures: dict[str, Any]) -> Table:
    columns = (
        "streams",
        "",
        "CPU a token, us",
        "CPU an answer, us",
        "to the first text, ms (p50)",
        "(p99)",
        "to a later token, ms (p50)",
        "(p99) ",  # distinguishes this column from another of the same name
    )
    return Table("What the gateway adds", columns, rows, (_HOW, _BESIDE, _LOADED), figures)


def _costs(found: Mapping[int, Sequence[Observed]], streams: int) -> tuple[float, float]:
    """Microseconds of processor time per token and per answer."""
    short, long = (min(one.cpu for one in found[size]) / streams for size in (_SHORT, _LONG))
    token = (long - short) / (_LONG - _SHORT)
    return 1e6 * token, 1e6 * (short - _SHORT * token)


def _centiles(values: Sequence[float]) -> tuple[float | None, float | None]:
    if not values:
        return None, None
    ordered = sorted(values)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


async def _often(what: str, streams: int, tokens: int, repeats: int) -> list[Observed]:
    return [await _ASK[what](streams, tokens) for _ in range(repeats)]


async def _alone(role: str, streams: int, tokens: int) -> Observed:
    done = await anyio.run_process(_command(role, streams, tokens), stderr=None, cwd=Path(__file__).parent.parent)
    return Observed(cpu=float(done.stdout))


async def _gateway(streams: int, tokens: int) -> Observed:
    async with child("gateway", tokens) as port:
        return await _observed(port, streams, tokens)


async def _relay(streams: int, tokens: int) -> Observed:
    async with child("gateway", tokens) as behind, child("relay", behind) as port:
        return await _observed(port, streams, tokens)


_ASK: Mapping[str, Callable[[int, int], Awaitable[Observed]]] = {
    "library": partial(_alone, "library"),
    "gateway": _gateway,
    "application": partial(_alone, "application"),
    "relay": _relay,
}
_NAMES = {
    "gateway": "cosd serve, on top",
    "application": "of that, without uvicorn and sockets",
    "relay": "a pass-through",
}


async def _observed(port: int, streams: int, tokens: int) -> Observed:
    """Request streams at the same time, after a first stream that is not counted."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        await _visit(port, _prompt(streams), tokens)
        before = (await client.get(_TIMES)).json()
        found: dict[str, Visited] = {}

        async def one(number: int) -> None:
            await anyio.sleep(_APART * number)
            found[_prompt(number)] = await _visit(port, _prompt(number), tokens)

        async with anyio.create_task_group() as group:
            for number in range(streams):
                group.start_soon(one, number)
        after = (await client.get(_TIMES)).json()
    first: list[float] = []
    each: list[float] = []
    for name, seen in found.items():
        began, *left = after["times"][name]
        late = [came - gone for came, gone in zip(seen.came, left, strict=True)]
        first.append(began - seen.asked + late[0])
        each += late[1:]
    return Observed(after["cpu"] - before["cpu"], first, each)


async def _visit(port: int, prompt: str, tokens: int) -> Visited:
    """Request one stream, as cheaply as possible."""
    body = json.dumps({"model": "cosd", "prompt": prompt, "stream": True, "max_tokens": tokens}).encode()
    head = f"POST {_PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\nx-request-id: {prompt}\r\ncontent-type: application/json\r\n"
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        lines = BufferedByteReceiveStream(stream)
        asked, came = time.perf_counter(), list[float]()
        await stream.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        while b"[DONE]" not in (line := await lines.receive_until(b"\n", 1 << 16)):
            if _is_token(line):
                came.append(time.perf_counter())
    return Visited(asked, came)


def _is_token(line: bytes) -> bool:
    return line.startswith(b"data: {") and b'"finish_reason":null' in line


def _prompt(number: int) -> str:
    return f"Q{number:03}"


def _command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "benchmarks.gateway", *map(str, arguments)]


@asynccontextmanager
async def child(*arguments: object) -> AsyncGenerator[int]:
    """Run a server in a process of its own, and yield its port."""
    async with await anyio.open_process(_command(*arguments), stderr=None, cwd=Path(__file__).parent.parent) as process:
        assert process.stdout is not None
        try:
            yield int(await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 100))
        finally:
            process.kill()


# In the fresh processes.


def _fusion(tokens: int) -> Fusion:
    script = {_prompt(number): [" a"] * tokens for number in range(max(_STREAMS) + 1)}
    draft = ScriptedProvider.from_texts(script, token_delay=_TOKEN_SECONDS)
    assistant, rule = ScriptedProvider.from_texts(script), RuleVerifier.paper()
    return Fusion(draft=draft, assistant=assistant, verifier=rule, unit="token")


async def _library(streams: int, tokens: int) -> None:
    async with _fusion(tokens) as fusion:

        async def one(number: int) -> None:
            async with fusion.stream(_prompt(number), max_tokens=tokens) as stream:
                assert len([token async for token in stream]) >= tokens

        await _timed(one, streams)


async def _application(streams: int, tokens: int) -> None:
    gateway = Gateway({"cosd": _fusion(tokens)})
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]

    async def one(number: int) -> None:
        body = json.dumps({"model": "cosd", "prompt": _prompt(number), "stream": True, "max_tokens": tokens}).encode()
        asked: list[Any] = [{"type": "http.request", "body": body}]
        sent: list[Any] = []

        async def receive() -> Any:
            return asked.pop() if asked else await anyio.sleep_forever()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": _PATH, "headers": headers, "query_string": b""}
        await gateway(scope, receive, send)
        assert len(sent) > tokens

    async with gateway._lifespan(gateway):
        await _timed(one, streams)


async def _timed(one: Callable[[int], Awaitable[None]], streams: int) -> None:
    """Print the processor seconds that `streams` streams take, after a first stream that is not counted."""

    async def later(number: int) -> None:
        await anyio.sleep(_APART * number)
        await one(number)

    await one(streams)
    cpu = time.process_time()
    async with anyio.create_task_group() as group:
        for number in range(streams):
            group.start_soon(later, number)
    print(time.process_time() - cpu)


class TimedGateway(Gateway):
    """A gateway that records when the library began each answer and when it yielded each token."""

    def __init__(self, fusion: Fusion) -> None:
        super().__init__({"cosd": fusion})
        self.times: dict[str, list[float]] = {}
        begin, give = FusionStream.__aenter__, FusionStream.__anext__

        async def noted(stream: FusionStream) -> Any:
            self.times[str(stream._prompt)] = [time.perf_counter()]
            return await begin(stream)

        async def given(stream: FusionStream) -> Any:
            token = await give(stream)
            if not token.end:
                self.times[str(stream._prompt)].append(time.perf_counter())
            return token

        FusionStream.__aenter__ = noted  # type: ignore[method-assign,assignment]
        FusionStream.__anext__ = given  # type: ignore[method-assign,assignment]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or report the recorded times."""
        if scope.get("path") == _TIMES:
            await _times(self.times)(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def _times(times: dict[str, list[float]]) -> Response:
    held = {"pid": os.getpid(), "tasks": len(asyncio.all_tasks())}
    return JSONResponse({"cpu": time.process_time(), "times": times, **held})


def _relaying(port: int) -> Router:
    """The plain pass-through server."""
    times: dict[str, list[float]] = {}
    client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600, limits=httpx.Limits())

    async def relay(request: Request) -> Response:
        body = await request.body()
        noted = times[request.headers["x-request-id"]] = [time.perf_counter()]
        asked = client.build_request("POST", _PATH, content=body, headers={"content-type": "application/json"})
        response = await client.send(asked, stream=True)

        async def parts() -> AsyncGenerator[bytes]:
            async for part in response.aiter_raw():
                noted.extend([time.perf_counter()] * sum(map(_is_token, part.split(b"\n"))))
                yield part

        return StreamingResponse(parts(), response.status_code, media_type=response.headers["content-type"])

    async def told(_: Request) -> Response:
        return _times(times)

    return Router([Route(_PATH, relay, methods=["POST"]), Route(_TIMES, told)])


def _serve(role: str, number: int) -> None:
    with listening("127.0.0.1", 0) as at:
        say = partial(print, at.getsockname()[1], flush=True)
        if role == "gateway":
            run_gateway(TimedGateway(_fusion(number)), at, ready=say)
        else:
            at.listen()
            say()  # requests that arrive before the server is ready have to wait
            how: Any = {"http": "h11", "ws": "none", "loop": event_loop(), "access_log": False, "log_config": None}
            uvicorn.Server(uvicorn.Config(_relaying(number), **how)).run(sockets=[at])


if __name__ == "__main__":
    _role, *_numbers = sys.argv[1:]
    if _role in ("library", "application"):
        _streams, _tokens = map(int, _numbers)
        run_async({"library": _library, "application": _application}[_role], _streams, _tokens)
    else:
        _serve(_role, *map(int, _numbers))
