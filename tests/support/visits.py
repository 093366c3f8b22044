"""Requests to the gateway by ASGI itself: no socket and no server, so that a test decides when a client leaves."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from cosd_api import Fusion
from cosd_api.apps.gateway import ClientKey, Gateway, GatewayLimits

ASGI = Callable[..., Any]


@dataclass
class Reply:
    """The gateway's answers so far.

    Attributes:
        parts: of the body, as they were sent.
        complete: whether the body has ended.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Mapping[str, Any]:
        """The error of the whole answer, or of the last event of a stream."""
        found: Mapping[str, Any] = (self.events[-1] if self.streamed else self.json)["error"]
        return found

    @property
    def streamed(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def heartbeats(self) -> int:
        """Comments in place of events."""
        return sum(one.startswith(":") for one in self.body.decode().split("\n\n"))

    @property
    def events(self) -> list[Any]:
        """The events of a stream; `"[DONE]"` as it is."""
        texts = [one.removeprefix("data: ") for one in self.body.decode().split("\n\n") if one[:1] not in ("", ":")]
        return [text if text == "[DONE]" else json.loads(text) for text in texts]

    def texts(self, index: int = 0) -> list[str]:
        """The pieces of one answer of a stream."""
        choices = [one["choices"][0] for one in self.events if one != "[DONE]" and one.get("choices")]
        pieces = [
            one["delta"].get("content", "") if "delta" in one else one["text"]
            for one in choices
            if one["index"] == index
        ]
        return [piece for piece in pieces if piece]


@dataclass
class Visit:
    """One client's request, which is made by `send`.

    Attributes:
        gone: set it, and the client has left.
        pause: called before each message of the gateway's is taken, with the reply so far.
    """

    app: ASGI
    path: str
    body: Any = None
    method: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    gone: anyio.Event = field(default_factory=anyio.Event)
    pause: Callable[[Reply], Any] | None = None
    address: str = "127.0.0.1"
    more_body: bool = False
    reply: Reply = field(default_factory=Reply)

    async def send(self) -> Reply:
        """Makes the request, and waits for the end of the answer."""
        data = (
            self.body if isinstance(self.body, bytes) else b"" if self.body is None else json.dumps(self.body).encode()
        )
        method = self.method or ("POST" if self.body is not None else "GET")
        headers = {"host": "127.0.0.1:8000", "content-type": "application/json", **self.headers}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": (self.address, 1),
            "server": ("127.0.0.1", 8000),
        }
        bodies = [{"type": "http.request", "body": data, "more_body": self.more_body}]

        async def receive() -> Any:
            if bodies:
                return bodies.pop()
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if self.pause is not None:
                await self.pause(self.reply)
            if message["type"] == "http.response.start":
                assert not self.reply.status
                self.reply.status = message["status"]
                self.reply.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            elif not self.gone.is_set():
                self.reply.parts.append(message["body"])
                self.reply.complete = not message.get("more_body", False)

        await self.app(scope, receive, send)
        return self.reply


async def visit(app: ASGI, path: str, body: Any = None, **more: Any) -> Reply:
    """One request to its end."""
    return await Visit(app, path, body, **more).send()


@asynccontextmanager
async def opened(
    fusions: Mapping[str, Fusion] | Fusion,
    *,
    keys: Mapping[str, ClientKey] | None = None,
    cors: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
    call_format: str | None = None,
    **limits: Any,
) -> AsyncGenerator[Gateway]:
    """A gateway whose lifespan has begun."""
    several = {"fused": fusions} if isinstance(fusions, Fusion) else fusions
    more: Any = {"cors": cors, "ignore": ignore, "call_format": call_format}
    app = Gateway(several, keys=keys, limits=GatewayLimits(**limits), **more)
    sent_in, receive = anyio.create_memory_object_stream[Any](1)
    sent_out, answers = anyio.create_memory_object_stream[Any](1)
    async with anyio.create_task_group() as group, sent_in, receive, sent_out, answers:
        group.start_soon(app, {"type": "lifespan", "asgi": {}}, receive.receive, sent_out.send)
        for kind in ("startup", "shutdown"):
            await sent_in.send({"type": f"lifespan.{kind}"})
            assert (await answers.receive())["type"] == f"lifespan.{kind}.complete"
            if kind == "startup":
                yield app


async def until(true: Callable[[], bool]) -> None:
    """Lets the others work until something is true."""
    with anyio.fail_after(20):
        while not true():  # noqa: ASYNC110 - no event tells
            await anyio.sleep(0.001)
