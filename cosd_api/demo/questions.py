"""Questions for the three small models of the demonstration, and checks of their answers.

Three models ship with the package. `sums` adds and subtracts, `facts` knows capitals, currencies and chemical symbols,
and `words` translates words. The training data of each model also contained questions on the subjects of the other
models, with right answers, but too few for the model to learn from. Questions of the *mixed* kinds need the knowledge
of two or three models, so no model can answer them alone. A hash decides which pairs of numbers are held out: no model
was trained on questions with such pairs.
"""

from __future__ import annotations

import hashlib
import random
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cosd_api.demo.translations import TRANSLATIONS, WORD_NAMES

#: Countries, each with its capital and its currency.
_COUNTRIES: tuple[tuple[str, str, str], ...] = (
    ("Argentina", "Buenos Aires", "peso"),
    ("Australia", "Canberra", "dollar"),
    ("Austria", "Vienna", "euro"),
    ("Brazil", "Brasília", "real"),
    ("Canada", "Ottawa", "dollar"),
    ("Chile", "Santiago", "peso"),
    ("China", "Beijing", "yuan"),
    ("Colombia", "Bogotá", "peso"),
    ("Cuba", "Havana", "peso"),
    ("Czechia", "Prague", "koruna"),
    ("Denmark", "Copenhagen", "krone"),
    ("Egypt", "Cairo", "pound"),
    ("Finland", "Helsinki", "euro"),
    ("France", "Paris", "euro"),
    ("Germany", "Berlin", "euro"),
    ("Ghana", "Accra", "cedi"),
    ("Greece", "Athens", "euro"),
    ("Hungary", "Budapest", "forint"),
    ("Iceland", "Reykjavík", "króna"),
    ("India", "New Delhi", "rupee"),
    ("Ireland", "Dublin", "euro"),
    ("Italy", "Rome", "euro"),
    ("Japan", "Tokyo", "yen"),
    ("Jordan", "Amman", "dinar"),
    ("Kenya", "Nairobi", "shilling"),
    ("Malaysia", "Kuala Lumpur", "ringgit"),
    ("Mexico", "Mexico City", "peso"),
    ("Mongolia", "Ulaanbaatar", "tugrik"),
    ("Morocco", "Rabat", "dirham"),
    ("Nepal", "Kathmandu", "rupee"),
    ("Nigeria", "Abuja", "naira"),
    ("Norway", "Oslo", "krone"),
    ("Peru", "Lima", "sol"),
    ("Poland", "Warsaw", "zloty"),
    ("Portugal", "Lisbon", "euro"),
    ("Romania", "Bucharest", "leu"),
    ("South Korea", "Seoul", "won"),
    ("Spain", "Madrid", "euro"),
    ("Sweden", "Stockholm", "krona"),
    ("Thailand", "Bangkok", "baht"),
    ("Turkey", "Ankara", "lira"),
    ("Ukraine", "Kyiv", "hryvnia"),
    ("Vietnam", "Hanoi", "dong"),
)

#: Chemical elements, each with its symbol.
_ELEMENTS: tuple[tuple[str, str], ...] = (
    ("aluminium", "Al"),
    ("calcium", "Ca"),
    ("carbon", "C"),
    ("chlorine", "Cl"),
    ("cobalt", "Co"),
    ("copper", "Cu"),
    ("gold", "Au"),
    ("helium", "He"),
    ("hydrogen", "H"),
    ("iron", "Fe"),
    ("krypton", "Kr"),
    ("lead", "Pb"),
    ("lithium", "Li"),
    ("magnesium", "Mg"),
    ("mercury", "Hg"),
    ("neon", "Ne"),
    ("nickel", "Ni"),
    ("nitrogen", "N"),
    ("oxygen", "O"),
    ("platinum", "Pt"),
    ("potassium", "K"),
    ("radon", "Rn"),
    ("silicon", "Si"),
    ("silver", "Ag"),
    ("sodium", "Na"),
    ("sulfur", "S"),
    ("tin", "Sn"),
    ("titanium", "Ti"),
    ("tungsten", "W"),
    ("uranium", "U"),
    ("zinc", "Zn"),
)

#: For each kind of fact, a dictionary that maps subjects to facts.
FACTS: dict[str, dict[str, str]] = {
    "capital": {place: capital for place, capital, _ in _COUNTRIES},
    "currency": {place: currency for place, _, currency in _COUNTRIES},
    "symbol": dict(_ELEMENTS),
}

