"""What a server is asked over its own wire: questions whose answers are known, or can be held against each other."""

from __future__ import annotations

import math
import time

from cosd_providers.errors import InvalidRequestError, ServerError, UnsupportedError
from cosd_providers.findings import Prompt, Said, agree, listed
from cosd_providers.greedy import Position
from cosd_providers.probe.asking import SENTENCE, Inquiry, reason
from cosd_providers.probe.overlap import overlap

__all__ = ["WIRE"]

_OPENING = "The capital of France is Paris, and the"
_OTHER = "One, two, three, four, five, six, seven,"
_KNOWN = " é 日本 😀"
_PLAIN = " one, two"
_READ = "The old man walked down to the river, sat in the sun and watched the boats. "
_BREAKS = "\n\n"
_TIMES = 4  # that it is read, and then twice as often
_DEEP = (20, 100)
_APART = 0.5  # of such a logarithm: with less it is lost in noise
_SAME = 0.15  # of the logarithm of a ratio of two probabilities: noise, where a scale would change it by a half
_SURE = 1 - 1e-6
_JOINT = 4  # tokens: where a text meets itself they may fall otherwise, and something may stand before it
_FEW_IDS = [10, 11, 12]


async def models(inquiry: Inquiry) -> None:
    """Which models there are."""
    assert inquiry.wire is not None
    names = tuple(await inquiry.wire.models())
    seen = (
        "the one that is asked is among them" if inquiry.info.model in names else "the one that is asked is not there"
    )
    inquiry.note("models", names, "the server's list of models", seen)


async def logprobs(inquiry: Inquiry) -> None:
    """Whether a token comes with its probability and others beside it, and how many."""
    asked = "one token, with 5 alternatives"
    [inquiry.first] = await inquiry.ask([_OPENING])
    if not any(listed(position) for position in inquiry.first.positions):
        inquiry.note("logprobs", False, asked, "an answer without probabilities: the field is ignored, or refused")
        return
    position = inquiry.first.positions[0]
    inquiry.note("logprobs", True, asked, f"{position.pick.token.data!r} with {_of(position)}")


async def depth(inquiry: Inquiry) -> None:
    """How many alternatives are listed at most."""
    if not inquiry.first or not inquiry.first.positions:
        return
    got, seen = _count(inquiry.first), [f"asked for 5: {_count(inquiry.first)}"]
    for top in _DEEP:
        try:
            [said] = await inquiry.ask([_OPENING], top=top)
        except (InvalidRequestError, UnsupportedError):
            seen.append(f"asked for {top}: refused")
            break
        seen.append(f"asked for {top}: {_count(said)}")
        if _count(said) <= got:
            break
        got = _count(said)
    inquiry.note("depth", got, "one token, with more and more alternatives", "; ".join(seen))


async def probabilities(inquiry: Inquiry) -> None:
    """Whether the numbers are those of the model, whatever the temperature."""
    asked = "the same first token at temperature 0, 1 and 0.5"
    if not inquiry.value("logprobs") or not inquiry.first:
        return
    tables = [listed(inquiry.first.positions[0])]
    for temperature in (1.0, 0.5):
        [said] = await inquiry.ask([_OPENING], temperature=temperature)
        tables.append(listed(said.positions[0]) if said.positions else {})
    cold, plain, half = tables
    if _steps(cold) == [] and cold and max(cold.values()) >= _SURE and _steps(plain):
        words = "at temperature 0 the one token has probability 1 and the others none, at 1 they have others"
        inquiry.note("probabilities", "degenerate", asked, words)
        return
    ratios = [_ratio(cold, plain), _ratio(half, plain)]
    if None in ratios:
        inquiry.note("probabilities", None, asked, "too few tokens are listed each time to compare them")
        return
    same = [abs(ratio - 1) <= _SAME for ratio in ratios if ratio is not None]
    if all(same):
        inquiry.note("probabilities", "raw", asked, "the same numbers each time")
    else:
        powers = f"{ratios[0]:.2g} at temperature 0 and {ratios[1]:.2g} at 0.5"
        words = f"ratios of probabilities are those at temperature 1 to the power of {powers}"
        inquiry.note("probabilities", "scaled" if same[0] else "changed", asked, words)


