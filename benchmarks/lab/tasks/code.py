"""Translation of a sentence into a program in a small language, graded by running the program, as in HumanEval.

A program is a pipeline on a list or a word: `x | reverse | odd | take 3`. The sentence names the last operation first:
"the first 3 of the odd numbers of the reverse of x". No program of a test occurs in training.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.lab.tasks.task import Document, distinct, example, question
from benchmarks.lab.worlds import Split, World, split_of
from cosd_api.comparison.graders import FunctionGrader
from cosd_api.forcing.samples import Example

Value = list[int] | str


@dataclass(frozen=True)
class Operation:
    """One word of the language.

    Attributes:
        phrases: phrases that express the operation before "of" in a sentence, with `{n}` for its number.
        run: the function that carries out the operation.
        on: `"list"`, `"word"` or either.
    """

    phrases: tuple[str, ...]
    run: Callable[[Any, int], Value]
    on: str = "list or word"

    @property
    def takes_number(self) -> bool:
        """True for operations such as `take 3`."""
        return "{n}" in self.phrases[0]


OPERATIONS = {
    "reverse": Operation(("the reverse", "the backward form"), lambda v, _: v[::-1]),
    "take": Operation(("the first {n}", "the initial {n}"), lambda v, n: v[:n]),
    "drop": Operation(("all but the first {n}", "what follows the first {n}"), lambda v, n: v[n:]),
    "last": Operation(("the last {n}", "the final {n}"), lambda v, n: v[-n:]),
    "twice": Operation(("two copies", "the repetition"), lambda v, _: v + v),
    "sort": Operation(("the sorted form", "the ascending order"), lambda v, _: sorted(v), "list"),
    "even": Operation(("the even numbers", "the multiples of two"), lambda v, _: [i for i in v if i % 2 == 0], "list"),
    "odd": Operation(("the odd numbers", "the uneven numbers"), lambda v, _: [i for i in v if i % 2], "list"),
    "double": Operation(("the doubles", "twice the numbers"), lambda v, _: [2 * i for i in v], "list"),
    "square": Operation(("the squares", "the second powers"), lambda v, _: [i * i for i in v], "list"),
    "add": Operation(("{n} more than the numbers", "the sums with {n}"), lambda v, n: [i + n for i in v], "list"),
    "negate": Operation(("the negatives", "the opposites"), lambda v, _: [-i for i in v], "list"),
    "upper": Operation(("the capitals", "the large letters"), lambda v, _: v.upper(), "word"),
    "vowels": Operation(
        ("the vowels", "the open sounds"), lambda v, _: "".join(c for c in v if c in "aeiouAEIOU"), "word"
    ),
    "dash": Operation(("the dashed form", "the letters with dashes"), lambda v, _: "-".join(v), "word"),
}
"""The operations of the language, by name."""
_SECOND_HALF = frozenset(("take", "last", "sort", "odd", "square", "negate", "upper", "vowels"))
"""The operations of the second half; all other operations belong to the first half."""
_NAMES = {"list": "x", "word": "w"}
_LENGTHS, _SHARES = (3, 4), (50, 50)
_NUMBERS = range(1, 5)


def _inputs(kind: str) -> list[Value]:
    """Inputs on which a program is run; none of them occurs in training."""
    rng = random.Random(f"inputs {kind}")
    if kind == "list":
        return [rng.sample(range(-9, 20), rng.randint(7, 10)) for _ in range(6)]
    return ["".join(rng.choices("abcdeghiklmnoprstuvw", k=rng.randint(7, 10))) for _ in range(6)]


INPUTS = {name: _inputs(kind) for kind, name in _NAMES.items()}


def run(program: str, value: Value) -> Value:
    """Run a program on a value, and return its result.

    Raises:
        ValueError: the program is invalid for this kind of value.
    """
    kind = "word" if isinstance(value, str) else "list"
    name, *parts = (part.split() for part in program.strip().removesuffix(".").split("|"))
    if name != [_NAMES[kind]]:
        raise ValueError(f"a program for a {kind} begins with {_NAMES[kind]}")
    for part in parts:
        operation = OPERATIONS.get(part[0] if part else "")
        if operation is None or kind not in operation.on:
            raise ValueError(f"no operation on a {kind}: {' '.join(part)}")
        numbers = [int(word) for word in part[1:]]
        if len(numbers) != operation.takes_number or not all(0 < n < 100 for n in numbers):
            raise ValueError(f"wrong numbers: {' '.join(part)}")
        value = operation.run(value, numbers[0] if numbers else 0)
    return value


def outputs(program: str, inputs: list[Value]) -> list[Value] | None:
    """The outputs of a program for these inputs; None if it is invalid."""
    try:
        return [run(program, value) for value in inputs]
    except ValueError:
        return None


def runs_alike(item: Example, text: str) -> bool:
    """Test whether the program in an answer's first line does the same as the reference, on unseen inputs."""
    inputs = INPUTS[item.answer.split()[0]]
    return outputs(text.strip().split("\n")[0], inputs) == outputs(item.answer, inputs)


GRADER = FunctionGrader(runs_alike, "runs alike")


def some_program(world: World, rng: random.Random, split: Split) -> Document:
    """Draw a sentence and its program from this split; the outputs for most inputs are not empty."""
    while True:
        kind = rng.choice(list(_NAMES))
        usable = [
            name
            for name, operation in OPERATIONS.items()
            if kind in operation.on and world.meets("code", name in _SECOND_HALF, rng)
        ]
        chosen = rng.sample(usable, rng.choices(_LENGTHS, _SHARES)[0])
        parts, said = [_NAMES[kind]], _NAMES[kind]
        for name in chosen:
            number = rng.choice(_NUMBERS)
            operation = OPERATIONS[name]
            parts.append(f"{name} {number}" if operation.takes_number else name)
            said = f"{rng.choice(operation.phrases).format(n=number)} of {said}"
        program = " | ".join(parts)
        results = outputs(program, INPUTS[_NAMES[kind]]) or []
        if split_of(program) == split and sum(map(bool, results)) > 3:
            return question(f"Write {said}.", program)


def documents(world: World, rng: random.Random) -> Iterator[Document]:
    """See `Task`."""
    while True:
        yield some_program(world, rng, "training")


def items(world: World, seed: int, count: int, split: Split = "test") -> list[Example]:
    """See `Task`."""
    rng = random.Random(f"code {split} {seed}")
    return distinct((example(some_program(world, rng, split)) for _ in iter(int, 1)), count)
