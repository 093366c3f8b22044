"""Checks of a provider's distributions: contexts by ids, samples and hidden states.

The checks call only methods of the contract, and compare their results with one another.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from itertools import zip_longest
from typing import Any

from cosd_providers.allowed import LISTED
from cosd_providers.contract import AllowedTokens, Context, HiddenStates, IdContexts, State, Token
from cosd_providers.distributions import near
from cosd_providers.probe.report import in_digits
from cosd_providers.probe.state import DRAFTED, NO_IDS, TOO_SHORT, Finding, ProbeRun, check, places, text_of
from cosd_providers.usage import Usage

_WRITTEN = 24  # number of tokens in each draft by ids
_PROMPTS = (
    "The old lighthouse stood on a cliff above the sea. Every evening",
    "Shopping list for a small party:\n- bread\n- cheese\n-",
    'def mean(values):\n    """Return the mean of some numbers."""\n    ',
)
"""Prompts for drafts by ids: prose, a list and code."""

_LEAST = 3  # minimum number of comparisons in all drafts by ids together
_MOST_TIE = 0.1  # the greatest difference between two log probabilities that counts as a tie
_EXACT = 1e-6  # differences below this count as zero
_FAR = 1e-3  # tokens less probable than this are not part of a tie

_LISTED = 5  # number of alternatives to request at each place
_NOISE = 2e-2  # allowance for noise in the probability that a list leaves for other tokens
_SAMPLED = 8  # number of tokens in the draft that is drawn twice
_DRAWS = 16  # number of times that a single token is drawn
_UNSURE = 0.6  # maximum probability of the best token at a place where draws should vary
_SELDOM = 1e-3  # an outcome of the draws that is less probable than this is not attributed to chance
_CLOSE = 0.05  # allowed relative difference of two states, since batches and quantised caches round differently
_OPENINGS = "The", "Her name was"  # texts that most models could continue in many ways

_Listed = Mapping[tuple[bytes, bool], float]
"""Probabilities at one place. The key is a token's bytes, and whether the token is an end of sequence."""


@check("after_ids", refused=False)
async def after_ids(probe: ProbeRun) -> Finding:
    """Write drafts by ids, and send the model the ids before each of their tokens. It must choose that token again.

    Also record the line `tie`: the difference in log probability that counts as a tie.
    """
    able = probe.info.capabilities
    if not (able.ids and isinstance(probe.provider, IdContexts)):
        probe.note("tie", None, NO_IDS)
        return False, NO_IDS
    also: dict[str, Any] = {"alternatives": 1} if able.top_k else {}
    drafts = [(await probe.drafted(Context(prompt, b"", ()), _WRITTEN, **also))[0] for prompt in _PROMPTS]
    if any(token.id is None for draft in drafts for token in draft):
        return False, "its tokens have no ids"
    equal, tied, wrong, moves = 0, 0, list[str](), [0.0]
    for written, read in await _read_again(probe, drafts):
        second = next(iter(read.alternatives), None)
        if read.id == written.id or (read.end and written.end):
            equal += 1
        elif second is not None and second.id == written.id and _distance(read, second) <= _MOST_TIE:
            tied += 1
        else:
            wrong.append(f"{_named(written)} was written, and {_named(read)} is read")
            continue
        moves.append(_moved(written, read))
    compared = equal + tied + len(wrong)
    if compared < _LEAST:
        return None, TOO_SHORT
    alone = [_moved(*pair) for pair in await _read_alone(probe, drafts[0])]
    probe.note("tie", *_tie(max(moves), max(alone, default=None)))
    words = f"equal at {equal} of {compared} places" + (f", and a tie at {tied}" if tied else "")
    return not wrong, words + (f"; {wrong[0]}" if wrong else "")


async def _read_again(probe: ProbeRun, drafts: Sequence[Sequence[Token]]) -> list[tuple[Token, Token]]:
    """Ask for the token at each place of the drafts; return the written tokens, each with the one that is chosen now.

    If possible, the places of all drafts are asked in one request, so that they form a batch.
    """
    provider: Any = probe.provider
    several: IdContexts = provider.with_strategy("list") if "list" in getattr(provider, "strategies", ()) else provider
    usage = Usage()  # a separate record, because these requests belong to no strategy
    found: list[tuple[Token, Token]] = []
    orders = [
        [(prompt, draft[:at], draft[at]) for at in _there_and_back(len(draft))]
        for prompt, draft in zip(_PROMPTS, drafts, strict=True)
    ]
    for asked in zip_longest(*orders):
        known = [one for one in asked if one is not None]
        contexts = [Context(prompt, text_of(own), tuple(token.id or 0 for token in own)) for prompt, own, _ in known]
        chosen = await several.next_tokens(contexts, usage=usage)
        found += [(token, read) for (*_, token), read in zip(known, chosen, strict=True) if read is not None]
    probe.spend(usage)
    return found


