"""A server of invented models (`invented.py`) that speaks llama.cpp's native protocol, in a process of its own.

One server serves all models: `URL/0.9,0.7,0.15,1/draft/a` is the draft of the pair with that acceptance, hit rate,
share of unsure tokens and seed; `a` is the name under which its requests are counted. The server behaves like a real
one: it sends the same fields, streams server-sent events in chunks, and closes the connection after each stream.

Every request runs at full speed whatever the load, as with continuous batching on hardware with spare capacity. Every
prompt counts as cached, whatever its length. The draft needs `first` seconds for its first token and then writes `rate`
tokens a second. The assistant needs `verify` seconds for an answer of one token, whether it gets one prompt or a list
of prompts, and then also writes `rate` tokens a second.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import selectors
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import httpx

from benchmarks.invented import END, WORDS, Role, Said, Speech, encode, logprob

__all__ = ["Counts", "Simulated", "Speeds", "simulated"]

START_SECONDS = 30.0
_CONTEXT = 32768


@dataclass(frozen=True, slots=True)
class Speeds:
    """The speeds of the models, in seconds and tokens per second. If all are zero, as in tests, nothing is delayed."""

    first: float = 0.05
    rate: float = 60.0
    verify: float = 0.06

    @property
    def token(self) -> float:
        """Seconds between two tokens."""
        return 1 / self.rate if self.rate else 0.0


@dataclass(slots=True)
class Counts:
    """The counts that a server keeps under one name.

    Attributes:
        requests: requests for answers; discovery does not count.
        prompt_tokens: tokens read, including cached tokens; every prompt of a list counts.
        completion_tokens: tokens written, including those after a cancellation.
        cancelled: streams that the client closed before their end.
        connections: TCP connections that carried a request.
    """

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cancelled: int = 0
    connections: int = 0


@dataclass(frozen=True, slots=True)
class Simulated:
    """A running server of invented models.

    Attributes:
        url: the server's URL.
    """

    url: str

    def model(self, speech: Speech, role: Role, name: str, *, base: str | None = None) -> str:
        """The URL of one model, whose requests are counted under `name`; `base` is the URL of an optional proxy."""
        pair = f"{speech.acceptance},{speech.hit},{speech.unsure},{speech.seed}"
        return f"{base or self.url}/{pair}/{role}/{quote(name, safe='')}"

    async def counts(self, role: Role, name: str) -> Counts:
        """The current counts of one model under one name."""
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{self.url}/counts/{role}/{quote(name, safe='')}")
        return Counts(**answer.json())

    async def processor_seconds(self) -> float:
        """The processor time that the server has used so far, in seconds."""
        async with httpx.AsyncClient() as client:
            return float((await client.get(f"{self.url}/processor")).json())


@asynccontextmanager
async def simulated(speeds: Speeds = Speeds()) -> AsyncIterator[Simulated]:
    """Run a server during the block.

    Raises:
        TimeoutError: the server did not start in time.
    """
    command = [sys.executable, "-m", "benchmarks.simulated", *map(str, (speeds.first, speeds.rate, speeds.verify))]
    root = Path(__file__).parent.parent
    # The server ends when its standard input closes, at the end of the block or when this process is killed.
    async with await anyio.open_process(command, stderr=None, cwd=root) as process:
        assert process.stdout is not None
        with anyio.fail_after(START_SECONDS):
            port = int(await process.stdout.receive())
        try:
            yield Simulated(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()


# The server.


@dataclass(slots=True)
class _Server:
    """State that all connections share."""

    speeds: Speeds
    counts: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


@dataclass(slots=True)
class _Run:
    """One generation: a prompt, and the model's continuation."""

    said: Iterator[list[Said]]
    read: int

    @classmethod
    def of(cls, speech: Speech, role: Role, prompt: Any) -> _Run:
        parts = prompt if isinstance(prompt, list) else [prompt]
        text = b"".join(part.encode() if isinstance(part, str) else WORDS[part] for part in parts)
        return cls(speech.said(role, text), sum(len(encode(part)) if isinstance(part, str) else 1 for part in parts))


def _shown(said: Said) -> dict[str, Any]:
    data = WORDS[said.id]
    return {"id": said.id, "token": data.decode(), "bytes": list(data), "logprob": logprob(said.prob)}


def _entry(said: list[Said], count: int) -> dict[str, Any]:
    return {**_shown(said[0]), "top_logprobs": [_shown(one) for one in said[:count]]}


def _event(run: _Run, written: int, said: list[Said], count: int) -> dict[str, Any]:
    """The event for one token of a stream, in the form of a real server."""
    timings = {"cache_n": run.read - 1, "prompt_n": 1, "prompt_ms": 1.361, "prompt_per_token_ms": 0.12372727272727273}
    timings |= {"prompt_per_second": 8082.292432035269, "predicted_n": written, "predicted_ms": 16.7 * written}
    timings |= {"predicted_per_token_ms": 16.7, "predicted_per_second": 59.880239520958085}
    entry = _entry(said, count)
    event = {"index": 0, "content": entry["token"], "tokens": [entry["id"]], "stop": False, "id_slot": -1}
    event |= {"tokens_predicted": written, "tokens_evaluated": run.read, "timings": timings}
    return {**event, "completion_probabilities": [entry]}


def _last(run: _Run, written: int, index: int = 0) -> dict[str, Any]:
    last = {"index": index, "stop": True, "stop_type": "limit", "tokens": [], "tokens_evaluated": run.read}
    return {**last, "tokens_predicted": written, "truncated": False, "timings/cache_n": run.read - 1}


