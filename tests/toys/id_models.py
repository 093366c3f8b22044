"""Small models with the same ids: parts of characters, ids whose bytes repeat, several ends; and how they are drawn.

All bytes are tokens, so that any text can be encoded; a model writes a few of the ids only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from hypothesis import strategies as st

from cosd_api import MatchVerifier, RandomVerifier, RuleVerifier
from cosd_api.verification import Verifier, decides_by_place, digest_of, verifier_at
from cosd_api.verification.decision_place import Place
from cosd_providers.contract import Token
from cosd_providers.text import whole
from naive import reference_ids
from toys import toy_models as toys

END, OTHER_END, MARK, SILENT, TWIN, AB, ACUTE, HALF, REST = range(256, 265)
#: What an id spells: each byte; two ends; a special token, which no text encodes to; a token without bytes; "a" once
#: more; two letters; a whole character; and two halves of one.
TOKENS: tuple[bytes, ...] = (
    *(bytes([byte]) for byte in range(256)),
    *(b"", b"", b"<|im_end|>", b"", b"a", b"ab", "é".encode(), b"\xf0\x9f", b"\x98\x80"),
)
#: Ids that a model may write. The bytes of "é" and of "😀" are among them, in one, two, three and four tokens.
WRITTEN = (*b"ab ,\n", *"é😀".encode(), 0xFF, TWIN, AB, ACUTE, HALF, REST, SILENT)


class Always:
    """A verifier that replaces whatever differs."""

    def replaces(self, p: float, q: float) -> bool:
        return True

    def contestable(self, p: float) -> bool:
        return True

    def explain(self, p: float, q: float) -> str:
        return "always"


@dataclass(frozen=True)
class IdModel:
    """A random model, as `testing.LanguageModel` has it. All of its distributions follow from its fields.

    `written` are the ids that it may write; the last two before a place decide. Models of one `language` agree mostly
    about the most probable id: in `fluency` of sixteen places.
    """

    seed: int = 0
    language: int = 0
    fluency: int = 10
    written: tuple[int, ...] = (*b"ab ", END)
    end_ids: frozenset[int] = frozenset({END, OTHER_END})

    @property
    def tokens(self) -> Sequence[bytes]:
        """The bytes of every id."""
        return TOKENS

    @cached_property
    def _known(self) -> dict[tuple[int, ...], list[tuple[int, float]]]:
        return {}

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text: pairs of letters, whole letters, and bytes."""
        ids, at = list[int](), 0
        while at < len(text):
            long = next((one for one in (AB, ACUTE, HALF) if text.startswith(TOKENS[one], at)), text[at])
            ids.append(long)
            at += len(TOKENS[long])
        return ids

    def listed(self, ids: Sequence[int]) -> list[tuple[int, float]]:
        """The ids that may follow, with their probabilities, the most probable first."""
        key = tuple(ids[-2:])
        if key not in self._known:
            chance, common = random.Random(repr((self.seed, key))), random.Random(repr((self.language, key)))
            shape, ranked = chance.choice(toys.SHAPES), chance.sample(self.written, len(self.written))
            if chance.randrange(16) < self.fluency:
                first = common.choice(self.written)
                ranked = [first, *(one for one in ranked if one != first)]
            pairs = zip(ranked, shape, strict=False)
            self._known[key] = sorted(((one, share / 16) for one, share in pairs), key=lambda one: (-one[1], one[0]))
        return self._known[key]

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        """The probability of every id after `ids`."""
        probs = [0.0] * len(TOKENS)
        for one, prob in self.listed(ids):
            probs[one] = prob
        return probs

    def after(self, prompt: str) -> reference_ids.Next:
        """The model as the reference takes it, behind a prompt."""
        start = self.encode(prompt.encode())
        return lambda path: self.listed([*start, *path])

    def token(self, ids: Sequence[int], alternatives: int) -> Token:
        """The most probable token after `ids`, as a server shows it."""
        tokens = [
            Token(b"" if one in self.end_ids else TOKENS[one], prob, end=one in self.end_ids, id=one)
            for one, prob in self.listed(ids)[: 1 + alternatives]
        ]
        return replace(tokens[0], alternatives=tuple(tokens[1:]))


