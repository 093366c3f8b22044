"""Comparisons as the laboratory keeps them: every answer with its grade, its replaced places and its bill.

One file holds them all, a line each, so that everything that is shown can be made from it again.
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
"""Names of the models alone, of a pair; see `Run.alone`."""
BEST = "best of the two"
"""Name of the model, of a pair or of several, that is better on a run's development questions; see `Run.better`."""
_OF_FACTS = ("bio", "choice", "mixed")
"""Tasks with several questions about one fact, in other words."""
Slots = Mapping[str, Mapping[str, Sequence[bool]]]
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
        facts: the statement that a question asks for, by the beginning of its key; a question that is not there asks
            what no other does.
        slots: of a report, by the way to answer and the beginning of the question's key: for each statement of the
            reference, in its order, whether it stands in the answer.
    """

    cell: str
    task: str
    seed: int
    comparison: Comparison
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    slots: Slots = field(default_factory=dict[str, Mapping[str, Sequence[bool]]])

    @property
    def kind(self) -> str:
        """The task whose questions are drawn: that of facts for all that ask for them; of reports without a limit."""
        return "facts" if self.task in _OF_FACTS else self.task.split(maxsplit=1)[0]

    def cluster(self, question: str) -> tuple[str, str]:
        """The identity of what a question asks: equal for its repetition in another run, and for its other wordings."""
        short = question[:_SHORT]
        return self.kind, self.facts.get(short, short)

    @cached_property
    def alone(self) -> tuple[str, ...]:
        """Names of the models alone: of a pair `ALONE`, with more assistants these have numbers."""
        return tuple(self.comparison.models)

    @cached_property
    def ways(self) -> tuple[str, ...]:
        """Names of all that answered, in the order of the standings; `best of the two` behind the models."""
        names = [one.name for one in self.comparison.standings if one.answered]
        return (*names[: len(self.alone)], BEST, *names[len(self.alone) :])

    @cached_property
    def better(self) -> str:
        """The model with the most right answers to the development questions; of equals the cheaper one."""
        several = {name: self.comparison.answers_of(name, development=True) for name in self.alone}
        common = [key for key in several["draft"] if all(key in one for one in several.values())]

        def rank(name: str) -> tuple[int, int]:
            answers = [several[name][key] for key in common]
            return sum(bool(one.right) for one in answers), -sum(one.billed for one in answers)

        return max(self.alone, key=rank)  # the first of equals

    def right(self, way: str) -> dict[str, bool]:
        """Outcomes of a way to answer on the test questions; of `best of the two` and `oracle` too."""
        if way == BEST:
            return self.right(self.better)
        if way == ORACLE:
            several = [self.right(model) for model in self.alone]
            return {key: any(one[key] for one in several) for key in several[0] if all(key in one for one in several)}
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
    """Write runs, compressed, into a file that is there whole or not at all; its folder is made if it is missing."""
    lines = [json.dumps(file.about, sort_keys=True)]
    for run in file.runs:
        fields = {"cell": run.cell, "task": run.task, "seed": run.seed, "facts": dict(run.facts), "slots": run.slots}
        lines.append(json.dumps(fields | {"comparison": json.loads(_short(run.comparison).model_dump_json())}))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9))
    part.replace(path)


def read_runs(path: Path) -> RunsFile:
    """Read what `write_runs` has written.

    Raises:
        FileNotFoundError: nothing was kept.
    """
    about, *lines = lzma.decompress(path.read_bytes()).decode().split("\n")
    known = json.loads(about)
    runs: list[Run] = []
    for row in map(json.loads, lines):
        found = Comparison.model_validate(row.pop("comparison"))
        if "facts" not in row:  # the first run kept none
            row["facts"] = facts_asked(row["task"], int(known["hash"][:12], 16), known["items"], found)
        runs.append(Run(**row, comparison=found))
    return RunsFile(runs, known)


def facts_asked(task: str, seed: int, count: int, found: Comparison) -> dict[str, str]:
    """`Run.facts` of a comparison, whose questions were drawn with this seed."""
    if task not in _OF_FACTS:
        return {}
    statements = _statements(task, seed, count)
    asked = dict.fromkeys(one.question[:_SHORT] for one in found.answers)
    return {key: statements[key] for key in asked if key in statements}


def slots_said(task: str, seed: int, count: int, found: Comparison) -> Slots:
    """`Run.slots` of a comparison, whose questions were drawn with this seed; empty unless it is of reports."""
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
    """The first sentence of each answer: the statement of the fact."""
    items = TASKS[task].items(World(WORLD_SEED), seed, count, "test")
    return {one.key[:_SHORT]: one.answer.partition(".")[0].strip() for one in items}


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
            "more_assistants": tuple(
                one.model_copy(update={"endpoint": "http://127.0.0.1"}) for one in found.more_assistants
            ),
        }
    )


def of_cell(runs: Iterable[Run], cell: str, task: str | None = None) -> list[Run]:
    """The runs of one cell, and of one task if it is given."""
    return [one for one in runs if one.cell == cell and task in (None, one.task)]
