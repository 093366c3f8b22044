"""The places of an answer asked in each way: by single questions, a list, a score of the whole, and streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from cosd_api import Fusion, FusionResult, RuleVerifier
from cosd_providers import Context, Provider, Token, Usage, connect
from cosd_providers.contract import IdContexts, IdScores, Piece
from cosd_providers.strategies import Strategy

WAYS: tuple[Strategy, ...] = ("singles", "list", "watch")
"""The ways in which an assistant is asked for its next token."""
TEXTS = ('The sum is 66. Snow is neige, "la neige" 😀.\n\n  1. Zürich', " 31 + 38 = 69\n", "A")
"""Answers that a model writes itself in part only: a place where it differs is a place, too."""
NOISE = 0.02
"""By which the probability of a token may differ between two ways: numbers are added in another order."""


async def answers(
    connected: Callable[[Strategy], Provider], prompt: str, text: str, *, scores: bool = True
) -> Mapping[str, list[Token]]:
    """A server's most probable token at each place of a text in its own encoding, by the way that it is asked.

    Args:
        connected: the server, asked by a strategy.
        prompt: before the text.
        text: the answer.
        scores: whether one way is a score of the text.
    """
    found: dict[str, list[Token]] = {}
    async with connected("singles") as provider:
        assert isinstance(provider, IdContexts)
        pieces = await provider.encode(text)
        ids = tuple(piece.id for piece in pieces)
        contexts = [_context(prompt, pieces, count) for count in range(len(pieces) + 1)]
        found["singles"] = [_known(await provider.next_tokens([one], usage=Usage())) for one in contexts]
        found["watch"] = await _watched(provider, contexts, ids)
        if scores:
            assert isinstance(provider, IdScores)
            scored = await provider.score_ids(contexts[-1], 0, alternatives=2, usage=Usage())
            found["echo"] = [max((one, *one.alternatives), key=lambda token: token.prob or 0.0) for one in scored]
    async with connected("list") as provider:
        assert isinstance(provider, IdContexts)
        usage = Usage()
        found["list"] = [_known([one]) for one in await provider.next_tokens(contexts, usage=usage)]
        assert usage.strategies == {"list": len(contexts)}
    return found


def _context(prompt: str, pieces: Sequence[Piece], count: int) -> Context:
    before = pieces[:count]
    return Context(prompt, b"".join(piece.data for piece in before), tuple(piece.id for piece in before))


def _known(tokens: Sequence[Token | None]) -> Token:
    [token] = tokens
    assert token is not None
    return token


async def _watched(provider: Provider, contexts: Sequence[Context], ids: Sequence[int]) -> list[Token]:
    """The answers of streams: each runs as long as it writes the ids of the answer, and answers where it does not."""
    found: list[Token] = []
    while len(found) < len(contexts):
        start, most = contexts[len(found)], len(contexts) - len(found)
        async with aclosing(provider.generate(start, max_tokens=most, alternatives=1, usage=Usage())) as stream:
            async for item in stream:
                assert isinstance(item, Token)
                found.append(item)
                if len(found) == len(contexts) or item.id != ids[len(found) - 1]:
                    break
    return found


def check(found: Mapping[str, list[Token]]) -> float:
    """All ways have one answer at each place, but where two tokens are equally probable.

    Returns:
        The largest difference of a probability.
    """
    wanted, largest = found["singles"], 0.0
    for way, tokens in found.items():
        for place, (one, other) in enumerate(zip(wanted, tokens, strict=way != "echo")):
            second = max((token.prob or 0.0 for token in one.alternatives), default=0.0)
            near = one.prob is not None and one.prob - second < NOISE
            assert one.id == other.id or near, (way, place, one, other)
            if one.id == other.id and one.prob is not None and other.prob is not None:
                largest = max(largest, abs(one.prob - other.prob))
                assert largest < NOISE, (way, place, one, other)
    return largest


async def fused(
    draft: str, assistant: str, engine: str, prompts: Sequence[str], **settings: Any
) -> Mapping[Strategy, Sequence[FusionResult]]:
    """The answers of a fusion whose assistant is asked in each way; about every token, unless there is a method."""
    found: dict[Strategy, Sequence[FusionResult]] = {}
    for way in WAYS:
        asked = connect(assistant, engine=engine, strategy=way)
        roles: dict[str, Any] = {"models": [draft, asked], **settings}
        if not settings:
            roles = {"draft": draft, "assistant": asked, "verifier": RuleVerifier(alpha=1, beta=1)}
        async with Fusion(**roles) as fusion:
            found[way] = [await fusion.generate(prompt, max_tokens=48) for prompt in prompts]
    return found


def check_fused(found: Mapping[Strategy, Sequence[FusionResult]]) -> None:
    """Fusions whose assistant was asked in different ways have the same tokens, and the same was said about each."""
    for results in zip(*found.values(), strict=True):
        told = [[(token.id, token.source, len(token.decisions)) for token in result.tokens] for result in results]
        probs = [[one.prob or 0.0 for token in result.tokens for one in token.decisions] for result in results]
        for one, other in zip(told, probs, strict=True):
            assert one == told[0]
            assert max((abs(a - b) for a, b in zip(other, probs[0], strict=True)), default=0.0) < NOISE
    for way, asked in found.items():
        usages = [usage.strategies for result in asked for name, usage in result.usage.items() if name != "draft"]
        answered = {name: sum(one.get(name, 0) for one in usages) for name in (*found, "singles")}
        assert answered[way] > 0.5 * sum(answered.values()), (way, answered)


def check_segments(found: Mapping[Strategy, Sequence[FusionResult]]) -> None:
    """The same of a method that compares what all models say in each segment; no stream lists enough for it."""
    texts = [[result.text for result in results] for results in found.values()]
    assert texts.count(texts[0]) == len(texts)
    means: list[list[float]] = []
    for way, results in found.items():
        entries = [one for result in results for segment in result.segments for one in segment.candidates]
        means.append([one.mean for one in entries if one.mean is not None])
        ways = {name for result in results for usage in result.usage.values() for name in usage.strategies}
        assert "watch" not in ways
        assert way == "watch" or way in ways
    assert means[0]
    for other in means:
        assert max(abs(one - two) for one, two in zip(means[0], other, strict=True)) < NOISE
