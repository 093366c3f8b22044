"""How TGI's answers are read: an encoded text by its offsets, a generation as positions for scoring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from cosd_providers.contract import ServerInfo, Token
from cosd_providers.errors import ContextLengthError, ResponseError, UnsupportedError
from cosd_providers.greedy import Choice, Position, check_greedy, check_own
from cosd_providers.tgi.wire import Encoding, Event, Generated, Word, prob_of

__all__ = ["Around", "Encoded", "Scored", "Server", "encoded"]

_MOST_PROBABLE = 0.5 + 1e-6
"""What is above one half is the most probable token; the rest is room for 32-bit logarithms."""


_REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class Around:
    """The special tokens that the server puts before and after every text."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def seen(cls, raw: Encoding) -> Around | None:
        """What has no place in a text of one letter; None where nothing has one: the server does not know places."""
        wide = [at for at, span in enumerate(raw.root) if span.stop > span.start]
        ids = [span.id for span in raw.root]
        return cls(tuple(ids[: wide[0]]), tuple(ids[wide[-1] + 1 :])) if wide else None


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded text.

    Attributes:
        ids: its own tokens.
        data: the bytes of each; of tokens that share a character the last one has the bytes of all.
        all: the ids that the model reads: the special ones around it too.
        before: how many special ones stand before it.
    """

    ids: list[int]
    data: list[bytes]
    all: list[int]
    before: int


@dataclass(frozen=True, slots=True)
class Scored:
    """An encoded text with the probability of each of its own tokens, and what the model says after it."""

    text: Encoded
    probs: list[float | None]
    after: Position | None

    def tokens(self) -> Iterator[Token]:
        """Its tokens in whole characters, as sure as the least sure part."""
        parts: list[float | None] = []
        for data, value in zip(self.text.data, self.probs, strict=True):
            parts.append(value)
            if data:
                known = [part for part in parts if part is not None]
                yield Token(data, min(known) if len(known) == len(parts) else None)
                parts = []


def encoded(raw: Encoding, text: str, around: Around) -> Encoded:
    """The server's answer for `text`."""
    spans, ids = raw.root, [span.id for span in raw.root]
    first, last = len(around.before), len(ids) - len(around.after)
    if tuple(ids[:first]) != around.before or last < first:
        first = 0
    if tuple(ids[last:]) != around.after or last < first:
        last = len(ids)
    own = [(span.start, span.stop) for span in spans[first:last]]
    return Encoded(ids[first:last], _data(text.encode(), own), ids, first)


def _data(text: bytes, spans: Sequence[tuple[int, int]]) -> list[bytes]:
    """The bytes of each token. Tokens that overlap, or are of no width, share a character with the next one."""
    data = [b""] * len(spans)
    begun = stop = 0
    for at, (_, end) in enumerate(spans):
        last = at + 1 == len(spans)
        stop = len(text) if last else max(stop, end)
        if stop > begun and (last or spans[at + 1][0] >= stop):
            data[at] = text[begun:stop]
            begun = stop
    return data


