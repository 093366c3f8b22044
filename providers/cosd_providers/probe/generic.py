"""What any provider can be asked by the contract alone: whether what it says fits together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import aclosing
from itertools import takewhile
from typing import Any

from cosd_providers.contract import DraftEnd, Proposal, Provider, Question, Token
from cosd_providers.errors import ProviderError, UnsupportedError
from cosd_providers.findings import near
from cosd_providers.probe.asking import DRAFTED, PROMPT, TOO_SHORT, Inquiry, reason
from cosd_providers.tokenizers import TEST_TEXT
from cosd_providers.usage import Usage

__all__ = ["GENERIC", "differs", "drafted", "judged", "places", "same_prob"]

_ASKED = 6  # places of a draft
_LEAST = 3  # tokens that a draft must have for the comparisons to mean something
_OWN = (PROMPT, "One, two, three, four, five, six, seven,")
"""What a draft goes on from where the answer to the given prompt is too short, in turn."""
_EVEN = 0.55  # more than half, by noise


async def drafted(
    provider: Provider, prompt: str, text: bytes, limit: int, usage: Usage, continuation: Any = None
) -> tuple[list[Token], DraftEnd]:
    """A whole draft."""
    tokens: list[Token] = []
    end = DraftEnd("limit")
    draft = provider.generate(prompt, text, max_tokens=limit, continuation=continuation, usage=usage)
    async with aclosing(draft):
        async for item in draft:
            if isinstance(item, DraftEnd):
                end = item
            else:
                tokens.append(item)
    return tokens, end


def same_prob(one: float | None, other: float | None) -> bool:
    """Whether two probabilities are the same but for a server's noise; unknown ones say nothing."""
    return one is None or other is None or near(one, other)


async def tokenizer(inquiry: Inquiry) -> None:
    """Whether a text can be encoded, and its tokens are the text."""
    asked = f"the tokens of a text of {len(TEST_TEXT.encode())} bytes: words, code, scripts, emoji"
    try:
        pieces = await inquiry.provider.tokenize(TEST_TEXT)
    except UnsupportedError as error:
        inquiry.note("tokenizer", False, asked, reason(error))
        return
    exact = b"".join(piece.data for piece in pieces) == TEST_TEXT.encode()
    if not exact:
        inquiry.note("tokenizer", False, asked, f"{len(pieces)} tokens, whose bytes are not the text")
        return
    where = "local" if getattr(inquiry.provider, "_tokenizer", None) is not None else "endpoint"
    inquiry.note("tokenizer", where, asked, f"{len(pieces)} tokens, whose bytes are the text")


async def draft(inquiry: Inquiry) -> None:
    """Whether a draft comes with probabilities, and goes on after a pause as it would have without."""
    asked = f"a draft of {DRAFTED} tokens, and one of half as many that is then gone on from"
    given = inquiry.prompt
    try:
        await _find_draft(inquiry)
    finally:
        _streamed(inquiry)
    if not inquiry.draft:
        inquiry.note("draft", None, asked, TOO_SHORT)
        return
    if all(token.prob is None for token in inquiry.draft if not token.end):
        inquiry.note("draft", False, asked, "its tokens have no probabilities")
        return
    await _resumed(inquiry, asked)
    if inquiry.prompt != given:
        line = next(line for line in inquiry.lines if line.name == "draft")
        inquiry.note("draft", line.value, asked, f"{line.seen}; after a text of the probe's own, as {TOO_SHORT}")


def _streamed(inquiry: Inquiry) -> None:
    """Correct the line of probabilities, which was asked for without a stream, by what a stream shows."""
    told = any(token.prob is not None for token in inquiry.draft)
    asked = "one token with 5 alternatives, and a streamed draft"
    if inquiry.value("logprobs") is True and not told and not inquiry.short:
        inquiry.note("logprobs", False, asked, "whole answers have probabilities, streams do not")
    elif inquiry.value("logprobs") is False and told:
        inquiry.note("logprobs", True, asked, "streams have probabilities, whole answers do not")


async def _find_draft(inquiry: Inquiry) -> None:
    """A draft of some tokens: where the answer to the prompt is too short, one after a text of our own."""
    body: list[Token] = []
    for prompt in dict.fromkeys((inquiry.prompt, *_OWN)):
        tokens, end = await drafted(inquiry.provider, prompt, b"", DRAFTED, inquiry.usage)
        if end.reason == "end" and tokens and tokens[-1].end:  # which counts, and not that of a text that was forced
            known = tokens[-1].prob is not None
            words = "it has a probability" if known else "its probability is not told"
            inquiry.note("end", known, "the end of a draft", words)
        own = [token for token in tokens if not token.end]
        if len(own) > len(body):
            body, inquiry.draft, inquiry.own, inquiry.prompt = own, tokens, tokens, prompt
        if len(body) >= _LEAST:
            return
    inquiry.short = not body


