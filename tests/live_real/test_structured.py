"""A real model restricted to a format writes what its server writes under a grammar; fused answers keep the format.

What the model writes alone is asked of its server without this library, under a grammar of the same language in
llama.cpp's own notation (`support.grammars`).
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]
import pytest

from cosd_api import Fusion, RuleVerifier
from cosd_api.structured.constrained import constrained
from cosd_api.structured.response_format import ResponseFormat
from cosd_providers import Context, connect
from cosd_providers.contract import DraftEnd
from cosd_providers.forwarding import by_ids
from cosd_providers.messages import RenderedPrompt
from cosd_providers.usage import Usage
from live_real.alone import NOISE, lead_over
from live_real.test_null_control import say
from support.grammars import CALL, FORMATS, LIST, PERSON, Format

LENGTH = 64
EACH = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
COUNTS = pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.extended)])
EVERYWHERE = RuleVerifier(alpha=1, beta=1)


@EACH
@pytest.mark.parametrize(
    ("model", "count"),
    [("draft", 2), *(pytest.param(one, 8, marks=pytest.mark.extended) for one in ("draft", "gemma"))],
)
async def test_without_forced_bytes_the_server_under_a_grammar(
    request: pytest.FixtureRequest, model: str, form: Format, count: int
) -> None:
    """Where two texts part, their tokens are as probable as each other but for the server's noise."""
    draft, parted = request.getfixturevalue(model), list[str]()
    for question in (one.strip() for one in form.questions[:count]):
        wanted, ids = await written_by_the_server(draft, question, form), await written(draft, question, form)
        at = next((n for n, (one, other) in enumerate(zip(wanted, ids, strict=False)) if one != other), None)
        if at is None:
            assert ids == wanted[: len(ids)]
            assert len(wanted) - len(ids) <= 1, "the server counts the end"
            continue
        lead = lead_over(draft, question, wanted[:at], wanted[at], ids[at], listed=20_000)
        parted.append(f"{form.name}: {question!r} parts at token {at}, by {lead:.2f} in log probability")
        assert abs(lead) < NOISE, parted[-1]
    say("\n".join([f"{model}, {form.name}: {count - len(parted)} of {count} equal", *parted]))


async def written_by_the_server(url: str, question: str, form: Format) -> list[int]:
    """The ids of the server's own greedy answer under the format's grammar."""
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        body = {"prompt": await prompted(url, question), "n_predict": LENGTH, "temperature": 0, "grammar": form.gbnf}
        answer = await client.post("/completion", json={**body, "samplers": ["temperature"], "return_tokens": True})
    return [int(one) for one in answer.json()["tokens"]]


async def written(url: str, question: str, form: Format) -> list[int]:
    """The ids of the restricted model's answer, without any forced bytes."""
    format_ = ResponseFormat.of(form.given)
    assert format_ is not None
    prompt, ids = await prompted(url, question), list[int]()
    async with connect(url) as provider:
        turn = constrained(RenderedPrompt(provider, prompt), format_.language, forces=False)
        async for item in turn.on_path.generate(Context(prompt, b"", ()), max_tokens=LENGTH, usage=Usage()):
            if not isinstance(item, DraftEnd) and not item.end:
                assert item.id is not None
                ids.append(item.id)
    return ids


async def prompted(url: str, question: str) -> str:
    """The question in the model's chat template."""
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        body = {"messages": [{"role": "user", "content": question}]}
        return str((await client.post("/apply-template", json=body)).json()["prompt"])


async def test_fused_with_itself_it_is_the_restricted_model(draft: str, assistant: str) -> None:
    """Each token of the other text is asked for alone, forced ones included. One text in ten may part at a near tie."""
    asked, wrong, tokens, calls = 0, list[str](), 0, 0
    async with Fusion(draft=draft, assistant=assistant, verifier=EVERYWHERE) as fusion:
        for form in (PERSON, LIST, CALL):
            for question in (one.strip() for one in form.questions[:4]):
                result = await fusion.generate(question, response_format=form.given, max_tokens=LENGTH)
                alone = await token_by_token(draft, question, form)
                asked, tokens = asked + 1, tokens + len(result.tokens)
                calls += result.usage["draft"].completion_tokens
                if result.text != alone:
                    wrong.append(f"{form.name}: {alone!r} alone, {result.text!r} fused")
    told = f"{asked - len(wrong)} of {asked} texts equal; {calls} calls of the draft for {tokens} tokens"
    say("\n".join([told, *wrong]))
    assert len(wrong) <= asked // 10, wrong


async def token_by_token(url: str, question: str, form: Format) -> str:
    """The text of the restricted model, asked for one token after the other."""
    format_ = ResponseFormat.of(form.given)
    assert format_ is not None
    text, ids, usage = b"", tuple[int, ...](), Usage()
    async with constrained(RenderedPrompt(connect(url), question), format_.language).on_path as model:
        while len(ids) < LENGTH:
            [token] = await by_ids(model).next_tokens([Context(question, text, ids)], usage=usage)
            if token is None or token.end:
                break
            text, ids = text + token.data, (*ids, token.id or 0)
    return text.decode("utf-8", "ignore")


@COUNTS
@EACH
async def test_the_model_with_itself_keeps_the_format(draft: str, assistant: str, form: Format, count: int) -> None:
    await check_kept(draft, assistant, form, count)


@COUNTS
@EACH
@pytest.mark.parametrize("first", ["SmolLM2", pytest.param("Gemma", marks=pytest.mark.extended)])
async def test_two_tokenizers_keep_the_format(draft: str, gemma: str, form: Format, count: int, first: str) -> None:
    await check_kept(*((draft, gemma) if first == "SmolLM2" else (gemma, draft)), form, count)


async def check_kept(draft: str, assistant: str, form: Format, count: int) -> None:
    """Every answer that ends is valid; one that is cut at the limit is not called so."""
    whole = 0
    async with Fusion(draft=draft, assistant=assistant) as fusion:
        for question in form.questions[:count]:
            result = await fusion.generate(question.strip(), max_tokens=LENGTH, response_format=form.given)
            assert result.trace.replay() == result.text
            if result.finish_reason == "stop":
                assert is_valid(result.text, form), result.text
                whole += 1
            else:
                assert (result.finish_reason, result.parsed) == ("length", None)
    say(f"{form.name}: {whole} of {count} whole, and valid")


def is_valid(text: str, form: Format) -> bool:
    """Test a text by other means than the library's automata."""
    given: Any = form.given
    if form.name == "answer":
        return given.fullmatch(text) is not None
    if form.name != "mood":
        return bool(jsonschema.Draft202012Validator(given).is_valid(json.loads(text)))
    return text in given
