"""Word problems of two to four steps, with the working written out, as in GSM8K.

No operation of a test, such as 34+25, occurs in training, and neither do 25+34, 59-34 and 59-25. The wording of the
questions is also new.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.lab.tasks.task import Document, distinct, example, question
from benchmarks.lab.worlds import Split, World, split_of
from cosd_api.comparison.graders import LastNumberGrader
from cosd_api.forcing.samples import Example

GRADER = LastNumberGrader()
LARGEST = 99
_STEPS, _SHARES = (2, 3, 4), (50, 35, 15)

_THINGS = ("apples", "books", "coins", "cards", "eggs", "keys", "nuts", "pens", "shells", "stamps")
_BEGINNINGS = (
    "{name} has {n} {things}.",
    "There are {n} {things} in the box of {name}.",
    "{name} starts with {n} {things}.",
)
_MORE = ("{name} buys {n} more.", "{name} finds {n}.", "{name} gets {n} as a gift.", "Then {n} are added.")
_LESS = ("{name} loses {n}.", "{name} sells {n}.", "{name} gives {n} away.", "Then {n} are taken.")
_ENDINGS = (
    "How many {things} are there now?",
    "How many {things} does {name} have at the end?",
    "What is the number of {things} now?",
    "Count the {things} of {name}.",
)


@dataclass(frozen=True)
class Chain:
    """A number and the operations on it.

    Attributes:
        first: the initial number.
        steps: sign and number of each operation.
    """

    first: int
    steps: tuple[tuple[str, int], ...]

    def working(self) -> str:
        """The steps written out, such as `34+25=59, 59-12=47`."""
        lines, value = list[str](), self.first
        for sign, number in self.steps:
            result = value + number if sign == "+" else value - number
            lines.append(f"{value}{sign}{number}={result}")
            value = result
        return ", ".join(lines)

    def result(self) -> str:
        """The last number."""
        return self.working().rpartition("=")[2]

    def expression(self) -> str:
        """The whole chain, such as `34+25-12`."""
        return f"{self.first}" + "".join(f"{sign}{number}" for sign, number in self.steps)


def family(value: int, sign: str, number: int) -> tuple[int, int]:
    """The two summands behind an operation; they are the same for 34+25, 25+34, 59-34 and 59-25."""
    one, other = sorted((value, number) if sign == "+" else (number, value - number))
    return one, other


def some_chain(world: World, rng: random.Random, split: Split, count: int) -> Chain:
    """A chain of operations that all belong to this split, with values from 1 to LARGEST.

    Additions form one half of the domain, and subtractions the other.
    """
    while True:
        first = value = rng.randint(5, LARGEST - 5)
        steps = list[tuple[str, int]]()
        for _ in range(count):
            sign = rng.choice("+-")
            if not world.meets("sums", "+-".index(sign), rng):
                sign = "-" if sign == "+" else "+"
            room = LARGEST - value if sign == "+" else value - 1
            numbers = [n for n in range(2, room + 1) if split_of("sum", *family(value, sign, n)) == split]
            if not numbers:
                break
            number = rng.choice(numbers)
            steps.append((sign, number))
            value = value + number if sign == "+" else value - number
        if len(steps) == count:
            return Chain(first, tuple(steps))


def some_problem(world: World, rng: random.Random, split: Split) -> tuple[Document, Chain]:
    """Draw a story with its working, and the operations."""
    chain = some_chain(world, rng, split, rng.choices(_STEPS, _SHARES)[0])
    while True:
        beginning, ending, things = rng.choice(_BEGINNINGS), rng.choice(_ENDINGS), rng.choice(_THINGS)
        if split_of(beginning, ending, things) == split:
            break
    name = world.persons[world.some_person(rng)].split()[0]
    told = [beginning.format(name=name, n=chain.first, things=things)]
    told += [rng.choice(_MORE if sign == "+" else _LESS).format(name=name, n=n) for sign, n in chain.steps]
    told.append(ending.format(name=name, things=things))
    return question(" ".join(told), f"{chain.working()}. The answer is {chain.result()}."), chain


def documents(world: World, rng: random.Random) -> Iterator[Document]:
    """See `Task`."""
    while True:
        yield some_problem(world, rng, "training")[0]


def items(world: World, seed: int, count: int, split: Split = "test") -> list[Example]:
    """See `Task`."""
    rng = random.Random(f"steps {split} {seed}")
    drawn = (some_problem(world, rng, split) for _ in iter(int, 1))
    return distinct((example(document, target=chain.result()) for document, chain in drawn), count)
