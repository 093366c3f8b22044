"""Attacks on the gateway's door: clients that read nothing, slow bodies, a rate limit, a full disk, many requests.

`cosd serve` runs in front of two servers of SmolLM2, and a proxy that refuses every generation of a third model with
status 429. Each attack says what it must show; meanwhile, another client asks for `/health` on new connections.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx

from benchmarks.attacked import KEY, OTHER_KEY, Attacked, ModelServer, free_port, gateway, smollm2
from benchmarks.gateway import child
from benchmarks.report import Cell, Options, Table

__all__ = ["LOST", "attack_the_door", "watch"]

_CONNECTIONS, _PIPELINED = 600, 150
_BODIES = 256
_WAIT = 50  # seconds for which the rate-limited model asks to wait
_LOG_BYTES = 16_384
_REQUESTS = 10_000
_COUNT = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,"
_LIMITS = {"first_token_timeout": 40, "heartbeat_seconds": None}


async def attack_the_door(options: Options) -> list[Table]:
    """Run every attack, and say what was seen."""
    model = await smollm2()
    draft, assistant = (ModelServer(name, model, free_port(), 2048) for name in ("draft", "assistant"))
    rows, failures = list[list[Cell]](), list[str]()
    try:
        await draft.start()
        await assistant.start()
        async with _limited(assistant.port) as port:
            refusing: dict[str, Any] = {
                "draft": {"url": draft.url},
                "assistants": [{"url": f"http://127.0.0.1:{port}"}],
            }
            fusions = {
                "cosd": {"draft": {"url": draft.url}, "assistants": [{"url": assistant.url}]},
                "spared": {**refusing, "on_assistant_error": "draft"},
                "strict": refusing,
            }
            with tempfile.TemporaryDirectory() as kept:
                settings = {"fusions": fusions, "limits": _LIMITS}
                async with gateway(Path(kept), settings, draft, assistant, _LOG_BYTES) as on:
                    await _ask(on, "cosd")
                    for name, attack, must in _ATTACKS:
                        options.say(f"attack: {name}")
                        health, over = list[float](), anyio.Event()
                        async with anyio.create_task_group() as group:
                            group.start_soon(watch, on, health, over)
                            await anyio.sleep(0.2)
                            seen, right = await attack(on)
                            over.set()
                        rows.append([name, seen, must, max(health), health.count(LOST)])
                        failures += [name] * (not right or LOST in health)
    finally:
        for one in (draft, assistant):
            one.kill()
    columns = ["attack", "seen", "must be", "/health, s (max)", "not answered"]
    count = _REQUESTS // 10 if options.quick else _REQUESTS
    options.say(f"attack: {count} requests")
    return [
        Table("Attacks on the gateway's door", columns, rows, [], {"failures": failures}),
        await _after_many(count),
    ]


LOST = 10.0
"""Number of seconds after which `/health` counts as not answered."""


async def watch(on: Attacked, health: list[float], over: anyio.Event) -> None:
    """Note the seconds that `/health` takes, until `over` is set. A process of its own measures them."""
    while not over.is_set():
        health.append(await anyio.to_process.run_sync(_health, on.port, cancellable=True))
        await anyio.sleep(0.05)


def _health(port: int) -> float:
    began, found = time.monotonic(), b""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), LOST) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        while part := client.recv(4096):
            found += part
    return time.monotonic() - began if b'"ok"' in found else LOST


async def _ask(on: Attacked, model: str, key: str = OTHER_KEY) -> tuple[httpx.Response, float]:
    """A short answer, and the seconds that it took."""
    began = time.monotonic()
    body = {"model": model, "prompt": _COUNT, "max_tokens": 8}
    async with httpx.AsyncClient(timeout=300, trust_env=False) as client:
        found = await client.post(f"{on.url}/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
    return found, time.monotonic() - began


def _connected(on: Attacked, data: bytes) -> socket.socket:
    """A client with a small buffer that has sent something, and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    client.connect(("127.0.0.1", on.port))
    client.setblocking(False)
    with suppress(OSError):
        client.send(data)
    return client


def _log(on: Attacked) -> bytes:
    return Path(on.log.name).read_bytes()


def _post(length: int, key: str = KEY) -> bytes:
    lines = ["POST /v1/completions HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {key}"]
    return "\r\n".join([*lines, "content-type: application/json", f"content-length: {length}", "", ""]).encode()


async def _answers(on: Attacked) -> tuple[str, bool]:
    """The statuses of three answers to another client, and the slowest."""
    found = [await _ask(on, "cosd") for _ in range(3)]
    statuses = [one.status_code for one, _ in found]
    return f"{statuses}, {max(seconds for _, seconds in found):.2f} s", statuses == [200] * 3


async def _unread(on: Attacked) -> tuple[str, bool]:
    one = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nx-request-id: " + b"a" * 60 + b"\r\n\r\n"
    held: list[socket.socket] = []
    for _ in range(_CONNECTIONS):
        held.append(_connected(on, one * _PIPELINED))
        await anyio.sleep(0.01)
    seen = await _answers(on)
    for client in held:
        client.close()
    return seen


