"""Checks over a server's own wire: questions with known answers, or whose answers must fit together."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from cosd_providers.distributions import agree, listed
from cosd_providers.errors import ServerError, UnsupportedError
from cosd_providers.probe.inquiry import Answer, Inquiry, check, reason
from cosd_providers.probe.overlap import overlap
from cosd_providers.probe_client import REPLY_WAYS, Prompt, RawReply

__all__ = ["WIRE"]

_OPENING = "The capital of France is Paris, and the"
_SENTENCE = f"{_OPENING} capital of Spain is Madrid."
"""A model is sure at some of its places and unsure at others."""

_OTHER = "One, two, three, four, five, six, seven,"
_KNOWN = " é 日本 😀"
_PLAIN = " one, two"
_READ = "The old man walked down to the river, sat in the sun and watched the boats. "
_BREAKS = "\n\n"
_TIMES = 4  # that the text is repeated, and then twice as often
_DEEP = (20, 100)
_APART = 0.5  # least logarithm of a ratio that is compared: smaller ones drown in noise
_SAME = 0.15  # noise of a power; a temperature of one half changes it by 1
_SURE = 1 - 1e-6
_JOINT = 4  # tokens: a text behind itself may be split differently, and something may stand before it
_FEW_IDS = [10, 11, 12]
_MESSAGE = "Count from one to twenty in words."
_REPLY = 12  # tokens
_LEAST = 3  # characters that have to agree


@check("models", "the server's list of models")
async def models(inquiry: Inquiry) -> Answer:
    """Which models the server lists."""
    assert inquiry.client is not None
    names = tuple(await inquiry.client.models())
    there = "among them" if inquiry.info.model in names else "not there"
    return names, f"the one that is asked is {there}"


@check("logprobs", "one token, with 5 alternatives")
async def logprobs(inquiry: Inquiry) -> Answer:
    """Whether a token comes with its probability and alternatives."""
    inquiry.first = await inquiry.after(_OPENING)
    if not any(listed(position) for position in inquiry.first.positions):
        return False, "an answer without probabilities: the field is ignored, or refused"
    position = inquiry.first.positions[0]
    token = position.pick.token
    prob = "no probability" if token.prob is None else f"probability {token.prob:.3g}"
    return True, f"{token.data!r} with {prob} and {len(position.top)} alternatives"


@check("depth", "one token, with more and more alternatives")
async def depth(inquiry: Inquiry) -> Answer | None:
    """The number of alternatives that are listed at most."""
    if not inquiry.first.positions:
        return None
    got = _count(inquiry.first)
    seen = [f"asked for 5: {got}"]
    for top in _DEEP:
        try:
            [said] = await inquiry.ask([_OPENING], top=top)
        except depth.refusals:
            seen.append(f"asked for {top}: refused")
            break
        more, got = _count(said) > got, max(got, _count(said))
        seen.append(f"asked for {top}: {_count(said)}")
        if not more:
            break
    return got, "; ".join(seen)


@check("probabilities", "the same first token at temperature 0, 1 and 0.5")
async def probabilities(inquiry: Inquiry) -> Answer | None:
    """Whether the numbers are the model's own at every temperature."""
    if not inquiry.value("logprobs"):
        return None
    tables = [listed(inquiry.first.positions[0])]
    for temperature in (1.0, 0.5):
        [said] = await inquiry.ask([_OPENING], temperature=temperature)
        tables.append(listed(said.positions[0]) if said.positions else {})
    cold, plain, half = tables
    if not _unsure(cold) and cold and max(cold.values()) >= _SURE and _unsure(plain):
        return (
            "degenerate",
            "at temperature 0 the one token has probability 1 and the others none, at 1 they have others",
        )
    powers = [power for table in (cold, half) if (power := _power(table, plain)) is not None]
    if len(powers) < 2:
        return None, "too few tokens are listed each time to compare them"
    same = [abs(power - 1) <= _SAME for power in powers]
    if all(same):
        return "raw", "the same numbers each time"
    words = f"{powers[0]:.2g} at temperature 0 and {powers[1]:.2g} at 0.5"
    return "scaled" if same[
        0
    ] else "changed", f"ratios of probabilities are those at temperature 1 to the power of {words}"