async def lists(inquiry: Inquiry) -> None:
    """Whether a list of prompts is answered, each as if it were alone."""
    asked = "two prompts in one request, held against each by itself"
    [other] = await inquiry.ask([_OTHER])
    alone = [inquiry.first or Said(""), other]
    try:
        found = await inquiry.ask([_OPENING, _OTHER])
    except (UnsupportedError, InvalidRequestError, ServerError) as error:
        inquiry.note("lists", False, asked, reason(error))
        return
    if len(found) != len(alone):
        inquiry.note("lists", False, asked, f"answered in part: {len(found)} of {len(alone)}")
    elif _alike(*alone):
        inquiry.note("lists", None, asked, "both have the same answer, so that it cannot be told which is which")
    else:
        same = all(_alike(one, both) for one, both in zip(alone, found, strict=True))
        words = "both as by themselves" if same else "another answer than by itself"
        inquiry.note("lists", same, asked, words)


async def ids(inquiry: Inquiry) -> None:
    """Whether a prompt may be the ids of its tokens."""
    asked = "the ids of a text, held against the text"
    prompt: Prompt = _FEW_IDS
    if inquiry.info.capabilities.tokenize:
        prompt = [piece.id for piece in await inquiry.provider.tokenize(_OPENING)]
    else:
        asked = f"the {len(prompt)} ids {prompt}, to see how many tokens are read"
    try:
        [said] = await inquiry.ask([prompt])
    except (UnsupportedError, InvalidRequestError) as error:
        inquiry.note("ids", False, asked, reason(error))
        return
    if prompt is _FEW_IDS:
        read = said.read in (len(prompt), len(prompt) + 1)
        words = (
            "the server does not tell how many tokens it has read"
            if said.read is None
            else f"{said.read} tokens were read"
        )
        inquiry.note("ids", None if said.read is None else read, asked, words)
        return
    same = inquiry.first is not None and _alike(inquiry.first, said)
    read = inquiry.first is not None and said.read == inquiry.first.read
    words = "the same answer, and as many tokens read" if same and read else f"another answer; {said.read} tokens read"
    inquiry.note("ids", same and read, asked, words)


async def scoring(inquiry: Inquiry) -> None:
    """Whether the tokens of a given text are told with their probabilities, and the right ones."""
    assert inquiry.wire is not None
    asked = "a text to be scored in one request; then what is generated at places of it"
    try:
        found = await inquiry.wire.score(SENTENCE, inquiry.usage)
    except (UnsupportedError, InvalidRequestError) as error:
        inquiry.note("scoring", False, asked, reason(error))
        return

    async def generated(before: str) -> Said:
        return (await inquiry.ask([before]))[0]

    seen = await overlap(found, generated)
    if seen.shift is None:
        inquiry.note("scoring", False, asked, f"{found.way} is answered, and not believed: {seen.words}")
        return
    inquiry.scored = found
    value = found.way + (f", moved by {seen.shift:+d}" if seen.shift else "")
    inquiry.note("scoring", value, asked, f"{len(found.own)} tokens, {seen.words}")


async def recital(inquiry: Inquiry) -> None:
    """Whether a known text with characters of several bytes comes back, and whether its end is told."""
    assert inquiry.wire is not None
    asked = f"an answer that can only be {_KNOWN!r}"
    try:
        said = await inquiry.wire.recite(_KNOWN, inquiry.prompt, inquiry.usage)
    except (UnsupportedError, InvalidRequestError) as error:
        inquiry.note("bytes", None, asked, reason(error))
        return
    if said.text != _KNOWN:
        inquiry.note("bytes", None, asked, "the server cannot be made to write it")
        return
    own = [position for position in said.positions if not position.pick.token.end]
    data = b"".join(position.pick.token.data for position in own)
    parts = f"{len(own)} tokens"
    if said.written and len(own) + said.ended < said.written:
        parts = f"{len(own)} tokens shown of {said.written}: parts of a character come with its last one"
    exact = data == _KNOWN.encode() if said.positions else None
    words = f"the tokens' bytes are {'' if exact else 'not '}those of the text; {parts}"
    if exact is None:
        words = "the text is right, and its tokens are not shown"
    inquiry.note("bytes", exact, asked, words)
    if said.ended:
        await _ending(inquiry, _end_told(said))


