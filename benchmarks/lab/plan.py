"""The graph of the whole laboratory at one size: from models and questions to the answers of every cell."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cosd_api
import cosd_providers
from benchmarks.lab.answers import answers, questions, tree
from benchmarks.lab.graph import Step, code_digest, digest
from benchmarks.lab.likelihoods import SCORED, likelihoods
from benchmarks.lab.models import model_step
from benchmarks.lab.protocol import CELLS, FOLDER, HEADLINE, MAX_TOKENS, WORLD_SEED, Cell, Size, items_seed, seeds_of
from benchmarks.lab.ways import BACKWARD, OWN_TREE, TREE, WAYS, ways_of

__all__ = ["BACK", "Asked", "asked", "left_out", "scored"]

BACK = ", reversed"
"""Ends the name of a cell whose two models have changed places."""
LENGTHS = (128, 256, 512)
"""Limits of a report, as in the paper's Table 7."""
REPORTS = 0.2
"""Share of the usual number of questions that is asked of reports, which are ten times as long."""

_TREE_TASK, _TREE_QUESTIONS = "mixed", 3
_SECONDS = 0.08
"""For an answer, about, on two cores."""


@dataclass(frozen=True)
class Asked:
    """One comparison, and the step that makes it.

    Attributes:
        cell: name of the cell; with `BACK` behind it where its models have changed places.
        task: name of the task; of reports with their limit.
        seed: seed of the models.
        step: the step.
    """

    cell: str
    task: str
    seed: int
    step: Step


def asked(size: Size) -> list[Asked]:
    """All comparisons of a size, cell by cell."""
    found: list[Asked] = []
    for cell in CELLS:
        if cell.name not in size.cells or left_out(cell):
            continue
        for seed in seeds_of(cell.name, size):
            for back in (False, True):
                for task in size.tasks:
                    found += _of_task(cell, task, seed, size, back=back)
    return found


def scored(size: Size) -> list[Asked]:
    """All texts that are scored under the gated mixture: of `choice` and `held`, by models with one tokenizer."""
    tasks = [task for task in ("choice", "held") if task in size.tasks]
    several = [cell for cell in CELLS if cell.name in size.cells and cell.scenario in ("complementary", "calibration")]
    return [_scored(cell, task, seed, size) for cell in several for seed in seeds_of(cell.name, size) for task in tasks]


def _scored(cell: Cell, task: str, seed: int, size: Size) -> Asked:
    inputs = {
        "draft": model_step(cell.draft, seed),
        "assistant": model_step(cell.assistants[0], seed),
        "asked": _questions(task, items_seed(), size.items, "test"),
    }
    settings = {"task": task, "gates": repr(SCORED), "library": _library()}
    name = f"{cell.name}: {task} by likelihood, seed {seed}"
    return Asked(cell.name, task, seed, Step(name, likelihoods, settings, inputs, seconds=size.items))


def left_out(cell: Cell) -> str | None:
    """Why a cell cannot be run; None if it can."""
    return "a comparison is of two models" if len(cell.assistants) > 1 else None


def _of_task(cell: Cell, task: str, seed: int, size: Size, *, back: bool) -> list[Asked]:
    if task == "held" or (cell.scenario == "control" and task not in ("bio", "steps")):
        return []
    if back and (cell.scenario in ("control", "capacity", "upper bound") or size.name == "toy" or task not in HEADLINE):
        return []  # where a direction is what is controlled or varied
    if task == "mixed" and cell.scenario not in ("complementary", "calibration") and size.name == "quick":
        return []
    if task == "report":
        if cell.name != "a-b":
            return []
        return [_asked(cell, f"report {limit}", seed, size, back=back, limit=limit) for limit in LENGTHS]
    return [_asked(cell, task, seed, size, back=back, limit=MAX_TOKENS[task])]


def _asked(cell: Cell, task: str, seed: int, size: Size, *, back: bool, limit: int) -> Asked:
    kind = task.split(maxsplit=1)[0]
    models = (cell.assistants[0], cell.draft) if back else (cell.draft, cell.assistants[0])
    ways = [way for way in ways_of(cell, size) if not back or way in BACKWARD]
    if kind == "report":
        ways = [way for way in ways if way in (*BACKWARD, TREE)]
    count = round(size.items * REPORTS) if kind == "report" else size.items
    inputs = dict(zip(("draft", "assistant"), (model_step(name, seed) for name in models), strict=True))
    inputs["asked"] = _questions(kind, items_seed(), count, "test")
    for way, name, of in ((TREE, "tree", _TREE_TASK), (OWN_TREE, "own_tree", kind)):
        if way in ways:
            inputs[name] = _tree(*models, seed, of)
    settings: dict[str, Any] = {
        "task": kind,
        "ways": {way: repr(WAYS[way]) if way in WAYS else way for way in ways},
        "shuffled": cell.shuffled,
        "both_ways": False,
        "baselines": cell.scenario not in ("control", "upper bound") and not back,
        "max_tokens": limit,
        "concurrency": 4,
        "library": _library(),
    }
    label = cell.name + BACK * back
    name = f"{label}: {task}, seed {seed}, {len(ways)} ways"
    seconds = _SECONDS * count * (len(ways) + 4) * max(1.0, limit / 64)
    return Asked(label, task, seed, Step(name, answers, settings, inputs, [FOLDER / "controls.py"], seconds))


@cache
def _questions(task: str, seed: int, count: int, split: str) -> Step:
    settings = {"task": task, "world": WORLD_SEED, "seed": seed, "count": count, "split": split}
    code = [FOLDER / "worlds.py", *sorted((FOLDER / "tasks").glob("*.py"))]
    return Step(f"questions of {task}, {split}", questions, settings, code=code, seconds=2)


@cache
def _tree(draft: str, assistant: str, seed: int, task: str) -> Step:
    inputs = {
        "draft": model_step(draft, seed),
        "assistant": model_step(assistant, seed),
        "examples": _questions(task, 0, 48, "development"),
    }
    settings = {"count": _TREE_QUESTIONS, "library": _library()}
    return Step(f"tree for {draft} and {assistant}, seed {seed}, of {task}", tree, settings, inputs, seconds=5)


@cache
def _library() -> str:
    """SHA-256 (hex) of the code of this library: methods, graders and clients decide answers."""
    roots = [Path(one.__file__ or "").parent for one in (cosd_api, cosd_providers)]
    return digest(
        {
            f"{root.name}/{path.relative_to(root)}": code_digest(path)
            for root in roots
            for path in sorted(root.rglob("*.py"))
        }
    )
