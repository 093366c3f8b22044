"""Toy language models over toy tokenizers, and the hypothesis strategies that generate them.

Everything is exact and repeatable: probabilities are sixteenths, so ties are frequent and exact, and a
distribution is a function of the ids before it and of the model's fields, the same in every process. The
models do on purpose what real ones do seldom: they split characters over tokens, write bytes that are not
UTF-8, write a text in other tokens than its own encoding, write tokens without bytes, and end anywhere.
"""

from __future__ import annotations

import codecs
import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from typing import Literal, Protocol

from hypothesis import strategies as st

from cosd_providers.testing import TableModel

#: The characters of every toy text: letters (one has two bytes), a digit, white space, a comma, Han, emoji.
CHARACTERS: tuple[str, ...] = ("a", "b", "1", " ", "\n", ",", "é", "一", "😀")
#: Every byte that a toy model can write; 0xff is never valid. Each vocabulary has each of them as a token.
SINGLE: tuple[bytes, ...] = tuple(bytes([n]) for n in sorted({*"".join(CHARACTERS).encode(), 0xFF}))
#: Longer tokens to choose from: pieces of words, across words, across lines, whole and partial characters.
LONGER: tuple[bytes, ...] = (
    *(b"ab", b"aa", b"ba", b"b1", b"11", b"aba", b"a1b", b" a", b" b", b" 1", b" ab", b"  ", b"a ", b"b a"),
    *(b", ", b",\n", b"\n\n", b"\na", b"a,"),
    *(text.encode() for text in ("é", "aé", " é", "一", "一一", "a一", "😀")),
    *(b"\xe4\xb8", b"\xb8\x80", b"a\xe4\xb8", b" \xe4", b"\x80a", b"\x80\xe4", b"b\xc3", b"\xa9 "),
    *(b"\xf0\x9f", b"\x98\x80", b"\xf0\x9f\x98", b"\x80\xf0\x9f", b"\xff\xff", b"a\xff"),
)
#: Distributions in sixteenths, most probable first: one top (on either side of one half), or several.
CLEAR = (
    (16,),
    (15, 1),
    (14, 2),
    (12, 4),
    (10, 6),
    (9, 7),
    (9, 4, 3),
    (8, 4, 4),
    (7, 5, 4),
    (6, 5, 5),
    (4,) + (3,) * 4,
)
TIED = ((8, 8), (7, 7, 2), (6, 6, 4), (5, 5, 5, 1), (4,) * 4, (2,) * 8)
#: One in eight distributions is tied.
SHAPES: tuple[tuple[int, ...], ...] = (*CLEAR * 4, *TIED)


def is_incomplete(data: bytes) -> bool:
    """Whether `data` ends inside a character that could still be completed."""
    return codecs.utf_8_decode(data, "surrogateescape", False)[1] < len(data)


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer. `tokens[i]` are the bytes of id `i`; `end` is the one end of sequence and has no bytes.

    `merging="ranks"` is byte-pair encoding as tiktoken does it: of all neighbours whose joined bytes are a
    token, those with the lowest id are joined first. `merging="longest"` takes the longest token each time.
    Another token without bytes, and a second token with the same bytes, are never made by `encode`.
    """

    tokens: tuple[bytes, ...]
    end: int
    merging: Literal["ranks", "longest"] = "ranks"

    @cached_property
    def ids(self) -> Mapping[bytes, int]:
        """The lowest id for given bytes, the end left out."""
        return {self.tokens[n]: n for n in reversed(range(len(self.tokens))) if n != self.end}

    @cached_property
    def weights(self) -> Sequence[int]:
        """The counts of each id that a random model takes."""
        return [3 if data.isascii() and data else 1 for data in self.tokens]

    @cached_property
    def _encoded(self) -> dict[bytes, tuple[int, ...]]:
        return {}

    def encode(self, text: bytes) -> tuple[int, ...]:
        """The canonical ids of `text`."""
        if text not in self._encoded:
            parts = self._by_ranks(text) if self.merging == "ranks" else self._by_length(text)
            self._encoded[text] = tuple(self.ids[part] for part in parts)
        return self._encoded[text]

    def decode(self, ids: Sequence[int]) -> bytes:
        """The bytes that `ids` stand for."""
        return b"".join(self.tokens[n] for n in ids)

    def _by_ranks(self, text: bytes) -> list[bytes]:
        parts = [bytes([byte]) for byte in text]
        while True:
            pairs = [(self.ids[a + b], n) for n, (a, b) in enumerate(pairwise(parts)) if a + b in self.ids]
            if not pairs:
                return parts
            _, n = min(pairs)
            parts[n : n + 2] = [parts[n] + parts[n + 1]]

    def _by_length(self, text: bytes) -> list[bytes]:
        longest, parts = max(map(len, self.tokens)), list[bytes]()
        while text:
            size = next(n for n in range(longest, 0, -1) if text[:n] in self.ids)
            parts.append(text[:size])
            text = text[size:]
        return parts


class Tokenizer(Protocol):
    """What the reference asks of a tokenizer: the bytes of each id, the id of the end, and encoding."""

    @property
    def tokens(self) -> Sequence[bytes] | Mapping[int, bytes]:
        """The bytes of each id that was seen."""

    @property
    def end(self) -> int:
        """The id of the end of sequence."""

    def encode(self, text: bytes) -> Sequence[int]:
        """The canonical ids of `text`."""


class Model(Protocol):
    """What the reference asks of a model."""

    @property
    def vocabulary(self) -> Tokenizer:
        """The model's own tokenizer."""

    @property
    def hides_end(self) -> bool:
        """Whether the probability of the end is not reported, as on some servers."""

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        """The probability of every token of the vocabulary after `ids`."""