async def _ending(inquiry: Inquiry, named: str | None) -> None:
    """Whether the end of an answer that was forced is told."""
    assert inquiry.wire is not None
    if named == "" and not inquiry.info.capabilities.end_prob:
        # Such an entry may be that of a part of the last character: plain letters have none.
        try:
            said = await inquiry.wire.recite(_PLAIN, inquiry.prompt, inquiry.usage)
        except (UnsupportedError, InvalidRequestError):
            return
        named = _end_told(said) if said.text == _PLAIN and said.ended else None
    words = "its probability is not told" if named is None else "it has an entry with a probability"
    inquiry.note("end", named is not None, "the end of an answer that was forced", words)


def _end_told(said: Said) -> str | None:
    """What the end of an answer is called in its entry, or ""; None where it has none, or no probability."""
    last = said.positions[-1].pick.token if said.positions else None
    return last.name or "" if last is not None and last.end and last.prob is not None else None


async def reading(inquiry: Inquiry) -> None:
    """Whether all of a prompt is read, and whether one that was read already is taken from a cache."""
    asked = "a text, the same text twice in a row, and with line breaks at its end: how many tokens are read"
    took: list[float] = []
    said: list[Said] = []
    fitting = ((inquiry.info.context or 1 << 30) - len(_READ)) // len(_READ) // 2
    half = (_READ * max(1, min(_TIMES, fitting))).rstrip(" .")
    for text in (half, half * 2, half * 2, half + _BREAKS):
        began = time.monotonic()
        said += await inquiry.ask([text])
        took.append(time.monotonic() - began)
    short, once, again, broken = said
    if short.read is None or once.read is None:
        inquiry.note("whole", None, asked, "the server does not tell how many tokens it has read")
    else:
        least = inquiry.first.read or 0 if inquiry.first else 0
        grown = short.read > least + _JOINT and once.read - short.read >= short.read - least - _JOINT
        trims = broken.read == short.read
        words = ", and no more with line breaks at its end: white space is taken off it" if trims else ""
        inquiry.note("whole", grown and not trims, asked, f"{short.read} tokens, and {once.read}{words}")
    asked = "a prompt twice: how many of its tokens came from a cache"
    timing = f"it took {took[1] * 1000:.0f} ms and then {took[2] * 1000:.0f} ms, which is a hint and no more"
    if again.cached is None:
        inquiry.note("cache", None, asked, f"the server does not tell; {timing}")
        return
    size = f"{again.cached} of {again.read} tokens" if again.read else f"{again.cached} tokens"
    inquiry.note("cache", again.cached > 0, asked, size if again.cached else f"{size}; {timing}")


async def round_trip(inquiry: Inquiry) -> None:
    """How long the shortest request took."""
    if inquiry.fastest is not None:
        inquiry.note("round_trip", round(inquiry.fastest, 4), "one token, several times", "the fastest of them")


def _alike(one: Said, other: Said) -> bool:
    if one.positions and other.positions:
        return agree(one.positions[0], other.positions[0])
    return one.text == other.text


def _of(position: Position) -> str:
    prob = position.pick.token.prob
    return "no probability" if prob is None else f"probability {prob:.3g} and {len(position.top)} alternatives"


def _count(said: Said) -> int:
    return len({choice.id for position in said.positions[:1] for choice in (position.pick, *position.top)})


def _steps(table: dict[tuple[bytes, bool], float]) -> list[float]:
    """The probabilities that are neither all nor nothing."""
    return [prob for prob in table.values() if 1e-30 < prob < _SURE]


def _ratio(one: dict[tuple[bytes, bool], float], other: dict[tuple[bytes, bool], float]) -> float | None:
    """The power by which the ratio of two tokens' probabilities differs between two tables: that of the largest one."""
    told = [key for key, prob in other.items() if prob > 0 and one.get(key, 0) > 0]
    if len(told) < 2:
        return None
    most, least = max(told, key=other.__getitem__), min(told, key=other.__getitem__)
    apart = math.log(other[most] / other[least])
    return math.log(one[most] / one[least]) / apart if apart >= _APART else None


WIRE = (
    ("models", "the server's list of models", models),
    ("logprobs", "one token, with 5 alternatives", logprobs),
    ("depth", "one token, with more and more alternatives", depth),
    ("probabilities", "the same first token at temperature 0, 1 and 0.5", probabilities),
    ("lists", "two prompts in one request", lists),
    ("ids", "the ids of a text as a prompt", ids),
    ("scoring", "a text to be scored in one request", scoring),
    ("bytes", "an answer that can only be one text", recital),
    ("whole", "a text, then the same text twice in a row", reading),
    ("round_trip", "one token, several times", round_trip),
)
"""The questions, in order: the line, what is asked, and how."""
