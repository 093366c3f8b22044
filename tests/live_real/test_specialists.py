"""The model and its two specialists: adapters make other models, and a fusion of them is what its definition says."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from benchmarks.real_pair.questions import question_of, questions
from benchmarks.real_pair.seam import RULES, Server, decode
from cosd_api import Fusion, RuleVerifier
from cosd_api.demo.real import BASE, MODEL, SPECIALISTS, real_three
from cosd_api.demo.real_questions import real_questions, tells_all
from cosd_api.demo.run_real import show_real
from cosd_api.demo.servers import Pair
from cosd_providers import Message
from live_real.conftest import FOLDER


@pytest.fixture(scope="module")
def three() -> Iterator[Pair]:
    assert FOLDER
    with real_three(Path(FOLDER) / MODEL) as servers:
        yield servers


async def alone(url: str, question: str) -> str:
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 64}
    async with httpx.AsyncClient(timeout=120) as client:
        answer = (await client.post(f"{url}/v1/chat/completions", json=body)).json()
    return str(answer["choices"][0]["message"]["content"])


async def test_each_specialist_answers_its_own_part(three: Pair) -> None:
    """Numbers that no training has met, and a fact that `products` has; the pretrained model has neither form."""
    sums = questions("development", {"numbers": 12})
    right = dict.fromkeys(three, 0)
    for one in sums:
        for name, url in three.items():
            right[name] += tells_all(one.target or "", await alone(url, question_of(one)))
    products, numbers = SPECIALISTS
    assert right[numbers] > right[products] and right[numbers] > right[BASE]


@pytest.mark.parametrize("label", ["(.5, .5)", "(1, 1)"])
@pytest.mark.parametrize("turned", [False, True])
async def test_the_library_writes_what_a_decoder_of_one_page_writes(three: Pair, label: str, *, turned: bool) -> None:
    """Two-part questions, token by token; the decoder knows ids alone, and asks about one place at a time."""
    names = SPECIALISTS[::-1] if turned else SPECIALISTS
    urls = [three[name] for name in names]
    rule = RULES[label]
    equal, asked = 0, real_questions()[:6]
    async with httpx.AsyncClient(timeout=120) as client:
        draft, assistant = (Server(client, url) for url in urls)
        [end] = await draft.ids("<|im_end|>")
        verifier = RuleVerifier(alpha=rule.alpha, beta=rule.beta)
        async with Fusion(draft=urls[0], assistant=urls[1], verifier=verifier) as fusion:
            for one in asked:
                found = await fusion.generate([Message("user", one.question)], max_tokens=64)
                text, *_ = await decode(draft, assistant, one.question, rule, end)
                equal += found.text == text
    assert equal >= len(asked) - 1  # one may differ at a tie: see docs/concepts.md#ties


async def test_the_demonstration_shows_every_way(three: Pair) -> None:
    screen = Console(file=io.StringIO(), width=80, highlight=False, markup=False)
    await show_real(screen, three, count=1)
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    for words in ("base alone", "products alone", "numbers alone", "products, asking", "right, of 1"):
        assert words in shown, words
