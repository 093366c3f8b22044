"""The interface of all tasks, and the code that tasks share."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product
from typing import NamedTuple, Protocol

from benchmarks.lab.worlds import ATTRIBUTES, Attribute, Split, World, known_facts, split_of
from cosd_api.comparison.grading import Grader
from cosd_api.forcing.samples import Example


class Document(NamedTuple):
    """A training text. Its beginning is only read; the rest is learned."""

    read: str
    written: str


class Task(Protocol):
    """The interface of a task, which is a module of this package."""

    @property
    def GRADER(self) -> Grader:  # noqa: N802
        """The grader of the task's answers."""
        ...

    def documents(self, world: World, rng: random.Random) -> Iterator[Document]:
        """Yield endless texts for training, drawn with this random generator."""
        ...

    def items(self, world: World, seed: int, count: int, split: Split = "test") -> list[Example]:
        """Distinct questions with their answers, the same for each seed; a larger count only adds further questions."""
        ...


OPENINGS = ("", "Please tell me: ", "I want to know: ", "A question: ")


def question(asked: str, answer: str) -> Document:
    """A question and its answer, as a document."""
    return Document(f"Q: {asked}\nA:", f" {answer}")


def ways_to_ask(attribute: Attribute, split: Split) -> list[str]:
    """The wordings of a question that only this split uses; each is a new combination of a known opening and core."""
    sides: tuple[Split, ...] = ("training", "training", "development", "test")
    pairs = product(enumerate(OPENINGS), enumerate(attribute.questions))
    return [opening + core for (at, opening), (place, core) in pairs if sides[(at + place) % len(sides)] == split]


def some_question(world: World, rng: random.Random) -> tuple[int, Attribute, str]:
    """Draw a person, an attribute and a training question about it; facts and wordings of tests are left out."""
    while True:
        person, attribute = world.some_person(rng), rng.choice(ATTRIBUTES)
        if split_of(person, attribute.name) == "training":
            way = rng.choice(ways_to_ask(attribute, "training"))
            return person, attribute, way.format(name=world.persons[person])


def asked_in(world: World, rng: random.Random, split: Split) -> Iterator[tuple[int, Attribute, str]]:
    """Yield endless questions, used only by this split, about the best-known persons."""
    facts = known_facts(split)
    while True:
        person, attribute = rng.choice(facts)
        yield person, attribute, rng.choice(ways_to_ask(attribute, split)).format(name=world.persons[person])


def distinct(examples: Iterator[Example], count: int) -> list[Example]:
    """The first examples with different prompts.

    Raises:
        ValueError: there are too few different prompts.
    """
    found = dict[object, Example]()
    for one in islice(examples, 100 * count):
        found.setdefault(one.prompt, one)
        if len(found) == count:
            return list(found.values())
    raise ValueError(f"no more than {len(found)} different questions were found, and not {count}")


def example(document: Document, *, target: str | None = None, choices: Sequence[str] | None = None) -> Example:
    """A document as an example."""
    return Example(
        prompt=document.read,
        answer=document.written,
        target=target,
        choices=None if choices is None else tuple(choices),
    )


Draw = Callable[[], Document]
