"""Real vLLM servers on loopback, for tests: started by `pair`, or one by one by `serve`.

A server is stopped when its block is left, and also when the process that started it is gone, however that ended.
`vllm_cpu/install.py` makes the folder that vLLM is taken from.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cosd_api.demo.servers import Pair
from served import CHILD, START_SECONDS, Served, ServedError

__all__ = ["CHILD", "MODELS", "START_SECONDS", "VllmServer", "VllmServerError", "pair", "serve"]

MODELS = Path(__file__).parent.parent / "models"
CONTEXT = 512

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


class VllmServerError(ServedError):
    """A vLLM server could not be started, or has ended by itself; the message shows the last lines of its log."""


class VllmServer(Served):
    """One vLLM server: several processes, and one that watches over them. Made by `serve`."""

    error = VllmServerError

    def __init__(self, environment: Path, model: Path, name: str, options: Sequence[str]) -> None:
        python = environment / "bin" / "python"
        if not python.exists():
            raise VllmServerError(f"there is no vLLM in {environment}; `make test-vllm` puts it there")
        command = [str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(model.resolve())]
        seen = {"PATH": os.environ.get("PATH", os.defpath), "VLLM_CACHE_ROOT": str(environment / "cache")} | SETTINGS
        super().__init__(name, [*command, "--served-model-name", name, *OPTIONS, *options], seen, CHILD)


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
    """Serves two bundled models, and the one that writes emoji and the like, while the block lasts.

    Raises:
        VllmServerError: one cannot be started; the message says why.
    """
    with serve(environment, ["sums", "facts", "reciter"]) as servers:
        yield Pair(servers)
