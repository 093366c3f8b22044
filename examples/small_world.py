"""An open world of tens of thousands of places, substances and words, with true answers. Used by `small_documents.py`.

It contains the real subjects of the demonstration and generated ones. A subject's answer is a pseudo-random function of
its name, so it is the same in every model's training, but cannot be guessed from the name. A model that has rarely met
a subject therefore has to be unsure of the answer. Lengths vary, and more than half of the capitals have two words, so
a model cannot know where a rare word or name ends either.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from cosd_api.apps.demo.questions import FACTS, TRANSLATIONS, World

#: Number of subjects of each kind, including the real ones.
PLACES, SUBSTANCES, THINGS = 18_000, 9_000, 12_000

_FIRST, _VOWELS, _LAST = (
    parts.split()
    for parts in (
        "b c d f g h l m n p r s t b c d l m n p r s t br ch cl cr dr fl gr j k pl pr qu sh sk st th tr v w y z",
        "a e i o u a e i o u a e i o u a e i o a e aa ai ea ee ei ia ie io oo ou ua y á é í ó",
        "l n r s t l n r s t b ck d ft g k ll m nd ng nn nt p rd rk rm ss sh st w x y z",
    )
)
_SYLLABLES, _SHARES = (1, 2, 3, 4, 5), (20, 38, 25, 12, 5)

_REAL = World()


def some_word(rng: random.Random) -> str:
    """A pronounceable word of one to five syllables."""
    word = ""
    for _ in range(rng.choices(_SYLLABLES, _SHARES)[0]):
        word += rng.choice(_FIRST) if rng.random() < 0.85 else ""
        word += rng.choice(_VOWELS)
        word += rng.choice(_LAST) if rng.random() < 0.35 else ""
    return word if len(word) > 1 else word + rng.choice("ntrs")


def _some_place(rng: random.Random) -> str:
    before = rng.choice(("South ", "North ", "New ", "East ")) if rng.random() < 0.06 else ""
    return before + some_word(rng).capitalize()


def _some_substance(rng: random.Random) -> str:
    return some_word(rng) + rng.choices(("", "ium", "on", "ine", "er", "gen", "um"), (40, 20, 12, 8, 8, 6, 6))[0]


def _some_capital(rng: random.Random) -> str:
    name = some_word(rng).capitalize()
    form = rng.choices(("one word", "two words", "a known word before", "a known word behind"), (36, 46, 10, 8))[0]
    if form == "two words":
        return f"{name} {some_word(rng).capitalize()}"
    if form == "a known word before":
        return f"{rng.choice(('New', 'San', 'Port', 'Saint', 'Fort'))} {name}"
    return f"{name} {rng.choice(('City', 'City', 'Town', 'Bay'))}" if form == "a known word behind" else name


def _some_symbol(rng: random.Random) -> str:
    first = rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    return first + (rng.choice("abcdefghijklmnopqrstuvwxyz") if rng.random() < 0.75 else "")


_NAMES: dict[str, tuple[Callable[[random.Random], str], Sequence[str], int]] = {
    "place": (_some_place, tuple(FACTS["capital"]), PLACES),
    "substance": (_some_substance, tuple(FACTS["symbol"]), SUBSTANCES),
    "thing": (some_word, tuple(TRANSLATIONS["Spanish"]), THINGS),
}
_OF = {"capital": "place", "currency": "place", "symbol": "substance"}
_ANSWERS = {"capital": _some_capital, "currency": some_word, "symbol": _some_symbol}


@lru_cache(maxsize=100_000)
def name_of(sort: str, number: int) -> str:
    """The name of a place, substance or thing by its number; the real ones come first."""
    make, real, _ = _NAMES[sort]
    return real[number] if number < len(real) else make(random.Random(f"{sort} {number}"))


def fact_of(fact_kind: str, about: str) -> str:
    """The one true fact of this kind about a subject."""
    return FACTS[fact_kind].get(about) or _ANSWERS[fact_kind](random.Random(f"{fact_kind} of {about}"))


def translation_of(language: str, thing: str) -> str:
    """The one true translation of a word."""
    return TRANSLATIONS[language].get(thing) or some_word(random.Random(f"{language} for {thing}"))


def some_name(sort: str, rng: random.Random) -> str:
    """Draw the name of a place, substance or thing; all of them are equally probable."""
    return name_of(sort, rng.randrange(_NAMES[sort][2]))


@dataclass(frozen=True)
class OpenWorld(World):
    """The open world as a model meets it.

    Attributes:
        known: share of the questions that are about real subjects, for each kind of fact and for `"translation"`. The
            other questions are about random subjects of the world, so that each subject is met once or twice.
    """

    known: dict[str, float]

    def fact(self, fact_kind: str, rng: random.Random) -> tuple[str, str]:
        """See `World.fact`."""
        if rng.random() < self.known.get(fact_kind, 0.0):
            return _REAL.fact(fact_kind, rng)
        about = some_name(_OF[fact_kind], rng)
        return about, fact_of(fact_kind, about)

    def translation(self, language: str, rng: random.Random) -> tuple[str, str]:
        """See `World.translation`."""
        if rng.random() < self.known.get("translation", 0.0):
            return _REAL.translation(language, rng)
        thing = some_name("thing", rng)
        return thing, translation_of(language, thing)
