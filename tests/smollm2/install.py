"""Fetches a real language model into a folder of the user's cache, once, for `make test-real`.

    python tests/smollm2/install.py      prints the folder to standard output, all else to standard error

The model is that of `cosd servers --real`, and beside it stand copies without one layer and without ten. The folder is
$COSD_REAL_MODEL, or one in $XDG_CACHE_HOME/cosd-api.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a script it has its own folder there

from cosd_api.apps.demo.real import MODEL, cache_folder, fetched
from smollm2.layers import without_layer

SHORTER, SHORT = "smollm2-without-layer-20.gguf", "smollm2-without-layers-15-to-24.gguf"
COPIES = {SHORTER: range(20, 21), SHORT: range(15, 25)}
"""The layers that each copy lacks."""

__all__ = ["MODEL", "SHORT", "SHORTER", "folder", "install"]


def folder() -> Path:
    """The folder in the variable, or the one in the user's cache."""
    chosen = os.environ.get("COSD_REAL_MODEL")
    return Path(chosen).expanduser().absolute() if chosen else cache_folder()


def install() -> Path:
    """Put the model and its copies into the folder, unless they are there."""
    model = fetched(folder())
    for name, layers in COPIES.items():
        copy = model.with_name(name)
        if not copy.is_file():
            data = model.read_bytes()
            for layer in reversed(layers):
                data = without_layer(data, layer)
            part = copy.with_suffix(f".{os.getpid()}.part")
            part.write_bytes(data)
            part.replace(copy)
    return model.parent


if __name__ == "__main__":
    sys.stdout.write(f"{install()}\n")