@dataclass(frozen=True)
class Written:
    """A model that writes these ids, whatever stood before; `beside`: other probabilities at some places."""

    ids: tuple[int, ...]
    beside: dict[int, dict[int, float]] = field(default_factory=dict)
    end_ids: frozenset[int] = frozenset({END, OTHER_END})
    prob: float = 0.4
    specials: ClassVar = (MARK,)  # those that a server parses in a text

    @property
    def tokens(self) -> Sequence[bytes]:
        """The bytes of every id."""
        return TOKENS

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text."""
        return IdModel().encode(text)

    def next(self, ids: Sequence[int]) -> list[float]:
        """The probability of every id after the prompt, which is one token, and what stands behind it."""
        place = len(ids) - 1
        own = self.ids[place] if place < len(self.ids) else END
        found = self.beside.get(place, {own: self.prob})
        return [found.get(one, 0.0) for one in range(len(TOKENS))]


def is_open(ids: Sequence[int]) -> bool:
    """Test whether a character is open behind the ids of an answer."""
    data = b"".join(TOKENS[one] for one in ids)
    return whole(data) < len(data)


@dataclass(frozen=True)
class Task:
    """Everything that defines an answer; `hides`: the draft does not show the probability of a part of a character."""

    prompt: str
    draft: IdModel
    assistants: tuple[IdModel, ...]
    verifier: Verifier
    max_tokens: int
    stop: tuple[bytes, ...]
    tie: float
    hides: bool

    def expected(self, **changes: Any) -> reference_ids.Fused:
        """The answer of the naive reference."""
        everything = isinstance(self.verifier, Always | MatchVerifier)
        models = (self.draft, *self.assistants)
        given: dict[str, Any] = {
            "fires": self.fires,
            "spell": TOKENS.__getitem__,
            "ends": frozenset[int]().union(*(one.end_ids for one in models)),
            "max_tokens": self.max_tokens,
            "stop": self.stop,
            "tie": 0.0 if everything else self.tie,
        }
        draft, *assistants = (one.after(self.prompt) for one in models)
        return reference_ids.fuse(draft, assistants, **given | changes)

    def fires(self, at: int, p: float, q: float) -> bool:
        """The verifier's decision at a byte of the answer."""
        return verifier_at(self.verifier, Place(digest_of(self.prompt), at)).replaces(p, q)

    def contestable(self, out: reference_ids.Out, at: int, *, hidden: bool) -> bool:
        """Test whether an assistant has to be heard at a place."""
        if hidden:
            return decides_by_place(self.verifier) or self.verifier.contestable(0.0)
        return verifier_at(self.verifier, Place(digest_of(self.prompt), at)).contestable(out.p)


def rules() -> st.SearchStrategy[Verifier]:
    """Rules: random ones, those of the paper, those that never fire."""
    drawn = toys.thresholds().map(lambda one: RuleVerifier(alpha=one[0], beta=one[1]))
    return st.one_of(drawn, drawn, st.sampled_from((RuleVerifier(), RuleVerifier(alpha=math.inf, beta=0))))


def verifiers() -> st.SearchStrategy[Verifier]:
    """Rules, verifiers that replace whatever differs, and coins."""
    coins = st.builds(RandomVerifier, rate=st.sampled_from((0.0, 0.3, 0.7, 1.0)), seed=st.integers(0, 99))
    return st.one_of(rules(), rules(), coins, st.sampled_from((Always(), MatchVerifier())))


@st.composite
def tasks(draw: st.DrawFn, *, most: int = 3, ends: Collection[int] = (END, OTHER_END), same: bool = False) -> Task:
    """Answers of models that write some of the ids, and end; with `same` every model is the draft."""
    some = st.lists(st.sampled_from(WRITTEN), min_size=2, max_size=8, unique=True)
    last = draw(st.lists(st.sampled_from(sorted(ends)), max_size=2, unique=True))
    written, seeds, language = (*draw(some), *last), st.integers(0, 2**16), draw(st.integers(0, 2**16))
    fluency = st.sampled_from((6, 10, 13, 15))
    model = st.builds(IdModel, seed=seeds, language=st.just(language), fluency=fluency, written=st.just(written))
    draft = draw(model)
    count = draw(st.integers(1, most))
    letters = st.sampled_from(("a", "b", "ab", " ", "é", "😀", ",", "\n", "a ", "ba"))
    return Task(
        prompt=draw(st.sampled_from(("Q", "ab", "é:", "Q\n"))),
        draft=draft,
        assistants=(draft,) * count if same else tuple(draw(model) for _ in range(count)),
        verifier=draw(verifiers()),
        max_tokens=draw(st.integers(1, 24)),
        stop=draw(st.one_of(st.just(()), st.lists(letters.map(str.encode), max_size=3).map(tuple))),
        tie=draw(st.sampled_from((0.0, 0.02, 0.25, 1.0))),
        hides=draw(st.booleans()),
    )
