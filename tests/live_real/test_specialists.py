"""The model and its two specialists: adapters make other models, and a fusion of them is what its definition says."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from benchmarks.real_pair.questions import question_of, questions
from cosd_api import Fusion, RuleVerifier
from cosd_api.apps.demo.real import BASE, MODEL, SPECIALISTS, real_questions, real_three, tells_all
from cosd_api.apps.demo.servers import Pair
from cosd_api.apps.demo.walkthrough import show_real
from cosd_providers import Message
from live_real.conftest import FOLDER
from live_real.prompts import PROMPTS as CHATS
from naive.literal import LiteralModel, LiteralReader


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


PROMPTS = (*(one.question for one in real_questions()[:12]), *CHATS[:11])
PRODUCTS, NUMBERS = SPECIALISTS
NEAR = 0.1
"""The largest difference of log probabilities that a server's cache makes: see `tie` in docs/concepts.md."""


async def test_the_library_writes_what_a_literal_reader_writes(three: Pair) -> None:
    """Algorithm 1 with a tie of 0, two models and three, by the paper's rule and by the default."""
    equal, parted, lines = 0, [], []
    with httpx.Client(timeout=120) as client:
        models = {name: LiteralModel(url, client) for name, url in three.items()}
        ends = frozenset(id for text in ("<|im_end|>", "<|endoftext|>") for id in models[BASE].ids(text))
        for draft, *others in ((PRODUCTS, NUMBERS), (BASE, PRODUCTS, NUMBERS)):
            for rule in (RuleVerifier.paper(), RuleVerifier()):
                reader = LiteralReader(models[draft], [models[one] for one in others], rule.alpha, rule.beta, ends)
                urls = [three[one] for one in others]
                async with Fusion(draft=three[draft], assistant=urls, verifier=rule, unit="token", tie=0) as fusion:
                    for prompt in PROMPTS:
                        fused = await fusion.generate([Message("user", prompt)], max_tokens=24)
                        found = [one.id for one in fused.tokens if not one.end]
                        read = reader.answer(prompt, 24)
                        equal += found == read
                        if found != read:
                            at = sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(found, read, strict=False)))
                            parted.append(reader.margin(prompt, read[:at]))
                            lines.append(f"{draft} {others} {rule.alpha} {rule.beta} {prompt!r} {at}: {parted[-1]:.3f}")
    told = [f"{equal} of {equal + len(parted)} answers equal the literal algorithm, one token at a time, tie=0", *lines]
    sys.stdout.write("\n" + "\n  ".join(told) + "\n")
    assert max(parted, default=0) <= NEAR
    assert equal >= 5 * len(parted)


async def test_the_demonstration_shows_every_way(three: Pair) -> None:
    screen = Console(file=io.StringIO(), width=80, highlight=False, markup=False)
    await show_real(screen, three, count=1)
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    for words in ("base alone", "products alone", "numbers alone", "products, asking", "right, of 1"):
        assert words in shown, words
