"""When a draft is full, and when a chain of tokens answers a question: pure, without I/O.

An adapter feeds raw tokens, as the server makes them; `Draft` and `Chain` join them into whole characters,
decide ties, and say when there is enough. So every adapter gives the same proposals for the same model,
however its server was asked.

A **chain** is one greedy generation on token ids: it starts at the model's own encoding of prompt and text as
one text and goes on from its own ids, never from re-encoded text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cosd_providers.contract import Proposal, Question, Token
from cosd_providers.text import Merger, continues_word, join, last_character, whole

__all__ = ["TIES", "Chain", "Choice", "Draft", "Position", "along", "answer", "boundaries", "within"]

TIES = 5
"""How many of the most probable tokens an adapter asks for at each position, so that ties are seen."""

_MORE = 3  # raw tokens that are taken after the first one of an unfinished character
_SPAN = 8  # tokens since the last agreement in which a word must end
_SILENT = 64  # raw tokens in a row without any text, after which a chain is given up


@dataclass(frozen=True, slots=True)
class Choice:
    """A raw token that a model could take: its id and what it says.

    Attributes:
        id: its id; where the server tells none, a number that is unique within its position.
        token: what it says.
        open: whether it leaves a character unfinished and its bytes are not shown: that which completes it has all.
        sure: whether its bytes are known to be all that it has.
    """

    id: int
    token: Token
    open: bool = False
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Position:
    """One step of a generation: the token that the server took, and the most probable ones, best first.

    Attributes:
        pick: the server's own token.
        top: the most probable tokens; may be empty where the endpoint does not list them.
    """

    pick: Choice
    top: Sequence[Choice] = ()


class Draft:
    """Counts and joins the raw tokens of a draft, up to `limit` whole-character tokens.

    Attributes:
        ids: the ids behind what was given out, and behind a character that is still unfinished: what a later
            request goes on from. What came after the limit is not among them.
        left: how many tokens may still come.
        ended: whether the end of sequence came.
    """

    __slots__ = ("_merger", "ended", "ids", "left")

    def __init__(self, limit: int) -> None:
        self.ids: list[int] = []
        self.left = limit
        self.ended = False
        self._merger = Merger()

    @property
    def over(self) -> bool:
        """Whether nothing more belongs to this draft: the limit is reached or the model ended."""
        return self.ended or self.left <= 0

    def feed(self, token_id: int, token: Token) -> list[Token]:
        """Takes the server's next raw token; gives the tokens that are whole now, at most `left`."""
        if self.over:
            return []
        self.ids.append(token_id)
        tokens = list(self._merger.feed(token))
        if len(tokens) > self.left:  # an unfinished character and the end, with room for one of them
            tokens.pop()
            self.ids.pop()
        self.left -= len(tokens)
        self.ended = bool(tokens) and tokens[-1].end
        return tokens


class Chain:
    """The greedy chain for one question, position by position, until it is enough.

    Attributes:
        question: what it answers.
        ids: the raw ids taken so far; the next request goes on from them.
        tokens: the whole-character tokens so far.
        enough: whether the question is answered, or cannot be answered any further.
        turned: how many ids, and which bytes, the chain had when it last took another token than the server: what
            stands there a server that takes text only has to be given, and it goes through the rest again.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        self.ids: list[int] = []
        self.tokens: list[Token] = []
        self.enough = False
        self.turned: tuple[int, bytes] = (0, b"")
        self._merger = Merger()
        self._begun = 0  # raw tokens since the first one of an unfinished character
        self._data = b""
        self._draft = b"".join(question.tokens)
        self._starts, self._ends = _edges(question.tokens)
        self._differs = False
        self._since = 0  # tokens since the last agreement: both at the end of a token, with equal text

    @property
    def wanted(self) -> int:
        """How many raw tokens to ask for, so that one request is enough for most questions."""
        if not self.question.word:
            return _MORE if self.ids else 1
        return max(len(self.question.tokens) + 2 - len(self.ids), 2)

    def feed(self, positions: Iterable[Position]) -> None:
        """Takes the next positions that the server went through, as far as they are the chain's own.

        A position where the chain takes another token than the server did makes void what the server wrote
        after it. No position at all means that the server cannot go on.
        """
        fed = False
        for position in positions:
            fed = True
            choice = _resolve(position, self._expected())
            self._take(choice)
            if choice.id != position.pick.id:
                self.turned = (len(self.ids), self._data)
                return
            if self.enough:
                return
        if not fed:
            self.enough = True

    def proposal(self) -> Proposal | None:
        """What the chain says; None where it says nothing."""
        return Proposal(self.question.start, tuple(self.tokens)) if self.tokens else None

    def _expected(self) -> bytes | None:
        """The draft's token that starts where the chain stands.

        None inside a token, inside a character, or once they differ.
        """
        return None if self._begun or self._differs else self._starts.get(len(self._data))

    def _take(self, choice: Choice) -> None:
        self.ids.append(choice.id)
        for token in self._merger.feed(choice.token):
            self._add(token)
        if not self._merger.parts:
            self._begun = 0
        elif self._begun or choice.open or choice.token.data:
            self._begun += 1
        if self._begun > _MORE:
            self._give_up()
        elif not self._begun and len(self._merger.parts) >= _SILENT:
            self.enough = True

    def _give_up(self) -> None:
        """A character that does not finish: what is whole before it stays, and nothing can follow."""
        token = join(self._merger.parts)
        kept = token.data[: whole(token.data)]
        if kept:
            self._add(Token(kept, token.prob))
        self.enough = True

    def _add(self, token: Token) -> None:
        """Takes a whole token: where does it lie against the draft's, and is that enough?"""
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
        """Whether nothing after `token` can belong to its word, which is as long as a replacement may be at most."""
        return self._since >= _SPAN or not last_character(token.data).isalnum()

    def _compare(self, token: Token) -> None:
        """The last token against the draft's bytes where it stands."""
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
    """Where each token starts, and where tokens end, in bytes from the first one."""
    starts: dict[int, bytes] = {}
    ends: set[int] = set()
    at = 0
    for data in tokens:
        starts[at] = data
        at += len(data)
        ends.add(at)
    return starts, ends


