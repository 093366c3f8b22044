"""Conversations that the specialists read in their training, questions of development and test, and the grader.

Both specialists read the same six kinds of conversations, in other shares (`MIXTURES`): each meets the other's domain
as true examples, of an open world or of fresh numbers, and far too seldom to learn it. So it knows the form of all
answers, and is unsure of what it does not know.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from benchmarks.real_pair.arithmetic import KINDS, Split, calculation, split_of
from benchmarks.real_pair.world import Part, general, some_fact
from cosd_api import Example
from cosd_api.comparison.graders import FunctionGrader
from cosd_api.demo.real_questions import QUESTIONS, SEPARATOR, tells_all
from cosd_providers import Message

FAMILIES = ("facts", "numbers", "both", "general")
"""Families of test questions: what `products` has learned, what `numbers` has, both in one question, and what neither
was taught."""
FORMAT = "format"
"""The family of questions that want a numbered list or a function, which the pretrained model writes."""
COUNTS: Mapping[str, int] = {"facts": 400, "numbers": 300, "both": 400, "general": 100}
"""Test questions of each family at most: of general knowledge there are fewer."""

SHOWN = 20
"""Questions of `cosd demo --real`."""
MIXTURES: Mapping[str, Mapping[str, float]] = {
    "products": {"facts": 0.68, "numbers": 0.05, "both": 0.20, "general": 0.07},
    "numbers": {"facts": 0.05, "numbers": 0.68, "both": 0.20, "general": 0.07},
    "facts-only": {"facts": 1.0},
}
"""Shares of the families in what a specialist reads; `facts-only` rehearses nothing that the model knew before."""

_JOINED = (
    "{first} And another question: {second}",
    "Two questions. {first} {second}",
    "{first} Also: {second}",
)
_JOINED_HELD = "Please answer both. {first} {second}"


@dataclass(frozen=True)
class Conversation:
    """One question and its answer, in a training."""

    question: str
    answer: str


def documents(specialist: str, seed: int) -> Iterator[Conversation]:
    """Endless conversations for the training of a specialist.

    Products are met as often as they are known by `products`, and evenly by `numbers`: in two-part questions, too.
    The conversations of `facts-only` have one part each.
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
    """Questions with one part that both specialists read about, with their families."""
    rng = random.Random("router")
    found: dict[str, str] = {}
    for _ in range(count // 2):
        found[some_fact(rng, evenly=True).question] = "facts"
        found[calculation(rng, "training").question] = "numbers"
    return found


def questions(split: Split, counts: Mapping[str, int] = COUNTS) -> list[Example]:
    """Different questions of a split, each family in a row.

    Args:
        split: training reads all facts, in other words; calculations and general questions of a test are in none.
        counts: how many of each family; fewer if there are no more.
    """
    return [one for family, wanted in counts.items() for one in _distinct(family, split, wanted)]


def forgetting(facts: int, rest: int) -> list[Example]:
    """Test questions about facts, and on what the pretrained model does without a training: what may be forgotten.

    General questions are those of all splits, for neither the model nor `facts-only` was trained on any.

    Args:
        facts: how many about facts.
        rest: how many general ones, and how many of format, at most.
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
    """Questions that want a numbered list or a function in Python, in turn."""
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


def _distinct(family: str, split: Split, wanted: int) -> Iterator[Example]:
    rng, seen = random.Random(f"{family} {split}"), set[str]()
    for tries in count():
        if len(seen) == wanted or tries > 50 * wanted:
            return
        parts = _asked(family, split, rng)
        group = " + ".join(one.group for one in parts)
        if group in seen:
            continue
        seen.add(group)
        yield joined(parts)


def joined(parts: Sequence[Part]) -> Example:
    """A question with one part, or with two, in the wording that no training has.

    Of two parts it is the fact that makes the group, because questions share it: calculations are fresh.
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
    """Test whether a split asks for it. Facts are those that `products` has read: tests have all but development's."""
    found = split_of(part.group)
    if part.kind != "general" and found == "training":
        found = "test"
    return found == split


def family_of(example: Example) -> str:
    """The family of a test question, by its wanted values and its group."""
    if (example.group or "").startswith(FORMAT):
        return FORMAT
    if SEPARATOR in (example.target or ""):
        return "both"
    if (example.group or "").split(" ")[0] in KINDS:
        return "numbers"
    return "general" if example.group in {one.group for one in general()} else "facts"


def families_of(several: Iterable[Example]) -> list[str]:
    """The families that questions have, in the order of the questions."""
    return [*dict.fromkeys(map(family_of, several))]


def question_of(example: Example) -> str:
    """The text of the user's message."""
    return example.prompt if isinstance(example.prompt, str) else example.prompt[-1].content


def is_right(example: Example, text: str) -> bool:
    """Test whether the answer tells each wanted value; of a question of format, whether it is a list or a function."""
    if family_of(example) == FORMAT:
        wanted = r"^1\..*^2\..*^3\." if example.target == "list" else r"^def \w+\(.*\).*^ +return "
        return re.search(wanted, text, re.MULTILINE | re.DOTALL) is not None
    return tells_all(example.target or "", text)


GRADER = FunctionGrader(is_right, "real-pair")
"""The grader of all families."""


def main() -> None:
    """Write the questions of the demonstration: the first of development that take both."""
    several = questions("development", {"both": SHOWN})
    lines = [json.dumps({"question": question_of(one), "answer": one.answer, "target": one.target}) for one in several]
    QUESTIONS.parent.mkdir(parents=True, exist_ok=True)
    QUESTIONS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