class _Connection(asyncio.Protocol):
    """One connection, which answers its requests one after another, each at the time when it is due."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._data = b""
        self._timer: asyncio.TimerHandle | None = None
        self._under_way: Counter[str] | None = None  # the counts of the current stream
        self._seen: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._under_way is not None and self._timer is not None:
            self._timer.cancel()
            self._under_way["cancelled"] += 1

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, rest = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        length = re.search(rb"(?im)^content-length: *(\d+)", head)
        size = int(length[1]) if length else 0
        if len(rest) < size:
            return
        self._data = rest[size:]
        self._answer(head.split(b" ", 2)[1].decode(), json.loads(rest[:size]) if size else None)

    def _answer(self, path: str, body: Any) -> None:
        if path.startswith("/counts/"):
            self._send(self._server.counts[path.removeprefix("/counts/")])
            return
        if path == "/processor":
            self._send(time.process_time())
            return
        _, pair, role, name, route = path.partition("?")[0].split("/", 4)
        if route == "completion" and body.get("ignore_eos"):  # to find out the ends
            self._send({"generation_settings/logit_bias": [{"token": END, "bias": None}]})
        elif route == "completion":
            acceptance, hit, unsure, seed = pair.split(",")
            speech = Speech(float(acceptance), float(hit), float(unsure), int(seed))
            self._complete(speech, role, f"{role}/{name}", body)
        elif route == "props":
            self._send({"default_generation_settings": {"n_ctx": _CONTEXT}, "eos_token": "</s>", "total_slots": 256})
        elif route == "v1/models":
            self._send({"data": [{"id": role, "aliases": [role], "owned_by": "llamacpp"}]})
        elif route == "health":
            self._send({"status": "ok"})
        elif route == "tokenize":
            ids = encode(body["content"])
            pieces = [{"id": id, "piece": WORDS[id].decode()} for id in ids]
            self._send({"tokens": pieces if body.get("with_pieces") else ids})
        else:
            self._send({"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}, 404)

    def _complete(self, speech: Speech, role: Any, where: str, body: dict[str, Any]) -> None:
        prompts = body["prompt"]
        # A list of texts or of lists means several prompts; a list of ids, or of texts and ids, is one prompt.
        several = isinstance(prompts, list) and {type(item) for item in prompts} not in ({int}, {int, str})
        runs = [_Run.of(speech, role, prompt) for prompt in (prompts if several else [prompts])]
        counts = self._server.counts[where]
        counts["connections"] += where not in self._seen
        self._seen.add(where)
        counts["requests"] += 1
        counts["prompt_tokens"] += sum(run.read for run in runs)
        now = asyncio.get_running_loop().time()
        speeds = self._server.speeds
        if body.get("stream"):
            self._under_way = counts
            head = "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\n"
            head += "Keep-Alive: timeout=5, max=100\r\nTransfer-Encoding: chunked\r\n\r\n"
            wait = speeds.verify if role == "assistant" else speeds.first
            self._at(now + wait, partial(self._stream, runs[0], body, 1, now + wait, head.encode()))
            return
        wanted = body["n_predict"]
        counts["completion_tokens"] += wanted * len(runs)
        wait = (speeds.verify if role == "assistant" else speeds.first) + (wanted - 1) * speeds.token
        answers = [self._whole(run, index, body) for index, run in enumerate(runs)]
        self._at(now + wait, partial(self._send, answers if len(answers) > 1 else answers[0]))

    def _whole(self, run: _Run, index: int, body: dict[str, Any]) -> dict[str, Any]:
        entries = [_entry(said, body["n_probs"]) for said in islice(run.said, body["n_predict"])]
        answer = {**_last(run, len(entries), index), "tokens": [entry["id"] for entry in entries]}
        return {**answer, "completion_probabilities": entries}

    def _stream(self, run: _Run, body: dict[str, Any], number: int, due: float, head: bytes = b"") -> None:
        """Send the token that is due; after the last token, also send the final event."""
        assert self._under_way is not None
        self._under_way["completion_tokens"] += 1
        sent = head + _chunk(_event(run, number, next(run.said), body["n_probs"]))
        if number == body["n_predict"]:
            self._under_way = self._timer = None
            self._transport.write(sent + _chunk(_last(run, number)) + b"0\r\n\r\n")
            self._transport.close()  # as a real server does
            return
        self._transport.write(sent)
        due += self._server.speeds.token
        self._at(due, partial(self._stream, run, body, number + 1, due))

    def _at(self, when: float, do: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_at(when, do)

    def _send(self, answer: Any, status: int = 200) -> None:
        self._timer = None
        data = json.dumps(answer, separators=(",", ":")).encode()
        head = f"HTTP/1.1 {status} {'OK' if status == 200 else 'Not Found'}\r\nServer: llama.cpp\r\n"
        head += f"Content-Type: application/json; charset=utf-8\r\nContent-Length: {len(data)}\r\n"
        self._transport.write(head.encode() + b"Keep-Alive: timeout=5, max=100\r\n\r\n" + data)


def _chunk(event: dict[str, Any]) -> bytes:
    data = b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def _serve(speeds: Speeds) -> None:
    """Serve until standard input closes."""
    loop = asyncio.get_running_loop()
    server = _Server(speeds)
    listening = await loop.create_server(lambda: _Connection(server), "127.0.0.1", 0, backlog=1024)
    print(listening.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), lambda: ended.set() if not os.read(0, 1024) else None)
    await ended.wait()


def main() -> None:
    """Serve at the speeds FIRST RATE VERIFY until standard input closes."""
    # select() waits with microsecond precision; epoll, asyncio's default, rounds up to milliseconds.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(_serve(Speeds(*map(float, sys.argv[1:]))))


if __name__ == "__main__":
    main()
