"""A fact and a calculation in one answer, which neither of two complementary models can give alone."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.lab.tasks.steps import some_chain
from benchmarks.lab.tasks.task import Document, asked_in, distinct, example, question, some_question
from benchmarks.lab.worlds import Attribute, Split, World
from cosd_api.comparison.graders import ExactGrader
from cosd_api.forcing.samples import Example

GRADER = ExactGrader()


def _both(world: World, rng: random.Random, split: Split, person: int, attribute: Attribute, asked: str) -> Document:
    chain = some_chain(world, rng, split, 2)
    answer = f"{world.sentence(person, attribute)} {chain.working()}."
    return question(f"{asked} And what is {chain.expression()}?", answer)


def documents(world: World, rng: random.Random) -> Iterator[Document]:
    """See `Task`."""
    while True:
        yield _both(world, rng, "training", *some_question(world, rng))


def items(world: World, seed: int, count: int, split: Split = "test") -> list[Example]:
    """See `Task`."""
    rng = random.Random(f"mixed {split} {seed}")
    drawn = (_both(world, rng, split, *asked) for asked in asked_in(world, rng, split))
    return distinct(map(example, drawn), count)
