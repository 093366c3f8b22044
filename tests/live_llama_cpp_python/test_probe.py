"""The probe on a real llama-cpp-python server, whose echo is shifted where a model has no beginning of sequence."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cosd_providers import probe
from plain import MODELS, PlainLlamaCppPython
from probed import printed, probed, shape


@pytest.mark.parametrize(("name", "scoring"), [("sums", "echo, moved by +1"), ("facts", "echo")])
async def test_each_line(plain: Mapping[str, PlainLlamaCppPython], name: str, scoring: str) -> None:
    card = await probed(plain[name], engine="llama-cpp-python", tokenizer=MODELS / name)
    assert card["scoring"].value == scoring
    assert card["lists"].value is False
    assert card["tokenizer"].value == "local"
    assert card["draft"].value == "text"
    assert "singles" in card.strategies
    assert card["end"].value is False


async def test_what_the_url_alone_tells(plain: Mapping[str, PlainLlamaCppPython]) -> None:
    """Without a tokenizer all places are asked one by one, whatever the way is called; and an error has no dump."""
    card = await probed(plain["facts"])
    assert str(card).startswith(f"{plain['facts'].url}: llama-cpp-python, model ")
    assert card.strategies == ("singles",)
    assert card["ids"].seen.endswith("validation errors")


async def test_the_documentation_shows_what_it_says(plain: Mapping[str, PlainLlamaCppPython]) -> None:
    said, shown = str(await probe(plain["sums"].url)), printed("llama-cpp-python")
    assert shape(said.partition("\n")[2]) == shape(shown.partition("\n")[2])
