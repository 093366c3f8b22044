"""The probe on a real llama-cpp-python server, whose echo is shifted where a model has no beginning of sequence."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cosd_providers import probe
from naive.plain_http import MODELS, PlainLlamaCppPython
from support.probed import printed, probed, shape


@pytest.mark.parametrize(("name", "scoring"), [("sums", "echo, moved by +1"), ("facts", "echo")])
async def test_each_line(plain: Mapping[str, PlainLlamaCppPython], name: str, scoring: str) -> None:
    report = await probed(plain[name], engine="llama-cpp-python", tokenizer=MODELS / name)
    assert report["scoring"].value == scoring
    assert report["lists"].value is False
    assert report["tokenizer"].value == "local"
    assert report["draft"].value == "text"
    assert "singles" in report.strategies
    assert report["end"].value is False


async def test_the_url_alone_is_enough(plain: Mapping[str, PlainLlamaCppPython]) -> None:
    """Without a tokenizer all places are asked one by one, whatever the way is called; and an error has no dump."""
    report = await probed(plain["facts"])
    assert str(report).startswith(f"{plain['facts'].url}: llama-cpp-python, model ")
    assert report.strategies == ("singles",)
    assert report["ids"].seen.endswith("validation errors")


async def test_the_documentation_shows_what_it_says(plain: Mapping[str, PlainLlamaCppPython]) -> None:
    said, shown = str(await probe(plain["sums"].url)), printed("llama-cpp-python")
    assert shape(said.partition("\n")[2]) == shape(shown.partition("\n")[2])
