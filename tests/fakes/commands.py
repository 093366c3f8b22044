"""The `cosd` command as tests run it: in this process and in one of its own, over scripted models and servers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from typer.testing import CliRunner, Result

from cosd_api.apps.cli.entry import app
from cosd_providers.testing import ScriptedProvider

#: Any warning would be printed to standard error, and seen.
PYTHON = [sys.executable, "-X", "faulthandler", "-W", "error"]

#: The command over scripted models instead of servers; {draft} and {assistant} are their options.
SCRIPT = """
import cosd_api.apps.cli.options
from cosd_api.apps.cli import main
from cosd_providers.testing import Fault, ScriptedProvider

providers = {{
    "draft": ScriptedProvider.from_texts({texts}, {draft}),
    "assistant": ScriptedProvider.from_texts({{"Q": [" a", (" c", 0.9)]}}, {assistant}),
}}
cosd_api.apps.cli.options.connect = lambda url, model=None: providers[url]
main()
"""
TEXTS: Mapping[str, Sequence[Any]] = {"Q": [" a", (" b", 0.2)], "Q a c": [" d"] * 20}
#: What it writes: the assistant's word is " c".
ANSWER = " a c" + " d" * 20 + "\n"

#: The first line of a file of samples; the address of its models is nobody's business.
_ENDPOINT = {"endpoint": "http://user:sk-secret@x", "engine": "e"}
HEADER = {
    "kind": "cosd-samples",
    "schema_version": 3,
    "draft": {"name": "draft", "model": "m", **_ENDPOINT},
    "assistant": {"name": "assistant", "model": "n", **_ENDPOINT},
    "unit": "word",
    "contexts": "ids",
}
#: The first two models of `Scripted`.
SERVERS = ("--draft", "http://draft", "--assistant", "http://one")


def lines(path: Path, *rows: object) -> str:
    """A file of JSON lines; its path."""
    path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    return str(path)


def words(result: Result) -> str:
    """What was printed, as one line, without typer's frame around an error."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", result.stdout + result.stderr)


def cosd(*arguments: str, **options: Any) -> Result:
    """Runs the command in this process."""
    return CliRunner().invoke(app, arguments, **options)


@dataclass
class Scripted:
    """`cosd fuse` in this process, over scripted models at `http://draft`, `http://one` and `http://two`.

    Attributes:
        providers: by URL.
        models: what was asked for, in order.
    """

    providers: dict[str, ScriptedProvider]
    models: list[str | None] = field(default_factory=list)

    def connect(self, url: str, *, model: str | None = None) -> ScriptedProvider:
        """Stands for `cosd_api.connect`."""
        self.models.append(model)
        return self.providers[url]

    def __call__(self, *arguments: str, urls: Sequence[str] = ("draft", "one"), **options: Any) -> Result:
        """Runs the command with the models named in `urls`, the draft first."""
        draft, *assistants = (f"http://{name}" for name in urls)
        given = [option for url in assistants for option in ("--assistant", url)]
        return cosd("fuse", *arguments, "--draft", draft, *given, **options)


class Process(subprocess.Popen[bytes]):
    """A process with pipes, which are there."""

    stdout: IO[bytes]
    stderr: IO[bytes]
    stdin: IO[bytes]


@contextmanager
def start(*arguments: str, environment: Mapping[str, str] | None = None, **options: Any) -> Iterator[Process]:
    """`cosd` as a process; killed at the end of the block."""
    with _started(["-m", "cosd_api", *arguments], environment, options) as process:
        yield process


@contextmanager
def start_scripted(
    *arguments: str,
    command: Sequence[str] = ("fuse", "Q"),
    draft: str = "",
    assistant: str = "",
    texts: Mapping[str, Sequence[Any]] = TEXTS,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[Process]:
    """The command as a process over the models of `SCRIPT`; killed at the end of the block."""
    script = SCRIPT.format(texts=ascii(texts), draft=draft, assistant=assistant)
    given = ["-c", script, *command, "--draft", "draft", "--assistant", "assistant", *arguments]
    with _started(given, environment, options) as process:
        yield process


@contextmanager
def _started(
    command: Sequence[str], environment: Mapping[str, str] | None, options: Mapping[str, Any]
) -> Iterator[Process]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    everything = {**os.environ, **(environment or {})}
    with Process([*PYTHON, *command], env=everything, **{**pipes, **options}) as process:
        try:
            yield process
            process.wait(60)
        except subprocess.TimeoutExpired as error:
            error.add_note(_state(process))
            raise
        finally:
            process.kill()


def _state(process: Process) -> str:
    """The signal masks and the stack of a process that hangs. The process is aborted."""
    status = Path(f"/proc/{process.pid}/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    process.send_signal(signal.SIGABRT if os.name == "posix" else signal.SIGTERM)
    _, errors = process.communicate()
    return "\n".join([*(line for line in lines if line.startswith(("State", "Sig"))), errors.decode()])


def gone(url: str, seconds: float = 10.0) -> bool:
    """Whether nothing accepts connections there any more, or will soon."""
    parts = urlsplit(url)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex((parts.hostname, parts.port)) != 0:
                return True
        time.sleep(0.05)
    return False