@dataclass(frozen=True)
class ScriptedModel:
    """A model written by hand: for a whole text, the probabilities of next tokens (`None` is the end).

    After a text that the script does not hold, it ends with certainty.
    """

    vocabulary: Vocabulary
    script: Mapping[bytes, Mapping[bytes | None, float]]
    hides_end: bool = False

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        """The probability of every token of the vocabulary after `ids`."""
        probs = [0.0] * len(self.vocabulary.tokens)
        for token, prob in self.script.get(self.vocabulary.decode(ids), {None: 1.0}).items():
            probs[self.vocabulary.end if token is None else self.vocabulary.ids[token]] = prob
        return probs


@dataclass(frozen=True)
class ToyModel:
    """A random model. All of its distributions follow from its fields.

    Models of the same `language` (a random text process of order two over `CHARACTERS`) write alike whatever
    their tokens are: `fluency` is how often, in sixteenths, the most probable token follows the language; the
    rest depends on `seed` and the last two ids. After `longest_merge - 1` tokens that leave a character open
    comes one that does not, so with the default of 4 three more tokens always complete an assistant's
    character; with a larger number they sometimes do not. No token without bytes follows another.
    """

    vocabulary: Vocabulary
    seed: int = 0
    language: int = 0
    fluency: int = 12
    hides_end: bool = False
    longest_merge: int = 4

    @cached_property
    def _known(self) -> dict[tuple[int, ...], tuple[float, ...]]:
        return {}

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        """The probability of every token of the vocabulary after `ids`."""
        key = tuple(ids)
        if key not in self._known:
            self._known[key] = self._distribution(key)
        return self._known[key]

    def _distribution(self, ids: tuple[int, ...]) -> tuple[float, ...]:
        rng = random.Random(repr((self.seed, ids[-2:])))
        shape, fluent, sloppy = rng.choice(SHAPES), rng.randrange(16) < self.fluency, rng.randrange(4) == 0
        tokens, allowed = self.vocabulary.tokens, self._allowed(ids)
        weights = self.vocabulary.weights
        ranked = rng.choices(allowed, [weights[n] for n in allowed], k=2 * len(shape))
        if fluent:
            text = _continue(self.language, self.vocabulary.decode(ids[-16:]))
            begins = text.startswith
            fitting = [n for n in allowed if begins(tokens[n]) and tokens[n]]
            fitting = fitting if text else [self.vocabulary.end]
            longest = max(fitting, key=lambda n: len(tokens[n]), default=None)
            first = rng.choice(fitting) if fitting and sloppy else longest
            ranked = ranked if first is None else [first, *ranked]
        probs = [0.0] * len(tokens)
        for n, sixteenths in zip(dict.fromkeys(ranked), shape, strict=False):
            probs[n] = sixteenths / 16
        return tuple(probs)

    def _allowed(self, ids: tuple[int, ...]) -> list[int]:
        """All ids, but for what would make an endless token (see the class)."""
        tokens, end, pending, taken = self.vocabulary.tokens, self.vocabulary.end, b"", 0
        for n in ids:
            pending, taken = pending + tokens[n], taken + 1
            if not is_incomplete(pending):
                pending, taken = b"", 0
        allowed = list(range(len(tokens)))
        if ids and not tokens[ids[-1]]:
            allowed = [n for n in allowed if tokens[n] or n == end]
        if taken >= self.longest_merge - 1:
            allowed = [n for n in allowed if n == end or not is_incomplete(pending + tokens[n])]
        return allowed