async def _slow_bodies(on: Attacked) -> tuple[str, bool]:
    held = [_connected(on, _post(5000)) for _ in range(_BODIES + 10)]
    await anyio.sleep(1)
    seen = await _answers(on)
    for client in held:
        client.close()
    return seen


async def _rate_limit(on: Attacked) -> tuple[str, bool]:
    found = [await _ask(on, "spared"), await _ask(on, "spared"), await _ask(on, "strict")]
    times = ", ".join(f"{one.status_code} after {seconds:.1f} s" for one, seconds in found)
    waits = found[-1][0].headers.get("retry-after")
    right = [one.status_code for one, _ in found] == [200, 200, 429] and waits == str(_WAIT)
    return f"spared twice, strict: {times}, retry-after {waits}", right and max(one for _, one in found) < _WAIT


async def _reader(on: Attacked) -> tuple[str, bool]:
    body = {"model": "cosd", "max_tokens": 1500, "stream": True, "logprobs": 5, "prompt": _COUNT}
    data = json.dumps(body).encode()
    on.log.truncate(0)
    client = _connected(on, _post(len(data)) + data)
    await anyio.sleep(1)
    began, quiet = time.monotonic(), 0
    while quiet < 50 and time.monotonic() - began < 90:
        quiet = 0 if await on.draft.busy() else quiet + 1
        await anyio.sleep(0.1)
    took = time.monotonic() - began - quiet / 10
    client.close()
    await anyio.sleep(1)
    [line] = [json.loads(line) for line in _log(on).splitlines() if b'"disconnected"' in line]
    state = f"left its server after {took:.0f} s" if quiet else "is still on its server"
    return f"the draft {state}; tokens sent: {line['tokens']}", quiet > 0 and line["tokens"] < body["max_tokens"]


async def _full_disk(on: Attacked) -> tuple[str, bool]:
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=on.url, headers=headers, trust_env=False) as client:
        for _ in range(300):
            await client.get("/zzz")
        await anyio.sleep(0.5)
        kept = _log(on).count(b'"status": 404')
        on.log.truncate(0)
        await client.get("/zzz")
        await anyio.sleep(0.5)
    [dropped] = re.findall(rb'"log_lines_dropped": (\d+)', _log(on)) or [b"0"]
    return f"300 lines: {kept} written, {dropped.decode()} dropped", kept + int(dropped) == 300


_ATTACKS: tuple[tuple[str, Callable[[Attacked], Awaitable[tuple[str, bool]]], str], ...] = (
    ("a full disk for the log", _full_disk, "all lines are written or counted"),
    (f"{_CONNECTIONS} connections, {_PIPELINED} requests on each, nothing read", _unread, "200 for another client"),
    (f"{_BODIES + 10} slow bodies of one key", _slow_bodies, "200 for another key"),
    ("an assistant that limits its rate", _rate_limit, f"200 and 200 at once, 429 at once with {_WAIT}"),
    ("a client that reads nothing of 1,500 tokens", _reader, "the server is left before its end"),
)


@asynccontextmanager
async def _limited(behind: int) -> AsyncGenerator[int]:
    """A proxy that passes requests to a server, except generations, which it refuses; yields its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            found = re.search(rb"content-length: (\d+)", head.lower())
            body = await reader.readexactly(int(found[1])) if found else b""
            if b" /completion " in head.split(b"\r\n")[0]:
                writer.write(
                    b"HTTP/1.1 429 X\r\nretry-after: %d\r\nconnection: close\r\ncontent-length: 0\r\n\r\n" % _WAIT
                )
            else:
                there, to = await asyncio.open_connection("127.0.0.1", behind)
                head = re.sub(rb"(?i)connection:[^\r]*\r\n", b"", head)
                to.write(head[:-2] + b"Connection: close\r\n\r\n" + body)
                while part := await there.read(65536):
                    writer.write(part)
                to.close()
            await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


_HELD = ("descriptors", "tasks", "memory, MB")
_MOST = (20, 5, 20)
"""The greatest increase of each after many answers."""


async def _after_many(count: int) -> Table:
    """Measure the resources of a gateway before and after many short answers of scripted models."""
    counts: list[list[float]] = []
    async with (
        child("gateway", 8) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):

        async def some(share: int) -> None:
            for at in range(share):
                body = {"model": "cosd", "prompt": f"Q{at % 64:03}", "max_tokens": 8, "stream": at % 2 == 0}
                (await client.post("/v1/completions", json=body)).raise_for_status()

        for done in (500, count):
            async with anyio.create_task_group() as group:
                for _ in range(50):
                    group.start_soon(some, done // 50)
            await anyio.sleep(6)  # idle connections have been closed
            held = (await client.get("/times")).json()
            about = Path(f"/proc/{held['pid']}")
            status = dict(re.findall(r"^(\w+):\s+(\d+)", (about / "status").read_text(), re.MULTILINE))
            counts.append([len([*(about / "fd").iterdir()]), held["tasks"], int(status["VmRSS"]) / 1e3])
    first, last = counts
    leaked = [what for what, most, one, other in zip(_HELD, _MOST, first, last, strict=True) if other > one + most]
    rows: list[list[Cell]] = [["after 500", *first], [f"after another {count}", *last]]
    return Table("Held after many answers", ["answers", *_HELD], rows, [], {"failures": leaked})
