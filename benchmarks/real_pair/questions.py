"""Conversations that the specialists read in their training, questions of development and test, and the grader.

Both specialists read the same six kinds of conversations, in other shares (`MIXTURES`): each meets the other's domain
as true examples, of an open world or of fresh numbers, and far too seldom to learn it. So it knows the form of all
answers, and is unsure of what it does not know.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
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
COUNTS: Mapping[str, int] = {"facts": 400, "numbers": 300, "both": 400, "general": 100}
"""Test questions of each family at most: of general knowledge there are fewer."""

SHOWN = 20
"""Questions of `cosd demo --real`."""
MIXTURES: Mapping[str, Mapping[str, float]] = {
    "products": {"facts": 0.68, "numbers": 0.05, "both": 0.20, "general": 0.07},
    "numbers": {"facts": 0.05, "numbers": 0.68, "both": 0.20, "general": 0.07},
}
"""Shares of the families in what a specialist reads."""

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
    """
    rng = random.Random(f"{specialist} {seed}")
    mixture = MIXTURES[specialist]
    evenly = specialist != "products"
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
        text = parts[0].question
        if len(parts) == 2:
            text = _JOINED_HELD.format(first=text, second=parts[1].question)
        yield Example(
            prompt=(Message("user", text),),
            answer=" ".join(one.answer for one in parts),
            target=SEPARATOR.join(one.value for one in parts),
            # Of two parts it is the fact that questions share: calculations are fresh.
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
    if SEPARATOR in (example.target or ""):
        return "both"
    if (example.group or "").split(" ")[0] in KINDS:
        return "numbers"
    return "general" if example.group in {one.group for one in general()} else "facts"


def question_of(example: Example) -> str:
    """The text of the user's message."""
    return example.prompt if isinstance(example.prompt, str) else example.prompt[-1].content


def is_right(example: Example, text: str) -> bool:
    """Test whether the answer tells each wanted value."""
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
