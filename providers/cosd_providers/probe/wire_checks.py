"""Checks through a server's own protocol: questions whose answers are known, or must be consistent."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from cosd_providers.distributions import agree, cuts, listed, power_of
from cosd_providers.engines.openai.probe_client import REPLY_WAYS, Prompt, RawReply, RawScores
from cosd_providers.errors import ServerError, UnsupportedError
from cosd_providers.greedy import Position
from cosd_providers.probe.state import REFUSALS, Finding, ProbeRun, check, reason

_OPENING = "The capital of France is Paris, and the"
_SENTENCE = f"{_OPENING} capital of Spain is Madrid."
"""A text in which a model is confident of some tokens and unsure of others."""

_OTHER = "One, two, three, four, five, six, seven,"
_KNOWN = " é 日本 😀"
_PLAIN = " one, two"
_READ = "The old man walked down to the river, sat in the sun and watched the boats. "
_BREAKS = "\n\n"
_TIMES = 4  # number of repetitions of the text in the short prompt; the long prompt has twice as many
_DEEP = (20, 100)
_APART = 0.5  # minimum logarithm of a ratio that is compared, because smaller ratios are too noisy
_SAME = 0.15  # allowance for noise in an exponent; a temperature of one half would change the exponent by 1
_SURE = 1 - 1e-6
_JOINT = 4  # allowance in tokens, since a repeated text may be split differently or follow a special token
_PLACES, _TRIED = 3, 6  # number of places to compare in a scored text, and maximum number of places to try
_SHIFTS = (0, 1, -1)
_FEW_IDS = [10, 11, 12]
_MESSAGE = "Hello!"  # models answer this confidently, so they should continue half of their answer as before
_REPLY = 12  # number of tokens in the reply
_LEAST = 3  # minimum number of characters that must agree


@check("logprobs")
async def logprobs(probe: ProbeRun) -> Finding:
    """Ask for one token, with its probability and its alternatives."""
    probe.first = await probe.after(_OPENING)
    if not any(listed(position) for position in probe.first.positions):
        return False, "an answer without probabilities: the field is ignored, or refused"
    position = probe.first.positions[0]
    token = position.pick.token
    prob = "no probability" if token.prob is None else f"probability {token.prob:.3g}"
    return True, f"{token.data!r} with {prob} and {len(position.top)} alternatives"


@check("depth")
async def depth(probe: ProbeRun) -> Finding | None:
    """Find the maximum number of alternatives that the server lists."""
    if not probe.first.positions:
        return None
    got = _count(probe.first)
    seen = [f"asked for 5: {got}"]
    for top in _DEEP:
        try:
            [reply] = await probe.ask([_OPENING], top=top)
        except REFUSALS:
            seen.append(f"asked for {top}: refused")
            break
        more, got = _count(reply) > got, max(got, _count(reply))
        seen.append(f"asked for {top}: {_count(reply)}")
        if not more:
            break
    return got, "; ".join(seen)


@check("probabilities")
async def probabilities(probe: ProbeRun) -> Finding | None:
    """Compare the probabilities at one place for several temperatures.

    The model's own probabilities do not depend on the temperature.
    """
    if not probe.value("logprobs"):
        return None
    tables = [listed(probe.first.positions[0])]
    for temperature in (1.0, 0.5):
        [reply] = await probe.ask([_OPENING], temperature=temperature)
        tables.append(listed(reply.positions[0]) if reply.positions else {})
    cold, plain, half = tables
    if not _unsure(cold) and cold and max(cold.values()) >= _SURE and _unsure(plain):
        words = "at temperature 0 the one token has probability 1 and the others have 0; at temperature 1 they differ"
        return "degenerate", words
    powers = [power for table in (cold, half) if (power := _power(table, plain)) is not None]
    if len(powers) < 2:
        return None, "too few tokens are listed each time to compare them"
    same = [abs(power - 1) <= _SAME for power in powers]
    if all(same):
        return "raw", "the same numbers each time"
    words = f"to the power of {powers[0]:.2g} at temperature 0 and {powers[1]:.2g} at 0.5"
    return "scaled" if same[0] else "changed", f"ratios of probabilities equal the ratios at temperature 1 {words}"


@check("lists", refused=False)
async def lists(probe: ProbeRun) -> Finding:
    """Send two prompts in one request, and each in its own request. The answers must be the same."""
    alone = [probe.first, await probe.after(_OTHER)]
    try:
        found = await probe.ask([_OPENING, _OTHER])
    except ServerError as error:
        return False, reason(error)
    if len(found) != len(alone):
        return False, f"answered in part: {len(found)} of {len(alone)}"
    if _alike(*alone):
        return None, "both have the same answer, so they cannot be told apart"
    if all(_alike(one, both) for one, both in zip(alone, found, strict=True)):
        return True, "both answers are the same as alone"
    return False, "an answer differs from the answer to the prompt alone"


@check("ids", refused=False)
async def ids(probe: ProbeRun) -> Finding:
    """Send the ids of a text. The answer must be the same as the answer to the text."""
    if not probe.info.capabilities.tokenize:
        [reply] = await probe.ask([_FEW_IDS])
        if reply.read is None:
            return None, "the server does not report how many tokens it has read"
        return reply.read in (len(_FEW_IDS), len(_FEW_IDS) + 1), f"{reply.read} tokens were read of {len(_FEW_IDS)} ids"
    prompt: Prompt = [piece.id for piece in await probe.provider.tokenize(_OPENING)]
    [reply] = await probe.ask([prompt])
    if _alike(probe.first, reply) and reply.read == probe.first.read:
        return True, "the same answer, and the same number of tokens read"
    return False, f"a different answer; {reply.read} tokens read"


@check("scoring", refused=False)
async def scoring(probe: ProbeRun) -> Finding:
    """Score a given text, and compare the scores with the probabilities of tokens that are generated at some places.

    Scores that belong to a neighbouring place look plausible, and so do scores that a temperature has changed. Scoring
    is therefore trusted only if the scores equal the probabilities of the generated tokens with the same shift at every
    compared place. A place at which several shifts fit proves nothing and is skipped.
    """
    scores = await probe.wire.score(_SENTENCE, probe.usage)
    agreeing: list[tuple[int, Position, Position]] = []  # a shift, and what is scored with it and generated at a place
    compared = added = 0
    places = cuts(scores.own)
    for at, before in places[:: max(1, len(places) // _TRIED)][:_TRIED]:
        reply = await probe.after(before.decode("utf-8", "ignore"))
        if reply.read is not None and reply.read != at + scores.specials:
            # The prompt and the scored text are encoded differently, or the server adds a special token to only one.
            added += 1
            continue
        if not reply.positions:
            return False, f"{scores.way} is answered, and not believed: what is generated comes without probabilities"
        shown = reply.positions[0]
        own = scores.own[at].pick.token
        if not scores.own[at].top and (own.data, own.end) not in listed(shown):
            continue  # the scores contain only an improbable token, which proves nothing
        entries = [(shift, _entry(scores, at - shift)) for shift in _SHIFTS]
        fitting = [(shift, one, shown) for shift, one in entries if one and agree(one, shown)]
        if len(fitting) > 1:
            continue  # at this place, a shift would not be noticed
        compared += 1
        agreeing += fitting
        if compared == _PLACES:
            break
    moved, seen = _shift(agreeing, compared, added)
    if moved is None:
        return False, f"{scores.way} is answered, and not believed: {seen}"
    return scores.way + (f", moved by {moved:+d}" if moved else ""), f"{len(scores.own)} tokens, {seen}"


def _shift(agreeing: Sequence[tuple[int, Position, Position]], compared: int, added: int) -> tuple[int | None, str]:
    """Return the shift with which the scores at all places are right, and the evidence; None if there is no such shift.

    With a shift of 1, entry i contains the scores of place i + 1.
    """
    if compared < _PLACES - 1:
        more = f": at {added} the prompt was read as another number of tokens than was scored" if added else ""
        return None, f"too few places could be compared{more}"
    [(shift, best)] = Counter(shift for shift, *_ in agreeing).most_common(1) or [(0, 0)]
    if best < compared:
        return None, f"equal to what is generated at no more than {best} of {compared} places"
    if power := power_of((one, other) for _, one, other in agreeing):
        return None, f"ratios of its probabilities are the generated ratios to the power of {power:.2g}"
    moved = "" if not shift else f", moved by {shift:+d}: entry i has what belongs to place i{shift:+d}"
    return shift, f"equal to what is generated at {compared} of {compared} places{moved}"


def _entry(scores: RawScores, at: int) -> Position | None:
    """Return the scores at a place; None if there is no such place. The last place is the end of the text."""
    return (*scores.own, scores.after)[at] if 0 <= at <= len(scores.own) else None


@check("bytes")
async def exact_bytes(probe: ProbeRun) -> Finding:
    """Make the server write a text with multi-byte characters. The joined bytes of its tokens must equal the text.

    Also record whether the end of this answer is reported.
    """
    reply = await probe.wire.recite(_KNOWN, probe.prompt, probe.usage)
    if reply.text != _KNOWN:
        return None, "the server cannot be made to write it"
    if reply.ended:
        await _forced_end(probe, reply)
    if not reply.positions:
        return None, "the text is right, and its tokens are not shown"
    own = [position.pick.token.data for position in reply.positions if not position.pick.token.end]
    exact = b"".join(own) == _KNOWN.encode()
    parts = f"{len(own)} tokens"
    if reply.written and len(own) + reply.ended < reply.written:
        parts += f" shown of {reply.written}: parts of a character come with its last one"
    return exact, f"the tokens' bytes are {'' if exact else 'not '}those of the text; {parts}"


async def _forced_end(probe: ProbeRun, reply: RawReply) -> None:
    """Record whether the server reports the end of sequence of an answer whose text it was made to write."""
    named = _end_shown(reply)
    if named == "" and not probe.info.capabilities.end_prob:
        # An end without a name may in fact be a part of the last character. Plain letters have no such parts.
        try:
            reply = await probe.wire.recite(_PLAIN, probe.prompt, probe.usage)
        except REFUSALS:
            return
        named = _end_shown(reply) if reply.text == _PLAIN and reply.ended else None
    words = "its probability is not shown" if named is None else "it has an entry with a probability"
    probe.note("end", named is not None, words, "the end of an answer that was forced")


def _end_shown(reply: RawReply) -> str | None:
    """Return the name of the end in a reply, or "" if it has no name; None if its probability is not reported."""
    last = reply.positions[-1].pick.token if reply.positions else None
    return last.name or "" if last is not None and last.end and last.prob is not None else None


@check("whole")
async def reading(probe: ProbeRun) -> Finding:
    """Send prompts of several lengths. The server must read all their tokens.

    Also record how many tokens of a repeated prompt come from the server's cache.
    """
    took: list[float] = []
    reply: list[RawReply] = []
    fitting = ((probe.info.context or 1 << 30) - len(_READ)) // len(_READ) // 2
    half = (_READ * max(1, min(_TIMES, fitting))).rstrip(" .")
    for text in (half, half * 2, half * 2, half + _BREAKS):
        began = time.monotonic()
        reply.append(await probe.after(text))
        took.append(time.monotonic() - began)
    short, once, again, broken = reply
    timing = f"it took {took[1] * 1000:.0f} ms and then {took[2] * 1000:.0f} ms, which is only a hint"
    cached = "the server does not report it"
    if again.cached is not None:
        cached = f"{again.cached} of {again.read} tokens" if again.read else f"{again.cached} tokens"
    seen = cached if again.cached else f"{cached}; {timing}"
    probe.note("cache", None if again.cached is None else again.cached > 0, seen)
    if short.read is None or once.read is None:
        return None, "the server does not report how many tokens it has read"
    least = probe.first.read or 0
    grown = short.read > least + _JOINT and once.read - short.read >= short.read - least - _JOINT
    trims = broken.read == short.read
    words = ", and no more with line breaks at the end: the server strips white space" if trims else ""
    return grown and not trims, f"{short.read} tokens, and {once.read}{words}"


@check("prefill", refused=False)
async def prefill(probe: ProbeRun) -> Finding:
    """Ask the server to continue the first half of its own reply. It must write the second half."""
    first = await probe.wire.reply(_MESSAGE, _REPLY, probe.usage)
    whole = first.text
    cut = whole.find(" ", len(whole) // 2)
    if cut < 1:
        cut = whole.rfind(" ")
    rest = whole[cut:]
    if cut < 1 or len(rest) < _LEAST or not rest.strip() or whole.startswith(rest):
        return None, "the reply is too short to be cut in two"
    seen: list[str] = []
    for way in REPLY_WAYS:
        name = way or "the last message alone"
        try:
            reply = await probe.wire.reply(_MESSAGE, _REPLY, probe.usage, started=whole[:cut], way=way)
        except UnsupportedError as error:
            seen.append(f"{name}: {reason(error)}")
            continue
        new = _new(reply, whole[:cut], first)
        least = max(_LEAST, min(len(rest), len(new)))
        if new[:least] == rest[:least]:
            return name, f"{name}: it continues"
        seen.append(f"{name}: it continues differently")
    return False, "; ".join(seen)


def _new(reply: RawReply, started: str, first: RawReply) -> str:
    """Return the new part of a reply. If the reply does not repeat the partial reply, this is the whole reply."""
    fewer = reply.written is not None and first.written is not None and reply.written < first.written
    repeats = reply.text.startswith(started) and (len(reply.text) > len(first.text) or fewer)
    return reply.text.removeprefix(started) if repeats else reply.text


def _alike(one: RawReply, other: RawReply) -> bool:
    if one.positions and other.positions:
        return agree(one.positions[0], other.positions[0])
    return one.text == other.text


def _count(reply: RawReply) -> int:
    return len({choice.id for position in reply.positions[:1] for choice in (position.pick, *position.top)})


def _unsure(table: Mapping[tuple[bytes, bool], float]) -> bool:
    """Test whether any probability is neither 0 nor 1."""
    return any(1e-30 < prob < _SURE for prob in table.values())


def _power(one: Mapping[tuple[bytes, bool], float], other: Mapping[tuple[bytes, bool], float]) -> float | None:
    """Return the exponent that turns the largest ratio of probabilities in `other` into the same ratio in `one`.

    Return None if too few tokens are known, or if the ratio is too small to compare.
    """
    known = [key for key, prob in other.items() if prob > 0 and one.get(key, 0) > 0]
    if len(known) < 2:
        return None
    most, least = max(known, key=other.__getitem__), min(known, key=other.__getitem__)
    apart = math.log(other[most] / other[least])
    return math.log(one[most] / one[least]) / apart if apart >= _APART else None


WIRE = (logprobs, depth, probabilities, lists, ids, scoring, exact_bytes, reading, prefill)
"""The checks of this module, which need a client."""
