"""Checks of any provider through its contract: its answers must be consistent, and the same for every strategy."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from typing import Any

from cosd_providers.contract import Context, Proposal, Provider, Question, Token
from cosd_providers.distributions import near
from cosd_providers.errors import ProviderError, StatusError
from cosd_providers.probe.report import LINES, Way
from cosd_providers.probe.state import (
    ASKED,
    DRAFTED,
    NO_IDS,
    PROBE_PROMPT,
    STOPPING,
    TOO_SHORT,
    Finding,
    ProbeRun,
    by_start,
    check,
    places,
    reason,
    text_of,
)
from cosd_providers.same_ids import vocabulary
from cosd_providers.text import readable
from cosd_providers.tokenizers import TEST_TEXT
from cosd_providers.usage import Usage

_LEAST = 3  # minimum number of tokens for a meaningful comparison
_OWN = (PROBE_PROMPT, "One, two, three, four, five, six, seven,")
"""Further prompts to try, in this order, if the answer to the given prompt is too short."""
_EVEN = 0.55  # one half plus an allowance for noise: the highest probability that can be part of a tie


@check("tokenizer", refused=False)
async def tokenizer(probe: ProbeRun) -> Finding:
    """Encode a text. Joined, the bytes of its tokens must equal the text."""
    pieces = await probe.provider.tokenize(TEST_TEXT)
    if b"".join(piece.data for piece in pieces) != TEST_TEXT.encode():
        return False, f"{len(pieces)} tokens, whose bytes are not the text"
    provider: Any = probe.provider
    where = "local" if getattr(provider, "encodes_locally", False) else "endpoint"
    return where, f"{len(pieces)} tokens, whose bytes are the text"


@check("spaces")
async def spaces(probe: ProbeRun) -> Finding:
    """Find out whether a token crosses a space between words; if none does, ids before a space are soon certain."""
    probe.vocabulary = found = await vocabulary(probe.provider, probe.info)
    if found is None or found.crossing is None:
        return None, NO_IDS if found is None else "the tokens do not spell the text"
    if found.crossing:
        return False, f"{readable(found.crossing)!r} is one token"
    return True, "a token begins at each"


@check("draft")
async def draft(probe: ProbeRun) -> Finding:
    """Write a draft with probabilities, and write it again with a pause. Both drafts must be equal."""
    given = probe.prompt
    refused: StatusError | None = None

    async def write(prompt: str) -> list[Token]:
        tokens, end = await probe.drafted(Context(prompt), DRAFTED)
        if end.reason == "end" and tokens and tokens[-1].end:  # this is better evidence than the end of a forced text
            known = tokens[-1].prob is not None
            probe.note("end", known, "it has a probability" if known else "its probability is not shown")
        return tokens

    try:
        await _find_answer(probe, write)
        probe.short = not probe.own
    except StatusError as error:
        refused = error
        raise
    finally:
        probe.draft = probe.own
        _correct_logprobs(probe, refused)
    if not probe.draft:
        return None, TOO_SHORT
    if all(token.prob is None for token in probe.draft if not token.end):
        return False, "its tokens have no probabilities"
    value, seen = await _resumed(probe)
    own = f"; after a text of the probe's own, as {TOO_SHORT}" if probe.prompt != given else ""
    return value, f"{seen}{own}"


async def _find_answer(probe: ProbeRun, write: Callable[[str], Awaitable[list[Token]]]) -> None:
    """Write an answer. If it is too short, write answers to the probe's own prompts, and keep the longest."""
    longest = 0
    for prompt in dict.fromkeys((probe.prompt, *_OWN)):
        tokens = await write(prompt)
        length = sum(not token.end for token in tokens)
        if length > longest:
            longest, probe.own, probe.prompt = length, tokens, prompt
        if length >= _LEAST:
            return


def _correct_logprobs(probe: ProbeRun, refused: StatusError | None) -> None:
    """Correct the line `logprobs`, whose own check did not use a stream, if the streamed draft contradicts it.

    A stream that the server refuses shows nothing about probabilities.
    """
    shown, known = _has_probs(probe.draft), probe.value("logprobs")
    asked = "one token with 5 alternatives, and a streamed draft"
    if known is True and not shown and refused is not None:
        probe.note("logprobs", None, f"whole answers have probabilities; no stream came: {reason(refused)}", asked)
    elif known is True and not shown and not probe.short:
        probe.note("logprobs", False, "whole answers have probabilities, streams do not", asked)
    elif known is False and shown:
        probe.note("logprobs", True, "streams have probabilities, whole answers do not", asked)