#: For each kind of fact, all facts without duplicates.
FACT_NAMES: dict[str, tuple[str, ...]] = {kind: tuple(sorted(set(by.values()))) for kind, by in FACTS.items()}

#: Things that have a price, each with its article.
OBJECTS: tuple[str, ...] = (
    "a bag",
    "a book",
    "a chair",
    "a cup",
    "a hat",
    "a lamp",
    "a map",
    "a pen",
    "a ticket",
    "an apple",
    "an onion",
    "an umbrella",
)

#: Every kind of question.
KINDS: tuple[str, ...] = (
    *("sum", "difference", "capital", "currency", "symbol", "greeting", "mixed"),
    *("translation", "mixed-translation", "mixed-all"),
)

#: For each model, the kinds of question that it can answer alone.
OWN_KINDS: dict[str, tuple[str, ...]] = {
    "sums": ("sum", "difference", "greeting"),
    "facts": ("capital", "currency", "symbol", "greeting"),
    "words": ("translation", "greeting"),
}

#: Kinds of question that no model can answer alone, each with the models that can answer it together.
MIXED_KINDS: dict[str, tuple[str, ...]] = {
    "mixed": ("sums", "facts"),
    "mixed-translation": ("sums", "words"),
    "mixed-all": ("sums", "facts", "words"),
}

# Wordings of questions and replies. The wording of a question determines the wording of its reply, including whether
# the fact or the number comes first. Therefore, every model is sure of the wording. If a question combines a fact with
# other parts, its tuple begins with the kind of fact.
_SUM = (
    ("What is {a} plus {b}?", "The sum is {number}."),
    ("What is {a} + {b}?", "The sum is {number}."),
    ("Add {a} and {b}.", "The sum is {number}."),
    ("How much is {a} plus {b}?", "It is {number}."),
    ("{X} costs {a} and {y} costs {b}. What do they cost together?", "Together they cost {number}."),
    ("I have {a} coins and find {b} more. How many coins do I have?", "You have {number} coins."),
)
_DIFFERENCE = (
    ("What is {a} minus {b}?", "The difference is {number}."),
    ("What is {a} - {b}?", "The difference is {number}."),
    ("Take {b} away from {a}.", "The difference is {number}."),
    ("I have {a} coins and spend {b}. How many coins are left?", "You have {number} coins left."),
)
_FACT = {
    "capital": (
        ("What is the capital of {about}?", "The capital of {about} is {fact}."),
        ("Name the capital of {about}.", "The capital of {about} is {fact}."),
        ("Which city is the capital of {about}?", "It is {fact}."),
        ("I am in {about}. What is the capital here?", "The capital here is {fact}."),
    ),
    "currency": (
        ("What is the currency of {about}?", "The currency of {about} is the {fact}."),
        ("Name the currency of {about}.", "The currency of {about} is the {fact}."),
        ("What do people in {about} pay with?", "They pay with the {fact}."),
    ),
    "symbol": (
        ("What is the chemical symbol of {about}?", "The symbol of {about} is {fact}."),
        ("Name the symbol of {about}.", "The symbol of {about} is {fact}."),
        ("What do chemists write for {about}?", "They write {fact}."),
    ),
}
_GREETING = (
    ("Hello!", "Hello! What would you like to know?"),
    ("Hi there.", "Hello! What would you like to know?"),
    ("Good morning!", "Good morning! What would you like to know?"),
    ("Good evening!", "Good evening! What would you like to know?"),
    ("How are you?", "I am fine, thank you."),
    ("Who are you?", "I am a very small language model."),
    ("Thank you!", "You are welcome."),
    ("Goodbye!", "Goodbye! Come back soon."),
)
_MIXED = (
    (
        "capital",
        "In {about} {x} costs {a} and {y} costs {b}. Name the capital and the total.",
        "The capital of {about} is {fact} and the total is {number}.",
    ),
    (
        "capital",
        "In {about} {x} costs {a} and {y} costs {b}. Name the total and the capital.",
        "The total is {number} and the capital of {about} is {fact}.",
    ),
    (
        "capital",
        "Name the capital of {about}, then add {a} and {b}.",
        "The capital of {about} is {fact}. The sum is {number}.",
    ),
    (
        "capital",
        "Add {a} and {b}, then name the capital of {about}.",
        "The sum is {number}. The capital of {about} is {fact}.",
    ),
    (
        "currency",
        "{X} costs {a} and {y} costs {b} in {about}. What is the currency, and how much is it together?",
        "The currency of {about} is the {fact} and together it is {number}.",
    ),
    (
        "currency",
        "{X} costs {a} and {y} costs {b} in {about}. How much is it together, and what is the currency?",
        "Together it is {number} and the currency of {about} is the {fact}.",
    ),
    (
        "symbol",
        "What is the symbol of {about}, and how much is {a} plus {b}?",
        "The symbol of {about} is {fact} and the sum is {number}.",
    ),
    (
        "symbol",
        "How much is {a} plus {b}, and what is the symbol of {about}?",
        "The sum is {number} and the symbol of {about} is {fact}.",
    ),
)

