"""Long answers: facts about several persons, in the order of the question, and a sum for each person.

Reports of a split contain only facts and sums that belong to that split.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.lab.tasks.steps import some_chain
from benchmarks.lab.tasks.task import Document, distinct, example
from benchmarks.lab.worlds import ATTRIBUTES, Attribute, Split, World, known_facts, split_of
from cosd_api.comparison.graders import FunctionGrader
from cosd_api.forcing.samples import Example

LONGEST = 16
"""The number of persons in the longest report, and in every report of a test; such a report has about 400 tokens."""
_MOST_FACTS = 3

About = tuple[int, list[Attribute]]
"""A person's number, and the attributes that a report states about the person."""


def _some_report(world: World, rng: random.Random, told: list[About], split: Split) -> Document:
    asked, written = list[str](), list[str]()
    for person, attributes in told:
        chain = some_chain(world, rng, split, 1)
        names = " and ".join(attribute.name for attribute in attributes)
        asked.append(f"{world.persons[person]} ({names}, {chain.expression()})")
        written += [*(world.sentence(person, attribute) for attribute in attributes), f"{chain.working()}."]
    return Document(f"Report on {', '.join(asked)}.\nReport:", f" {' '.join(written)}")


def _facts_of(person: int, split: Split) -> list[Attribute]:
    return [attribute for attribute in ATTRIBUTES if split_of(person, attribute.name) == split]


def _some_facts(rng: random.Random, person: int, split: Split) -> About:
    own = _facts_of(person, split)
    return person, rng.sample(own, min(len(own), rng.randint(1, _MOST_FACTS)))


def documents(world: World, rng: random.Random) -> Iterator[Document]:
    """See `Task`."""
    while True:
        count = min(LONGEST, 1 + int(rng.expovariate(0.3)))
        persons = (world.some_person(rng) for _ in range(count))
        told = [_some_facts(rng, person, "training") for person in persons if _facts_of(person, "training")]
        if told:
            yield _some_report(world, rng, told, "training")


def items(world: World, seed: int, count: int, split: Split = "test") -> list[Example]:
    """See `Task`: reports on LONGEST persons."""
    rng = random.Random(f"report {split} {seed}")
    persons = sorted({person for person, _ in known_facts(split)})

    def drawn() -> Iterator[Document]:
        while True:
            told = [_some_facts(rng, person, split) for person in rng.sample(persons, LONGEST)]
            yield _some_report(world, rng, told, split)

    return distinct(map(example, drawn()), count)


def _sentences(text: str) -> list[str]:
    return [sentence.strip() for sentence in text.split(".") if sentence.strip()]


def slots(item: Example, text: str) -> list[bool]:
    """For each statement of the reference, true if the answer contains it anywhere."""
    said = set(_sentences(text))
    return [wanted in said for wanted in _sentences(item.answer)]


def all_right(item: Example, text: str) -> bool:
    """Test whether the answer contains every statement of the reference."""
    return all(slots(item, text))


GRADER = FunctionGrader(all_right, "all slots")
