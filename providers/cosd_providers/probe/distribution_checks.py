"""Checks of a provider's distributions: alternatives, the end of a text, samples and hidden states.

The checks call only methods of the contract, and compare their results with one another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import aclosing
from inspect import Parameter, signature
from itertools import pairwise
from typing import Any

from cosd_providers.contract import Context, HiddenStates, Question, State, Token
from cosd_providers.distributions import near
from cosd_providers.probe.inquiry import DRAFTED, TOO_SHORT, Finding, Inquiry, check, places, text_of

__all__ = ["alternatives", "hidden_states", "sampling", "scored_end"]

_LISTED = 5  # number of alternatives to request at each place
_COMPARED = 3  # number of alternatives to compare at each place
_NOISE = 2e-2  # allowance for noise in the probability that a list leaves for other tokens
_ROUNDED = 1.001
_SAMPLED = 8  # number of tokens in the draft that is drawn twice
_DRAWS = 16  # number of times that a single token is drawn
_UNSURE = 0.6  # maximum probability of the best token at a place where draws should vary
_SELDOM = 1e-3  # an outcome of the draws that is less probable than this is not attributed to chance
_CLOSE = 0.05  # allowed relative difference of two states, since batches and quantised caches round differently
_OPENINGS = "The", "Her name was"  # texts that most models could continue in many ways

_Listed = Mapping[tuple[bytes, bool], float]
"""Probabilities at one place. The key is a token's bytes, and whether the token is an end of sequence."""


@check("alternatives", "the alternatives listed with a draft, with proposals and with a scored text, compared")
async def alternatives(inquiry: Inquiry) -> Finding:
    """Request alternatives from each method. They must agree at each place, and must not change the tokens."""
    able = inquiry.info.capabilities
    if not able.top_k or not _takes(inquiry.provider.propose, "alternatives"):
        return False, "drafts may list some, proposals and scores do not"
    if not inquiry.draft:
        return None, TOO_SHORT if inquiry.short else "there is no draft to compare them with"
    prompt, text = inquiry.prompt, text_of(inquiry.draft)
    drafted, _ = await inquiry.drafted(prompt, b"", DRAFTED, alternatives=_LISTED)
    if [token.data for token in drafted] != [token.data for token in inquiry.draft]:
        return False, "a draft with alternatives differs from a draft without them"
    if not all(_ordered(token) for token in drafted):
        return False, "an alternative is more probable than the chosen token, or than the alternative before it"
    asked = {start: token for start, token in places(drafted).values() if token.alternatives}
    questions = [Question(start, (token.data,)) for start, token in asked.items()]
    found = await inquiry.provider.propose(Context(prompt, text), questions, alternatives=_LISTED, usage=inquiry.usage)
    proposed = {one.start: one.tokens[0] for one in found if one is not None}
    scored: dict[int, Token] = {}
    if able.score_top_k and _takes(inquiry.provider.score, "alternatives"):
        at = 0
        for token in await inquiry.provider.score(Context(prompt, text), alternatives=_LISTED, usage=inquiry.usage):
            scored[at] = token
            at += len(token.data)
    where, seen = ["drafts"], list[str]()
    for name, tokens in (("proposals", proposed), ("scores", scored)):
        pairs = [(start, token) for start, token in asked.items() if _same_token(token, tokens.get(start))]
        if not pairs:
            continue
        equal = sum([await _agree(inquiry, text[:start], token, tokens[start]) for start, token in pairs])
        seen.append(f"{name} at {equal} of {len(pairs)} places")
        if equal < len(pairs):
            return False, f"equal to the alternatives of drafts in {', '.join(seen)}"
        where.append(name)
    if not seen:
        return None, "no place has alternatives to compare"
    return ", ".join(where), f"equal in {', '.join(seen)}"


