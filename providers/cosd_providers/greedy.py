"""Conversion of raw tokens to whole-character tokens and proposals, for greedy drafts and continuations, without I/O.

An adapter feeds in raw tokens, grouped in whatever way the server sends them. `Draft` and `Continuation` join the
tokens into whole characters, break ties, and decide when the answer is complete. Thus all adapters return the same
answers for the same model, whatever requests they send.

A **continuation** is a greedy generation of token ids. It starts after the model's own encoding of prompt and text as
one text, and is extended from its own ids, never from re-encoded text.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from cosd_providers.contract import Proposal, Question, Token
from cosd_providers.errors import ResponseError, UnsupportedError
from cosd_providers.text import Merger, continues_word, join, last_character, sendable, whole

TIES = 5
"""The number of most probable tokens to request at each position, so that ties are visible."""

ROUNDING = 1e-4
"""The largest difference between two log probabilities that counts as rounding.

Servers compute log probabilities as float32 `logit - logsumexp`. At magnitudes up to 30 one rounding step is 2e-6, and
engines that choose the token in one kernel and compute its probability in another differ by a few steps. The logits of
bf16 models are either equal or differ by at least 0.8 %, so a tolerance of 1e-4 never hides a genuinely different
choice.
"""

_MORE = 3  # raw tokens to accept after the first token of an unfinished character
_SPAN = 8  # greatest number of tokens in a word, counted from the last token on which both models agree
_SILENT = 64  # a continuation ends after this number of consecutive raw tokens without text


@dataclass(slots=True)  # not frozen, as this would make creation four times slower: each raw token needs a choice
class Choice:
    """A raw token that a model could choose."""

    id: int  # its id; a number unique within its position if the server shows no ids
    token: Token  # its bytes and probability
    # whether the token leaves a character unfinished, and the server does not show the token's bytes. The bytes are
    # then shown as part of the token that completes the character
    open: bool = False
    sure: bool = True  # whether its bytes are known to be complete


@dataclass(slots=True)
class Position:
    """One step of a generation."""

    pick: Choice  # the token that the server chose
    # the most probable tokens, in descending order; empty if the endpoint does not list them
    top: Sequence[Choice] = ()


class Draft:
    """The raw tokens of a draft, counted and joined into at most `limit` whole-character tokens.

    Args:
        limit: the largest number of tokens.
        raw: whether to return raw tokens unchanged, with their ids, and count each of them.
    """

    __slots__ = ("_merger", "_raw", "ended", "ids", "left", "starts")

    def __init__(self, limit: int, *, raw: bool = False) -> None:
        # the ids of the returned tokens and of a character that is still unfinished; a later request continues from
        # these ids. Tokens beyond the limit are left out
        self.ids: list[int] = []
        self.starts: list[int] = []  # for each returned token, the index of its first raw token in `ids`
        self.left = limit  # the number of tokens that may still be added
        self.ended = False  # whether the end of sequence has been added
        self._merger = Merger()
        self._raw = raw

    @property
    def over(self) -> bool:
        """True if the limit is reached or the model ended."""
        return self.ended or self.left <= 0

    def feed(self, token_id: int, token: Token) -> list[Token]:
        """Add the server's next raw token, and return the tokens that it completes, at most `left` of them."""
        if self.over:
            return []
        at = len(self.ids)
        start = at - len(self._merger.parts)
        self.ids.append(token_id)
        tokens = [replace(token, id=token_id)] if self._raw else self._merger.feed(token)
        if len(tokens) > self.left:  # the end came after an unfinished character, but only one more token is allowed
            tokens.pop()
            self.ids.pop()
        for one in tokens:
            self.starts.append(start)
            self.ended, start = one.end, at
        self.left -= len(tokens)
        return tokens


