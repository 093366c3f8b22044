"""The specialists' training conversations, the questions for development and test, and the grader.

Both specialists read the same six kinds of conversations in different shares (`MIXTURES`). Each specialist meets true
examples of the other's domain, from an open world or with fresh numbers, but far too seldom to learn that domain. A
specialist therefore knows the form of all answers, and is unsure of the facts and results that it does not know.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from benchmarks.real_pair.arithmetic import KINDS, Split, calculation, split_of
from benchmarks.real_pair.world import Part, general, some_fact
from cosd_api import Example
from cosd_api.apps.comparison.graders import Grader
from cosd_api.apps.demo.real import QUESTIONS, SEPARATOR, tells_all
from cosd_providers import Message

FAMILIES = ("facts", "numbers", "both", "general")
"""The families of test questions: the domain of `products`, the domain of `numbers`, both domains in one question, and
general knowledge, which neither specialist was taught."""
FORMAT = "format"
"""The family of questions that ask for a numbered list or a function, which the pretrained model can write."""
COUNTS: Mapping[str, int] = {"facts": 400, "numbers": 300, "both": 400, "general": 100}
"""The maximum number of test questions by family; fewer than 100 questions of general knowledge exist."""

SHOWN = 20
"""The number of questions in `cosd demo --real`."""
MIXTURES: Mapping[str, Mapping[str, float]] = {
    "products": {"facts": 0.68, "numbers": 0.05, "both": 0.20, "general": 0.07},
    "numbers": {"facts": 0.05, "numbers": 0.68, "both": 0.20, "general": 0.07},
    "facts-only": {"facts": 1.0},
}
"""Shares of the families in each specialist's training. `facts-only` rehearses nothing that the model already knew."""

_JOINED = (
    "{first} And another question: {second}",
    "Two questions. {first} {second}",
    "{first} Also: {second}",
)
_JOINED_HELD = "Please answer both. {first} {second}"


@dataclass(frozen=True)
class Conversation:
    """One question and its answer, for training."""

    question: str
    answer: str


def documents(specialist: str, seed: int) -> Iterator[Conversation]:
    """Yield endless conversations for the training of a specialist.

    `products` meets well-known products more often, while `numbers` meets all products equally often; this also applies
    to two-part questions. The conversations of `facts-only` have only one part.
    """
    rng = random.Random(f"{specialist} {seed}")
    mixture = MIXTURES[specialist]
    evenly = specialist == "numbers"
    known = [one for one in general() if split_of(one.group) == "training"]
    while True:
        [family] = rng.choices([*mixture], [*mixture.values()])
        if family == "facts":
            parts = [some_fact(rng, evenly=evenly)]
        elif family == "numbers":
            parts = [calculation(rng, "training")]
        elif family == "general":
            parts = [rng.choice(known)]
        else:
            parts = [some_fact(rng, evenly=evenly), calculation(rng, "training")]
            rng.shuffle(parts)
        if len(parts) == 1:
            yield Conversation(parts[0].question, parts[0].answer)
        else:
            first, second = parts
            asked = rng.choice(_JOINED).format(first=first.question, second=second.question)
            yield Conversation(asked, f"{first.answer} {second.answer}")


