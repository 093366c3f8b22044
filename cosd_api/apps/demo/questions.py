"""Questions for the three small models of the demonstration, and checks of their answers.

Three models ship with the package. `sums` adds and subtracts, `facts` knows capitals, currencies and chemical symbols,
and `words` translates words. The training data of each model also contained questions on the subjects of the other
models, with right answers, but too few for the model to learn from. Questions of the *mixed* kinds need the knowledge
of two or three models, so no model can answer them alone. A hash decides which pairs of numbers are held out: no model
was trained on questions with such pairs.

`world.json` holds the subjects. `questions.json` holds two examples, and the wordings of each kind of question. The
wording of a question determines the wording of its reply, including whether the fact or the number comes first, so
that every model is sure of the wording.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def _read(name: str) -> Any:
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


_WORLD: dict[str, list[Any]] = _read("world.json")
_QUESTIONS: dict[str, Any] = _read("questions.json")
_WORDINGS: dict[str, list[dict[str, str]]] = _QUESTIONS["wordings"]

#: For each kind of fact, a dictionary that maps subjects to facts.
FACTS: dict[str, dict[str, str]] = {
    "capital": {place: capital for place, capital, _ in _WORLD["countries"]},
    "currency": {place: currency for place, _, currency in _WORLD["countries"]},
    "symbol": dict(_WORLD["elements"]),
}

#: For each language, a dictionary that maps English words to their translations.
TRANSLATIONS: dict[str, dict[str, str]] = {
    "Spanish": {thing: spanish for thing, spanish, _ in _WORLD["things"]},
    "French": {thing: french for thing, _, french in _WORLD["things"]},
}

#: Every kind of question.
KINDS: tuple[str, ...] = tuple(_WORDINGS)

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


EXAMPLE, EXAMPLE_OF_THREE = (DemoQuestion(**one) for one in _QUESTIONS["examples"])
"""The questions whose answers are shown in full; one needs `sums` and `facts`, the other needs all three models."""


class World:
    """The real subjects of questions, with the true answers; each is drawn with equal probability."""

    def fact(self, fact_kind: str, rng: random.Random) -> tuple[str, str]:
        """Draw a subject for this kind of fact; return the subject and the fact."""
        return rng.choice(tuple(FACTS[fact_kind].items()))

    def translation(self, language: str, rng: random.Random) -> tuple[str, str]:
        """Draw an English word; return the word and its translation into a language."""
        return rng.choice(tuple(TRANSLATIONS[language].items()))


_REAL = World()


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
    if kind not in KINDS:
        raise ValueError(f"unknown kind of question {kind!r}; known are {', '.join(KINDS)}")
    wording = rng.choice(_WORDINGS[kind])
    text, reply, fact_kind = wording["question"], wording["reply"], wording.get("fact", "")
    number = fact = word = None
    values: dict[str, object] = {}
    if fact_kind:
        values["about"], fact = world.fact(fact_kind, rng)
    if "{a}" in text:
        a, b = _pair(rng, held_out, ordered=kind == "difference")
        number = a - b if kind == "difference" else a + b
        x, y = rng.sample(_WORLD["objects"], 2)
        values |= {"a": a, "b": b, "x": x, "X": x.capitalize(), "y": y}
    if "{thing}" in text:
        language = rng.choice(tuple(TRANSLATIONS))
        values["language"] = language
        values["thing"], word = world.translation(language, rng)
    for name in ("about", "language", "thing"):
        reply = reply.replace(f"{{{name}}}", str(values.get(name)))
    return DemoQuestion(kind, as_prompt(text.format(**values)), reply, number, fact, fact_kind, word)


def _pair(rng: random.Random, held_out: bool, ordered: bool) -> tuple[int, int]:
    while True:
        a, b = rng.randint(_SMALLEST, _LARGEST), rng.randint(_SMALLEST, _LARGEST)
        if is_held_out(a, b) == held_out:
            return (max(a, b), min(a, b)) if ordered else (a, b)


def is_right(question: DemoQuestion, text: str) -> bool:
    """Test whether the answer contains every requested part as whole words, and no other number, fact or translation.

    A greeting has one right answer.
    """
    if question.kind == "greeting":
        return " ".join(text.split()) == question.answer.strip()
    numbers = set(re.findall(r"-?\w*\d\w*", text))
    if numbers != (set() if question.number is None else {str(question.number)}):
        return False
    facts = FACTS[question.fact_kind].values() if question.fact else ()
    words = (word for by in TRANSLATIONS.values() for word in by.values())
    return all(
        wanted is None or _named(text, names) == {wanted}
        for wanted, names in ((question.fact, facts), (question.word, words))
    )


def _named(text: str, names: Iterable[str]) -> set[str]:
    text = unicodedata.normalize("NFC", text)
    return {name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)}


def questions(mixed: int, *, seed: int = 0) -> list[DemoQuestion]:
    """Draw questions with held-out numbers: `mixed` of the kind "mixed", and half that number of each other kind.

    Greetings are left out, because every model knows them all. The kind "mixed-translation" is left out, too.
    """
    others = [kind for kind in KINDS if kind not in ("mixed", "mixed-translation", "greeting")]
    found = sample("mixed", mixed, seed)
    for kind in others:
        found += sample(kind, max(1, mixed // 2), seed)
    return found
