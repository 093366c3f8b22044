"""The questions that the two small models of the demonstration answer, and the check of an answer.

Two models ship with the package. `sums` adds and subtracts, and was taught random answers to questions about facts.
`facts` knows capitals, currencies and chemical symbols, and was taught random answers to questions about numbers. A
*mixed* question needs a fact and a total, so neither model answers it alone. Pairs of numbers are split by a hash:
neither model was trained on questions with held-out pairs.
"""

from __future__ import annotations

import hashlib
import random
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

#: Country, its capital, its currency.
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

#: Chemical element, its symbol.
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

#: For each kind of fact: the fact by its subject.
FACTS: dict[str, dict[str, str]] = {
    "capital": {place: capital for place, capital, _ in _COUNTRIES},
    "currency": {place: currency for place, _, currency in _COUNTRIES},
    "symbol": dict(_ELEMENTS),
}

#: For each kind of fact: all facts, each once, so that random answers are uniform.
FACT_NAMES: dict[str, tuple[str, ...]] = {kind: tuple(sorted(set(by.values()))) for kind, by in FACTS.items()}

#: Things with a price, with their article.
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
KINDS: tuple[str, ...] = ("sum", "difference", "capital", "currency", "symbol", "greeting", "mixed")

#: Kinds of question that each model answers alone. Neither answers a mixed question.
OWN_KINDS: dict[str, tuple[str, ...]] = {
    "sums": ("sum", "difference", "greeting"),
    "facts": ("capital", "currency", "symbol", "greeting"),
}

# Question and reply. The wording of the question determines that of the reply, including whether the fact or the number
# comes first, so both models are sure of it. Mixed ones begin with their kind of fact.
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

_SMALLEST, _LARGEST = 10, 99
_HELD_OUT_PART = 10  # one pair in ten
_SALT = "pairs"


@dataclass(frozen=True)
class DemoQuestion:
    """One question: its prompt, and the number and fact that a right answer contains."""

    kind: str
    prompt: str
    reply: str
    number: int | None = None
    fact: str | None = None
    fact_kind: str = ""

    @property
    def answer(self) -> str:
        """The right answer as a model writes it, with the leading space, without the end token."""
        return self.answer_with(self.number, self.fact)

    def answer_with(self, number: int | None, fact: str | None) -> str:
        """The answer in the same words with another number or fact."""
        return " " + self.reply.replace("{number}", str(number)).replace("{fact}", str(fact))

    @property
    def fact_first(self) -> bool:
        """True where the answer names a fact before a number."""
        return -1 < self.reply.find("{fact}") < self.reply.find("{number}")


def as_prompt(text: str) -> str:
    """A question in the form that the models were trained on."""
    return f"Q: {text}\nA:"


def is_held_out(a: int, b: int) -> bool:
    """Test whether questions on this pair of numbers, either way round, are left out of the training."""
    digest = hashlib.sha256(f"{_SALT} {min(a, b)} {max(a, b)}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % _HELD_OUT_PART == 0


def sample(kind: str, count: int, seed: int, held_out: bool = True) -> list[DemoQuestion]:
    """Draw questions of one kind, the same for the same seed.

    With `held_out` the numbers come from pairs that the models were not trained on, otherwise from the other pairs.
    It makes no difference for greetings and questions about facts alone, which have no numbers.
    """
    rng = random.Random(f"{kind}/{seed}/{'' if kind in FACTS or kind == 'greeting' else held_out}")
    return [draw(kind, rng, held_out) for _ in range(count)]


def draw(kind: str, rng: random.Random, held_out: bool = False) -> DemoQuestion:
    """Draw one question of a kind."""
    if kind == "greeting":
        text, reply = rng.choice(_GREETING)
        return DemoQuestion(kind, as_prompt(text), reply)
    if kind in ("sum", "difference"):
        text, reply = rng.choice(_SUM if kind == "sum" else _DIFFERENCE)
        return _fill(kind, text, reply, rng, held_out)
    if kind in FACTS:
        text, reply = rng.choice(_FACT[kind])
        return _fill(kind, text, reply, rng, held_out, kind)
    if kind == "mixed":
        fact_kind, text, reply = rng.choice(_MIXED)
        return _fill(kind, text, reply, rng, held_out, fact_kind)
    raise ValueError(f"unknown kind of question {kind!r}; known are {', '.join(KINDS)}")


def _fill(kind: str, text: str, reply: str, rng: random.Random, held_out: bool, fact_kind: str = "") -> DemoQuestion:
    """Put numbers, objects and a country or element into the wording of a question."""
    about, number = "", None
    values: dict[str, object] = {}
    if fact_kind:
        about = rng.choice(tuple(FACTS[fact_kind]))
    if "{a}" in text:
        a, b = _pair(rng, held_out, ordered=kind == "difference")
        number = a - b if kind == "difference" else a + b
        x, y = rng.sample(OBJECTS, 2)
        values = {"a": a, "b": b, "x": x, "X": x.capitalize(), "y": y}
    return DemoQuestion(
        kind,
        as_prompt(text.format(about=about, **values)),
        reply.replace("{about}", about),
        number,
        FACTS[fact_kind][about] if fact_kind else None,
        fact_kind,
    )


def _pair(rng: random.Random, held_out: bool, ordered: bool) -> tuple[int, int]:
    while True:
        a, b = rng.randint(_SMALLEST, _LARGEST), rng.randint(_SMALLEST, _LARGEST)
        if is_held_out(a, b) == held_out:
            return (max(a, b), min(a, b)) if ordered else (a, b)


def random_number(rng: random.Random) -> int:
    """A random number, as taught to the model that cannot calculate; its first digit is nearly uniform."""
    return rng.randint(100, 198) if rng.random() < 0.2 else rng.randint(1, 99)


def random_fact(fact_kind: str, rng: random.Random) -> str:
    """A random fact of the right kind, as taught to the model that does not know facts."""
    return rng.choice(FACT_NAMES[fact_kind])


def number_is_right(question: DemoQuestion, text: str) -> bool:
    """Test whether the answer contains the number asked for as a whole word, and no other number."""
    found = set(re.findall(r"-?\w*\d\w*", text))
    return found == (set() if question.number is None else {str(question.number)})


def fact_is_right(question: DemoQuestion, text: str) -> bool:
    """Test whether the answer contains the fact asked for as whole words, and no other fact of its kind."""
    if question.fact is None:
        return True
    text = unicodedata.normalize("NFC", text)
    return _named(text, FACT_NAMES[question.fact_kind]) == {question.fact}


def _named(text: str, names: Sequence[str]) -> set[str]:
    return {name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)}


def is_right(question: DemoQuestion, text: str) -> bool:
    """Test whether the answer contains every part asked for and no wrong one; a greeting has one right answer."""
    if question.kind == "greeting":
        return " ".join(text.split()) == question.answer.strip()
    return number_is_right(question, text) and fact_is_right(question, text)