async def _read_alone(probe: ProbeRun, draft: Sequence[Token]) -> list[tuple[Token, Token]]:
    """Ask for the token at some places of the first draft as `_read_again`, but in requests of their own.

    Return only the places at which the same token is chosen; none if the provider asks in one way only.
    """
    provider: Any = probe.provider
    if not {"list", "singles"} <= {*getattr(provider, "strategies", ())}:
        return []
    usage, chosen = Usage(), places(draft)
    contexts = [
        Context(_PROMPTS[0], text_of(draft[:at]), tuple(token.id or 0 for token in draft[:at])) for at in chosen
    ]
    found: Sequence[Token | None] = await provider.with_strategy("singles").next_tokens(contexts, usage=usage)
    probe.spend(usage)
    return [
        (token, read)
        for (_, token), read in zip(chosen.values(), found, strict=True)
        if read is not None and read.id == token.id
    ]


def _there_and_back(count: int) -> Iterable[int]:
    """Order the places of a draft: the last, the first, the last but one, the second, ...

    In this order, a server that caches only its last request must read the ids between two places again, as one batch.
    In descending order, it would find all ids in its cache.
    """
    for at in range(count):
        yield at // 2 if at % 2 else count - 1 - at // 2


def _moved(written: Token, read: Token) -> float:
    """Return how much the difference between two tokens' log probabilities changes from writing to reading.

    This change can reverse the order of the two tokens. If one of the tokens has a probability of 0.99, the change is a
    hundred times as large as the change in that token's own log probability.
    """
    then, now = ({one.id: one.prob for one in (token, *token.alternatives)} for token in (written, read))
    shifts = [
        math.log(after) - math.log(prob)
        for key, prob in then.items()
        if prob and prob > _FAR and (after := now.get(key))
    ]
    return max(shifts) - min(shifts) if shifts[1:] else abs(sum(shifts))


def _distance(one: Token, other: Token) -> float:
    """Return the difference in log probability between two tokens; infinite if a probability is unknown or zero."""
    return math.log(one.prob) - math.log(other.prob) if one.prob and other.prob else math.inf


def _named(token: Token) -> str:
    return "the end" if token.end else repr(token.data.decode("utf-8", "replace"))


def _tie(listed: float, alone: float | None) -> tuple[float, str]:
    """Return the difference that counts as a tie: the greatest change from writing to reading, rounded up.

    Args:
        listed: the greatest change if places are read in lists.
        alone: the greatest change if each place is read in a request of its own; None if that was not tried.
    """
    widest = round(max(listed, alone or 0.0), 9)
    if widest < _EXACT:
        return 0.0, "log probabilities are the same, written and read: tie=0"
    words = "from writing to reading, the two most probable tokens move against each other by"
    unit = "in log probability"
    if alone is not None and _shown(alone) != _shown(listed):
        unit += f" ({_shown(listed)} in lists, {_shown(alone)} alone)"
    if widest <= _MOST_TIE:
        tie = min(_MOST_TIE, _rounded(widest, decimal.ROUND_CEILING))
        return tie, f"{words} at most {_shown(widest)} {unit}: tie={in_digits(tie)}"
    words = f"{words} up to {_shown(widest)} {unit}: the server's numbers depend on how a prompt is batched"
    return _MOST_TIE, f"{words}, and differences above {_MOST_TIE} are not called ties: tie={_MOST_TIE}"


def _shown(value: float) -> str:
    return in_digits(_rounded(round(value, 9), decimal.ROUND_HALF_EVEN))


def _rounded(value: float, rounding: str) -> float:
    """Round a number to two significant digits."""
    return float(decimal.Context(prec=2, rounding=rounding).create_decimal(repr(value)))


@check("restart")
async def restart(probe: ProbeRun) -> Finding:
    """Return what the provider has found out about the cost of a restart."""
    again = probe.info.capabilities.reread
    if again is None:
        return None, "measured only on llama.cpp, if it has a cache"
    cached = "tokens in its cache are read again after a change"
    return again, f"{again} of 6 {cached}" if again else f"no {cached}"


@check("sampling", refused=False)
async def sampling(probe: ProbeRun) -> Finding:
    """Draw tokens. The same seed must draw the same tokens, with the probabilities that a greedy answer lists."""
    if not probe.info.capabilities.sampling:
        return False, "it is not known to draw from the model's own distribution"
    place = await _unsure(probe)
    if place is None:
        return None, "the model is confident everywhere: every draw would be the same"
    context, listed = place
    one, other = [(await probe.drafted(context, _SAMPLED, temperature=1, seed=1))[0] for _ in range(2)]
    if [token.data for token in one] != [token.data for token in other]:
        return False, "one seed draws different tokens"
    drawn: list[Token] = []
    for seed in range(2, 2 + _DRAWS):
        drawn += (await probe.drafted(context, 1, temperature=1, seed=seed))[0][:1]
    best, prob = max(listed.items(), key=lambda item: item[1])
    raw = sum(_is_raw(token, listed) for token in drawn)
    if raw < len(drawn):
        return False, f"the probabilities of {len(drawn) - raw} of {len(drawn)} drawn tokens are not the model's own"
    count = sum((token.data, token.end) == best for token in drawn)
    seen = f"the most probable token, of {prob:.2g}, was drawn {count} of {len(drawn)} times"
    return bool(drawn) and _chance(count, len(drawn), prob) >= _SELDOM, seen