_TRANSLATION = (
    ("What is the {language} word for {thing}?", "The {language} word for {thing} is {word}."),
    ("Translate {thing} into {language}.", "In {language} it is {word}."),
    ("How do you say {thing} in {language}?", "You say {word}."),
    ("I am learning {language}. What is the word for {thing}?", "The word for {thing} is {word}."),
)
_MIXED_TRANSLATION = (
    (
        "How much is {a} plus {b}, and what is the {language} word for {thing}?",
        "The sum is {number} and the {language} word for {thing} is {word}.",
    ),
    (
        "What is the {language} word for {thing}, and how much is {a} plus {b}?",
        "The {language} word for {thing} is {word} and the sum is {number}.",
    ),
    ("Translate {thing} into {language}, then add {a} and {b}.", "In {language} it is {word}. The sum is {number}."),
    ("Add {a} and {b}, then translate {thing} into {language}.", "The sum is {number}. In {language} it is {word}."),
)
_MIXED_ALL = (
    (
        "capital",
        "Name the capital of {about}, add {a} and {b}, and translate {thing} into {language}.",
        "The capital of {about} is {fact}. The sum is {number}. In {language} it is {word}.",
    ),
    (
        "currency",
        "Translate {thing} into {language}, name the currency of {about}, and add {a} and {b}.",
        "In {language} it is {word}. The currency of {about} is the {fact}. The sum is {number}.",
    ),
    (
        "symbol",
        "Add {a} and {b}, translate {thing} into {language}, and name the symbol of {about}.",
        "The sum is {number}. In {language} it is {word}. The symbol of {about} is {fact}.",
    ),
)

_SMALLEST, _LARGEST = 10, 99
_HELD_OUT_PART = 10  # one pair in ten is held out
_SALT = "pairs"


@dataclass(frozen=True)
class DemoQuestion:
    """A question, and the number, fact or translated word that a right answer must contain."""

    kind: str
    prompt: str
    reply: str
    number: int | None = None
    fact: str | None = None
    fact_kind: str = ""
    word: str | None = None

    @property
    def answer(self) -> str:
        """The right answer as a model writes it, with a leading space and without the end token."""
        parts = {"{number}": self.number, "{fact}": self.fact, "{word}": self.word}
        return " " + re.sub(r"{\w+}", lambda part: str(parts[part.group()]), self.reply)


class World(Protocol):
    """A source of subjects for questions, with the true answers."""

    def fact(self, fact_kind: str, rng: random.Random) -> tuple[str, str]:
        """Draw a subject for this kind of fact; return the subject and the fact."""
        ...

    def translation(self, language: str, rng: random.Random) -> tuple[str, str]:
        """Draw an English word; return the word and its translation into a language."""
        ...


class RealWorld:
    """The world of this module's countries, elements and words; each is drawn with equal probability."""

    def fact(self, fact_kind: str, rng: random.Random) -> tuple[str, str]:
        """See `World.fact`."""
        return rng.choice(tuple(FACTS[fact_kind].items()))

    def translation(self, language: str, rng: random.Random) -> tuple[str, str]:
        """See `World.translation`."""
        return rng.choice(tuple(TRANSLATIONS[language].items()))


_REAL = RealWorld()


def as_prompt(text: str) -> str:
    """Format a question as a prompt in the form that the models were trained on."""
    return f"Q: {text}\nA:"


