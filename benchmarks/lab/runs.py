"""Comparisons as the laboratory keeps them: every answer with its grade, its replaced places and its bill.

One file holds them all, a line each, so that everything that is shown can be made from it again.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cosd_api.comparison.contestants import BEST, ORACLE
from cosd_api.comparison.result import Comparison

__all__ = ["ALONE", "Run", "RunsFile", "read_runs", "write_runs"]

ALONE = ("draft", "assistant")
_SHORT = 12
"""Characters of a question's key that are kept: they tell the questions of one comparison apart."""


@dataclass(frozen=True)
class Run:
    """One comparison: the questions of one task, answered by all ways to fuse one cell's models of one seed.

    Attributes:
        cell: name of the cell.
        task: name of the task.
        seed: seed of the models' training.
        comparison: the result.
    """

    cell: str
    task: str
    seed: int
    comparison: Comparison

    @cached_property
    def ways(self) -> tuple[str, ...]:
        """Names of all that answered, in the order of the standings."""
        return tuple(one.name for one in self.comparison.standings if one.answered)

    def right(self, way: str) -> dict[str, bool]:
        """Outcomes of a way to answer on the test questions; of `best of the two` and `oracle` too."""
        if way == BEST:
            return self.right(self.comparison.better)
        if way == ORACLE:
            draft, assistant = map(self.right, ALONE)
            return {key: draft[key] or assistant[key] for key in draft if key in assistant}
        return {key: bool(one.right) for key, one in self.comparison.answers_of(way).items()}


@dataclass(frozen=True)
class RunsFile:
    """All runs of one execution, and what is to be known of it.

    Attributes:
        runs: the runs.
        about: the protocol's hash, the size, the date, the seconds and the machine.
    """

    runs: Sequence[Run]
    about: dict[str, Any] = field(default_factory=dict[str, Any])


def write_runs(path: Path, file: RunsFile) -> None:
    """Write runs, compressed."""
    lines = [json.dumps(file.about, sort_keys=True)]
    for run in file.runs:
        fields = {"cell": run.cell, "task": run.task, "seed": run.seed}
        lines.append(json.dumps(fields | {"comparison": json.loads(_short(run.comparison).model_dump_json())}))
    path.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9))


def read_runs(path: Path) -> RunsFile:
    """Read what `write_runs` has written.

    Raises:
        FileNotFoundError: nothing was kept.
    """
    about, *lines = lzma.decompress(path.read_bytes()).decode().split("\n")
    rows = map(json.loads, lines)
    runs = [Run(**(row | {"comparison": Comparison.model_validate(row["comparison"])})) for row in rows]
    return RunsFile(runs, json.loads(about))


def _short(found: Comparison) -> Comparison:
    """The comparison without what only a resumed one needs: endpoints of servers that are gone, and long keys."""
    answers = [
        one.model_copy(update={"key": "", "graded": "", "question": one.question[:_SHORT]}) for one in found.answers
    ]
    return found.model_copy(
        update={
            "answers": tuple(answers),
            "development": tuple(key[:_SHORT] for key in found.development),
            "failures": tuple(one.model_copy(update={"question": one.question[:_SHORT]}) for one in found.failures),
            "draft": found.draft.model_copy(update={"endpoint": "http://127.0.0.1"}),
            "assistant": found.assistant.model_copy(update={"endpoint": "http://127.0.0.1"}),
        }
    )


def of_cell(runs: Iterable[Run], cell: str, task: str | None = None) -> list[Run]:
    """The runs of one cell, and of one task if it is given."""
    return [one for one in runs if one.cell == cell and task in (None, one.task)]
