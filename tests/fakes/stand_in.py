"""Common ground of the stand-ins for servers: they answer httpx's requests, or real ones on loopback."""

from __future__ import annotations

import json
import select
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import httpx

from fakes.chats import Template


@dataclass
class Answer:
    """Answer of a stand-in: one body, or events."""

    status: int
    body: object = None
    events: Iterator[dict[str, Any]] | None = None


def event_stream(events: Iterable[object], *, done: bool = True) -> httpx.Response:
    """A stream of events, whose end is told."""
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    text = "".join([*lines, "data: [DONE]\n\n" if done else ""])
    return httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})


def rendered(template: tuple[str, str] | Template, messages: Sequence[Mapping[str, str]]) -> str:
    """A conversation by a chat template: a function, or what is written around the first message."""
    if isinstance(template, tuple):
        before, after = template
        return before + messages[0]["content"] + after
    return template(messages)


class StandIn:
    """A server in this process: `client()` is an httpx client that talks to it, `serve()` puts it on loopback.

    Attributes:
        kind: the content type of its events.
    """

    kind: ClassVar[str] = "text/event-stream"

    def answer(self, method: str, path: str, body: Any) -> Answer:
        """One request, answered."""
        raise NotImplementedError

    def written(self, event: Mapping[str, Any]) -> str:
        """An event as it is sent."""
        return f"data: {json.dumps(event)}\n\n"

    def handle(self, request: httpx.Request) -> httpx.Response:
        """For `httpx.MockTransport`."""
        answer = self.answer(request.method, request.url.path, json.loads(request.content) if request.content else None)
        if answer.events is not None:
            text = "".join(map(self.written, answer.events))
            return httpx.Response(answer.status, text=text, headers={"content-type": self.kind})
        if answer.body is None:
            return httpx.Response(answer.status)
        return httpx.Response(answer.status, json=answer.body)

    def client(self, change: Callable[[httpx.Response], httpx.Response] | None = None) -> httpx.AsyncClient:
        """A client whose every request is answered here; `change` may spoil an answer."""

        def handle(request: httpx.Request) -> httpx.Response:
            response = self.handle(request)
            return change(response) if change else response

        return httpx.AsyncClient(transport=httpx.MockTransport(handle))

    @contextmanager
    def serve(self) -> Iterator[str]:
        """A real HTTP server on loopback; gives its URL."""
        with served(type("Handler", (Handler,), {"stand_in": self})) as url:
            yield url


class _Server(ThreadingHTTPServer):
    """Says nothing of clients that leave: many tests do."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A real HTTP server on loopback; gives its URL."""
    server = _Server(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    """Speaks HTTP for a stand-in; sees when a client leaves.

    Attributes:
        stand_in: what answers.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the body of a small answer waits 40 ms, until the client has its head
    stand_in: Any

    def do_GET(self) -> None:
        self._respond("GET", None)

    def do_POST(self) -> None:
        self._respond("POST", json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _respond(self, method: str, body: Any) -> None:
        answer = self.stand_in.answer(method, self.path, body)
        self.send_response(answer.status)
        if answer.events is not None:
            self.send_header("content-type", self.stand_in.kind)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self._send_events(answer.events)
            return
        content = b"" if answer.body is None else json.dumps(answer.body).encode()
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _send_events(self, events: Iterator[dict[str, Any]]) -> None:
        sent = 0
        try:
            for event in events:
                if self._left(self.stand_in.pace if sent else 0.0):
                    raise ConnectionResetError
                data = self.stand_in.written(event).encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                sent += 1
            self.wfile.write(b"0\r\n\r\n")
            self.stand_in.finished += 1
        except OSError:
            self.stand_in.gone.append(sent)
            self.close_connection = True

    def _left(self, seconds: float) -> bool:
        """True if the client is gone, or goes within these seconds: there is something to read, and it is the end."""
        readable, _, _ = select.select([self.connection], [], [], seconds)
        return bool(readable) and not self.connection.recv(1, 2)  # 2: only to look (MSG_PEEK)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the standard library
        """Says nothing."""
