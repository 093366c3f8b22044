"""Answers in a format on real llama.cpp servers: the bundled models, fused, write texts of the format alone."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cosd_api import Fusion, fuse
from cosd_api.apps.demo.servers import Pair

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

PROMPT = "Q: What is 4 plus 3?\nA: "
SUM: dict[str, Any] = {
    "type": "object",
    "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 20}, "sure": {"enum": ["yes", "no"]}},
    "required": ["sum", "sure"],
    "additionalProperties": False,
}
NAMES = pytest.mark.parametrize("names", [("sums", "sums"), ("sums", "facts"), ("facts", "sums")], ids="-".join)


@NAMES
async def test_a_schema(pair: Pair, names: tuple[str, str]) -> None:
    async with (
        Fusion(draft=pair[names[0]], assistant=pair[names[1]]) as fusion,
        fusion.stream(PROMPT, max_tokens=40, response_format=SUM) as stream,
    ):
        partial = [stream.partial async for _ in stream]
        result = await stream.finished()
    assert re.fullmatch(r'\{"sum": \d+, "sure": "(yes|no)"\}', result.text)
    assert result.finish_reason == "stop"
    assert list(result.parsed) == ["sum", "sure"]
    assert 0 <= result.parsed["sum"] <= 20
    assert partial[-1] == result.parsed
    assert result.trace.replay() == result.text


@NAMES
async def test_a_regular_expression(pair: Pair, names: tuple[str, str]) -> None:
    pattern = re.compile(r"The (sum|capital) is [A-Za-z0-9]{1,8}\.")
    result = await fuse(PROMPT, draft=pair[names[0]], assistant=pair[names[1]], max_tokens=30, response_format=pattern)
    assert pattern.fullmatch(result.text)
    assert result.parsed == result.text


@NAMES
async def test_choices(pair: Pair, names: tuple[str, str]) -> None:
    choices = ["The sum is 7.", "The sum is 8.", "The capital is Lima."]
    result = await fuse(PROMPT, draft=pair[names[0]], assistant=pair[names[1]], max_tokens=30, response_format=choices)
    assert result.parsed in choices
