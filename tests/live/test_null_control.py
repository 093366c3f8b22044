"""Null control: a model fused with itself writes what it writes alone, whatever the way and the verifier.

The models write paragraphs, lists, tables, indented code, digits, emoji, Chinese and Arabic, by tokens cut with the
patterns of GPT-2 and Llama 3. What they write alone is asked of their servers without this library.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from itertools import product
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from cosd_api import AgreementVerifier, Fusion, FusionResult, MatchVerifier, RuleVerifier
from cosd_api.apps.demo.servers import serve
from cosd_providers import connect
from cosd_providers.contract import Context, DraftEnd, Proposal, Question, Token
from cosd_providers.forwarding import Forwarding
from cosd_providers.usage import Usage
from support.drawn import partly

LENGTH = 96
MODELS = Path(__file__).parent.parent / "models"
PROMPTS = json.loads((MODELS / "pages_prompts.json").read_text(encoding="utf-8"))
EVERYWHERE = RuleVerifier(alpha=1, beta=1)


class Pages:
    """A model on two servers, and what it writes alone."""

    def __init__(self, draft: str, assistant: str) -> None:
        self.draft, self.assistant = draft, assistant
        self._alone: dict[str, list[int]] = {}

    def alone(self, prompt: str) -> list[int]:
        """The ids of the server's own greedy answer."""
        if prompt not in self._alone:
            body = {"prompt": prompt, "n_predict": LENGTH, "temperature": 0, "samplers": ["temperature"]}
            answer = httpx.post(f"{self.draft}/completion", json=body | {"return_tokens": True}, timeout=60)
            self._alone[prompt] = answer.json()["tokens"]
        return self._alone[prompt]


TOKENIZERS = ["pages-llama3", "pages-gpt2"]


@pytest.fixture(scope="module")
def pages(request: pytest.FixtureRequest) -> Iterator[Pages]:
    path = MODELS / f"{request.param}.gguf"
    with serve(path, slots=4) as draft, serve(path, slots=4) as assistant:
        yield Pages(draft.url, assistant.url)


async def fused(pages: Pages, count: int, *, draft: Any = None, assistant: Any = None, **settings: Any) -> int:
    """The number of answers that are not those of the model alone, of the first prompts."""
    wrong = 0
    async with Fusion(draft=draft or pages.draft, assistant=assistant or pages.assistant, **settings) as fusion:
        async for prompt, result in answers(fusion, count):
            wrong += differs(pages.alone(prompt), result)
    return wrong


async def answers(fusion: Fusion, count: int) -> AsyncGenerator[tuple[str, FusionResult], None]:
    """The prompts, each with its answer; one in three, so that all kinds of pages come."""
    prompts = [*PROMPTS[::3], *PROMPTS[1::3], *PROMPTS[2::3]][:count]
    at = 0
    async for result in fusion.map(prompts, max_tokens=LENGTH, concurrency=2):
        yield prompts[at], result
        at += 1


def differs(alone: list[int], result: FusionResult) -> bool:
    ids = [token.id for token in result.tokens if token.id is not None]
    assert ids, "the models were not asked after ids"
    assert "".join(token.text for token in result.tokens) == result.text
    assert result.trace.replay() == result.text
    return ids[: len(alone)] != alone[: len(ids)] or bool(result.replacements)


WAYS: dict[str, dict[str, Any]] = {
    "rule": {},
    "everywhere": {"verifier": EVERYWHERE},
    "match": {"verifier": MatchVerifier()},
    "agreement": {"verifier": AgreementVerifier(alpha=0.75)},
    "all": {"ask": "all"},
    "rounds-1": {"verifier": EVERYWHERE, "draft_length": 1},
    "rounds-3": {"verifier": EVERYWHERE, "draft_length": 3},
    "max-ahead": {"verifier": EVERYWHERE, "max_ahead": 4},
    "no-tie": {"verifier": EVERYWHERE, "tie": 0},
}


@pytest.mark.parametrize(
    ("pages", "way", "strategy", "count"),
    [
        *product(TOKENIZERS[:1], WAYS, ["singles"], [2]),
        *(pytest.param(*case, marks=pytest.mark.extended) for case in product(TOKENIZERS, WAYS, ["list"], [3])),
    ],
    indirect=["pages"],
)
async def test_a_model_with_itself_writes_what_it_writes_alone(
    pages: Pages, way: str, strategy: Literal["singles", "list"], count: int
) -> None:
    assistant = connect(pages.assistant, engine="llama.cpp", strategy=strategy)
    assert await fused(pages, count, assistant=assistant, **WAYS[way]) == 0


@pytest.mark.extended
@pytest.mark.timeout(300)
@pytest.mark.parametrize("pages", TOKENIZERS, indirect=True)
async def test_all_pages(pages: Pages) -> None:
    assert await fused(pages, len(PROMPTS), verifier=EVERYWHERE) == 0


class TextOnly(Forwarding):
    """A server that takes no ids: it encodes the answer so far, cut at each place."""

    def generate(self, context: Context, **options: Any) -> AsyncGenerator[Token | DraftEnd, None]:
        return self._provider.generate(context, **options)

    async def propose(self, context: Context, questions: list[Question], **options: Any) -> list[Proposal | None]:
        return await self._provider.propose(context, questions, **options)

    async def score(self, context: Context, *, usage: Usage, **options: Any) -> list[Token]:
        return await self._provider.score(context, usage=usage, **options)


@pytest.mark.parametrize("pages", partly(TOKENIZERS[::-1]), indirect=True)
async def test_after_cut_texts_it_contradicts_itself(pages: Pages) -> None:
    """The control of the control: these pages hold places at which a cut text is no context of the model's own."""
    contradicted = 0
    assistant: Any = TextOnly(connect(pages.assistant))
    async with Fusion(draft=pages.draft, assistant=assistant, verifier=EVERYWHERE, unit="token") as fusion:
        async for _, result in answers(fusion, 12):
            assert result.settings.contexts == "text"
            contradicted += bool(result.replacements)
    assert contradicted > 0