def is_held_out(a: int, b: int) -> bool:
    """Test whether questions about this pair of numbers, in either order, are left out of the training."""
    digest = hashlib.sha256(f"{_SALT} {min(a, b)} {max(a, b)}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % _HELD_OUT_PART == 0


def sample(kind: str, count: int, seed: int, held_out: bool = True) -> list[DemoQuestion]:
    """Draw questions of one kind; the same seed always draws the same questions.

    With `held_out`, the numbers come from pairs that the models were not trained on; without it, from the other pairs.
    The argument makes no difference for greetings and for questions that ask only for a fact or a word, because such
    questions contain no numbers.
    """
    without = kind in FACTS or kind in ("greeting", "translation")
    rng = random.Random(f"{kind}/{seed}/{'' if without else held_out}")
    return [draw(kind, rng, held_out) for _ in range(count)]


def draw(kind: str, rng: random.Random, held_out: bool = False, world: World = _REAL) -> DemoQuestion:
    """Draw one question of a kind, about the subjects of a world."""
    if kind == "greeting":
        text, reply = rng.choice(_GREETING)
        return DemoQuestion(kind, as_prompt(text), reply)
    fact_kind = ""
    if kind in ("sum", "difference"):
        text, reply = rng.choice(_SUM if kind == "sum" else _DIFFERENCE)
    elif kind in FACTS:
        fact_kind = kind
        text, reply = rng.choice(_FACT[kind])
    elif kind in ("translation", "mixed-translation"):
        text, reply = rng.choice(_TRANSLATION if kind == "translation" else _MIXED_TRANSLATION)
    elif kind in ("mixed", "mixed-all"):
        fact_kind, text, reply = rng.choice(_MIXED if kind == "mixed" else _MIXED_ALL)
    else:
        raise ValueError(f"unknown kind of question {kind!r}; known are {', '.join(KINDS)}")
    return _fill(DemoQuestion(kind, text, reply, fact_kind=fact_kind), rng, held_out, world)


def _fill(form: DemoQuestion, rng: random.Random, held_out: bool, world: World) -> DemoQuestion:
    """Fill the placeholders in the wording of a question: numbers, objects, a country or element, and a word."""
    number = fact = word = None
    values: dict[str, object] = {}
    if form.fact_kind:
        values["about"], fact = world.fact(form.fact_kind, rng)
    if "{a}" in form.prompt:
        a, b = _pair(rng, held_out, ordered=form.kind == "difference")
        number = a - b if form.kind == "difference" else a + b
        x, y = rng.sample(OBJECTS, 2)
        values |= {"a": a, "b": b, "x": x, "X": x.capitalize(), "y": y}
    if "{thing}" in form.prompt:
        language = rng.choice(tuple(TRANSLATIONS))
        values["language"] = language
        values["thing"], word = world.translation(language, rng)
    reply = form.reply
    for name in ("about", "language", "thing"):
        reply = reply.replace(f"{{{name}}}", str(values.get(name)))
    return DemoQuestion(form.kind, as_prompt(form.prompt.format(**values)), reply, number, fact, form.fact_kind, word)


def _pair(rng: random.Random, held_out: bool, ordered: bool) -> tuple[int, int]:
    while True:
        a, b = rng.randint(_SMALLEST, _LARGEST), rng.randint(_SMALLEST, _LARGEST)
        if is_held_out(a, b) == held_out:
            return (max(a, b), min(a, b)) if ordered else (a, b)


def number_is_right(question: DemoQuestion, text: str) -> bool:
    """Test whether the answer contains the requested number as a whole word, and no other number."""
    found = set(re.findall(r"-?\w*\d\w*", text))
    return found == (set() if question.number is None else {str(question.number)})


def fact_is_right(question: DemoQuestion, text: str) -> bool:
    """Test whether the answer contains the requested fact as whole words, and no other fact of its kind."""
    if question.fact is None:
        return True
    text = unicodedata.normalize("NFC", text)
    return _named(text, FACT_NAMES[question.fact_kind]) == {question.fact}


def word_is_right(question: DemoQuestion, text: str) -> bool:
    """Test whether the answer contains the requested translation as a whole word, and no other translation."""
    if question.word is None:
        return True
    return _named(unicodedata.normalize("NFC", text), WORD_NAMES) == {question.word}


def _named(text: str, names: Sequence[str]) -> set[str]:
    return {name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)}


def is_right(question: DemoQuestion, text: str) -> bool:
    """Test whether the answer contains every requested part and no wrong part; a greeting has one right answer."""
    if question.kind == "greeting":
        return " ".join(text.split()) == question.answer.strip()
    return number_is_right(question, text) and fact_is_right(question, text) and word_is_right(question, text)