@check("scored_end", "the end of sequence after the text of a draft, scored and proposed", refused=False)
async def scored_end(inquiry: Inquiry) -> Finding:
    """Score the end of a text. Its probability must equal the probability that a proposal reports for the end."""
    able = inquiry.info.capabilities
    if not able.score or not _takes(inquiry.provider.score, "end"):
        return False, "the tokens of a text are scored, and not its end" if able.score else "it scores no text"
    if not inquiry.draft:
        return None, TOO_SHORT if inquiry.short else "there is no draft whose text could be scored"
    prompt, text = inquiry.prompt, text_of(inquiry.draft)
    scored = await inquiry.provider.score(Context(prompt, text), end=True, usage=inquiry.usage)
    last = scored[-1] if scored else Token(b"", None)
    if not last.end:
        return False, "the end is missing"
    if last.prob is None:
        return False, "its probability is not reported"
    lists = able.top_k and _takes(inquiry.provider.propose, "alternatives")
    options: dict[str, Any] = {"alternatives": _LISTED} if lists else {}
    asked = [Question(len(text), (b"",))]
    [proposal] = await inquiry.provider.propose(Context(prompt, text), asked, usage=inquiry.usage, **options)
    listed: _Listed = _listed(proposal.tokens[0]) if proposal is not None else {}
    if not listed:
        return None, f"{last.prob:.2g}; nothing is proposed there that it could be compared with"
    expected = listed.get((b"", True))
    if expected is None:
        most = min(1 - sum(listed.values()), min(listed.values()) if options else 1.0)
        return last.prob <= most + _NOISE, f"{last.prob:.2g}, and proposals leave {max(most, 0.0):.2g} for it"
    return near(last.prob, expected), f"{last.prob:.2g}, and {expected:.2g} among the proposals there"


@check("sampling", f"two drafts of {_SAMPLED} tokens with one seed, and {_DRAWS} draws of one token", refused=False)
async def sampling(inquiry: Inquiry) -> Finding:
    """Draw tokens. The same seed must draw the same tokens, with the probabilities that a greedy answer lists."""
    able = inquiry.info.capabilities
    if not able.sampling or not _takes(inquiry.provider.generate, "temperature"):
        return False, "it is not known to draw from the model's own distribution"
    place = await _unsure(inquiry)
    if place is None:
        return None, "the model is confident everywhere: every draw would be the same"
    prompt, text, listed = place
    drafts = [
        [token.data for token in (await inquiry.drafted(prompt, text, _SAMPLED, temperature=1, seed=1))[0]]
        for _ in range(2)
    ]
    if drafts[0] != drafts[1]:
        return False, "one seed draws different tokens"
    drawn: list[Token] = []
    for seed in range(2, 2 + _DRAWS):
        drawn += (await inquiry.drafted(prompt, text, 1, temperature=1, seed=seed))[0][:1]
    best, prob = max(listed.items(), key=lambda item: item[1])
    raw = sum(_is_raw(token, listed) for token in drawn)
    if raw < len(drawn):
        return False, f"the probabilities of {len(drawn) - raw} of {len(drawn)} drawn tokens are not the model's own"
    count = sum((token.data, token.end) == best for token in drawn)
    seen = f"the most probable token, of {prob:.2g}, was drawn {count} of {len(drawn)} times"
    return bool(drawn) and _chance(count, len(drawn), prob) >= _SELDOM, seen


@check(
    "hidden_states", "the hidden states of a draft, listed with its tokens and requested for its text", refused=False
)
async def hidden_states(inquiry: Inquiry) -> Finding:
    """Request hidden states in two ways. They must agree at each place, and must not change the tokens."""
    width, provider = inquiry.info.capabilities.hidden_states, inquiry.provider
    if not width or not isinstance(provider, HiddenStates):
        return False, "the server does not report them"
    if not inquiry.draft:
        return None, TOO_SHORT if inquiry.short else "there is no draft to ask about"
    prompt, text = inquiry.prompt, text_of(inquiry.draft)
    stream = provider.generate_with_states(Context(prompt, b""), max_tokens=DRAFTED, usage=inquiry.usage)
    async with aclosing(stream):
        drafted = [item async for item in stream if isinstance(item, Token)]
    if [token.data for token in drafted] != [token.data for token in inquiry.draft]:
        return False, "a draft with hidden states differs from a draft without them"
    found = await provider.hidden_states(Context(prompt, text), usage=inquiry.usage)
    states = {start: token.state for start, token in places(drafted).values() if start in found}
    if any(state is None or len(state) != width for state in states.values()):
        return False, f"not all have {width} numbers"
    if not states:
        return None, "the text is read as other tokens than were drafted"
    equal = sum(state is not None and _close(state, found[start]) for start, state in states.items())
    several = {tuple(state) for state in states.values() if state is not None}
    seen = f"{width} numbers, equal in both at {equal} of {len(states)} places"
    return equal == len(states) and (len(several) > 1 or len(states) == 1), seen