class Continuation:
    """The greedy continuation for one question, position by position, until the question is answered."""

    def __init__(self, question: Question, alternatives: int = 0) -> None:
        self.question = question
        self.alternatives = alternatives
        self.ids: list[int] = []  # the raw ids so far; the next request continues from them
        self.tokens: list[Token] = []  # the whole-character tokens so far
        self.enough = False  # whether the question is answered or the continuation cannot be extended
        # the number of ids, and the bytes, up to and including the last token that differs from the server's choice. A
        # text-only server resumes after these bytes and generates the rest again
        self.turned: tuple[int, bytes] = (0, b"")
        self._merger = Merger()
        self._begun = 0  # number of raw tokens since the start of an unfinished character
        self._data = b""
        self._draft = b"".join(question.tokens)
        self._starts, self._ends = _edges(question.tokens)
        self._differs = False
        self._since = 0  # number of tokens since both models last ended a token after the same text

    @property
    def wanted(self) -> int:
        """The number of raw tokens to request, chosen so that one request is enough for most questions."""
        if not self.question.word:
            return _MORE if self.ids else 1
        return max(len(self.question.tokens) + 2 - len(self.ids), 2)

    @property
    def again(self) -> int:
        """The number of raw tokens that a text-only server has to write again, after the bytes `turned`."""
        return len(self.ids) - self.turned[0]

    def feed(self, positions: Iterable[Position]) -> None:
        """Add the next positions of the server's generation.

        If the continuation chooses a different token from the server's, the rest of the server's generation is
        discarded. An empty sequence means that the server cannot continue.
        """
        fed = False
        for position in positions:
            fed = True
            choice = _resolve(position, self._expected())
            self._take(choice, position)
            if choice.id != position.pick.id:
                self.turned = (len(self.ids), self._data)
                return
            if self.enough:
                return
        if not fed:
            self.enough = True

    def proposal(self) -> Proposal | None:
        """Return the answer so far; None if it has no token."""
        return Proposal(self.question.start, tuple(self.tokens)) if self.tokens else None

    def _expected(self) -> bytes | None:
        """The draft's token that starts at the continuation's end; None if none starts there or the texts differ."""
        return None if self._begun or self._differs else self._starts.get(len(self._data))

    def _take(self, choice: Choice, position: Position) -> None:
        self.ids.append(choice.id)
        token = choice.token
        if self.alternatives:
            token = with_alternatives(Position(choice, (*position.top, position.pick)), self.alternatives)
        for one in self._merger.feed(token):
            self._add(one)
        if not self._merger.parts:
            self._begun = 0
        elif self._begun or choice.open or choice.token.data:
            self._begun += 1
        if self._begun > _MORE:
            self._give_up()
        elif not self._begun and len(self._merger.parts) >= _SILENT:
            self.enough = True

    def _give_up(self) -> None:
        """End the continuation at a character that stays unfinished, and keep the whole characters before it."""
        token = join(self._merger.parts)
        kept = token.data[: whole(token.data)]
        if kept:
            self._add(Token(kept, token.prob))
        self.enough = True

    def _add(self, token: Token) -> None:
        """Add a whole token, and compare it with the draft's token."""
        before = self._data
        self._data += token.data
        self.tokens.append(token)
        self._since += 1
        if token.end or not self.question.word:
            self.enough = True
        elif self._differs:
            self.enough = not continues_word(before, token) or self._word_ended(token)
        else:
            self._compare(token)

    def _word_ended(self, token: Token) -> bool:
        """True if no later token can belong to the word of `token`, or if the word has reached the allowed length."""
        return self._since >= _SPAN or not last_character(token.data).isalnum()

    def _compare(self, token: Token) -> None:
        """Compare the last token with the draft's bytes at the same offset."""
        end = len(self._data)
        start = end - len(token.data)
        self._differs = not self._draft or self._data[start : len(self._draft)] != self._draft[start:end]
        if self._differs:
            self.enough = self._word_ended(token)
            return
        if end in self._ends:
            self._since = 0
        self.enough = end >= len(self._draft)


def _edges(tokens: Sequence[bytes]) -> tuple[dict[int, bytes], set[int]]:
    """The tokens keyed by their start offsets, and the end offsets of all tokens, in bytes."""
    starts: dict[int, bytes] = {}
    ends: set[int] = set()
    at = 0
    for data in tokens:
        starts[at] = data
        at += len(data)
        ends.add(at)
    return starts, ends


def _resolve(position: Position, expected: bytes | None) -> Choice:
    """Choose the most probable token. Among equally probable ones, prefer the draft's token, then the server's pick."""
    best = position.pick.token.prob
    if best is None:
        return position.pick
    equals = [position.pick]
    for choice in position.top:
        value = choice.token.prob
        if value == best:
            equals.append(choice)
        elif value is not None and value > best:
            best, equals = value, [choice]
    for choice in equals:
        if choice.token.data == expected and choice.token.end == (expected == b""):
            return choice
    return equals[0]


def along(continuation: Continuation, own: Sequence[int], positions: Sequence[Position]) -> Iterator[Position]:
    """Yield the positions of a scored text, for as long as the continuation agrees with the text.

    Args:
        continuation: the continuation; the caller must feed it each position as soon as the position is yielded.
        own: the text's own ids after the continuation's place.
        positions: the model's choice at each id in `own`, and possibly after the last id.
    """
    for at, position in enumerate(positions):
        yield position
        if at >= len(own) or continuation.ids[-1] != own[at]:
            return


async def answer(
    questions: Iterable[Question],
    ask: Callable[[list[Continuation]], Awaitable[Sequence[Iterable[Position]]]],
    alternatives: int = 0,
) -> list[Proposal | None]:
    """Answer all questions in rounds: each round extends the answers to all questions that are still open.

    Args:
        questions: any number of questions; the answers are returned in the same order.
        ask: a function that receives the open continuations and returns, for each of them, about `wanted` positions
            after its `ids`, or no position if the server cannot continue.
        alternatives: the number of other tokens to list with each token; the positions from `ask` must list one more.
    """
    continuations = [Continuation(question, alternatives) for question in questions]
    while left := [one for one in continuations if not one.enough]:
        for one, positions in zip(left, await ask(left), strict=True):
            one.feed(positions)
    return [one.proposal() for one in continuations]


