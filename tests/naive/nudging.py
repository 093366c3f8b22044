"""Nudging, transcribed from its definition alone: one question after another, nothing is kept.

Shares no code with the library. Models are those of `reference`: toys, or servers over plain HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice

from naive.cool import Answered, Option, Split, readable_by_servers, words
from naive.reference import Out, Tok, finished, generate, text_of
from toys.toy_models import Model

BASE, NUDGER = 0, 1


def parts(text: bytes, split: Split) -> list[bytes]:
    """The words of a nudge, each with the white space before it."""
    own = split if readable_by_servers(text) == text else words
    return [part.encode("utf-8", "surrogateescape") for part in own(text.decode("utf-8", "surrogateescape"))]


def cut(tokens: Sequence[Tok], length: int) -> Iterator[Tok]:
    """The tokens of the first `length` bytes."""
    for token in tokens:
        if length > 0:
            yield Tok(token.data[:length], token.prob)
        length -= len(token.data)


@dataclass
class Nudged:
    """One answer. `margins` gets how close each call was."""

    prompt: bytes
    models: Sequence[Model]
    gamma: float
    nudge_tokens: int
    split: Split
    margins: list[float]
    answer: list[Out] = field(default_factory=list[Out])

    @property
    def text(self) -> bytes:
        """The answer so far."""
        return text_of(self.answer)

    def asked(self, model: int, taken: bytes = b"") -> Iterator[Tok]:
        """The text that a model would write."""
        return generate(self.models[model], self.prompt + self.text + taken)

    def confident(self, token: Tok) -> bool:
        """Test whether the base model is."""
        if token.end or token.prob is None:
            return False
        self.margins.append(abs(token.prob - self.gamma))
        return token.prob >= self.gamma

    def words_taken(self, ours: Sequence[bytes]) -> tuple[int, bool]:
        """The number of a nudge's words that are taken; and true if the base model takes over there."""
        for taken in range(1, len(ours)):
            first = next(self.asked(BASE, b"".join(ours[:taken])))
            if self.confident(first) or (not first.end and ours[taken].startswith(first.data)):
                return taken, True
        return max(1, len(ours) - 1), False

    def base_turn(self) -> Iterator[Tok]:
        """The base model writes: one token, and then passages, until it is not confident or repeats itself."""
        tokens = self.asked(BASE)
        yield next(tokens)
        confident = True
        while confident:
            before, passage = self.text, list[Tok]()
            while confident and len(passage) < 16:
                token = next(tokens)
                confident = self.confident(token)
                passage += [token] if confident else []
            long = len(passage) == 16 or len(text_of(passage).split()) > 5
            if long and text_of(passage) in before:
                return
            yield from passage

    def segments(self, fails: int | None) -> Iterator[tuple[int, Iterator[Tok]]]:
        """Who writes, and what; it is read to its end before the next one."""
        nudges: list[bytes] = []
        for number in count(1):
            if number == fails:
                yield BASE, self.asked(BASE)
            nudge = list(islice(self.asked(NUDGER), self.nudge_tokens))
            if nudge[-1].end:
                yield NUDGER, iter(nudge)
            ours = parts(text_of(nudge), self.split)
            taken, turn = self.words_taken(ours)
            nudges.append(b"".join(ours[:taken]))
            if nudges[-4:] == nudges[-1:] * 4:
                return
            yield NUDGER, cut(nudge, len(nudges[-1]))
            if turn:
                yield BASE, self.base_turn()


def nudging(
    prompt: bytes,
    models: Sequence[Model],
    *,
    max_tokens: int,
    stop: Sequence[bytes] = (),
    gamma: float = 0.4,
    nudge_tokens: int = 16,
    split: Split = words,
    fails: int | None = None,
    margins: list[float] | None = None,
) -> Answered:
    """The base model comes first. `fails`: the request at which the nudging model is gone."""
    made = Nudged(prompt, models, gamma, nudge_tokens, split, [] if margins is None else margins)
    contests: list[tuple[list[Option], int]] = []
    for source, tokens in made.segments(fails):
        start = len(made.text)
        for token in tokens:
            made.answer.append(Out(token.data, source, token.end))
            if done := finished(made.answer, stop, max_tokens):
                rest = text_of(done.tokens)[start:]
                ended = bool(done.tokens) and done.tokens[-1].end
                contests.append(([Option(rest, ended, [], [source])], 0))
                return Answered(done.tokens, done.finish_reason, done.stop_reason, contests)
        contests.append(([Option(made.text[start:], False, [], [source])], 0))
    return Answered(tuple(made.answer), "length", "repetition", contests)