def _close(one: State, other: State) -> bool:
    """Test whether two states are equal up to noise."""
    difference = math.dist(one, other)
    return len(one) == len(other) and difference <= _CLOSE * max(math.hypot(*one), math.hypot(*other))


async def _unsure(inquiry: Inquiry) -> tuple[str, bytes, _Listed] | None:
    """Find a prompt and a text after which the model is unsure. Return them and its distribution; None if not found."""
    tokens = [token for token in inquiry.draft if not token.end and token.prob is not None]
    least = min(tokens, key=lambda token: token.prob or 0.0, default=None)
    before = text_of(inquiry.draft[: inquiry.draft.index(least)]) if least is not None else b""
    for prompt, text in ((inquiry.prompt, before), *((opening, b"") for opening in _OPENINGS)):
        options: dict[str, Any] = {"alternatives": _LISTED} if inquiry.info.capabilities.top_k else {}
        found, _ = await inquiry.drafted(prompt, text, 1, **options)
        if found and (found[0].prob or 1.0) <= _UNSURE:
            return prompt, text, _listed(found[0])
    return None


def _chance(count: int, draws: int, prob: float) -> float:
    """Return the probability of drawing a token at most `count` times, or at least `count` times if that is lower.

    In each of the `draws`, the token has the probability `prob`.
    """
    each = [math.comb(draws, n) * prob**n * (1 - prob) ** (draws - n) for n in range(draws + 1)]
    return min(sum(each[: count + 1]), sum(each[count:]))


def _takes(method: Callable[..., object], name: str) -> bool:
    """Test whether a method accepts an argument, because a provider for an earlier version may not."""
    known = signature(method).parameters
    return name in known or any(one.kind is Parameter.VAR_KEYWORD for one in known.values())


def _listed(token: Token) -> _Listed:
    """Return the known probabilities of a token and its alternatives."""
    return {(one.data, one.end): one.prob for one in (token, *token.alternatives) if one.prob is not None}


def _ordered(token: Token) -> bool:
    """Test whether the alternatives are in descending order, and none is more probable than the token itself."""
    probs = [one.prob or 0.0 for one in token.alternatives]
    own = token.prob if token.prob is not None else 1.0
    return all(one >= other for one, other in pairwise(probs)) and max(probs, default=0.0) <= own * _ROUNDED


def _same_token(one: Token, other: Token | None) -> bool:
    return other is not None and (one.data, one.end) == (other.data, other.end)


async def _agree(inquiry: Inquiry, text: bytes, drafted: Token, other: Token) -> bool:
    """Test whether a token has the same alternatives as the drafted token, or as the first token of a new draft.

    A new draft, which starts at the token's place, is compared because the alternatives can differ from those of the
    first draft if the text is encoded as tokens that differ from the drafted ones.
    """
    if _equal(_listed(drafted), _listed(other)):
        return True
    found, _ = await inquiry.drafted(inquiry.prompt, text, 1, alternatives=_LISTED)
    return bool(found) and _equal(_listed(found[0]), _listed(other))


def _equal(one: _Listed, other: _Listed) -> bool:
    """Test whether two lists have the same most probable tokens with the same probabilities, up to noise."""
    return all(_has(first, second) for first, second in ((one, other), (other, one)))


def _has(one: _Listed, other: _Listed) -> bool:
    likely = sorted(one.items(), key=lambda item: -item[1])[: 1 + _COMPARED]
    return all(near(other.get(key, 0.0), prob) for key, prob in likely)


def _is_raw(token: Token, listed: _Listed) -> bool:
    """Test whether a drawn token's probability equals the listed one.

    If the token is not listed, its probability must not exceed what the listed probabilities leave of 1.
    """
    if token.prob is None:
        return False
    expected = listed.get((token.data, token.end))
    return token.prob <= 1 - sum(listed.values()) + _NOISE if expected is None else near(token.prob, expected)
