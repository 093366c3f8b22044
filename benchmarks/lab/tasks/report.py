"""Long answers: all facts about several persons, and a sum for each.

Training reports tell the facts of tests, too: new are the sums.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.lab.tasks.steps import some_chain
from benchmarks.lab.tasks.task import Document, distinct, example
from benchmarks.lab.worlds import ATTRIBUTES, HEAD, Split, World
from cosd_api.comparison.graders import FunctionGrader
from cosd_api.training.dataset import Example

LONGEST = 9
"""Persons of the longest report: about 500 tokens."""


def _some_report(world: World, rng: random.Random, persons: list[int], split: Split) -> Document:
    chains = [some_chain(rng, split, 1) for _ in persons]
    pairs = list(zip(persons, chains, strict=True))
    asked = ", ".join(f"{world.persons[person]} ({chain.expression()})" for person, chain in pairs)
    written = " ".join(
        " ".join(world.sentence(person, attribute) for attribute in ATTRIBUTES) + f" {chain.working()}."
        for person, chain in pairs
    )
    return Document(f"Report on {asked}.\nReport:", f" {written}")


def documents(world: World, rng: random.Random) -> Iterator[Document]:
    """See `Task`."""
    while True:
        count = min(LONGEST, 1 + int(rng.expovariate(0.7)))
        yield _some_report(world, rng, [world.some_person(rng) for _ in range(count)], "training")


def items(world: World, seed: int, count: int, split: Split = "test", persons: int = 3) -> list[Example]:
    """See `Task`. Each person takes about 55 tokens."""
    rng = random.Random(f"report {split} {seed}")
    drawn = (_some_report(world, rng, rng.sample(range(HEAD), persons), split) for _ in iter(int, 1))
    return distinct(map(example, drawn), count)


def _sentences(text: str) -> list[str]:
    return [sentence.strip() for sentence in text.split(".") if sentence.strip()]


def slots(item: Example, text: str) -> list[bool]:
    """Tell for each statement of the reference whether it stands in the answer, wherever it stands."""
    said = set(_sentences(text))
    return [wanted in said for wanted in _sentences(item.answer)]


def all_right(item: Example, text: str) -> bool:
    """Tell whether every statement of the reference stands in the answer."""
    return all(slots(item, text))


GRADER = FunctionGrader(all_right, "all slots")