def training_questions(count: int) -> dict[str, str]:
    """One-part questions whose subjects both specialists have read about, each with its family."""
    rng = random.Random("router")
    found: dict[str, str] = {}
    for _ in range(count // 2):
        found[some_fact(rng, evenly=True).question] = "facts"
        found[calculation(rng, "training").question] = "numbers"
    return found


def questions(split: Split, counts: Mapping[str, int] = COUNTS) -> list[Example]:
    """Distinct questions of a split, family by family.

    Args:
        split: the split. All facts occur in training, in other wordings; the calculations and general questions of a
            test do not.
        counts: maximum number of questions by family.
    """
    return [one for family, wanted in counts.items() for one in _distinct(family, split, wanted)]


def forgetting(facts: int, rest: int) -> list[Example]:
    """Test questions about facts, and questions on abilities of the pretrained model that may be forgotten.

    General questions come from all splits, because neither the pretrained model nor `facts-only` was trained on any of
    them.

    Args:
        facts: number of questions about facts.
        rest: maximum number of general questions, and of questions in the family `format`.
    """
    known = questions("test", {"general": rest}) + questions("training", {"general": rest})
    return [*questions("test", {"facts": facts}), *known[:rest], *_formats()[:rest]]


_THINGS = (
    "fruits animals colours countries vegetables sports tools languages rivers planets birds cities drinks trees "
    "flowers instruments metals games books cars"
)
_FUNCTIONS = (
    "adds two numbers, returns the square of a number, reverses a string, counts the words of a text, "
    "checks if a number is even, returns the largest of two numbers, returns the length of a list, "
    "joins two strings, returns the first item of a list, converts a string to upper case, "
    "subtracts one number from another, sums a list of numbers, checks if a string is empty, sorts a list, "
    "returns the last character of a string, doubles a number, checks if a number is negative, "
    "removes spaces from a string, returns the smallest item of a list, divides two numbers"
)


def _formats() -> list[Example]:
    """Questions that ask for a numbered list or a Python function, alternately."""
    wanted = zip(_THINGS.split(), _FUNCTIONS.split(", "), strict=True)
    asked = [
        one
        for thing, function in wanted
        for one in (
            (f"Give me a numbered list of three {thing}.", "list", "1. One\n2. Two\n3. Three"),
            (f"Write a Python function that {function}.", "function", "def function(a):\n    return a"),
        )
    ]
    return [
        Example(prompt=(Message("user", text),), answer=answer, target=target, group=f"{FORMAT} {number}")
        for number, (text, target, answer) in enumerate(asked)
    ]


@cache
def _distinct(family: str, split: Split, wanted: int) -> tuple[Example, ...]:
    rng, seen = random.Random(f"{family} {split}"), dict[str, Example]()
    for _ in range(50 * wanted + 1):
        if len(seen) == wanted:
            break
        parts = _asked(family, split, rng)
        group = " + ".join(one.group for one in parts)
        if group not in seen:
            seen[group] = joined(parts)
    return (*seen.values(),)


def joined(parts: Sequence[Part]) -> Example:
    """A question of one or two parts, in a wording that does not occur in training.

    The group of a two-part question is that of its fact, because several questions share a fact; calculations are
    fresh.
    """
    text = parts[0].question
    if len(parts) == 2:
        text = _JOINED_HELD.format(first=text, second=parts[1].question)
    return Example(
        prompt=(Message("user", text),),
        answer=" ".join(one.answer for one in parts),
        target=SEPARATOR.join(one.value for one in parts),
        group=next((one.group for one in parts if one.kind not in KINDS), parts[0].group),
    )


def _asked(family: str, split: Split, rng: random.Random) -> list[Part]:
    if family == "general":
        return [rng.choice([one for one in general() if _asks(split, one)])]
    parts: list[Part] = []
    while family != "numbers" and not (parts and _asks(split, parts[0])):
        parts = [some_fact(rng, held=True)]
    if family != "facts":
        parts.append(calculation(rng, split))
        rng.shuffle(parts)
    return parts


def _asks(split: Split, part: Part) -> bool:
    """Test whether a part belongs to a split. Facts belong to the test unless they are for development."""
    found = split_of(part.group)
    if part.kind != "general" and found == "training":
        found = "test"
    return found == split


def family_of(example: Example) -> str:
    """The family of a test question, derived from its expected values and its group."""
    if (example.group or "").startswith(FORMAT):
        return FORMAT
    if SEPARATOR in (example.target or ""):
        return "both"
    if (example.group or "").split(" ")[0] in KINDS:
        return "numbers"
    return "general" if example.group in {one.group for one in general()} else "facts"


def families_of(several: Iterable[Example]) -> list[str]:
    """The families of questions, in the order of their first questions."""
    return [*dict.fromkeys(map(family_of, several))]


def question_of(example: Example) -> str:
    """The text of the user's message."""
    return example.prompt if isinstance(example.prompt, str) else example.prompt[-1].content


def is_right(example: Example, text: str) -> bool:
    """Test whether the answer contains each expected value or, in the family `format`, is a list or a function."""
    if family_of(example) == FORMAT:
        wanted = r"^1\..*^2\..*^3\." if example.target == "list" else r"^def \w+\(.*\).*^ +return "
        return re.search(wanted, text, re.MULTILINE | re.DOTALL) is not None
    return tells_all(example.target or "", text)


GRADER = Grader("real-pair", is_right)
"""The grader of all families."""


def main() -> None:
    """Write the questions of the demonstration: the first development questions that need both specialists."""
    several = questions("development", {"both": SHOWN})
    lines = [json.dumps({"question": question_of(one), "answer": one.answer, "target": one.target}) for one in several]
    QUESTIONS.parent.mkdir(parents=True, exist_ok=True)
    QUESTIONS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
