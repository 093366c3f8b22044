"""CharED, transcribed from its definition alone: every token that is still possible is kept with where it began.

Shares no code with the library. Models are those of `reference`: toys, or servers over plain HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from naive.reference import Out, finished, generate, text_of, whole
from toys.toy_models import Model

SAME = 1e-9


@dataclass
class Possible:
    """A token that a model may be writing: it began at a byte of the answer, and has this mass among all of them."""

    start: int
    data: bytes
    end: bool
    mass: float

    def rest(self, at: int) -> bytes:
        """The rest that it has behind byte `at`."""
        return self.data[at - self.start :]

    def symbol(self, at: int) -> bytes | None:
        """Its next byte; None for the end of sequence, which a complete one has behind it or not."""
        return self.rest(at)[:1] or None


@dataclass
class Chosen:
    """One symbol that was written, with its mean, those of all others, and what each model finds most probable."""

    symbol: bytes | None
    means: dict[bytes | None, float]
    favourites: dict[int, bytes | None]

    @property
    def margin(self) -> float:
        """The difference of the two largest means."""
        first, second, *_ = [*sorted(self.means.values(), reverse=True), 0.0]
        return first - second


@dataclass
class Answered:
    """An answer: its tokens, with the symbols of each.

    Attributes:
        tokens: the tokens, with the index of the model that each is ascribed to.
        finish_reason: as in results.
        stop_reason: as in results.
        symbols: of each token before any cut.
        endings: every mass of "a token ends here" that was compared with the limit.
        asked: how often each model was asked.
        alone: how often a model showed a single token, and that was not certain.
    """

    tokens: tuple[Out, ...] = ()
    finish_reason: str = ""
    stop_reason: str = ""
    symbols: list[list[Chosen]] = field(default_factory=list[list[Chosen]])
    endings: list[float] = field(default_factory=list[float])
    asked: dict[int, int] = field(default_factory=dict[int, int])
    alone: int = 0

    @property
    def text(self) -> bytes:
        """The answer's bytes."""
        return text_of(self.tokens)

    @property
    def is_doubtful(self) -> bool:
        """Two symbols are as probable, or a token ends with a mass at the limit: a server's last digits decide."""
        margins = [one.margin for symbols in self.symbols for one in symbols]
        return min(margins) < 1e-3 or any(abs(one - 1e-3) < 5e-5 for one in self.endings)


def most_probable(model: Model, text: bytes, listed: int) -> tuple[list[tuple[bytes, bool, float]], bool]:
    """The tokens that a model may write behind a text, whole characters or the end, with probabilities of sum 1.

    And whether a single one is known, which is not certain.
    """
    first = next(generate(model, text))
    assert first.prob is not None
    if whole(first.data) < len(first.data):  # a character that stays incomplete: then comes the end
        return [(first.data, True, 1.0)], first.prob < 1
    if len(first.ids) > 1:
        return [(first.data, first.end, 1.0)], first.prob < 1
    probs = model.next(model.vocabulary.encode(text.decode("utf-8", "ignore").encode()))
    found = {(first.data, first.end): first.prob}
    for n in sorted(range(len(probs)), key=lambda n: -probs[n]):
        end = n == model.vocabulary.end
        if not probs[n]:
            break
        data = b"" if end else model.vocabulary.tokens[n]
        readable = data.decode("utf-8", "ignore").encode() == data
        if (end or (data and readable)) and len(found) < listed:
            found.setdefault((data, end), probs[n])
    total = math.fsum(found.values())
    return [(data, end, prob / total) for (data, end), prob in found.items()], len(found) == 1 and total < 1


def best(measures: Mapping[bytes | None, Sequence[float]]) -> bytes | None:
    """The symbol with the largest first measure, of equals with the largest second, ...; then the end, the lowest."""
    left = sorted(measures, key=lambda symbol: (symbol is not None, symbol or b""))
    for n in range(len(measures[left[0]])):
        most = max(measures[symbol][n] for symbol in left)
        left = [symbol for symbol in left if measures[symbol][n] >= most * (1 - SAME)]
    return left[0]


