"""The laboratory's kept comparisons: every answer with its grade, its replaced places and its costs.

One file contains all comparisons, one per line, so that everything on the pages can be made again from this file.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from benchmarks.lab.protocol import WORLD_SEED
from benchmarks.lab.tasks import TASKS, report
from benchmarks.lab.worlds import World
from cosd_api.comparison.contestants import ORACLE
from cosd_api.comparison.result import Comparison

__all__ = ["ALONE", "BEST", "Run", "RunsFile", "facts_asked", "read_runs", "slots_said", "write_runs"]

ALONE = ("draft", "assistant")
"""The names of a pair's models when they answer alone; see `Run.alone`."""
BEST = "best of the two"
"""The name that stands for the model that is better on a run's development questions; see `Run.better`."""
_OF_FACTS = ("bio", "choice", "mixed")
"""The tasks that have several questions about one fact, in different wordings."""
Slots = Mapping[str, Mapping[str, Sequence[bool]]]
_SHORT = 12
"""The number of characters of a question's key that are kept, enough to distinguish the questions of one comparison."""


@dataclass(frozen=True)
class Run:
    """One comparison: the questions of one task, answered in every way by the models of one cell and one seed.

    Attributes:
        cell: name of the cell.
        task: name of the task.
        seed: seed of the models' training.
        comparison: the result.
        facts: the statement that a question asks for, by the beginning of the question's key. A question without an
            entry asks for something that no other question asks for.
        slots: only for reports: for each statement of the reference, in order, whether an answer contains it. The
            answers are identified by the way to answer and the beginning of the question's key.
    """

    cell: str
    task: str
    seed: int
    comparison: Comparison
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    slots: Slots = field(default_factory=dict[str, Mapping[str, Sequence[bool]]])

    @property
    def kind(self) -> str:
        """The kind of the questions: the same for all tasks on facts; for reports, the task without its limit."""
        return "facts" if self.task in _OF_FACTS else self.task.split(maxsplit=1)[0]

    def cluster(self, question: str) -> tuple[str, str]:
        """The identity of the fact or problem asked for, the same in other wordings and in other runs."""
        short = question[:_SHORT]
        return self.kind, self.facts.get(short, short)

    @cached_property
    def alone(self) -> tuple[str, ...]:
        """The names of the models alone: `ALONE` for a pair; if there are several assistants, they are numbered."""
        return tuple(self.comparison.models)

    @cached_property
    def ways(self) -> tuple[str, ...]:
        """The names of all models and ways in the order of the standings, with `best of the two` after the models."""
        names = [one.name for one in self.comparison.standings if one.answered]
        return (*names[: len(self.alone)], BEST, *names[len(self.alone) :])

    @cached_property
    def better(self) -> str:
        """The model with the most right answers to the development questions; of equals, the cheapest."""
        several = {name: self.comparison.answers_of(name, development=True) for name in self.alone}
        common = [key for key in several["draft"] if all(key in one for one in several.values())]

        def rank(name: str) -> tuple[int, int]:
            answers = [several[name][key] for key in common]
            return sum(bool(one.right) for one in answers), -sum(one.billed for one in answers)

        return max(self.alone, key=rank)  # the first model if several are equal

    def right(self, way: str) -> dict[str, bool]:
        """The outcomes of a way to answer on the test questions; `best of the two` and `oracle` are also accepted."""
        if way == BEST:
            return self.right(self.better)
        if way == ORACLE:
            several = [self.right(model) for model in self.alone]
            return {key: any(one[key] for one in several) for key in several[0] if all(key in one for one in several)}
        return {key: bool(one.right) for key, one in self.comparison.answers_of(way).items()}


@dataclass(frozen=True)
class RunsFile:
    """All runs of one execution, with information about it.

    Attributes:
        runs: the runs.
        about: the protocol's hash, the size, the date, the seconds and the machine.
    """

    runs: Sequence[Run]
    about: dict[str, Any] = field(default_factory=dict[str, Any])


def write_runs(path: Path, file: RunsFile) -> None:
    """Write runs, compressed, to a file atomically; create its folder if it is missing."""
    lines = [json.dumps(file.about, sort_keys=True)]
    for run in file.runs:
        fields = {"cell": run.cell, "task": run.task, "seed": run.seed, "facts": dict(run.facts), "slots": run.slots}
        lines.append(json.dumps(fields | {"comparison": json.loads(_short(run.comparison).model_dump_json())}))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9))
    part.replace(path)


def read_runs(path: Path) -> RunsFile:
    """Read a file that `write_runs` has written.

    Raises:
        FileNotFoundError: nothing has been kept.
    """
    about, *lines = lzma.decompress(path.read_bytes()).decode().split("\n")
    known = json.loads(about)
    runs: list[Run] = []
    for row in map(json.loads, lines):
        found = Comparison.model_validate(row.pop("comparison"))
        if "facts" not in row:  # the first run did not keep the facts
            row["facts"] = facts_asked(row["task"], int(known["hash"][:12], 16), known["items"], found)
        runs.append(Run(**row, comparison=found))
    return RunsFile(runs, known)


def facts_asked(task: str, seed: int, count: int, found: Comparison) -> dict[str, str]:
    """`Run.facts` of a comparison whose questions were drawn with this seed."""
    if task not in _OF_FACTS:
        return {}
    statements = _statements(task, seed, count)
    asked = dict.fromkeys(one.question[:_SHORT] for one in found.answers)
    return {key: statements[key] for key in asked if key in statements}


def slots_said(task: str, seed: int, count: int, found: Comparison) -> Slots:
    """`Run.slots` of a comparison whose questions were drawn with this seed; empty for tasks other than reports."""
    if not task.startswith("report"):
        return {}
    references = {one.key: one for one in report.items(World(WORLD_SEED), seed, count, "test")}
    several: dict[str, dict[str, Sequence[bool]]] = {}
    for one in found.answers:
        if one.question in references:
            said = report.slots(references[one.question], one.text)
            several.setdefault(one.contestant, {})[one.question[:_SHORT]] = said
    return several


@cache
def _statements(task: str, seed: int, count: int) -> dict[str, str]:
    """For each question, the first sentence of its answer, which states the fact."""
    items = TASKS[task].items(World(WORLD_SEED), seed, count, "test")
    return {one.key[:_SHORT]: one.answer.partition(".")[0].strip() for one in items}


def _short(found: Comparison) -> Comparison:
    """The comparison without data that is needed only for resuming: the endpoints of former servers, and long keys."""
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
            "more_assistants": tuple(
                one.model_copy(update={"endpoint": "http://127.0.0.1"}) for one in found.more_assistants
            ),
        }
    )


def of_cell(runs: Iterable[Run], cell: str, task: str | None = None) -> list[Run]:
    """The runs of one cell, and of one task if it is given."""
    return [one for one in runs if one.cell == cell and task in (None, one.task)]