@lru_cache(100_000)
def _following(language: int, last: str) -> str:
    """The character that the language has after the last two; none at all is its end."""
    rng = random.Random(repr((language, last)))
    return rng.choices([*CHARACTERS, ""], [6, 6, 3, 4, 1, 1, 2, 2, 1, 1])[0]


def _continue(language: int, text: bytes) -> bytes:
    """Up to a few bytes that the language has after `text`; none at all is its end."""
    whole = codecs.utf_8_decode(text, "surrogateescape", False)[1]
    pending, new = text[whole:], b""
    if pending:
        new = next((c.encode()[len(pending) :] for c in CHARACTERS if c.encode().startswith(pending)), b"")
    known = (text + new).decode("utf-8", "surrogateescape")
    while len(new) < 6:
        following = _following(language, known[-2:])
        if not following:
            break
        known, new = known + following, new + following.encode()
    return new


@dataclass(frozen=True)
class Plain:
    """A toy model in the shape that providers take."""

    toy: ToyModel | ScriptedModel

    @property
    def tokens(self) -> Sequence[bytes]:
        return self.toy.vocabulary.tokens

    @property
    def end_ids(self) -> Collection[int]:
        return {self.toy.vocabulary.end}

    def encode(self, text: bytes) -> list[int]:
        return list(self.toy.vocabulary.encode(text))

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        return self.toy.next(ids)


@dataclass(frozen=True)
class Heard(Plain):
    """A toy model that says nothing silent, as a special token is, inside a character: no real one does."""

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        probs = self.toy.next(ids)
        if not is_incomplete(self.toy.vocabulary.decode(ids)):
            return probs
        heard = [
            prob if data or n in self.end_ids else 0.0
            for n, (prob, data) in enumerate(zip(probs, self.tokens, strict=True))
        ]
        return heard if any(heard) else probs


def tied(*tokens: bytes, second: dict[bytes, bytes] | None = None) -> TableModel:
    """Says, after one token, all of `tokens` with equal probability; what it says then depends on that one."""
    after = second or {}
    vocabulary = [b"", b"Q", *tokens, *after.values()]
    vocabulary += [bytes([n]) for n in range(256) if n != ord("Q")]

    def following(ids: Sequence[int]) -> list[float]:
        probs = [0.0] * len(vocabulary)
        if len(ids) == 1:
            for n in range(2, 2 + len(tokens)):
                probs[n] = 1 / len(tokens)
        else:
            said = after.get(vocabulary[ids[-1]])
            probs[vocabulary.index(said) if said else 0] = 1.0
        return probs

    return TableModel(vocabulary, following, end_ids=(0,))


def state(ids: Sequence[int]) -> tuple[float, ...]:
    """A hidden state of three numbers, which depends on each of the ids."""
    rng = random.Random(repr(tuple(ids)))
    return tuple(rng.randrange(-16, 17) / 8 for _ in range(3))


# A strategy that is made anew for each example costs more than what is drawn from it.
_LEAST = st.sampled_from((0, 6, 12))
_LONGER = {n: st.lists(st.sampled_from(LONGER), unique=True, min_size=n, max_size=20) for n in (0, 6, 12)}
_NUMBERS, _FLUENCIES = st.integers(0, 2**16), st.sampled_from((15, 16, 16, 15, 16, 14, 10, 0))
_BOOLEANS, _UP_TO_3, _UP_TO_4 = st.booleans(), st.integers(0, 3), st.integers(0, 4)
_MERGING: st.SearchStrategy[Literal["ranks", "longest"]] = st.sampled_from(("ranks", "longest"))


