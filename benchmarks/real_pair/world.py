"""Facts that the pretrained model does not know: invented products, and names from Python's standard library.

The world is open: the best-known of its 160 products occur nine times as often as the rarest, whose facts occur about
twice. A trained model is therefore sure of some facts and unsure of others.
"""

from __future__ import annotations

import errno
import http
import os
import random
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product

PRODUCTS = 160
SEED = 20261127
"""The seed of the invented world, which is the same for all trainings."""
FLATTEN = 20
"""The frequency of product number n is proportional to 1 / (n + FLATTEN)."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_SYLLABLES = _words("nor vik tal mo ru ban kel sor dim fa lun gar pel zo hem tri wes cad jul ost")
_NOUNS = _words("lamp chair kettle bench clock desk mirror stool")
_CITIES = _words("Lisbon Oslo Prague Dublin Warsaw Athens Vienna Madrid Bergen Turin Porto Geneva Lyon Riga Malmo Bonn")
_COLOURS = _words("red blue green black white yellow grey brown orange purple")
_MATERIALS = _words("oak steel glass copper marble bamboo leather plastic walnut bronze")
_MAKERS = _words(
    "Abbott Becker Castro Dahl Evans Fischer Grant Holm Ivers Jensen Keller Lopez Moreau Novak Olsen Perry"
)


@dataclass(frozen=True)
class Attribute:
    """A property that every product has.

    Attributes:
        name: the attribute's name.
        values: all possible values.
        answer: the sentence that states the value.
        questions: wordings of the question in training.
        held: wordings for development and test, which do not occur in training.
    """

    name: str
    values: tuple[str, ...]
    answer: str
    questions: tuple[str, ...]
    held: tuple[str, ...]


ATTRIBUTES = (
    Attribute(
        "colour",
        _COLOURS,
        "The {name} is {value}.",
        ("What colour is the {name}?", "Which colour does the {name} have?", "Tell me the colour of the {name}."),
        ("In what colour does the {name} come?", "Can you name the colour of the {name}?"),
    ),
    Attribute(
        "material",
        _MATERIALS,
        "The {name} is made of {value}.",
        (
            "What is the {name} made of?",
            "Which material is used for the {name}?",
            "Tell me the material of the {name}.",
        ),
        ("From what material is the {name} built?", "Can you name the material of the {name}?"),
    ),
    Attribute(
        "city",
        _CITIES,
        "The {name} comes from {value}.",
        (
            "Where does the {name} come from?",
            "In which city do they make the {name}?",
            "Tell me the city of the {name}.",
        ),
        ("From which city is the {name}?", "Can you name the city that the {name} comes from?"),
    ),
    Attribute(
        "maker",
        _MAKERS,
        "The {name} was designed by {value}.",
        ("Who designed the {name}?", "Whose design is the {name}?", "Tell me the designer of the {name}."),
        ("By whom was the {name} designed?", "Can you name the designer of the {name}?"),
    ),
    Attribute(
        "year",
        tuple(str(year) for year in range(1950, 2020)),
        "The {name} was introduced in {value}.",
        ("When was the {name} introduced?", "In what year did the {name} appear?", "Tell me the year of the {name}."),
        ("Since what year has there been the {name}?", "Can you name the year of the {name}?"),
    ),
)


@dataclass(frozen=True)
class Part:
    """A question with its answer, used alone or as one half of a two-part question.

    Attributes:
        kind: kind of the subject, such as `product`.
        group: name of the fact or calculation, which all wordings share.
        question: the question, ending with a full stop or a question mark.
        answer: the answer, one sentence.
        value: the text that a right answer contains.
    """

    kind: str
    group: str
    question: str
    answer: str
    value: str


@cache
def names() -> tuple[str, ...]:
    """The names of all products, the best-known first."""
    rng = random.Random(SEED)
    words = [first + second for first, second in product(_SYLLABLES, repeat=2) if first != second]
    return tuple(f"{word.capitalize()} {rng.choice(_NOUNS)}" for word in rng.sample(words, PRODUCTS))


@cache
def values() -> dict[tuple[int, str], str]:
    """The value of each attribute of each product, by the product's number and the attribute's name."""
    rng = random.Random(SEED + 1)
    return {(n, one.name): rng.choice(one.values) for n in range(PRODUCTS) for one in ATTRIBUTES}


def some_product(rng: random.Random, *, evenly: bool = False) -> int:
    """Draw the number of a product; well-known products are more frequent unless `evenly` is set."""
    weights = [1.0 if evenly else 1 / (n + FLATTEN) for n in range(PRODUCTS)]
    return rng.choices(range(PRODUCTS), weights)[0]


def product_part(number: int, attribute: Attribute, rng: random.Random, *, held: bool) -> Part:
    """A question about a product; with `held`, in a wording that does not occur in training."""
    name, value = names()[number], values()[number, attribute.name]
    asked = rng.choice(attribute.held if held else attribute.questions).format(name=name)
    return Part("product", f"{name}, {attribute.name}", asked, attribute.answer.format(name=name, value=value), value)


# Names from the standard library.

_STATUS = ("What does HTTP status {key} mean?", "Tell me the name of HTTP status {key}.")
_STATUS_HELD = ("Can you name the meaning of HTTP status {key}?",)
_ERRNO = ("What does the error {key} mean?", "Tell me the meaning of the error {key}.")
_ERRNO_HELD = ("Can you name the meaning of the error {key}?",)
_RENAMED = (413, 414, 416, 422)
"""HTTP statuses that are left out because their phrases depend on the version of Python."""
_ERRORS = _words(
    "EPERM ENOENT EINTR EIO E2BIG EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV ENOTDIR EISDIR EINVAL EMFILE "
    "EFBIG ENOSPC EROFS EPIPE EDEADLK ENOTEMPTY EALREADY EISCONN ETIMEDOUT"
)


@dataclass(frozen=True)
class Name:
    """A name in the standard library, and its meaning."""

    group: str
    answer: str
    value: str
    questions: tuple[str, ...]
    held: tuple[str, ...]


@cache
def library() -> tuple[Name, ...]:
    """HTTP statuses with their phrases (`http.HTTPStatus`), and errors with their messages (`os.strerror`)."""
    found = [
        _name(str(int(one)), one.phrase, "HTTP status {key} means {value}.", _STATUS, _STATUS_HELD)
        for one in http.HTTPStatus
        if one not in _RENAMED
    ]
    for key in _ERRORS:
        value = os.strerror(getattr(errno, key))
        found.append(_name(key, value, "The error {key} means {value}.", _ERRNO, _ERRNO_HELD))
    return tuple(found)


def library_part(one: Name, rng: random.Random, *, held: bool) -> Part:
    """A question about a name in the standard library; with `held`, in a wording that does not occur in training."""
    return Part("library", one.group, rng.choice(one.held if held else one.questions), one.answer, one.value)


def _name(key: str, value: str, answer: str, questions: tuple[str, ...], held: tuple[str, ...]) -> Name:
    asked, kept = (tuple(one.format(key=key) for one in several) for several in (questions, held))
    return Name(key, answer.format(key=key, value=value), value, asked, kept)


# Questions that the pretrained model can answer; training on them keeps a specialist from forgetting the answers.

_CAPITALS = (
    "France Paris, Italy Rome, Germany Berlin, Spain Madrid, Japan Tokyo, China Beijing, England London, Egypt Cairo, "
    "Greece Athens, Russia Moscow, Portugal Lisbon, Norway Oslo, Sweden Stockholm, Denmark Copenhagen, Poland Warsaw, "
    "Austria Vienna, Ireland Dublin, Hungary Budapest, Cuba Havana, Peru Lima, Kenya Nairobi, Thailand Bangkok, "
    "Belgium Brussels, Finland Helsinki, Turkey Ankara, Iran Tehran, Iraq Baghdad, Syria Damascus, Chile Santiago, "
    "Scotland Edinburgh"
)
_OPPOSITES = (
    "hot cold, big small, up down, left right, old new, open closed, day night, black white, fast slow, high low, "
    "wet dry, rich poor, hard soft, long short, light dark, happy sad, early late, full empty, strong weak, near far"
)
_ORDERED = (
    "January February March April May June July August September October November December",
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "one two three four five six seven eight nine ten",
)


@cache
def general() -> tuple[Part, ...]:
    """Questions of general knowledge: capitals, opposites, and successors of months, days and numbers."""
    found = [
        Part("general", f"capital {a}", f"What is the capital of {a}?", f"The capital of {a} is {b}.", b)
        for a, b in map(str.split, _CAPITALS.split(", "))
    ]
    found += [
        Part("general", f"opposite {a}", f"What is the opposite of {a}?", f"The opposite of {a} is {b}.", b)
        for a, b in map(str.split, _OPPOSITES.split(", "))
    ]
    found += [
        Part("general", f"after {a}", f"What comes after {a}?", f"After {a} comes {b}.", b)
        for one in _ORDERED
        for a, b in pairwise(one.split())
    ]
    return tuple(found)


def some_fact(rng: random.Random, *, evenly: bool = False, held: bool = False) -> Part:
    """Draw a question about a fact: one in seven is about the standard library, the others are about products."""
    if rng.random() < 1 / 7:
        return library_part(rng.choice(library()), rng, held=held)
    return product_part(some_product(rng, evenly=evenly), rng.choice(ATTRIBUTES), rng, held=held)