@check("lists", "two prompts in one request, held against each by itself", refused=False, also=(ServerError,))
async def lists(inquiry: Inquiry) -> Answer:
    """Whether a list of prompts is answered as each prompt is alone."""
    alone = [inquiry.first, await inquiry.after(_OTHER)]
    found = await inquiry.ask([_OPENING, _OTHER])
    if len(found) != len(alone):
        return False, f"answered in part: {len(found)} of {len(alone)}"
    if _alike(*alone):
        return None, "both have the same answer, so that it cannot be told which is which"
    same = all(_alike(one, both) for one, both in zip(alone, found, strict=True))
    return same, "both as by themselves" if same else "another answer than by itself"


@check("ids", "the ids of a text, held against the text", refused=False)
async def ids(inquiry: Inquiry) -> Answer:
    """Whether a prompt may be the ids of its tokens."""
    if not inquiry.info.capabilities.tokenize:
        [said] = await inquiry.ask([_FEW_IDS])
        if said.read is None:
            return None, "the server does not tell how many tokens it has read"
        return said.read in (len(_FEW_IDS), len(_FEW_IDS) + 1), f"{said.read} tokens were read of {len(_FEW_IDS)} ids"
    prompt: Prompt = [piece.id for piece in await inquiry.provider.tokenize(_OPENING)]
    [said] = await inquiry.ask([prompt])
    if _alike(inquiry.first, said) and said.read == inquiry.first.read:
        return True, "the same answer, and as many tokens read"
    return False, f"another answer; {said.read} tokens read"


@check("scoring", "a text to be scored in one request; then what is generated at places of it", refused=False)
async def scoring(inquiry: Inquiry) -> Answer:
    """Whether the tokens of a given text come with probabilities, and with the right ones."""
    assert inquiry.client is not None
    found = await inquiry.client.score(_SENTENCE, inquiry.usage)
    seen = await overlap(found, inquiry.after)
    if seen.shift is None:
        return False, f"{found.way} is answered, and not believed: {seen.words}"
    value = found.way + (f", moved by {seen.shift:+d}" if seen.shift else "")
    return value, f"{len(found.own)} tokens, {seen.words}"


@check("bytes", f"an answer that can only be {_KNOWN!r}")
async def exact_bytes(inquiry: Inquiry) -> Answer:
    """Whether a known text with characters of several bytes comes back, and whether its end is shown."""
    assert inquiry.client is not None
    said = await inquiry.client.recite(_KNOWN, inquiry.prompt, inquiry.usage)
    if said.text != _KNOWN:
        return None, "the server cannot be made to write it"
    if said.ended:
        await _forced_end(inquiry, said)
    if not said.positions:
        return None, "the text is right, and its tokens are not shown"
    own = [position.pick.token.data for position in said.positions if not position.pick.token.end]
    exact = b"".join(own) == _KNOWN.encode()
    parts = f"{len(own)} tokens"
    if said.written and len(own) + said.ended < said.written:
        parts += f" shown of {said.written}: parts of a character come with its last one"
    return exact, f"the tokens' bytes are {'' if exact else 'not '}those of the text; {parts}"


async def _forced_end(inquiry: Inquiry, said: RawReply) -> None:
    """Record whether the end of a forced answer is shown."""
    assert inquiry.client is not None
    named = _end_shown(said)
    if named == "" and not inquiry.info.capabilities.end_prob:
        # Such an entry may be that of a part of the last character: plain letters have none.
        try:
            said = await inquiry.client.recite(_PLAIN, inquiry.prompt, inquiry.usage)
        except exact_bytes.refusals:
            return
        named = _end_shown(said) if said.text == _PLAIN and said.ended else None
    words = "its probability is not told" if named is None else "it has an entry with a probability"
    inquiry.note("end", named is not None, "the end of an answer that was forced", words)


def _end_shown(said: RawReply) -> str | None:
    """The name of the end in its entry, or ""; None where it has no entry or no probability."""
    last = said.positions[-1].pick.token if said.positions else None
    return last.name or "" if last is not None and last.end and last.prob is not None else None


