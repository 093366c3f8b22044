"""Real llama.cpp servers on the loopback interface, each in a process of its own, for the demonstration and for tests.

The server comes from the wheel `xllamacpp` (extra `demo`). A server stops when its `with` block ends. It also stops if
the process that started it ends for any reason, because it watches a pipe that only that process keeps open.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Protocol, Self

__all__ = [
    "BUNDLED",
    "INSTALL",
    "MODELS",
    "PAIR",
    "LocalServer",
    "LocalServerError",
    "Pair",
    "Three",
    "bundled_pair",
    "bundled_three",
    "serve",
    "together",
]

BUNDLED = ("sums", "facts", "words")
"""Names of the bundled models: `sums` adds, `facts` knows facts and has a different tokenizer, `words` translates."""

PAIR = BUNDLED[:2]
"""Names of two bundled models with different tokenizers."""

MODELS = Path(__file__).parent / "models"
"""Folder with the models' files, which are named `<name>.gguf`."""

INSTALL = 'pip install ".[demo]" in a clone of the repository'

_CHILD = Path(__file__).with_name("_serve.py")
_START_SECONDS = 60.0
_STOP_SECONDS = 5.0


class LocalServerError(RuntimeError):
    """A server could not be started, or has ended unexpectedly; the message says why."""


class LocalServer:
    """A llama.cpp server in a process of its own, which serves a GGUF file on a free port of 127.0.0.1.

    The process starts at once. A `with` block waits until the server is ready, and stops it at its end.

    Args:
        model: the file.
        name: the model's id on the server; by default the file's name without its extension.
        context: number of tokens in each slot, for prompt and answer together; llama.cpp rounds it up to a multiple of
            256. By default, the context length that the model was trained with.
        slots: number of requests that are processed at the same time; further requests wait.
        threads: number of processor threads.
        embeddings: also report the model's hidden state for each token, for gates that use hidden states.
        adapters: LoRA adapters as GGUF files, each with its scale; the effects of several adapters are added up.
        cache: megabytes of memory for caching earlier prompts that are no longer in a slot.
        swa_full: keep all tokens in the memory of layers with a sliding window, not only the window (`--swa-full`).
        template: a chat template (Jinja) in place of that of the model's file.

    Attributes:
        name: the model's id on the server.
        url: URL of the server, such as `"http://127.0.0.1:43210"`; empty until it is ready.

    Raises:
        LocalServerError: a file or llama.cpp is missing.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        name: str | None = None,
        context: int | None = None,
        slots: int = 8,
        threads: int = 1,
        embeddings: bool = False,
        adapters: Mapping[Path, float] = MappingProxyType({}),
        cache: int = 64,
        swa_full: bool = False,
        template: str | None = None,
    ) -> None:
        self._model = Path(model)
        self.name = name or self._model.stem
        self.url = ""
        for path in (self._model, *adapters):
            if not path.is_file():
                raise LocalServerError(f"there is no {'adapter' if path in adapters else 'model'} {path}")
        if importlib.util.find_spec("xllamacpp") is None:
            raise LocalServerError(f"llama.cpp's server is not installed; it comes with: {INSTALL}")
        options = {"model": str(self._model.resolve()), "name": self.name, "context": context or 0, "slots": slots}
        options |= {
            "threads": threads,
            "embeddings": embeddings,
            "cache": cache,
            "swa_full": swa_full,
            "template": template or "",
        }
        options |= {"adapters": {str(path.resolve()): scale for path, scale in adapters.items()}}
        # Unlike a pipe, a file never makes the server wait for a reader. The server writes only a few lines of errors.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - stop() closes it
        # -P keeps Python from importing modules from the script's folder.
        self._process = subprocess.Popen(  # noqa: S603 - our own script, no shell
            [sys.executable, "-P", str(_CHILD), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def __enter__(self) -> Self:
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """True while the server's process is running."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Id of the server's process."""
        return self._process.pid

    def wait_until_ready(self, seconds: float = _START_SECONDS) -> None:
        """Wait until the model is loaded.

        Raises:
            LocalServerError: the process ended, or did not become ready within `seconds`.
        """
        deadline = time.monotonic() + seconds
        assert self._process.stdout is not None
        # The process either prints the URL as one line, when it is ready, or ends.
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            self.url = self._process.stdout.readline().decode().strip()
        finally:
            timer.cancel()
        if not self.url:
            raise self._failure(seconds if time.monotonic() >= deadline else None)

    def stop(self) -> None:
        """End the process and wait for it; a second call does nothing."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            self._errors.close()

    def check(self) -> None:
        """Check that the server is running.

        Raises:
            LocalServerError: the server has ended by itself.
        """
        if not self.running:
            raise self._failure(None)

    def _failure(self, waited: float | None) -> LocalServerError:
        if waited is not None:
            return LocalServerError(f"the server for {self._model.name} was not ready after {waited:g} s")
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = " / ".join(line.strip() for line in lines[-3:] if line.strip()) or "it printed nothing"
        return LocalServerError(f"the server for {self._model.name} ended with code {code}: {last}")


serve = LocalServer
"""The same, as a verb: `with serve(path) as server: ...`."""


class Served(Protocol):
    """A running server."""

    @property
    def url(self) -> str:
        """URL of the server."""
        ...

    def check(self) -> None:
        """Raise an error if the server has ended by itself."""
        ...


class Pair(dict[str, str]):
    """The servers of `sums` and `facts`, as a mapping from a model's name to its server's URL."""

    def __init__(self, servers: Mapping[str, Served]) -> None:
        super().__init__((name, server.url) for name, server in servers.items())
        self.servers = servers

    @property
    def sums(self) -> str:
        """URL of the model that adds."""
        return self["sums"]

    @property
    def facts(self) -> str:
        """URL of the model that knows facts."""
        return self["facts"]

    def check(self) -> None:
        """Check that all servers are running.

        Raises:
            LocalServerError: a server has ended by itself.
        """
        for server in self.servers.values():
            server.check()


class Three(Pair):
    """The servers of all bundled models."""

    @property
    def words(self) -> str:
        """URL of the model that translates."""
        return self["words"]


@contextmanager
def bundled_pair(models: str | Path | None = None) -> Iterator[Pair]:
    """Serve the bundled models `sums` and `facts` until the `with` block ends.

    Args:
        models: another folder with `sums.gguf` and `facts.gguf`.

    Raises:
        LocalServerError: a server cannot be started.
    """
    with together(_bundled(PAIR, models)) as servers:
        yield Pair(servers)


@contextmanager
def bundled_three(models: str | Path | None = None) -> Iterator[Three]:
    """Serve all bundled models until the `with` block ends.

    Args:
        models: another folder with `sums.gguf`, `facts.gguf` and `words.gguf`.

    Raises:
        LocalServerError: a server cannot be started.
    """
    with together(_bundled(BUNDLED, models)) as servers:
        yield Three(servers)


@contextmanager
def together(servers: Iterable[LocalServer]) -> Iterator[dict[str, LocalServer]]:
    """Serve several models at once until the `with` block ends; the servers are keyed by their names.

    Raises:
        LocalServerError: a server cannot be started.
    """
    with ExitStack() as stack:
        starting: list[LocalServer] = []
        for server in servers:
            stack.callback(server.stop)
            starting.append(server)
        yield {server.name: stack.enter_context(server) for server in starting}


def _bundled(names: Sequence[str], models: str | Path | None) -> Iterator[LocalServer]:
    return (LocalServer(Path(models or MODELS) / f"{name}.gguf") for name in names)