def boundaries(pieces: Iterable[bytes], start: int) -> list[Question]:
    """Create a question at every boundary between two tokens of an encoded text, except inside characters.

    Boundaries in the prompt, whose size in bytes is `start`, are left out.
    """
    data, marks = b"", [0]
    unfinished = 0  # start of the character that is not complete yet
    for piece in pieces:
        data += piece
        if piece and whole(data[unfinished:]) == len(data) - unfinished:
            unfinished = len(data)
            marks.append(unfinished)
    return [Question(mark - start, ()) for mark in marks if mark >= start]


def within(tokens: Iterable[Token], start: int) -> list[Token]:
    """Return the tokens of an encoded text after byte `start`, joined into whole characters.

    A token that spans `start` is cut at `start`; it keeps its probability, but not its alternatives. Tokens before
    `start` are left out.
    """
    merger, read, at = Merger(), 0, 0
    kept: list[Token] = []
    for raw in tokens:
        read += len(raw.data)
        for token in merger.feed(raw if read > start else Token(raw.data, 1.0)):
            at += len(token.data)
            if at - len(token.data) >= start:
                kept.append(Token(token.data, token.prob, alternatives=token.alternatives))
            elif at > start:
                kept.append(Token(token.data[start - at :], token.prob))
    return kept


def prob(logprob: float | None) -> float | None:
    """Convert a log probability to a probability in [0, 1]; None for None and NaN.

    Servers write -9999 or similar numbers for a probability of zero.
    """
    if logprob is None or math.isnan(logprob):
        return None
    return math.exp(logprob) if logprob < 0 else 1.0


def check_own(logprob: float | None, endpoint: str) -> None:
    """Check that a token chosen by the server has a usable probability, given the logarithm that the server shows.

    Servers send null, NaN or -inf if the model computes NaN, and -9999 or a similar number for a token that is next to
    impossible. Tokens with such values would never be replaced.

    Raises:
        ResponseError: the logarithm is missing or NaN, or the probability is 0.
    """
    if prob(logprob):
        return
    says = "its logarithm is missing" if logprob is None else f"its logarithm is {logprob:g}"
    words = f"the server wrote a token with no usable probability: {says}"
    hint = "Does the model compute NaN there? Then another quantization or data type may help."
    if logprob is not None and math.isfinite(logprob):
        hint = "Servers show such a number for a token that is next to impossible: is it forced by a grammar or a bias,"
        hint += " or does the model compute NaN there?"
    raise ResponseError(words, endpoint=endpoint, hint=hint)


def check_greedy(own: float | None, top: Iterable[float | None], endpoint: str) -> None:
    """Check that a token chosen by the server is the most probable of the listed tokens, up to `ROUNDING`.

    If its probability is None, the check is skipped.

    Raises:
        UnsupportedError: a listed token is more probable.
    """
    best = max((value for value in top if value is not None), default=0.0)
    if own is None or best <= own * math.exp(ROUNDING):
        return
    words = "the server does not take the most probable token, although asked for greedy decoding"
    hint = "Is it started with samplers, penalties, a grammar or a bias that a request cannot undo?"
    raise UnsupportedError(words, endpoint=endpoint, hint=hint)


def with_alternatives(position: Position, count: int) -> Token:
    """Return the token that the server chose, with up to `count` other listed tokens, the most probable first.

    The text of an alternative must be known, and differ from the texts of all other listed tokens. So tokens with
    unknown, empty or incomplete bytes, repeated texts and tokens of probability 0 are left out; a listed end of
    sequence is included. A chosen token gets no alternatives if its probability is unknown or it contains part of a
    character. `Draft` drops the alternatives of tokens that it merges.
    """
    own = position.pick.token
    if count <= 0 or own.prob is None or position.pick.open or whole(own.data) < len(own.data):
        return own
    found: dict[tuple[bytes, bool], Token] = {}
    for choice in sorted(position.top, key=lambda choice: -(choice.token.prob or 0)):
        token = choice.token
        if _says_something(choice) and (token.data, token.end) != (own.data, own.end):
            found.setdefault((token.data, token.end), token)
            if len(found) == count:
                break
    return replace(own, alternatives=tuple(found.values()))


def with_listed(position: Position, count: int) -> Token:
    """Return the token that the server chose, unchanged, with its id and up to `count` other listed tokens.

    This function is meant for contexts by ids. Unlike `with_alternatives`, it distinguishes tokens by their ids, and
    includes parts of characters. The most probable alternative comes first.
    """
    own = position.pick
    listed = {choice.id: choice for choice in position.top if choice.id != own.id and choice.token.prob}
    best = sorted(listed.values(), key=lambda choice: -(choice.token.prob or 0))[: max(count, 0)]
    others = tuple(Token(one.token.data, one.token.prob, one.token.end, one.token.name, id=one.id) for one in best)
    return replace(own.token, id=own.id, alternatives=others)


def _says_something(choice: Choice) -> bool:
    token = choice.token
    if not token.prob or choice.open or not choice.sure:
        return False
    data = token.data
    return token.end or (bool(data) and (data.isascii() or sendable(data).encode() == data))
