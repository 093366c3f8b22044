"""Real vLLM servers on loopback, for tests: started by `pair`, or one by one by `serve`.

A server is stopped when its block is left, and also when the process that started it is gone, however that ended.
`environments.py` makes the folder that vLLM is taken from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from cosd_api.apps.demo.servers import Pair
from support.served import CHILD, START_SECONDS, Served, python_of, serving

__all__ = ["CHILD", "MODELS", "START_SECONDS", "VllmServer", "pair", "serve"]

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


class VllmServer(Served):
    """One vLLM server: several processes, and one that watches over them. Made by `serve`."""

    def __init__(self, environment: Path, model: Path, name: str, options: Sequence[str] = ()) -> None:
        command = [python_of(environment, "vLLM", "test-vllm"), "-m", "vllm.entrypoints.cli.main", "serve"]
        seen = {"VLLM_CACHE_ROOT": str(environment / "cache"), **SETTINGS}
        own = [str(model.resolve()), "--served-model-name", name]
        super().__init__(name, [*command, *own, *OPTIONS, *options], seen, CHILD)


def serve(
    environment: Path, names: Sequence[str], options: Sequence[str] = ()
) -> AbstractContextManager[dict[str, VllmServer]]:
    """Serve models of `tests/models` while the block lasts; their names are also their ids on the servers.

    Args:
        environment: the folder that vLLM is installed in.
        names: of the models.
        options: more of `vllm serve`, for each.
    """
    return serving(lambda name: VllmServer(environment, MODELS / name, name, options), names)


@contextmanager
def pair(environment: Path) -> Iterator[Pair]:
    """Two bundled models, and the one that writes emoji and the like, while the block lasts."""
    with serve(environment, ["sums", "facts", "reciter"]) as servers:
        yield Pair(servers)