@check("hidden_states", refused=False)
async def hidden_states(probe: ProbeRun) -> Finding:
    """Request hidden states in two ways. They must agree at each place, and must not change the tokens."""
    width, provider = probe.info.capabilities.hidden_states, probe.provider
    if not width or not isinstance(provider, HiddenStates):
        return False, "the server does not report them"
    if not probe.draft:
        return None, probe.no_draft
    prompt, text = probe.prompt, text_of(probe.draft)
    stream = provider.generate_with_states(Context(prompt, b""), max_tokens=DRAFTED, usage=probe.usage)
    async with aclosing(stream):
        drafted = [item async for item in stream if isinstance(item, Token)]
    if [token.data for token in drafted] != [token.data for token in probe.draft]:
        return False, "a draft with hidden states differs from a draft without them"
    found = await provider.hidden_states(Context(prompt, text), usage=probe.usage)
    states = {start: token.state for start, token in places(drafted).values() if start in found}
    if any(state is None or len(state) != width for state in states.values()):
        return False, f"not all have {width} numbers"
    if not states:
        return None, "the text is read as other tokens than were drafted"
    equal = sum(state is not None and _close(state, found[start]) for start, state in states.items())
    several = {tuple(state) for state in states.values() if state is not None}
    seen = f"{width} numbers, equal in both at {equal} of {len(states)} places"
    return equal == len(states) and (len(several) > 1 or len(states) == 1), seen


@check("allowed")
async def allowed(probe: ProbeRun) -> Finding:
    """Ask for an allowed token beyond the list of the most probable ones, as structured answers do."""
    able, provider = probe.info.capabilities, probe.provider
    if not (able.finds_allowed and isinstance(provider, AllowedTokens)):
        return (min(1 + able.top_k, LISTED), "listed") if able.top_k else (False, "the server lists only its own token")
    context = Context(probe.prompt)
    first, _ = await probe.drafted(context, 1, alternatives=min(able.top_k, _LISTED))
    listed = {one.data: one.prob or 0.0 for token in first for one in (token, *token.alternatives)}

    def fits(data: bytes) -> bool:
        return data.strip()[:1].isalpha() and data not in listed

    answer = await provider.list_allowed(context, fits, usage=probe.usage)
    found = next((one for one in answer if fits(one.data)), None)
    if found is None:
        return None, "it has no such token"
    seen = f"{_named(found)} was found, of {found.prob or 0.0:.2g}"
    return (found.prob or 0.0) <= min(listed.values(), default=1.0) + _NOISE, seen


def _close(one: State, other: State) -> bool:
    """Test whether two states are equal up to noise."""
    difference = math.dist(one, other)
    return len(one) == len(other) and difference <= _CLOSE * max(math.hypot(*one), math.hypot(*other))


async def _unsure(probe: ProbeRun) -> tuple[Context, _Listed] | None:
    """Find a context after which the model is unsure. Return it and its distribution; None if not found."""
    tokens = [token for token in probe.draft if not token.end and token.prob is not None]
    least = min(tokens, key=lambda token: token.prob or 0.0, default=None)
    before = text_of(probe.draft[: probe.draft.index(least)]) if least is not None else b""
    options: dict[str, Any] = {"alternatives": _LISTED} if probe.info.capabilities.top_k else {}
    for context in (Context(probe.prompt, before), *map(Context, _OPENINGS)):
        found, _ = await probe.drafted(context, 1, **options)
        if found and (found[0].prob or 1.0) <= _UNSURE:
            return context, _listed(found[0])
    return None


def _chance(count: int, draws: int, prob: float) -> float:
    """Return the probability of drawing a token at most `count` times, or at least `count` times if that is lower.

    In each of the `draws`, the token has the probability `prob`.
    """
    each = [math.comb(draws, n) * prob**n * (1 - prob) ** (draws - n) for n in range(draws + 1)]
    return min(sum(each[: count + 1]), sum(each[count:]))


def _listed(token: Token) -> _Listed:
    """Return the known probabilities of a token and its alternatives."""
    return {(one.data, one.end): one.prob for one in (token, *token.alternatives) if one.prob is not None}


def _is_raw(token: Token, listed: _Listed) -> bool:
    """Test whether a drawn token's probability equals the listed one.

    If the token is not listed, its probability must not exceed what the listed probabilities leave of 1.
    """
    if token.prob is None:
        return False
    expected = listed.get((token.data, token.end))
    return token.prob <= 1 - sum(listed.values()) + _NOISE if expected is None else near(token.prob, expected)


DISTRIBUTIONS = (restart, after_ids, sampling, hidden_states, allowed)
"""The checks of this module."""
