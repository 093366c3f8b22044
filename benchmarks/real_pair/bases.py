"""The pretrained models of which the specialists are made: SmolLM2-135M-Instruct, with 20 of its 30 layers, and Gemma.

Gemma 3 270M is under Gemma's terms of use: its file and its adapters stay in the user's cache, and are never passed on.
It is a base model, and its file has no chat template. Here it reads and writes `Question: ...`, `Answer:` and a new
line, which it has seen before, and the end of sequence. The server is started with this template.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cosd_api.apps.demo.real import ADAPTERS, cache_folder, fetched

__all__ = ["BASES", "Base"]

_CACHE = cache_folder().parent
_SHORT = "smollm2-without-layers-15-to-24.gguf"
_TEMPLATE = (
    "{% for one in messages %}{% if one.role == 'user' %}Question: {{ one.content }}\nAnswer:\n"
    "{% elif one.role == 'assistant' %}{{ one.content }}\n{% else %}{{ one.content }}\n{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Base:
    """A pretrained model.

    Attributes:
        architecture: the architecture's name in llama.cpp.
        file: returns the model's file, which is fetched if it is missing.
        adapters: the folder of its adapters.
        turn: the text with which its template begins a user's message.
        end: the text that ends an answer.
        template: the chat template; None for that of the file.
        tokens: the number of tokens that a specialist reads in its training.
    """

    architecture: str
    file: Callable[[], Path]
    adapters: Path
    turn: str
    end: str
    template: str | None = None
    tokens: int = 300_000


def _installed(model: str) -> Path:
    """The path that a script of the tests prints after it has fetched a model."""
    install = Path(__file__).parents[2] / "tests" / model / "install.py"
    done = subprocess.run([sys.executable, str(install)], check=True, stdout=subprocess.PIPE)
    return Path(done.stdout.decode().strip())


BASES: Mapping[str, Base] = {
    "smollm2": Base("llama", fetched, ADAPTERS, "<|im_start|>", "<|im_end|>"),
    "smollm2-short": Base(
        "llama",
        lambda: _installed("smollm2") / _SHORT,
        _CACHE / "smollm2-short-adapters",
        "<|im_start|>",
        "<|im_end|>",
        tokens=60_000,
    ),
    "gemma3": Base(
        "gemma3",
        lambda: _installed("gemma3"),
        _CACHE / "gemma3-270m-adapters",
        "Question: ",
        "<eos>",
        _TEMPLATE,
        tokens=150_000,
    ),
}
"""The models, by name."""
