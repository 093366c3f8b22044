"""Real SGLang servers on loopback, for tests. `environments.py` makes the folder that SGLang is taken from."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from naive.plain_http import MODELS
from support.served import Served, python_of, serving

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


def serve(environment: Path, names: Sequence[str]) -> AbstractContextManager[dict[str, Served]]:
    """Serve models of `tests/models` while the block lasts; each is several processes, and one that watches them."""

    def start(name: str) -> Served:
        command = [python_of(environment, "SGLang", "test-sglang"), "-m", "sglang.launch_server"]
        model = ["--model-path", str((MODELS / name).resolve()), "--served-model-name", name]
        return Served(name, [*command, *model, *OPTIONS], SETTINGS)

    return serving(start, names, START_SECONDS)
