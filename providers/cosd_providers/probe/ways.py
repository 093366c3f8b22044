"""By which strategies a server may be asked as an assistant: each is tried here, and priced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cosd_providers.contract import Proposal, Provider, Token
from cosd_providers.errors import ProviderError
from cosd_providers.probe.asking import OURS, Inquiry, reason
from cosd_providers.probe.generic import judged, places, same_prob
from cosd_providers.probe.lines import Way
from cosd_providers.probe.words import EXAMPLE
from cosd_providers.strategies import Strategy
from cosd_providers.usage import Usage

__all__ = ["offered", "ways"]

_COSTS: dict[str, tuple[str, str, tuple[int, int]]] = {
    "echo": ("1", "C", (1, 1)),
    "list": ("1", "K x C", (1, EXAMPLE[1])),
    "singles": ("K", "K x C", (EXAMPLE[1], EXAMPLE[1])),
    "filter": ("1 + o", "(1 + o) x C", (1, 1)),
}
"""Requests and billed tokens of the prompts in words, and both of the example: requests, and times the context."""


def offered(provider: Provider) -> Sequence[Strategy]:
    """The strategies that an adapter takes; none for a provider of another kind."""
    found: Sequence[Strategy] = getattr(provider, "strategies", ())
    return found


async def ways(inquiry: Inquiry) -> list[Way]:
    """Each strategy with what came of it, the proved ones first. The first that is proved is the others' measure."""
    if not inquiry.own:
        return []
    found: list[Way] = []
    if not offered(inquiry.provider):
        seen = "what it is asked by"
        return [_priced(inquiry, name, Usage(), proved=True, seen=seen) for name in _own(inquiry)]
    model: list[Proposal | None] | None = None
    for name in offered(inquiry.provider):
        usage = Usage()
        try:
            said = await _asked(inquiry, name, usage)
            proved, seen = await _judged(inquiry, name, said, model, usage)
            wrong = not proved
            if proved and (other := _otherwise(name, usage)):
                proved, seen = False, other
            model = said if model is None and proved else model
        except OURS:
            raise
        except ProviderError as error:
            proved, wrong, seen = False, False, reason(error)
        inquiry.usage.requests += usage.requests
        inquiry.usage.bill(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
        found.append(_priced(inquiry, name, usage, proved=proved, wrong=wrong, seen=seen))
    return sorted(found, key=lambda way: not way.proved)


def _own(inquiry: Inquiry) -> list[str]:
    """The strategies that have answered a provider's questions, where it takes no other."""
    return [name for name in inquiry.usage.strategies if name in _COSTS and inquiry.value("propose")]


async def _asked(inquiry: Inquiry, name: Strategy, usage: Usage) -> list[Proposal | None]:
    """What is proposed at places of the draft, by one strategy alone."""
    asked: Any = inquiry.provider
    provider: Provider = asked.with_strategy(name)
    text = b"".join(token.data for token in inquiry.own)
    questions = [question for _, question in places(inquiry.own)]
    return await provider.propose(inquiry.prompt, text, questions, usage=usage)


async def _judged(
    inquiry: Inquiry,
    name: str,
    said: Sequence[Proposal | None],
    first: Sequence[Proposal | None] | None,
    usage: Usage,
) -> tuple[bool, str]:
    """Whether it says what the draft says, and all that the first proved one said."""
    right, words = await judged(inquiry, said)
    if right and first is not None:
        same = [_same(one, other) for one, other in zip(said, first, strict=True)]
        right = all(same)
        words += f", and to the others' answers at {sum(same)}"
    own = usage.strategies.get(name, 0) if usage.strategies else len(said)
    return right, words + (f"; {own} of them answered by itself" if own < len(said) else "")


def _otherwise(name: str, usage: Usage) -> str | None:
    """By what the places were answered, where that was not the strategy; None where it was."""
    if usage.strategies and not usage.strategies.get(name):
        return f"all places were answered by {' and '.join(usage.strategies)} instead"
    return None


def _same(one: Proposal | None, other: Proposal | None) -> bool:
    if one is None or other is None:
        return one is other
    return _equal(one, other.tokens)


def _equal(one: Proposal, tokens: Sequence[Token]) -> bool:
    return len(one.tokens) >= len(tokens) and all(
        (left.data, left.end) == (right.data, right.end) and same_prob(left.prob, right.prob)
        for left, right in zip(one.tokens, tokens, strict=False)
    )


def _priced(inquiry: Inquiry, name: str, usage: Usage, *, proved: bool, seen: str, wrong: bool = False) -> Way:
    requests, tokens, (trips, contexts) = _COSTS[name]
    answered = sum(usage.strategies.values())
    left = 1 - usage.strategies.get(name, 0) / answered if answered else 0.0
    if left and "o" not in requests and (way := next((other for other in usage.strategies if other != name), None)):
        # What it leaves open is asked by another one, for as many places as here.
        others = round(left * EXAMPLE[1])
        trips, contexts = trips + (others if way == "singles" else 1), contexts + others
        requests, tokens = f"1 + {'o' if way == 'singles' else '1'}", "(1 + o) x C"
    told = inquiry.value("cache") is not None and usage.prompt_tokens
    return Way(
        name=name,
        proved=proved,
        wrong=wrong,
        seen=seen,
        requests=requests,
        tokens=tokens,
        cached=round(usage.cached_tokens / usage.prompt_tokens, 2) if told else None,
        example=(EXAMPLE[0] * trips, EXAMPLE[0] * contexts * EXAMPLE[2]),
    )
