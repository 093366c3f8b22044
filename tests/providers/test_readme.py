"""The provider of providers/README.md works as it is printed there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from cosd_api import Fusion
from cosd_providers import Provider, ResponseError, UnsupportedError
from cosd_providers.contract import Token
from cosd_providers.testing import Model, ScriptedProvider, TableModel, TextModel
from cosd_providers.usage import Usage

README = Path(__file__).resolve().parents[2] / "providers/README.md"

DRAFT = TextModel({"Q:": [" The", " cap", ("ital", 0.9), " is", (" Rome", 0.3), "."], "Q: The capital is Lima": ["."]})
ASSISTANT = TextModel({"Q: The capital is": [(" Li", 0.9), ("ma", 0.8), "!"], "Q: The capital is Lima": ["."]})


@pytest.fixture(scope="module")
def toy() -> Any:
    """The class, out of the one block of Python in the text."""
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(block, str(README), "exec", dont_inherit=True), names)
    return names["Toy"]


def server(model: Model) -> httpx.AsyncClient:
    """`POST /next` as the text describes it, in front of a model."""

    def handle(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        ids = list(model.encode(body["text"].encode()))
        read, steps = len(ids), list[list[dict[str, Any]]]()
        while len(steps) < body["count"]:
            probs = model.next(ids)
            best = sorted(range(len(probs)), key=lambda n: (-probs[n], n))[: body["top"]]
            steps.append([entry(model, n, probs[n]) for n in best])
            ids.append(best[0])
            if best[0] in model.end_ids:
                break
        return httpx.Response(200, json={"read": read, "steps": steps})

    return httpx.AsyncClient(transport=httpx.MockTransport(handle))


def entry(model: Model, n: int, prob: float) -> dict[str, Any]:
    return {"text": model.tokens[n].decode(), "prob": prob, "end": n in model.end_ids}


@pytest.mark.parametrize("options", [{}, {"draft_length": 2}, {"ask": "all"}])
async def test_it_fuses_like_the_same_models_without_a_server(toy: Any, options: dict[str, Any]) -> None:
    async with server(DRAFT) as one, server(ASSISTANT) as other:
        draft, assistant = toy("http://one", http_client=one), toy("http://other", http_client=other)
        assert isinstance(draft, Provider)
        async with Fusion(draft=draft, assistant=assistant, **options) as fusion:
            result = await fusion.generate("Q:")
    async with Fusion(draft=ScriptedProvider(DRAFT), assistant=ScriptedProvider(ASSISTANT), unit="word") as fusion:
        expected = await fusion.generate("Q:")
    assert result.text == expected.text == " The capital is Lima."
    shown = [(token.text, token.source, token.draft_prob) for token in result.tokens]
    assert shown == [(token.text, token.source, token.draft_prob) for token in expected.tokens]
    assert result.replacements == 1
    assert result.usage["draft"].prompt_tokens > 0


async def test_its_alternatives(toy: Any) -> None:
    async with server(TableModel([b"", b"Q", b" a", b" b"], lambda ids: [0.1, 0.0, 0.6, 0.3], end_ids=(0,))) as one:
        draft = toy("http://one", http_client=one).generate("Q", b"", max_tokens=1, alternatives=2, usage=Usage())
        first = await anext(draft)
    assert first == Token(b" a", 0.6, alternatives=(Token(b" b", 0.3), Token(b"", 0.1, end=True)))


async def test_what_it_cannot_do_and_what_it_does_not_understand(toy: Any) -> None:
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200, json={}))) as client:
        provider = toy("http://one", http_client=client)
        with pytest.raises(UnsupportedError, match="does not encode"):
            await provider.tokenize("a")
        with pytest.raises(UnsupportedError, match="does not score"):
            await provider.score("a", b"b", usage=Usage())
        with pytest.raises(UnsupportedError, match="boundaries"):
            await provider.propose("a", b"b", None, usage=Usage())
        with pytest.raises(ResponseError, match="http://one: the answer is not as expected"):
            [item async for item in provider.generate("a", b"", max_tokens=1, usage=Usage())]