@check("whole", "a text, the same text twice in a row, and with line breaks at its end: how many tokens are read")
async def reading(inquiry: Inquiry) -> Answer:
    """Whether all of a prompt is read; and whether one that was read already comes from a cache."""
    took: list[float] = []
    said: list[RawReply] = []
    fitting = ((inquiry.info.context or 1 << 30) - len(_READ)) // len(_READ) // 2
    half = (_READ * max(1, min(_TIMES, fitting))).rstrip(" .")
    for text in (half, half * 2, half * 2, half + _BREAKS):
        began = time.monotonic()
        said.append(await inquiry.after(text))
        took.append(time.monotonic() - began)
    short, once, again, broken = said
    timing = f"it took {took[1] * 1000:.0f} ms and then {took[2] * 1000:.0f} ms, which is a hint and no more"
    cached = "the server does not tell"
    if again.cached is not None:
        cached = f"{again.cached} of {again.read} tokens" if again.read else f"{again.cached} tokens"
    seen = cached if again.cached else f"{cached}; {timing}"
    asked = "a prompt twice: how many of its tokens came from a cache"
    inquiry.note("cache", None if again.cached is None else again.cached > 0, asked, seen)
    if short.read is None or once.read is None:
        return None, "the server does not tell how many tokens it has read"
    least = inquiry.first.read or 0
    grown = short.read > least + _JOINT and once.read - short.read >= short.read - least - _JOINT
    trims = broken.read == short.read
    words = ", and no more with line breaks at its end: white space is taken off it" if trims else ""
    return grown and not trims, f"{short.read} tokens, and {once.read}{words}"


@check("round_trip", "one token, several times")
async def round_trip(inquiry: Inquiry) -> Answer | None:
    """The duration of the shortest request."""
    return None if inquiry.fastest is None else (round(inquiry.fastest, 4), "the fastest of them")


@check("template", "a user's message, as the server's template writes it")
async def template(inquiry: Inquiry) -> Answer:
    """The text before an answer."""
    cue = inquiry.info.answer_cue
    if cue is None:
        return None, "the model has none of its own, or none can be seen"
    return cue, "what it writes between the message and the answer"


@check("prefill", "a reply, then the same one started with its first half: the other half has to follow", refused=False)
async def prefill(inquiry: Inquiry) -> Answer:
    """Whether a reply that starts with its own beginning continues as it did."""
    assert inquiry.client is not None
    first = await inquiry.client.reply(_MESSAGE, _REPLY, inquiry.usage)
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
            said = await inquiry.client.reply(_MESSAGE, _REPLY, inquiry.usage, started=whole[:cut], way=way)
        except UnsupportedError as error:
            seen.append(f"{name}: {reason(error)}")
            continue
        new = _new(said, whole[:cut], first)
        least = max(_LEAST, min(len(rest), len(new)))
        if new[:least] == rest[:least]:
            return name, f"{name}: it goes on"
        seen.append(f"{name}: it goes on otherwise")
    return False, "; ".join(seen)


def _new(said: RawReply, started: str, first: RawReply) -> str:
    """The new text of a reply that may repeat its beginning; all of it where the reply began again."""
    fewer = said.written is not None and first.written is not None and said.written < first.written
    repeats = said.text.startswith(started) and (len(said.text) > len(first.text) or fewer)
    return said.text.removeprefix(started) if repeats else said.text


def _alike(one: RawReply, other: RawReply) -> bool:
    if one.positions and other.positions:
        return agree(one.positions[0], other.positions[0])
    return one.text == other.text


def _count(said: RawReply) -> int:
    return len({choice.id for position in said.positions[:1] for choice in (position.pick, *position.top)})


def _unsure(table: Mapping[tuple[bytes, bool], float]) -> bool:
    """Whether there are probabilities between nothing and all."""
    return any(1e-30 < prob < _SURE for prob in table.values())


def _power(one: Mapping[tuple[bytes, bool], float], other: Mapping[tuple[bytes, bool], float]) -> float | None:
    """The power by which ratios of probabilities differ between two tables, from the largest one; None if unknown."""
    told = [key for key, prob in other.items() if prob > 0 and one.get(key, 0) > 0]
    if len(told) < 2:
        return None
    most, least = max(told, key=other.__getitem__), min(told, key=other.__getitem__)
    apart = math.log(other[most] / other[least])
    return math.log(one[most] / one[least]) / apart if apart >= _APART else None


WIRE = (
    *(models, logprobs, depth, probabilities, lists, ids, scoring, exact_bytes, reading, round_trip),
    *(template, prefill),
)
"""The checks, in order."""