@cache
@st.composite
def vocabularies(draw: st.DrawFn) -> Vocabulary:
    """Tokenizers: all single bytes, some longer tokens, the end; sometimes twins and a token of no bytes."""
    longer = draw(_LONGER[draw(_LEAST)])
    twins = draw(st.lists(st.sampled_from((*SINGLE, *longer)), max_size=2))
    tokens: list[bytes | None] = [*SINGLE, *longer, None, *twins]
    if draw(_UP_TO_3) == 3:
        tokens.append(b"")
    if order := draw(_NUMBERS):
        random.Random(order).shuffle(tokens)
    return Vocabulary(tuple(token or b"" for token in tokens), tokens.index(None), draw(_MERGING))


def models(
    vocabulary: st.SearchStrategy[Vocabulary] | None = None,
    language: st.SearchStrategy[int] | None = None,
    *,
    may_hide_end: bool = True,
    longest_merge: int = 4,
) -> st.SearchStrategy[ToyModel]:
    """One random model."""
    return _models(
        vocabularies() if vocabulary is None else vocabulary,
        _NUMBERS if language is None else language,
        may_hide_end,
        longest_merge,
    )


@lru_cache(64)
@st.composite
def _models(
    draw: st.DrawFn,
    vocabulary: st.SearchStrategy[Vocabulary],
    language: st.SearchStrategy[int],
    may_hide_end: bool,
    longest_merge: int,
) -> ToyModel:
    return ToyModel(
        vocabulary=draw(vocabulary),
        seed=draw(_NUMBERS),
        language=draw(language),
        fluency=draw(_FLUENCIES),
        hides_end=may_hide_end and draw(_UP_TO_4) == 4,
        longest_merge=longest_merge,
    )


@cache
@st.composite
def model_sets(
    draw: st.DrawFn,
    *,
    same_tokenizer: bool | None = None,
    max_assistants: int = 3,
    may_hide_end: bool = True,
    longest_merge: int = 4,
) -> tuple[ToyModel, tuple[ToyModel, ...]]:
    """A draft and one to `max_assistants` assistants.

    They speak one language, mostly. `same_tokenizer`: all share the draft's vocabulary (True), each has its
    own (False), or that is drawn (None).
    """
    shared = draw(_BOOLEANS) if same_tokenizer is None else same_tokenizer
    draft = draw(models(may_hide_end=may_hide_end, longest_merge=longest_merge))
    languages = st.sampled_from((*[draft.language] * 7, draft.language + 1))
    vocabulary = st.just(draft.vocabulary) if shared else vocabularies()
    assistant = models(vocabulary, languages, may_hide_end=may_hide_end, longest_merge=longest_merge)
    return draft, tuple(draw(st.lists(assistant, min_size=1, max_size=max_assistants)))


@cache
def model_pairs(
    same_tokenizer: bool | None = None, *, may_hide_end: bool = True, longest_merge: int = 4
) -> st.SearchStrategy[tuple[ToyModel, ToyModel]]:
    """A draft and one assistant; see `model_sets`."""
    sets = model_sets(
        same_tokenizer=same_tokenizer,
        max_assistants=1,
        may_hide_end=may_hide_end,
        longest_merge=longest_merge,
    )
    return sets.map(lambda drawn: (drawn[0], drawn[1][0]))


@cache
def prompts() -> st.SearchStrategy[bytes]:
    """Short prompts, the empty one among them; always whole characters."""
    return st.text(st.sampled_from(CHARACTERS), max_size=6).map(str.encode)


@cache
def stops() -> st.SearchStrategy[tuple[bytes, ...]]:
    """Up to three stop strings; they may overlap and contain each other. Often there are none."""
    one = st.text(st.sampled_from(CHARACTERS), min_size=1, max_size=4).map(str.encode)
    return st.one_of(st.just(()), st.lists(one, min_size=1, max_size=3).map(tuple))


@cache
def thresholds() -> st.SearchStrategy[tuple[float, float]]:
    """`alpha` and `beta` of the rule: ends of ranges, the defaults, and values (or ratios) of the tables."""
    alphas = (0.5, 1.0, math.inf, 0.0, 3 / 16, 4 / 16, 5 / 16, 6 / 16, 7 / 16, 9 / 16, 12 / 16, 15 / 16)
    betas = (0.5, 1.0, 0.0, math.inf, 4 / 16, 4 / 5, 15 / 16, 8 / 7, 9 / 8, 2.0)
    return st.tuples(st.sampled_from(alphas), st.sampled_from(betas))
