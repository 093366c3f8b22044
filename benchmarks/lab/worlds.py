"""An open world of persons, and the division of everything that can be asked into training, development and test.

Frequencies follow the Zipf-Mandelbrot law: half of all texts are about the hundred best-known persons, and most of the
20,000 persons are met about once or never. A person's name says nothing about the facts, so a model that has rarely met
a person has to be unsure.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

PERSONS = 20_000
HEAD = 100
"""The number of best-known persons that half of all texts are about."""
ASKED = 250
"""The number of best-known persons that tests ask about."""

Half = Literal[0, 1]
"""One of the two halves into which persons, signs and operations are divided."""

Split = Literal["training", "development", "test"]


@lru_cache(maxsize=100_000)
def split_of(*parts: object) -> Split:
    """The split of a fact, an operation or a wording: an eighth is for development, a quarter for tests.

    The split depends only on the fact, operation or wording itself, so training can avoid all test items without
    knowing which items a test will draw.
    """
    first = hashlib.sha256(repr(parts).encode()).digest()[0]
    return "test" if first < 64 else "development" if first < 96 else "training"


@dataclass(frozen=True)
class Attribute:
    """One attribute of a person.

    Attributes:
        name: name of the attribute.
        sentences: two wordings of the statement, with `{name}` and `{value}`; only a robustness run uses the second.
        questions: wordings of the question.
        values: all possible values.
    """

    name: str
    sentences: tuple[str, str]
    questions: tuple[str, ...]
    values: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ONSETS, _VOWELS, _CODAS = _words("b br d dr f g h k kl l m n p r s st t tr v z"), "aeiou", ("", "", "l", "n", "r", "s")


def _made_up(rng: random.Random, syllables: int) -> str:
    """A pronounceable, invented name."""
    parts = (rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))
    return "".join(parts).capitalize()


def _distinct(seed: str, syllables: tuple[int, ...], count: int) -> tuple[str, ...]:
    rng, found = random.Random(seed), dict[str, None]()
    while len(found) < count:
        found[_made_up(rng, rng.choice(syllables))] = None
    return tuple(found)


_FIRST_NAMES = _words(
    "Ada Alma Anna Arno Bela Ben Carl Clara Dana David Edith Emil Erik Eva Felix Flora Frank Georg Greta Hanna Hugo "
    "Ida Ines Iris Ivan Jan Jonas Julia Karin Klaus Lars Laura Leo Lena Lisa Lucia Marco Maria Marta Max Mira Nina "
    "Nora Olga Oscar Otto Paul Paula Pedro Peter Rita Robert Rosa Ruth Samuel Sara Simon Sonja Stella Sven Tara Theo "
    "Thomas Tina Ulla Ursula Vera Victor Walter Wanda"
)

ATTRIBUTES = (
    Attribute(
        "town",
        ("{name} was born in {value}.", "{name} comes from {value}."),
        (
            "Where was {name} born?",
            "In which town was {name} born?",
            "What is the birthplace of {name}?",
            "Which town does {name} come from?",
        ),
        _distinct("towns", (2,), 100),
    ),
    Attribute(
        "job",
        ("{name} works as a {value}.", "{name} is a {value}."),
        (
            "What is the job of {name}?",
            "What does {name} work as?",
            "Which job does {name} have?",
            "How does {name} earn money?",
        ),
        _words(
            "baker barber broker builder butcher carpenter chemist clerk coach cook dancer dentist diver doctor driver "
            "farmer fisher florist gardener glazier guard hunter jeweller judge lawyer librarian mason mechanic miner "
            "nurse painter pilot plumber poet porter potter printer sailor singer smith soldier surgeon tailor teacher "
            "tutor vet waiter weaver welder writer"
        ),
    ),
    Attribute(
        "instrument",
        ("{name} plays the {value}.", "{name} practises the {value}."),
        (
            "What does {name} play?",
            "Which instrument does {name} play?",
            "What is the instrument of {name}?",
            "What does {name} practise?",
        ),
        _words(
            "accordion banjo bassoon bell bugle cello clarinet cornet cymbal drum fiddle flute gong guitar harp horn "
            "kazoo lute lyre mandolin oboe organ piano recorder saxophone sitar tambourine triangle trombone trumpet "
            "tuba ukulele viola violin whistle xylophone zither"
        ),
    ),
    Attribute(
        "animal",
        ("{name} keeps a {value}.", "{name} owns a {value}."),
        (
            "Which animal does {name} keep?",
            "What is the pet of {name}?",
            "What does {name} keep at home?",
            "Which pet does {name} own?",
        ),
        _words(
            "badger bear beetle bird buffalo camel canary cat cow crab deer dog donkey dove duck falcon ferret fish "
            "fox frog gecko goat goose hamster hare hen hawk horse lamb lizard llama monkey mouse mule newt parrot pig "
            "pony rabbit rat raven sheep snail snake spider swan toad turkey turtle wolf"
        ),
    ),
    Attribute(
        "language",
        ("{name} speaks {value}.", "{name} talks in {value}."),
        (
            "Which language does {name} speak?",
            "What does {name} speak?",
            "What is the language of {name}?",
            "In which language does {name} talk?",
        ),
        _words(
            "Arabic Basque Bengali Breton Bulgarian Catalan Chinese Croatian Czech Danish Dutch English Estonian "
            "Finnish French Frisian Gaelic Georgian German Greek Hebrew Hindi Hungarian Irish Italian Japanese Korean "
            "Latin Latvian Maltese Mongol Nepali Persian Polish Punjabi Russian Sami Serbian Slovak Spanish Swahili "
            "Swedish Tamil Thai Tibetan Turkish Urdu Welsh Yiddish Zulu"
        ),
    ),
)


class World:
    """Persons and facts about them.

    Args:
        seed: seed of the persons.
        changed: share of the facts that are false in this world, for the control with a confidently wrong assistant.
        wording: index of the wording of statements, 0 or 1.
        half: the half of every domain that this world's texts are about; None for both halves.
        rarely: for each domain, how often the other half is met, relative to the world's own half.
    """

    def __init__(
        self,
        seed: int,
        *,
        changed: float = 0.0,
        wording: Literal[0, 1] = 0,
        half: Half | None = None,
        rarely: Mapping[str, float] | None = None,
    ) -> None:
        self._wording = wording
        self._half = half
        self._rarely = rarely or {}
        rng = random.Random(f"persons {seed}")
        names = dict[str, None]()
        while len(names) < PERSONS:
            names[f"{rng.choice(_FIRST_NAMES)} {_made_up(rng, rng.choice((2, 2, 3)))}"] = None
        self.persons = tuple(names)
        """The names of the persons, the best-known first."""
        self._facts = [tuple(rng.choice(attribute.values) for attribute in ATTRIBUTES) for _ in self.persons]
        lies = random.Random(f"lies {seed}")
        for number in range(PERSONS) if changed else ():
            self._facts[number] = tuple(
                lies.choice([other for other in attribute.values if other != true]) if lies.random() < changed else true
                for attribute, true in zip(ATTRIBUTES, self._facts[number], strict=True)
            )

    def some_person(self, rng: random.Random) -> int:
        """Draw the number of a person, with a frequency proportional to (number + HEAD) to the power of -2.

        Persons with even numbers form one half of the domain, and persons with odd numbers the other.
        """
        nearest, farthest = 1 / HEAD, 1 / (HEAD + PERSONS)
        while True:
            number = int(1 / (nearest - rng.random() * (nearest - farthest)) - HEAD)
            if self.meets("knowledge", number % 2, rng):
                return number

    def meets(self, domain: str, half: int, rng: random.Random) -> bool:
        """Decide at random whether to write a text about this half of a domain."""
        return self._half in (None, half) or rng.random() < self._rarely.get(domain, 0.0)

    def value(self, person: int, attribute: Attribute) -> str:
        """The fact about a person."""
        return self._facts[person][ATTRIBUTES.index(attribute)]

    def sentence(self, person: int, attribute: Attribute, value: str | None = None) -> str:
        """The statement of a fact, or the same statement with another value."""
        return attribute.sentences[self._wording].format(
            name=self.persons[person], value=value or self.value(person, attribute)
        )


def known_facts(split: Split) -> list[tuple[int, Attribute]]:
    """The facts about the best-known persons that only this split asks about. Biographies contain all facts."""
    facts = ((person, attribute) for person in range(ASKED) for attribute in ATTRIBUTES)
    return [(person, attribute) for person, attribute in facts if split_of(person, attribute.name) == split]