@dataclass(frozen=True, slots=True)
class Server:
    """What was learned of a server.

    Attributes:
        info: its card.
        longest: tokens that a prompt may have.
        around: the special tokens around every text; None where it does not encode text for others.
        prefill: whether it gives the probabilities of a prompt's tokens.
        top: how many of the most probable tokens it lists.
        ends: the ids that were seen to end a sequence.
        others: the ids of special tokens that were seen not to.
        shows: whether other special tokens are text in an answer.
    """

    info: ServerInfo
    longest: int
    around: Around | None
    prefill: bool
    top: int
    ends: set[int] = field(default_factory=set[int])
    others: set[int] = field(default_factory=set[int])
    shows: Annotated[bool, Field(exclude=True)] = False

    def position(self, event: Event) -> Position:
        """One step of a generation.

        Raises:
            UnsupportedError: its most probable tokens were not listed, or the server took another one.
            ResponseError: its probability is not a number.
        """
        word, top = event.token, event.top_tokens or []
        self._check_greedy(word, top)
        single = next((other.text for other in top if other.id == word.id), None)
        pick = self._pick(event, single)
        # The text of a listed token is that of the token alone. Where that is another one for the pick, this
        # tokenizer writes some tokens differently at the beginning of a text, and what is listed cannot be compared.
        comparable = single is not None and (not word.text or single == word.text)
        return Position(pick, [self._other(other) for other in top if comparable and self._shown(other)])

    def check(self, letter: Encoding | None, answer: Generated) -> None:
        """Looks at the encoding of a letter and the answer to it.

        Raises:
            UnsupportedError: the model reads something else, or its tokens come without what is needed.
        """
        read = [word.id for word in answer.details.prefill]
        if letter and read and read != [span.id for span in letter.root]:
            words = "the model does not read the tokens of its prompt: it answers a text and cannot continue it"
            hint = "Is it an encoder-decoder? Serve a decoder-only model."
            raise UnsupportedError(words, endpoint=self.info.endpoint, hint=hint)
        if event := answer.last():
            self.position(event)

    def _check_greedy(self, word: Word, top: Sequence[Word]) -> None:
        check_own(prob_of(word), self.info.endpoint)
        if not top:
            words = "the server does not list the most probable tokens, although asked (top_n_tokens)"
            hint = "TGI's neuron backend has no probabilities. Update the server, or use another backend."
            raise UnsupportedError(words, endpoint=self.info.endpoint, hint=hint)
        check_greedy(prob_of(word), map(prob_of, top), self.info.endpoint)

    def _pick(self, event: Event, single: str | None) -> Choice:
        word = event.token
        finish = event.details.finish_reason if event.details else None
        if finish == "eos_token":
            self.ends.add(word.id)
            return Choice(word.id, Token(b"", prob_of(word), end=True, name=word.text or None))
        if finish == "stop_sequence":
            words = "the server stops at a text of its own, although none was given"
            raise UnsupportedError(words, endpoint=self.info.endpoint)
        if word.special and not self.shows:
            return Choice(word.id, Token(b"", prob_of(word)))
        unfinished = not word.text and single != ""
        return Choice(word.id, Token(word.text.replace(_REPLACEMENT, "").encode(), prob_of(word)), open=unfinished)

    def _shown(self, word: Word) -> bool:
        return bool(word.text) and not word.special and word.id not in self.ends and _REPLACEMENT not in word.text

    def _other(self, word: Word) -> Choice:
        return Choice(word.id, Token(word.text.encode(), prob_of(word)))

    def likely(self, scored: Scored, start: int) -> list[Position]:
        """What the model says from token `start` on, for as long as its most probable token is the text's own."""
        own, positions = scored.text, list[Position]()
        for token_id, data, value in zip(own.ids[start:], own.data[start:], scored.probs[start:], strict=True):
            if value is None or value <= _MOST_PROBABLE or token_id in self.ends:
                return positions
            positions.append(Position(Choice(token_id, Token(data, value), open=not data)))
        return positions if scored.after is None else [*positions, scored.after]

    def broken(self, words: str) -> ResponseError:
        """An answer that is not what it should be."""
        return ResponseError(words, endpoint=self.info.endpoint, retryable=True)

    def too_long(self, tokens: int) -> ContextLengthError:
        """A text that does not fit."""
        limits = f"at most {self.longest}, and {self.info.context} with the answer"
        words = f"the text has {tokens} tokens; the server takes {limits}"
        return ContextLengthError(words, endpoint=self.info.endpoint)

    def truncated(self, read: int, tokens: int) -> ContextLengthError:
        """A text of which the server left out a part."""
        words = f"the server cut the text: it read {read} of {tokens} tokens"
        hint = "Shorten the prompt, or start the server with a larger --max-input-tokens."
        return ContextLengthError(words, endpoint=self.info.endpoint, hint=hint)

    def unscored(self) -> UnsupportedError:
        """The probabilities of a prompt's tokens are not given."""
        words = "the server gives no probabilities for the tokens of a prompt"
        return UnsupportedError(words, endpoint=self.info.endpoint, hint="Start it with --enable-prefill-logprobs.")
