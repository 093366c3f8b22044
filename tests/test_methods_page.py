"""docs/methods.md has every method, and its table of engines is made from what methods need and adapters state."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosd_api.methods.base import EXAMPLES, METHODS
from fakes.adapters import ENGINES, Engine
from support.every_method import able

DOCS = Path(__file__).resolve().parents[1] / "docs"
TEXT = (DOCS / "methods.md").read_text(encoding="utf-8")
MADE: dict[str, Any] = runpy.run_path(str(DOCS / "generate_methods.py"))


def test_the_table_of_engines_is_what_the_code_says() -> None:
    assert MADE["page"](TEXT) == TEXT, "run `make docs`"


@pytest.mark.parametrize("name", [*METHODS, *EXAMPLES])
def test_every_method_is_on_the_page(name: str) -> None:
    needs, _, rest = TEXT.partition("## Engines")
    engines, _, sections = rest.partition(MADE["END"])
    named = f"`{name}`"
    assert any(named in line.split(" | ")[0] for line in needs.splitlines() if line.startswith("| ")), "a row"
    assert f"\n| {named} | " in engines, "a row of engines: run `make docs`"
    assert name == "cosd" or named in sections, "a section"


STATED = {
    "llama.cpp": ("llama.cpp", ""),
    "vllm": ("vLLM", ""),
    "sglang": ("SGLang", "with `--enable-deterministic-inference`"),
    "tgi": ("TGI", "with `--enable-prefill-logprobs`"),
    "ollama": ("Ollama", ""),
}
"""The engines whose stand-ins can be asked; those of OpenAI's protocol are asked live (`every_method.py`)."""


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine.name in STATED], ids=repr)
@settings(max_examples=2)
@given(data=st.data())
def test_the_capabilities_are_those_of_the_adapters(engine: Engine, data: st.DataObject) -> None:
    case = engine.case(data.draw(engine.models()), engine.way)
    name, condition = STATED[engine.name]
    stated = MADE["ENGINES"][name][condition]

    async def compare() -> None:
        async with case.make() as provider:
            assert able((await provider.describe()).capabilities) == able(stated)

    anyio.run(compare)
