"""Recall of facts about persons, read in biographies and tested by questions; the counterpart of MMLU.

A fact that a test asks about occurs in training only in biographies, and the wording of the question is new.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.lab.tasks.task import Document, asked_in, distinct, example, question, some_question
from benchmarks.lab.worlds import ATTRIBUTES, Split, World, split_of
from cosd_api.comparison.graders import ContainsGrader
from cosd_api.forcing.samples import Example

GRADER = ContainsGrader()
BIOGRAPHIES = 0.6
"""The share of biographies among the documents; the other documents are questions."""


def biography(world: World, rng: random.Random, split: Split) -> Document:
    """Facts about one person, in an order that only this split uses; the name at the beginning is not learned."""
    while True:
        person = world.some_person(rng)
        told = rng.sample(ATTRIBUTES, rng.choice((1, 2, 3)))
        if split_of("biography", person, *(attribute.name for attribute in told)) == split:
            break
    text = " ".join(world.sentence(person, attribute) for attribute in told)
    name = world.persons[person]
    return Document(name, text.removeprefix(name))


def documents(world: World, rng: random.Random) -> Iterator[Document]:
    """See `Task`."""
    while True:
        if rng.random() < BIOGRAPHIES:
            yield biography(world, rng, "training")
        else:
            person, attribute, asked = some_question(world, rng)
            yield question(asked, world.sentence(person, attribute))


def items(world: World, seed: int, count: int, split: Split = "test") -> list[Example]:
    """See `Task`."""
    drawn = asked_in(world, random.Random(f"bio {split} {seed}"), split)
    return distinct(
        (
            example(question(asked, world.sentence(person, attribute)), target=world.value(person, attribute))
            for person, attribute, asked in drawn
        ),
        count,
    )
