"""Real vLLM servers on loopback, for tests: started by `pair`, or one by one by `serve`.

A server is stopped when its block is left, and also when the process that started it is gone, however that ended.
`vllm_cpu/install.py` makes the folder that vLLM is taken from.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from cosd_api.demo.servers import Pair

MODELS = Path(__file__).parent.parent / "models"
CHILD = Path(__file__).with_name("_child.py")
CONTEXT = 512
START_SECONDS = 300.0
STOP_SECONDS = 40.0

OPTIONS = ["--max-model-len", str(CONTEXT), "--enforce-eager", "--dtype", "float32"]
OPTIONS += ["--disable-uvicorn-access-log"]

#: All that vLLM sees of the environment, beside PATH. Nothing is fetched, reported or left in the user's home. Threads
#: are not bound to cores: vLLM binds to the first ones that it finds, and two servers would share one core. Nothing is
#: compiled: that would need a C++ compiler, and 13 seconds at the first request.
SETTINGS = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
}


class VllmServerError(RuntimeError):
    """A server could not be started, or has ended by itself; the message shows the last lines of its log."""


class VllmServer:
    """One vLLM server: several processes, and one that watches over them. Made by `serve`.

    Attributes:
        name: the model's id on the server.
        url: where it answers, or will.
    """

    def __init__(self, environment: Path, model: Path, name: str, options: Sequence[str]) -> None:
        self.name = name
        python = environment / "bin" / "python"
        if not python.exists():
            raise VllmServerError(f"there is no vLLM in {environment}; `make test-vllm` puts it there")
        command = [str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(model.resolve())]
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - stop() closes it
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(CHILD), *command, "--served-model-name", name, *OPTIONS, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={"PATH": os.environ.get("PATH", os.defpath), "VLLM_CACHE_ROOT": str(environment / "cache")} | SETTINGS,
            # Ctrl-C, and a kill of everything that a terminal started, are for the tests. This ends after them.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().strip()

    def __repr__(self) -> str:
        return f"VllmServer({self.name!r}, {self.url!r})"

    @property
    def pid(self) -> int:
        """The process that watches over the server; it ends when all the others have."""
        return self._process.pid

    def wait_until_ready(self, seconds: float = START_SECONDS) -> None:
        """Waits until the model is served.

        Raises:
            VllmServerError: it ended instead, or took longer than `seconds`.
        """
        deadline = time.monotonic() + seconds
        while not self._serves():
            self.check()
            if time.monotonic() > deadline:
                raise VllmServerError(f"{self.name} was not ready after {seconds:g} s; its log ends:\n{self.log()}")
            time.sleep(0.2)

    def check(self) -> None:
        """Sees whether it still runs.

        Raises:
            VllmServerError: it has ended by itself.
        """
        code = self._process.poll()
        if code is not None:
            raise VllmServerError(f"{self.name} ended with code {code}; its log ends:\n{self.log()}")

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


@contextmanager
def serve(environment: Path, names: Sequence[str], options: Sequence[str] = ()) -> Iterator[dict[str, VllmServer]]:
    """Serves models of `tests/models`, started together, while the block lasts.

    Args:
        environment: the folder that vLLM is installed in.
        names: of the models, which are also their ids on the servers.
        options: more of `vllm serve`, for each.

    Raises:
        VllmServerError: one cannot be started; the message says why.
    """
    with ExitStack() as stack:
        servers: dict[str, VllmServer] = {}
        for name in names:
            servers[name] = VllmServer(environment, MODELS / name, name, options)
            stack.callback(servers[name].stop)
        for server in servers.values():
            server.wait_until_ready()
        yield servers


@contextmanager
def pair(environment: Path) -> Iterator[Pair]:
    """Serves the two bundled models, and the one that writes emoji and the like, while the block lasts.

    Raises:
        VllmServerError: one cannot be started; the message says why.
    """
    with serve(environment, ["sums", "facts", "reciter"]) as servers:
        yield Pair(servers)
