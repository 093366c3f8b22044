"""Real llama-cpp-python servers on loopback, for tests. `install.py` makes the folder that it is taken from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cosd_api.demo.servers import MODELS as BUNDLED
from plain import MODELS
from served import Served, ServedError

FILES: Mapping[str, Path] = {
    "sums": BUNDLED / "sums.gguf",
    "facts": BUNDLED / "facts.gguf",
    "reciter": MODELS / "reciter.gguf",
}


class LlamaCppPythonServer(Served):
    """One server of `python -m llama_cpp.server`."""

    def __init__(self, environment: Path, name: str, context: int) -> None:
        python = environment / "bin" / "python"
        if not python.exists():
            raise ServedError(
                f"there is no llama-cpp-python in {environment}; `make test-llama-cpp-python` puts it there"
            )
        options = {"model": FILES[name], "model_alias": name, "n_ctx": context, "n_threads": 1, "n_threads_batch": 1}
        command = [str(python), "-m", "llama_cpp.server", *(f"--{key}={value}" for key, value in options.items())]
        super().__init__(name, command, {"PATH": os.environ.get("PATH", os.defpath), "PYTHONUNBUFFERED": "1"})


@contextmanager
def serve(environment: Path, context: Mapping[str, int]) -> Iterator[dict[str, LlamaCppPythonServer]]:
    """Serves models while the block lasts; `context` has for each by name how many tokens fit.

    Raises:
        ServedError: one cannot be started; the message says why.
    """
    with ExitStack() as stack:
        servers: dict[str, LlamaCppPythonServer] = {}
        for name, size in context.items():
            servers[name] = LlamaCppPythonServer(environment, name, size)
            stack.callback(servers[name].stop)
        for server in servers.values():
            server.wait_until_ready()
        yield servers