async def _resumed(inquiry: Inquiry, asked: str) -> None:
    """Whether a draft that was paused goes on as it would have without."""
    provider, prompt, usage = inquiry.provider, inquiry.prompt, inquiry.usage
    half = max(1, len(inquiry.draft) // 2)
    first, paused = await drafted(provider, prompt, b"", half, usage)
    again = differs(inquiry.draft[: len(first)], first)
    if again is not None and not _tied(inquiry.draft[again], first[again]):
        words = (
            f"asked the same twice it writes something else from token {again} on: are there several models behind it?"
        )
        inquiry.note("draft", False, asked, words)
        return
    text = b"".join(token.data for token in first)
    by = "ids" if paused.continuation is not None else "text"
    second, _ = await drafted(provider, prompt, text, DRAFTED - half, usage, paused.continuation)
    wrong = differs(inquiry.draft, [*first, *second])
    if wrong is None:
        inquiry.note("draft", by, asked, f"the same {len(inquiry.draft)} tokens")
    elif paused.continuation is None and _trimmed(inquiry.draft[half : half + 1], second[:1]):
        words = "gone on from its text it leaves out the white space at the beginning"
        inquiry.note("draft", False, asked, words)
    elif paused.continuation is None:
        words = f"gone on from its text it differs from token {wrong} on: the text is read as other tokens"
        inquiry.note("draft", by, asked, words)
    else:
        inquiry.note("draft", False, asked, f"gone on from {by} it differs from token {wrong} on")


async def score(inquiry: Inquiry) -> None:
    """Whether the probabilities of a draft are those that scoring gives its text."""
    asked = "the draft's text to be scored, held against the draft"
    body = [token for token in inquiry.draft if not token.end]
    if not body:
        return
    try:
        scored = await inquiry.provider.score(inquiry.prompt, b"".join(t.data for t in body), usage=inquiry.usage)
    except UnsupportedError as error:
        inquiry.note("score", False, asked, reason(error))
        return
    theirs = _by_place(scored)
    pairs = [(token, theirs[place]) for place, token in _by_place(body).items() if place in theirs]
    wrong = [token for token, other in pairs if not same_prob(other.prob, token.prob)]
    if len(pairs) < 2:
        inquiry.note("score", None, asked, "the text is read as other tokens than were written")
        return
    words = f"equal at {len(pairs) - len(wrong)} of {len(pairs)} tokens"
    inquiry.note("score", not wrong, asked, words)
    if not wrong and not inquiry.value("scoring"):
        line = next((line for line in inquiry.lines if line.name == "scoring"), None)
        more = f"; not in one request: {line.seen}" if line is not None else ""
        inquiry.note("scoring", "place by place", asked, words + more)


def places(tokens: Sequence[Token]) -> list[tuple[int, Question]]:
    """Some places of a draft, as an assistant would be asked, each with the index of its token."""
    starts = [0]
    for token in tokens:
        starts.append(starts[-1] + len(token.data))
    step = max(1, len(tokens) // _ASKED)
    return [(at, Question(starts[at], (tokens[at].data,))) for at in range(0, len(tokens), step)][:_ASKED]


async def propose(inquiry: Inquiry) -> None:
    """Whether the same model, asked as an assistant at places of its own answer, says that answer."""
    asked = "what is proposed at places of its own answer, held against that answer"
    if not inquiry.info.capabilities.probs:
        await _agreement(inquiry)
        return
    if not any(token.prob is not None for token in inquiry.own) and not await _write(inquiry, asked):
        return
    text = b"".join(token.data for token in inquiry.own)
    questions = [question for _, question in places(inquiry.own)]
    try:
        found = await inquiry.provider.propose(inquiry.prompt, text, questions, usage=inquiry.usage)
    except ProviderError as error:
        if error.retryable:
            raise
        inquiry.note("propose", False, asked, reason(error))
        return
    right, seen = await judged(inquiry, found)
    inquiry.note("propose", right, asked, seen)


async def _write(inquiry: Inquiry, asked: str) -> bool:
    """Have the model write an answer in one piece, to be asked about; False where it shows none, which is noted."""
    if inquiry.wire is None or inquiry.short:
        inquiry.note("propose", None, asked, TOO_SHORT if inquiry.short else "without a draft it has no own text")
        return False
    for prompt in dict.fromkeys((inquiry.prompt, *_OWN)):
        [said] = await inquiry.ask([prompt], limit=DRAFTED)
        told = takewhile(lambda position: not position.pick.open, said.positions)
        tokens = [position.pick.token for position in told]
        if len(tokens) > len(inquiry.own):
            inquiry.own, inquiry.prompt = tokens, prompt
        if len(tokens) >= _LEAST:
            break
    if not any(token.prob is not None for token in inquiry.own):
        inquiry.note("propose", None, asked, "neither a stream nor a whole answer shows its probabilities")
        inquiry.own = []
    return bool(inquiry.own)


async def _next(inquiry: Inquiry, text: bytes) -> list[Token]:
    """The token that the model writes after the prompt and a text."""
    if inquiry.draft or inquiry.wire is None:
        return (await drafted(inquiry.provider, inquiry.prompt, text, 1, inquiry.usage))[0]
    [said] = await inquiry.ask([inquiry.prompt + text.decode("utf-8", "ignore")])
    return [position.pick.token for position in said.positions]


async def judged(inquiry: Inquiry, found: Sequence[Proposal | None]) -> tuple[bool, str]:
    """Whether what is proposed at `places` of the draft is what the model says there.

    That is the draft's own token, or, where the text is read as other tokens than were written, what a draft from
    there begins with.
    """
    same, other, wrong = 0, 0, list[int]()
    for (at, question), proposal in zip(places(inquiry.own), found, strict=True):
        if proposal is None:
            continue
        if differs(inquiry.own[at : at + 1], proposal.tokens[:1]) is None:
            same += 1
            continue
        text = b"".join(token.data for token in inquiry.own)[: question.start]
        fresh = await _next(inquiry, text)
        if _trimmed(inquiry.own[at : at + 1], proposal.tokens[:1]):
            wrong.append(at)
        elif differs(fresh, proposal.tokens[:1]) is None:
            other += 1
        else:
            wrong.append(at)
    seen = f"equal at {same + other} of {len(found)} places"
    if wrong:
        return False, f"{seen}, and not at token {wrong[0]}"
    more = f"; at {other} of them the text is read as other tokens than were written" if other else ""
    return same + other > 0, seen + more


def _tied(one: Token, other: Token) -> bool:
    """Whether two tokens may be about as probable, so that noise decides which of them is written."""
    return one.data == other.data or max(one.prob or 0.0, other.prob or 0.0) <= _EVEN


def _trimmed(one: Sequence[Token], other: Sequence[Token]) -> bool:
    """Whether a token is another one without the white space at its beginning."""
    return any(left.data != right.data == left.data.lstrip() for left, right in zip(one, other, strict=False))


async def _agreement(inquiry: Inquiry) -> None:
    """The same for a model that tells no probabilities: whether it agrees with its own words."""
    asked = "whether it agrees with its own words: it tells no probabilities"
    if inquiry.wire is None:
        inquiry.note("propose", None, asked, "its words cannot be asked for")
        return
    words: list[str] = []
    for prompt in dict.fromkeys((inquiry.prompt, *_OWN)):
        [said] = await inquiry.wire.ask([prompt], inquiry.usage, limit=DRAFTED)
        if words := re.findall(r"\s*\S+", said.text)[:-1][:_ASKED]:
            break
    else:
        inquiry.note("propose", None, asked, TOO_SHORT)
        inquiry.short = True
        return
    inquiry.prompt = prompt
    starts = [len("".join(words[:at]).encode()) for at in range(len(words))]
    questions = [Question(start, (word.encode(),), word=True) for start, word in zip(starts, words, strict=True)]
    text = "".join(words).encode()
    found = await inquiry.provider.propose(inquiry.prompt, text, questions, usage=inquiry.usage)
    told = [b"".join(token.data for token in one.tokens) if one else b"" for one in found]
    same = sum(one.startswith(word.encode()) for one, word in zip(told, words, strict=True))
    inquiry.note("propose", 0 < same == len(words), asked, f"it agrees with {same} of {len(words)} words")


def differs(one: Sequence[Token], other: Sequence[Token]) -> int | None:
    """The first token at which two drafts differ; None where they are equal."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if (left.data, left.end) != (right.data, right.end) or not same_prob(left.prob, right.prob):
            return at
    return None if len(one) == len(other) else min(len(one), len(other))


def _by_place(tokens: Sequence[Token]) -> dict[tuple[int, bytes], Token]:
    found: dict[tuple[int, bytes], Token] = {}
    at = 0
    for token in tokens:
        if token.data:
            found[at, token.data] = token
        at += len(token.data)
    return found


GENERIC = (
    ("tokenizer", "the tokens of a text", tokenizer),
    ("draft", "a short draft, and one that is gone on from", draft),
    ("score", "the draft's text to be scored", score),
    ("propose", "what is proposed at places of its own answer", propose),
)
"""The questions, in order: the line, what is asked, and how."""