async def _resumed(probe: ProbeRun) -> Finding:
    """Write the draft again with a pause, and compare both drafts."""
    whole, half = probe.draft, max(1, len(probe.draft) // 2)
    first, paused = await probe.drafted(Context(probe.prompt), half)
    again = _differs(whole[: len(first)], first)
    if again is not None and not _tied(whole[again], first[again]):
        words = f"the same request twice gives different answers from token {again} on"
        return False, f"{words}: are there several models behind the URL?"
    text = text_of(first)
    second, _ = await probe.drafted(Context(probe.prompt, text), DRAFTED - half, paused.continuation)
    by = "ids" if paused.continuation is not None else "text"
    wrong = _differs(whole, [*first, *second])
    if wrong is None:
        return by, f"the same {len(whole)} tokens"
    if by == "ids":
        return False, f"continued from ids it differs from token {wrong} on"
    if _trimmed(whole[half : half + 1], second[:1]):
        return False, "continued from its text it leaves out the white space at the beginning"
    return by, f"continued from its text it differs from token {wrong} on: the text is read as other tokens"


@check("score", refused=False)
async def score(probe: ProbeRun) -> Finding | None:
    """Score the draft's text. The scores must equal the draft's probabilities."""
    body = [token for token in probe.draft if not token.end]
    if not body:
        return None
    scored = _by_place(await probe.provider.score(Context(probe.prompt, text_of(body)), usage=probe.usage))
    pairs = [(token, scored[place]) for place, token in _by_place(body).items() if place in scored]
    equal = sum(_same_prob(other.prob, token.prob) for token, other in pairs)
    if len(pairs) < 2:
        return None, "the text is read as other tokens than were written"
    seen = f"equal at {equal} of {len(pairs)} tokens"
    if equal == len(pairs) and not probe.value("scoring"):
        line = probe.lines.get("scoring")
        more = f"; not in one request: {line.seen}" if line is not None else ""
        probe.note("scoring", "place by place", seen + more, LINES["score"].asked)
    return equal == len(pairs), seen


@check("propose")
async def propose(probe: ProbeRun) -> Finding:
    """Ask the model, as an assistant, about places in its own answer. It must propose the tokens of that answer."""
    if not probe.info.capabilities.probs:
        return await _agreement(probe)
    if not _has_probs(probe.own):
        if probe.client is None and not probe.short:
            return await _consistent(probe)
        if probe.short or not await _write(probe):
            return None, TOO_SHORT if probe.short else "neither a stream nor a whole answer shows its probabilities"
    try:
        found = await _proposed(probe, probe.provider, probe.usage)
    except STOPPING:
        raise
    except ProviderError as error:
        if error.retryable:
            raise
        return False, reason(error)
    return await _judged(probe, found)


async def _write(probe: ProbeRun) -> bool:
    """Make the model write an answer that is not streamed. Return False if the answer has no probabilities."""
    probe.own = []

    async def write(prompt: str) -> list[Token]:
        [said] = await probe.ask([prompt], limit=DRAFTED)
        return [position.pick.token for position in takewhile(lambda one: not one.pick.open, said.positions)]

    await _find_answer(probe, write)
    if not _has_probs(probe.own):
        probe.own = []
    return bool(probe.own)


async def _consistent(probe: ProbeRun) -> Finding:
    """Compare the proposals for several places in one call with the proposals for each place on its own."""
    text = _OWN[1].encode()
    questions = [Question(at.start(), (at.group(),)) for at in re.finditer(rb"[ ,]\w*", text)][:ASKED]
    together = await probe.provider.propose(Context("", text), questions, usage=probe.usage)
    alone = [(await probe.provider.propose(Context("", text), [one], usage=probe.usage))[0] for one in questions]
    same = sum(one is not None and _same(one, other) for one, other in zip(together, alone, strict=True))
    return same == len(questions), f"the same together as one by one at {same} of {len(questions)} places"


async def _proposed(probe: ProbeRun, provider: Provider, usage: Usage) -> list[Proposal | None]:
    """Ask a provider about some places in the model's own answer."""
    questions = [Question(start, (token.data,)) for start, token in places(probe.own).values()]
    return await provider.propose(Context(probe.prompt, text_of(probe.own)), questions, usage=usage)


async def _judged(probe: ProbeRun, found: Sequence[Proposal | None]) -> tuple[bool, str]:
    """Compare the proposals at places in the model's own answer with that answer.

    Each proposal must equal the answer's token at its place. The proposal may differ if the answer's text is encoded as
    tokens that differ from those that the model wrote. In that case, the proposal must equal the first token of a new
    draft from that place.
    """
    same, other, wrong = 0, 0, list[int]()
    for (at, (start, own)), proposal in zip(places(probe.own).items(), found, strict=True):
        if proposal is None:
            continue
        if _differs([own], proposal.tokens[:1]) is None:
            same += 1
        elif _trimmed([own], proposal.tokens[:1]):
            wrong.append(at)
        elif _differs(await _next(probe, text_of(probe.own)[:start]), proposal.tokens[:1]) is None:
            other += 1
        else:
            wrong.append(at)
    seen = f"equal at {same + other} of {len(found)} places"
    if wrong:
        return False, f"{seen}, and not at token {wrong[0]}"
    more = f"; at {other} of them the text is read as other tokens than were written" if other else ""
    return same + other > 0, seen + more


async def _next(probe: ProbeRun, text: bytes) -> list[Token]:
    """Return the token that the model writes after the prompt and a text."""
    if probe.draft or probe.client is None:
        return (await probe.drafted(Context(probe.prompt, text), 1))[0]
    said = await probe.after(probe.prompt + text.decode("utf-8", "ignore"))
    return [position.pick.token for position in said.positions]


async def _agreement(probe: ProbeRun) -> Finding:
    """Ask a model that reports no probabilities about the words of its own answer. It must agree with all of them."""
    if probe.client is None:
        return None, "it shows no probabilities, and the probe cannot request its words"

    async def write(prompt: str) -> list[Token]:
        [said] = await probe.ask([prompt], limit=DRAFTED)
        return [Token(word.encode(), None) for word in re.findall(r"\s*\S+", said.text)[:-1][:ASKED]]

    await _find_answer(probe, write)
    words, probe.own = probe.own, []  # no strategy is tried with an answer without probabilities
    probe.short = not words
    if not words:
        return None, TOO_SHORT
    questions = [Question(start, (word.data,), word=True) for start, word in by_start(words)]
    context = Context(probe.prompt, text_of(words))
    found = await probe.provider.propose(context, questions, usage=probe.usage)
    said = [text_of(one.tokens) if one else b"" for one in found]
    same = sum(one.startswith(word.data) for one, word in zip(said, words, strict=True))
    return 0 < same == len(words), f"it agrees with {same} of {len(words)} words: it shows no probabilities"


async def ways(probe: ProbeRun) -> list[Way]:
    """Try each strategy. Return the proved strategies first.

    A strategy is proved if its answers agree with the model's own answer and with the first strategy that was proved.
    """
    if not probe.own:
        return []
    offered: Sequence[str] = getattr(probe.provider, "strategies", ())
    if not offered:  # use the strategies that the provider has already used
        names = [name for name in probe.usage.strategies if name != "watch" and probe.value("propose")]
        return [_way(probe, name, Usage(), proved=True, seen="the provider's own strategy") for name in names]
    found: list[Way] = []
    measure: list[Proposal | None] | None = None
    for name in offered:
        usage = Usage()
        try:
            provider: Any = probe.provider
            said = await _proposed(probe, provider.with_strategy(name), usage)
            proved, seen = await _judged(probe, said)
            if proved and measure is not None:
                same = [_same(one, other) for one, other in zip(said, measure, strict=True)]
                proved, seen = all(same), f"{seen}, and to the others' answers at {sum(same)}"
            wrong, by_itself = not proved, usage.strategies.get(name, 0) if usage.strategies else len(said)
            if proved and not by_itself:
                proved, seen = False, f"all places were answered by {' and '.join(usage.strategies)} instead"
            elif by_itself < len(said):
                seen += f"; {by_itself} of them answered by itself"
            measure = said if measure is None and proved else measure
        except STOPPING:
            raise
        except ProviderError as error:
            proved, wrong, seen = False, False, reason(error)
        probe.spend(usage)
        found.append(_way(probe, name, usage, proved=proved, wrong=wrong, seen=seen))
    return sorted(found, key=lambda way: not way.proved)


def _way(probe: ProbeRun, name: str, usage: Usage, *, proved: bool, seen: str, wrong: bool = False) -> Way:
    reported = probe.value("cache") is not None and usage.prompt_tokens
    cached = round(usage.cached_tokens / usage.prompt_tokens, 2) if reported else None
    return Way(name=name, proved=proved, wrong=wrong, seen=seen, cached=cached)


def _has_probs(tokens: Sequence[Token]) -> bool:
    return any(token.prob is not None for token in tokens)


def _same_prob(one: float | None, other: float | None) -> bool:
    """Test whether two probabilities are equal up to a server's noise; also True if one of them is unknown."""
    return one is None or other is None or near(one, other)


def _differs(one: Sequence[Token], other: Sequence[Token]) -> int | None:
    """Return the index of the first token that differs between two answers; None if the answers are equal."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if (left.data, left.end) != (right.data, right.end) or not _same_prob(left.prob, right.prob):
            return at
    return None if len(one) == len(other) else min(len(one), len(other))


def _same(one: Proposal | None, other: Proposal | None) -> bool:
    """Test whether a proposal begins with all tokens of another proposal; also True if both are None."""
    if one is None or other is None:
        return one is other
    return _differs(one.tokens[: len(other.tokens)], other.tokens) is None


def _tied(one: Token, other: Token) -> bool:
    """Test whether two tokens may be about equally probable, so that noise decides which of them is written."""
    return one.data == other.data or max(one.prob or 0.0, other.prob or 0.0) <= _EVEN


def _trimmed(one: Sequence[Token], other: Sequence[Token]) -> bool:
    """Test whether a token of the second answer lacks the leading white space that it has in the first."""
    return any(left.data != right.data == left.data.lstrip() for left, right in zip(one, other, strict=False))


def _by_place(tokens: Sequence[Token]) -> dict[tuple[int, bytes], Token]:
    return {(start, token.data): token for start, token in by_start(tokens) if token.data}


CONTRACT = (tokenizer, spaces, draft, score, propose)
"""The checks of this module."""
