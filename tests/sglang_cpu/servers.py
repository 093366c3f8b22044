"""Real SGLang servers on loopback, for tests. `install.py` makes the folder that SGLang is taken from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from plain import MODELS
from served import Served, ServedError

START_SECONDS = 600.0
CONTEXT = 512

OPTIONS = ["--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native"]
OPTIONS += ["--sampling-backend", "pytorch", "--grammar-backend", "none", "--disable-cuda-graph"]
OPTIONS += ["--mem-fraction-static", "0.05", "--max-total-tokens", "8192", "--context-length", str(CONTEXT)]
OPTIONS += ["--max-running-requests", "16", "--skip-server-warmup", "--enable-metrics"]

#: All that SGLang sees of the environment, beside PATH. Nothing is fetched, reported or left in the user's home.
SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


class SglangServer(Served):
    """One SGLang server: several processes, and one that watches over them."""

    def __init__(self, environment: Path, name: str) -> None:
        python = environment / "bin" / "python"
        if not python.exists():
            raise ServedError(f"there is no SGLang in {environment}; `make test-sglang` installs it")
        command = [str(python), "-m", "sglang.launch_server", "--model-path", str((MODELS / name).resolve())]
        seen = {"PATH": os.environ.get("PATH", os.defpath)} | SETTINGS
        super().__init__(name, [*command, "--served-model-name", name, *OPTIONS], seen)


@contextmanager
def serve(environment: Path, names: Sequence[str]) -> Iterator[dict[str, SglangServer]]:
    """Serve models of `tests/models`, one after the other started, while the block lasts.

    Raises:
        ServedError: one cannot be started; the message shows the end of its log.
    """
    with ExitStack() as stack:
        servers: dict[str, SglangServer] = {}
        for name in names:
            servers[name] = SglangServer(environment, name)
            stack.callback(servers[name].stop)
        for server in servers.values():
            server.wait_until_ready(START_SECONDS)
        yield servers
