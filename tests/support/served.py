"""A real server in a process of its own, for tests: started, waited for, and ended with all that it has started.

A server is stopped when its block is left, and also when the process that started it is gone, however that ended.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TypeVar
from urllib.parse import urlsplit

CHILD = Path(__file__).parents[1] / "vllm_cpu" / "_child.py"
START_SECONDS = 300.0
STOP_SECONDS = 40.0


class ServedError(RuntimeError):
    """A server could not be started, or has ended by itself; the message shows the last lines of its log."""


def python_of(environment: Path, server: str, target: str) -> str:
    """The Python of an environment that a server is installed in.

    Raises:
        ServedError: there is none.
    """
    python = environment / "bin" / "python"
    if not python.exists():
        raise ServedError(f"there is no {server} in {environment}; `make {target}` installs it")
    return str(python)


class Served:
    """One server: one process or several, and one that watches over them.

    Args:
        name: the model's id on the server.
        command: what starts it, without host and port.
        environment: all that it sees of the environment, beside PATH.
        child: the script that watches.

    Attributes:
        name: the model's id on the server.
        url: where it answers, or will.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], child: Path = CHILD) -> None:
        self.name = name
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - stop() closes it
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(child), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={"PATH": os.environ.get("PATH", os.defpath), **environment},
            # Ctrl-C, and a kill of everything that a terminal started, are for the tests. This ends after them.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().strip()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.url!r})"

    @property
    def pid(self) -> int:
        """The process that watches over the server; it ends when all the others have."""
        return self._process.pid

    def wait_until_ready(self, seconds: float = START_SECONDS) -> None:
        """Waits until the model is served.

        Raises:
            ServedError: it ended instead, or took longer than `seconds`.
        """
        deadline = time.monotonic() + seconds
        while not self._serves():
            self.check()
            if time.monotonic() > deadline:
                raise ServedError(f"{self.name} was not ready after {seconds:g} s; its log ends:\n{self.log()}")
            time.sleep(0.2)

    def check(self) -> None:
        """Sees whether it still runs.

        Raises:
            ServedError: it has ended by itself.
        """
        code = self._process.poll()
        if code is not None:
            raise ServedError(f"{self.name} ended with code {code}; its log ends:\n{self.log()}")

    def log(self, lines: int = 30) -> str:
        """The last lines that it wrote."""
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """Ends the server and waits until none of its processes is left; does nothing the second time."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(STOP_SECONDS)
        finally:
            self._log.close()

    def _serves(self) -> bool:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
        try:
            connection.request("GET", "/v1/models")
            answer = connection.getresponse()
            return answer.status == 200 and json.load(answer)["data"][0]["id"] == self.name
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


_S = TypeVar("_S", bound=Served)


@contextmanager
def serving(
    start: Callable[[str], _S], names: Iterable[str], seconds: float = START_SECONDS
) -> Iterator[dict[str, _S]]:
    """Servers of models, started one after the other, while the block lasts.

    Raises:
        ServedError: one cannot be started; the message says why.
    """
    with ExitStack() as stack:
        servers: dict[str, _S] = {}
        for name in names:
            servers[name] = start(name)
            stack.callback(servers[name].stop)
        for server in servers.values():
            server.wait_until_ready(seconds)
        yield servers
