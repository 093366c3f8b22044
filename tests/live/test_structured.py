"""Structured answers of real llama.cpp servers: formats are kept, forced text costs no model anything."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from cosd_api import Fusion, RuleVerifier
from cosd_api.apps.demo.servers import Three
from cosd_api.structured import Language
from cosd_api.structured.constrained import constrained
from cosd_providers import Context, DraftEnd, connect
from cosd_providers.messages import RenderedPrompt
from cosd_providers.usage import Usage

PROMPT = "Q: Add 17 and 25, then translate snow into French.\nA:"
EVERYWHERE = RuleVerifier(alpha=1, beta=1)


class Sum(BaseModel):
    """An answer with one choice of text in each field."""

    result_of_the_addition: int
    word: str


@pytest.fixture
def draft(three: Three) -> str:
    return three.sums


@pytest.fixture
def assistant(three: Three) -> str:
    return three.words


@pytest.mark.parametrize("text_only", [False, True], ids=["ids", "text"])
async def test_formats_are_kept(draft: str, assistant: str, text_only: bool) -> None:
    drafting = connect(f"{draft}/v1" if text_only else draft)
    given: list[Any] = [Sum, re.compile(r"\d{2} (neige|soleil)"), ["yes", "no", "maybe later"]]
    async with Fusion(draft=drafting, assistant=assistant, verifier=EVERYWHERE) as fusion:
        for one in given:
            result = await fusion.generate(PROMPT, response_format=one, max_tokens=96)
            if result.finish_reason == "length":
                assert result.parsed is None
                continue
            assert result.parsed is not None
            assert one is not Sum or isinstance(result.parsed, Sum)
            assert result.trace.replay() == result.text


async def test_forced_text_is_written_without_a_model(draft: str, assistant: str) -> None:
    text = "The answer is always the same, whatever the question was."
    async with Fusion(draft=draft, assistant=assistant, verifier=EVERYWHERE) as fusion:
        result = await fusion.generate(PROMPT, response_format=[text])
    assert (result.text, result.parsed, result.finish_reason) == (text, text, "stop")
    assert {name: one.requests for name, one in result.usage.items()} == {"draft": 0, "assistant": 0}


async def test_the_value_grows_with_the_text(draft: str, assistant: str) -> None:
    schema = {"type": "object", "properties": {"word": {"type": "string", "maxLength": 12}}, "required": ["word"]}
    seen = list[Any]()
    async with Fusion(draft=draft, assistant=assistant) as fusion:
        async with fusion.stream(PROMPT, response_format=schema) as stream:
            async for _ in stream:
                seen.append(stream.partial)
        assert stream.result.parsed == json.loads(stream.result.text) == seen[-1]
    assert all(later["word"].startswith(one["word"]) for one, later in pairwise(seen) if one)


async def test_without_forcing_it_is_the_server_s_own_text_under_a_grammar(draft: str) -> None:
    """The grammar of the same language, written by hand, in llama.cpp's own form."""
    grammar = 'root ::= [0-9]{1,3} ", " ("neige" | "soleil" | "rouge") "."'
    turn = RenderedPrompt(connect(draft), PROMPT)
    alone = constrained(turn, Language.regex(r"[0-9]{1,3}, (neige|soleil|rouge)\."), forces=False)
    body = {"prompt": PROMPT, "n_predict": 32, "temperature": 0, "grammar": grammar}
    async with alone.on_path as model:
        context, text = Context(PROMPT, b"", ()), b""
        async for item in model.generate(context, max_tokens=32, usage=Usage()):
            text += b"" if isinstance(item, DraftEnd) else item.data
    async with httpx.AsyncClient(timeout=60) as client:
        assert text.decode() == (await client.post(f"{draft}/completion", json=body)).json()["content"]
