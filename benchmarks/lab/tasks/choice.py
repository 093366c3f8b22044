"""Questions about persons with four options, in the manner of MMLU, for a generated letter and for log-likelihoods."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.lab.tasks.task import Document, asked_in, distinct, example, question, some_question
from benchmarks.lab.worlds import Attribute, Split, World
from cosd_api.comparison.graders import RegexGrader
from cosd_api.training.dataset import Example

LETTERS = "ABCD"
GRADER = RegexGrader(rf"\b([{LETTERS}])\b")


def _with_options(
    world: World, rng: random.Random, person: int, attribute: Attribute, asked: str
) -> tuple[Document, list[str]]:
    right = world.value(person, attribute)
    options = [right, *rng.sample([value for value in attribute.values if value != right], len(LETTERS) - 1)]
    rng.shuffle(options)
    listed = ", ".join(f"{option} {letter}" for option, letter in zip(options, LETTERS, strict=True))
    sentence = world.sentence(person, attribute).removesuffix(".")
    return question(f"{asked} {listed}", f"{sentence} {LETTERS[options.index(right)]}."), options


def documents(world: World, rng: random.Random) -> Iterator[Document]:
    """See `Task`."""
    while True:
        yield _with_options(world, rng, *some_question(world, rng))[0]


def items(world: World, seed: int, count: int, split: Split = "test") -> list[Example]:
    """See `Task`."""
    rng = random.Random(f"choice {split} {seed}")
    drawn = (_with_options(world, rng, *asked) for asked in asked_in(world, rng, split))
    return distinct(
        (example(document, target=document.written[-2], choices=options) for document, options in drawn), count
    )


def continuations(item: Example) -> list[str]:
    """The answers with each of the options, in their order, to be scored by log-likelihood."""
    choices, letter = item.choices or (), item.target or "A"
    before, _, after = item.answer.rpartition(f"{choices[LETTERS.index(letter)]} {letter}")
    return [f"{before}{option} {one}{after}" for option, one in zip(choices, LETTERS, strict=True)]
