"""Multiple-choice questions about persons, in the style of MMLU, for generated answers and for log-likelihoods.

The answer is a sentence that contains one of the four options. Models of this size recall a fact, but hardly ever learn
to look up the letter of an option.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.lab.tasks.task import Document, asked_in, distinct, example, question, some_question
from benchmarks.lab.worlds import Attribute, Split, World
from cosd_api.comparison.graders import ChoiceGrader
from cosd_api.forcing.samples import Example

LETTERS = "ABCD"
GRADER = ChoiceGrader()


def _with_options(
    world: World, rng: random.Random, person: int, attribute: Attribute, asked: str
) -> tuple[Document, list[str]]:
    right = world.value(person, attribute)
    options = [right, *rng.sample([value for value in attribute.values if value != right], len(LETTERS) - 1)]
    rng.shuffle(options)
    listed = ", ".join(f"{letter}) {option}" for option, letter in zip(options, LETTERS, strict=True))
    return question(f"{asked} {listed}", world.sentence(person, attribute)), options


def documents(world: World, rng: random.Random) -> Iterator[Document]:
    """See `Task`."""
    while True:
        yield _with_options(world, rng, *some_question(world, rng))[0]


def items(world: World, seed: int, count: int, split: Split = "test") -> list[Example]:
    """See `Task`."""
    rng = random.Random(f"choice {split} {seed}")
    drawn = (
        (*_with_options(world, rng, person, attribute, asked), world.value(person, attribute))
        for person, attribute, asked in asked_in(world, rng, split)
    )
    return distinct((example(document, target=right, choices=options) for document, options, right in drawn), count)


def continuations(item: Example) -> list[str]:
    """The answer sentences for all options, in order, for scoring by log-likelihood."""
    before, _, after = item.answer.rpartition(item.target or "")
    return [f"{before}{option}{after}" for option in item.choices or ()]
