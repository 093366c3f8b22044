"""The probe on a real llama-cpp-python server, whose echo is shifted where a model has no beginning of sequence."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from plain import MODELS, PlainLlamaCppPython
from probed import probed


@pytest.mark.parametrize(("name", "scoring"), [("sums", "echo, moved by +1"), ("facts", "echo")])
async def test_each_line(plain: Mapping[str, PlainLlamaCppPython], name: str, scoring: str) -> None:
    card = await probed(plain[name], engine="llama-cpp-python", tokenizer=MODELS / name)
    assert card["scoring"].value == scoring
    assert card["lists"].value is False
    assert card["tokenizer"].value == "local"
    assert card["draft"].value == "text"
    assert "singles" in card.strategies