@dataclass
class Writers:
    """The models as they write: what each may be writing, and who is still there."""

    models: Sequence[Model]
    prompt: bytes
    weights: Sequence[float]
    listed: int
    fails: Mapping[int, int]
    answer: Answered
    here: list[int]
    possible: dict[int, list[Possible]]
    text: bytes = b""

    def ended(self, at: int) -> float:
        """The mass of the tokens that end here."""
        return math.fsum(one.mass for one in self.possible[at] if not one.end and not one.rest(len(self.text)))

    def keep(self, at: int, kept: list[Possible]) -> None:
        """Nothing but these is possible."""
        total = math.fsum(one.mass for one in kept)
        self.possible[at] = [replace(one, mass=one.mass / total) for one in kept]

    def ask(self) -> None:
        """Whoever has nothing left, or whose token may well end, is asked; what hardly ends does not end."""
        for at in list(self.here):
            ended, going_on = self.ended(at), [one for one in self.possible[at] if one.end or one.rest(len(self.text))]
            self.answer.endings += [ended] if ended else []
            if self.possible[at] and ended <= 1e-3:
                self.keep(at, going_on)
                continue
            mass = ended if self.possible[at] else 1.0
            self.answer.asked[at] += 1
            if self.answer.asked[at] == self.fails.get(at):
                self.here.remove(at)
                continue
            found, alone = most_probable(self.models[at], self.prompt + self.text, self.listed)
            self.answer.alone += alone
            new = [Possible(len(self.text), data, end, mass * prob) for data, end, prob in found]
            self.possible[at] = going_on + new

    def choose(self) -> Chosen:
        """The symbol with the largest mean."""
        heard = [at for at in self.here if self.possible[at]]
        masses: dict[int, dict[bytes | None, float]] = {at: {} for at in heard}
        for at in heard:
            for one in self.possible[at]:
                symbol = one.symbol(len(self.text))
                masses[at][symbol] = masses[at].get(symbol, 0.0) + one.mass
        total = sum(self.weights[at] for at in heard)
        means: dict[bytes | None, float] = {}
        for symbol in {symbol for at in heard for symbol in masses[at]}:
            shares = [self.weights[at] / total if total else 1 / len(heard) for at in heard]
            means[symbol] = sum(w * masses[at].get(symbol, 0.0) for w, at in zip(shares, heard, strict=True))
        chosen = best({one: [mean, *(masses[at].get(one, 0.0) for at in heard)] for one, mean in means.items()})
        own = {at: best({one: [mass, float(one == chosen)] for one, mass in masses[at].items()}) for at in heard}
        return Chosen(chosen, means, own)

    def follow(self, byte: bytes) -> None:
        """A byte is written."""
        for at in self.here:
            fitting = [one for one in self.possible[at] if one.symbol(len(self.text)) == byte]
            self.keep(at, fitting) if fitting else self.possible[at].clear()
        self.text += byte

    def token(self) -> list[Chosen]:
        """The symbols up to the next place where a model is asked."""
        chosen, start = list[Chosen](), len(self.text)
        while True:
            chosen.append(self.choose())
            symbol = chosen[-1].symbol
            if symbol is None:
                return chosen
            self.follow(symbol)
            if whole(self.text[start:]) < len(self.text) - start:
                continue
            if any(not self.possible[at] or self.ended(at) > 1e-3 for at in self.here):
                return chosen
            for at in self.here:
                self.answer.endings += [self.ended(at)] if self.ended(at) else []
                self.keep(at, [one for one in self.possible[at] if one.end or one.rest(len(self.text))])


def chared(
    prompt: bytes,
    models: Sequence[Model],
    *,
    max_tokens: int,
    stop: Sequence[bytes] = (),
    weights: Sequence[float] | None = None,
    listed: int = 20,
    fails: Mapping[int, int] = MappingProxyType({}),
) -> Answered:
    """Byte by byte. `fails`: the request at which a model is gone for good."""
    everybody = list(range(len(models)))
    answer = Answered(asked=dict.fromkeys(everybody, 0))
    given = list(weights or [1.0] * len(models))
    writers = Writers(models, prompt, given, listed, fails, answer, everybody, {at: [] for at in everybody})
    tokens: list[Out] = []
    while True:
        writers.ask()
        start = len(writers.text)
        chosen = writers.token()
        whoever = [at for at in writers.here if all(one.favourites.get(at, b"?!") == one.symbol for one in chosen)]
        source = whoever[0] if whoever else -1  # -1: the one that finds it most probable, whichever that is
        answer.symbols.append(chosen)
        text = writers.text[start:]
        for out in [Out(text, source)] * bool(text) + [Out(b"", source, end=True)] * (chosen[-1].symbol is None):
            tokens.append(out)
            if done := finished(tokens, stop, max_tokens):
                answer.tokens, answer.finish_reason = done.tokens, done.finish_reason
                answer.stop_reason = done.stop_reason
                return answer
