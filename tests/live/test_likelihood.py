"""Log-likelihoods over two real llama.cpp servers: those of the definition, one next token at a time."""

from __future__ import annotations

import math

import httpx
import pytest

from cosd_api import Fusion, Message, RuleVerifier
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair, Three
from cosd_providers import connect
from cosd_providers.contract import Context, IdContexts, IdScores
from cosd_providers.usage import Usage
from naive import over_http as naive
from naive.gated import Next, gated
from support.drawn import partly
from support.one_tokenizer import PAIRS

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

PROMPTS = [question.prompt for question in sample("capital", 20, seed=5)]
CONTINUATIONS = (" The capital of", " The capital is", " is The total", " a b c")
NEAR = 0.01
"""Difference of two probabilities that a server may see the other way round from one request to the next."""


@pytest.mark.parametrize("count", partly([2, 20]))
@pytest.mark.parametrize("direction", PAIRS, ids="-".join)
async def test_each_token_has_the_probability_of_the_definition(
    three: Three, direction: tuple[str, str], count: int
) -> None:
    verifier, sources, tokens, excused = RuleVerifier(alpha=2, beta=0), set[str](), 0, 0
    with httpx.Client(timeout=60) as client:
        draft, assistant = (naive.HttpModel(three[name], client, depth=2000) for name in direction)
        servers = [three[name] for name in direction]
        async with Fusion(draft=servers[0], assistant=servers[1], verifier=verifier, unit="token") as fusion:
            for prompt in PROMPTS[:count]:
                for text in CONTINUATIONS:
                    found = await fusion.log_likelihood(prompt, text)
                    sources |= {token.source for token in found.tokens}
                    before = prompt.encode()
                    for token in found.tokens:
                        p, q = naive.known(draft, before), naive.known(assistant, before)
                        texts = sorted({*p, *q})
                        mine, theirs = ([one.get(text, 0.0) for text in texts] for one in (p, q))
                        probs, choice = chosen(mine, theirs, verifier)
                        tokens += 1
                        if min(map(margin, (mine, theirs))) < NEAR:  # another digit makes it another choice
                            excused += 1
                            before += token.text.encode()
                            continue
                        assert token.source == ("draft" if probs is mine else "assistant")
                        own = token.text.encode()
                        assert math.isclose(
                            token.logprob, math.log(probs[texts.index(own)]), rel_tol=1e-2, abs_tol=1e-3
                        )
                        assert token.is_greedy == (texts[choice] == own)
                        before += own
    assert sources == {"draft", "assistant"}
    assert excused <= tokens / 5, f"{excused} of {tokens}"


def margin(probs: list[float]) -> float:
    """The difference between the two most probable tokens."""
    *_, second, first = sorted(probs)
    return first - second


def chosen(p: list[float], q: list[float], verifier: RuleVerifier) -> tuple[list[float], int]:
    """The distribution that counts, and its greedy choice."""
    models: list[Next] = [lambda _: p, lambda _: q]
    model, choice = gated(models[0], models[1:], verifier.replaces, ())
    return (p if model is models[0] else q), choice


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("name", ["sums", "facts"])
async def test_a_models_own_answer_is_greedy(pair: Pair, name: str, chat: bool) -> None:
    """A model as its own assistant: the fusion is that model; in a conversation `facts` begins with a space."""
    async with Fusion(draft=pair[name], assistant=pair[name], verifier=RuleVerifier(alpha=1)) as fusion:
        for question in PROMPTS[:3]:
            prompt = [Message("user", question)] if chat else question
            answer = await fusion.generate(prompt, max_tokens=40)
            assert answer.tokens[-1].end
            found = await fusion.log_likelihood(prompt, answer.text, end=True)
            assert found.is_greedy
            written = math.fsum(math.log(token.draft_prob or 0) for token in answer.tokens)
            assert math.isclose(found.total, written, rel_tol=1e-3, abs_tol=1e-3)


@pytest.mark.parametrize("name", ["sums", "facts"])
async def test_a_model_fused_with_itself_has_its_own_likelihood(pair: Pair, name: str) -> None:
    """That of its own ids behind the prompt, as its server gives it; the text begins within a word of the prompt."""
    model = connect(pair[name])
    async with model, Fusion(draft=pair[name], assistant=pair[name], verifier=RuleVerifier(alpha=1, beta=1)) as fusion:
        assert isinstance(model, IdScores) and isinstance(model, IdContexts)
        for prompt in PROMPTS[:3]:
            for text in (" The capital of Peru is Lima.\n\nThe", " 12345", "e sum"):
                ids = tuple([piece.id for piece in await model.encode(text)])
                context = Context(prompt, text.encode(), ids)
                scores = await model.score_ids(context, 0, end=True, usage=Usage())
                found = await fusion.log_likelihood(prompt, text, end=True)
                assert [token.source for token in found.tokens] == ["draft"] * len(scores)
                own = math.fsum(math.log(token.prob or 0) for token in scores)
                assert math.isclose(found.total, own, rel_tol=1e-3)
