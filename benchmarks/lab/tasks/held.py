"""Text like the training text, to measure how fusing affects its probability when nothing needs correcting.

No text occurs in training word for word: the biographies state known facts in a different selection and order. No
answer is generated: each text is scored under each model alone and under the gated mixture.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.lab.tasks import bio, code, steps
from benchmarks.lab.tasks.task import Document, distinct, example
from benchmarks.lab.worlds import Split, World
from cosd_api.comparison.graders import ExactGrader
from cosd_api.forcing.samples import Example

GRADER = ExactGrader()


def documents(world: World, rng: random.Random) -> Iterator[Document]:
    """See `Task`; this task has no documents of its own, only documents of other tasks."""
    return bio.documents(world, rng)


def items(world: World, seed: int, count: int, split: Split = "test") -> list[Example]:
    """See `Task`; the items are biographies of persons drawn by frequency, word problems, and programs."""
    rng = random.Random(f"held {split} {seed}")

    def drawn() -> Iterator[Document]:
        while True:
            yield bio.biography(world, rng, split)
            yield steps.some_problem(world, rng, split)[0]
            yield code.some_program(world, rng, split)

    return distinct(map(example, drawn()), count)