def _resolve(position: Position, expected: bytes | None) -> Choice:
    """The most probable token; among equally probable ones the draft's, else the server's own pick."""
    pick, top = position.pick, position.top
    probs = [choice.token.prob for choice in (pick, *top) if choice.token.prob is not None]
    if not probs or pick.token.prob is None:
        return pick
    best = max(probs)
    if expected is not None:
        for choice in (pick, *top):
            token = choice.token
            if token.prob == best and token.data == expected and token.end == (expected == b""):
                return choice
    if pick.token.prob == best:
        return pick
    return next(choice for choice in top if choice.token.prob == best)


def along(chain: Chain, own: Sequence[int], positions: Sequence[Position]) -> Iterator[Position]:
    """The positions of a scored text, for as long as `chain` says what the text says.

    Args:
        chain: is fed with what this yields, while it is yielded.
        own: the text's own ids from the chain's place on.
        positions: what the model would have said at each of them, and perhaps after the last one.
    """
    for at, position in enumerate(positions):
        yield position
        if at >= len(own) or chain.ids[-1] != own[at]:
            return


async def answer(
    questions: Iterable[Question], ask: Callable[[list[Chain]], Awaitable[Sequence[Iterable[Position]]]]
) -> list[Proposal | None]:
    """Asks until every question has its chain; one round for all those that are not enough yet.

    Args:
        questions: what is asked; the answers come in the same order.
        ask: takes the open chains and gives, for each, what the server goes on with after `chain.ids`: about
            `chain.wanted` positions, none where it cannot go on.
    """
    chains = [Chain(question) for question in questions]
    while left := [chain for chain in chains if not chain.enough]:
        for chain, positions in zip(left, await ask(left), strict=True):
            chain.feed(positions)
    return [chain.proposal() for chain in chains]


def boundaries(pieces: Iterable[bytes], start: int) -> list[Question]:
    """A question at every boundary between characters of an encoded text.

    Args:
        pieces: the bytes of its tokens.
        start: how many bytes of it are the prompt: boundaries before that are left out.
    """
    data, marks = b"", [0]
    unfinished = 0  # where the character starts that is not whole yet
    for piece in pieces:
        data += piece
        if piece and whole(data[unfinished:]) == len(data) - unfinished:
            unfinished = len(data)
            marks.append(unfinished)
    return [Question(mark - start, ()) for mark in marks if mark >= start]


def within(tokens: Iterable[Token], start: int) -> list[Token]:
    """The part of an encoded text that lies after byte `start`, in whole characters.

    A token that lies across `start` is cut there and keeps its probability; tokens before `start` do not count.
    """
    merger, read, at = Merger(), 0, 0
    kept: list[Token] = []
    for raw in tokens:
        read += len(raw.data)
        for token in merger.feed(raw if read > start else Token(raw.data, 1.0)):
            at += len(token.data)
            if at > start:
                kept.append(Token(token.data[max(start - at, -len(token.data)) :], token.prob))
    return kept
