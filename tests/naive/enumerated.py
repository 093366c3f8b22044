"""Distributions of whole answers, enumerated, and the random numbers that the methods draw, by their definition."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

from hypothesis import strategies as st

from toys import toy_models as toys

Next = Callable[[Sequence[int]], Sequence[float]]
"""The probability of every token after some ids."""
Text = tuple[int, ...]
"""An answer, as ids."""


def answers(following: Next, prompt: Sequence[int], *, end: int, length: int) -> dict[Text, float]:
    """The probability of every answer: each ends with the id `end`, or has `length` tokens."""
    found: dict[Text, float] = {}
    open_: dict[Text, float] = {(): 1.0}
    while open_:
        text, before = open_.popitem()
        for at, prob in enumerate(following([*prompt, *text])):
            if prob:
                longer = (*text, at)
                (found if at == end or len(longer) == length else open_)[longer] = before * prob
    return found


#: Chi-squared values that are exceeded once in ten thousand times, by degrees of freedom.
CRITICAL = {1: 15.14, 2: 18.42, 3: 21.11, 4: 23.51, 5: 25.74, 6: 27.86, 7: 29.88, 8: 31.83, 9: 33.72, 10: 35.56}


def follows(counts: Counter[Text], wanted: Mapping[Text, float], *, known: bool = True) -> bool:
    """Test whether counts may come from a distribution, by a chi-squared test; rare answers are one class.

    Unless all of it is `known` (such as characters of several tokens), what is not wanted counts as rare.
    """
    total = sum(counts.values())
    assert not known or all(wanted.get(text) for text in counts), "an answer that is impossible"
    common = sorted((text for text in wanted if total * wanted[text] >= 8), key=wanted.__getitem__)[-10:]
    classes = [(counts[text], total * wanted[text]) for text in common]
    seen, expected = (sum(values) for values in zip(*classes, strict=True))
    if total - expected >= 5:
        classes.append((total - seen, total - expected))
    if len(classes) == 1:
        return True
    return sum((count - mean) ** 2 / mean for count, mean in classes) < CRITICAL[len(classes) - 1]


def _hash(seed: int, prompt: bytes, *name: str | int) -> int:
    words = "".join(f"{one} " for one in (seed, *name)).encode()
    return int.from_bytes(blake2b(words + blake2b(prompt, digest_size=16).digest(), digest_size=8).digest())


def number(seed: int, prompt: bytes, *name: str | int) -> float:
    """A number in [0, 1)."""
    return (_hash(seed, prompt, *name) >> 11) / 2**53


def seed(seed: int, prompt: bytes, *name: str | int) -> int:
    """The seed of a request."""
    return _hash(seed, prompt, *name) >> 33


def draws(seed: int, prompt: bytes, *name: str | int) -> random.Random:
    """The draws of a scripted provider's request."""
    return random.Random(_hash(seed, prompt, *name) >> 33)


def drawn(chance: random.Random, probs: Sequence[float]) -> int:
    """One id."""
    (one,) = chance.choices(range(len(probs)), probs)
    return one


SHORT = toys.LONGER[:14]
"""Longer tokens without a character of several bytes."""


def fixed(probs: Sequence[float]) -> Next:
    """A model that has these probabilities everywhere."""
    return lambda _: probs


@st.composite
def plain_vocabularies(draw: st.DrawFn) -> toys.Vocabulary:
    """Tokenizers of whole characters; some texts have several encodings."""
    longer = draw(st.lists(st.sampled_from(SHORT), unique=True, max_size=4))
    return toys.Vocabulary((b"a", b"b", b"1", b" ", b",", b"\n", *longer, b""), 6 + len(longer))


@st.composite
def sets(draw: st.DrawFn, most: int = 3) -> tuple[toys.ToyModel, ...]:
    """Two or more models with one such tokenizer."""
    vocabulary = st.just(draw(plain_vocabularies()))
    return tuple(draw(st.lists(toys.models(vocabulary, st.just(1), may_hide_end=False), min_size=2, max_size=most)))
