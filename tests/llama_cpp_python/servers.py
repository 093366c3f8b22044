"""Real llama-cpp-python servers on loopback, for tests. `environments.py` makes the folder that it is taken from."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from cosd_api.apps.demo.servers import MODELS as BUNDLED
from naive.plain_http import MODELS
from support.served import Served, python_of, serving

FILES: Mapping[str, Path] = {
    "sums": BUNDLED / "sums.gguf",
    "facts": BUNDLED / "facts.gguf",
    "reciter": MODELS / "reciter.gguf",
}


def serve(environment: Path, context: Mapping[str, int]) -> AbstractContextManager[dict[str, Served]]:
    """Serve models while the block lasts; `context` has for each by name how many tokens fit."""

    def start(name: str) -> Served:
        options = {"model": FILES[name], "model_alias": name, "n_ctx": context[name]}
        options |= {"n_threads": 1, "n_threads_batch": 1}
        python = python_of(environment, "llama-cpp-python", "test-llama-cpp-python")
        command = [python, "-m", "llama_cpp.server", *(f"--{key}={value}" for key, value in options.items())]
        return Served(name, command, {"PYTHONUNBUFFERED": "1"})

    return serving(start, context)
