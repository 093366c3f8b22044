"""The scripts of `examples/`, run as a user runs them, but in this process: one of their own costs a second each."""

from __future__ import annotations

import io
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest

from fakes.stand_in import served

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@dataclass(frozen=True)
class Ran:
    """What a script has left behind."""

    code: int
    out: str
    err: str


def run_script(name: str, *arguments: object) -> Ran:
    """Runs a script by its name; what it does not catch is raised here."""
    path = str(EXAMPLES / f"{name}.py")
    code: object = None
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", [path, *map(str, arguments)])
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as ended:
            code = ended.code
    if isinstance(code, str):  # as the interpreter does it
        return Ran(1, out.getvalue(), f"{err.getvalue()}{code}\n")
    assert isinstance(code, int | None)
    return Ran(code or 0, out.getvalue(), err.getvalue())


@contextmanager
def on_loopback(handle: Callable[[httpx.Request], httpx.Response]) -> Iterator[str]:
    """What answers httpx's requests, as a server; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["content-length"])))

        def _answer(self, body: bytes) -> None:
            url, headers = f"http://fake{self.path}", list(self.headers.items())
            response = handle(httpx.Request(self.command, url, content=body, headers=headers))
            self.send_response(response.status_code)
            for name, value in response.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(response.content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the standard library
            """Says nothing."""

    with served(Handler) as url:
        yield url
