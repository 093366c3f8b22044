"""The tasks, each with its training documents, its test questions and its grader.

Every module defines `documents(world, rng)`, endless texts for training, `items(world, seed, count, split)`, distinct
questions for development and test, and `GRADER`.
"""

from __future__ import annotations

from benchmarks.lab.tasks import bio, choice, code, held, mixed, report, steps
from benchmarks.lab.tasks.task import Task

__all__ = ["TASKS", "Task"]

TASKS: dict[str, Task] = {
    "bio": bio,
    "choice": choice,
    "steps": steps,
    "code": code,
    "mixed": mixed,
    "report": report,
    "held": held,
}
"""All tasks, by name."""
