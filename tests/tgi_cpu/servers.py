"""TGI's real model server on loopback, behind `front.py` in the place of its router, for tests.

`environments.py` makes the folder that holds what the model server needs; its source is a checkout of the user's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from naive.plain_http import MODELS
from support.served import START_SECONDS, Served, python_of, serving

FRONT = Path(__file__).parent / "front.py"

#: All that TGI sees of the environment, beside PATH. Nothing is fetched, or written into the checkout.
SETTINGS = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TRANSFORMERS_OFFLINE": "1"}
SETTINGS |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}


def serve(
    environment: Path, source: Path, names: Sequence[str], models: Path = MODELS
) -> AbstractContextManager[dict[str, Served]]:
    """Serve models while the block lasts; they score prompts.

    Args:
        environment: the folder with TGI's requirements.
        source: a checkout of TGI's source, tag v3.3.6 or later.
        names: folders in `models`; also their ids on the servers.
        models: holds the models.
    """

    def start(name: str) -> Served:
        command = [python_of(environment, "TGI", "test-tgi"), str(FRONT), str((models / name).resolve())]
        options = ["--source", str(source.resolve()), "--enable-prefill-logprobs"]
        return Served(name, [*command, *options], SETTINGS)

    return serving(start, names, START_SECONDS)
