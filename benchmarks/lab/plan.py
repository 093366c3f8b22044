"""The graph of the whole laboratory at one size, from models and questions to the answers in every cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from benchmarks.lab.studies import LENGTHS, Study, TreeOf, studies_of
from benchmarks.lab.ways import BACKWARD, TREE, WAYS, ways_of
from cosd_api.wording import counted

__all__ = ["BACK", "LENGTHS", "Asked", "asked", "scored"]

BACK = ", reversed"
"""The suffix for the name of a cell in which draft and assistant are swapped."""
_TREE_TASK = "mixed"
_SCORED = {"quick": 0.4, "full": 1.0}
"""For each size, the share of the usual number of questions whose options or texts are scored."""

_SECONDS: Mapping[str, float] = {"chared": 0.3, "cool": 0.3, "cool+rerank": 0.3, "cool-align": 0.3, "adafuse": 0.3}
_OTHERWISE, _ALONE = 0.07, 0.025
"""Approximate processor seconds per answer, for a way to fuse and for a model alone."""
_LONG = 8
"""The cost of a report of 128 tokens, as a multiple of the cost of other answers."""
_CORES = 1.9
"""The average number of busy processors."""


@dataclass(frozen=True)
class Asked:
    """One comparison, and the step that makes it.

    Attributes:
        cell: name of the cell, followed by `BACK` if draft and assistant are swapped.
        task: name of the task; for reports, with the token limit.
        seed: seed of the models.
        step: the step.
    """

    cell: str
    task: str
    seed: int
    step: Step


def asked(size: Size) -> list[Asked]:
    """All comparisons of a size, cell by cell, then study by study."""
    found: list[Asked] = []
    for cell in CELLS:
        if cell.name not in size.cells:
            continue
        for seed in seeds_of(cell.name, size):
            for back in (False, True):
                for task in size.tasks:
                    found += _of_task(cell, task, seed, size, back=back)
    for study in studies_of(size):
        [cell] = [one for one in CELLS if one.name == study.cell]
        for task in study.tasks:
            found += _of_study(study, cell, task, size.seeds[0], size)
    return found


def scored(size: Size) -> list[Asked]:
    """All scorings of `choice` and `held` under the gated mixture, for pairs of models that share a tokenizer."""
    several = [cell for cell in CELLS if cell.name in size.cells and cell.scenario in ("complementary", "calibration")]
    if size.name == "quick":
        several = [cell for cell in several if cell.name in ("c-d", "closed")]
    tasks = [task for task in ("choice", "held") if task in size.tasks or size.name == "quick"]
    return [_scored(cell, task, seed, size) for cell in several for seed in seeds_of(cell.name, size) for task in tasks]


def _scored(cell: Cell, task: str, seed: int, size: Size) -> Asked:
    count = round(size.items * _SCORED.get(size.name, 1.0))
    inputs = {
        "draft": model_step(cell.draft, seed),
        "assistant": model_step(cell.assistants[0], seed),
        "asked": _questions(task, items_seed(), count, "test"),
    }
    settings = {"task": task, "gates": repr(SCORED), "library": _library()}
    name = f"{cell.name}: {task} by likelihood, seed {seed}"
    return Asked(cell.name, task, seed, Step(name, likelihoods, settings, inputs, seconds=count / 4))


def _of_task(cell: Cell, task: str, seed: int, size: Size, *, back: bool) -> list[Asked]:
    if task in ("held", "report") or (cell.scenario == "control" and task not in HEADLINE):
        return []
    if back and (
        cell.scenario in ("control", "capacity", "three models", "upper bound")
        or size.name == "toy"
        or task not in HEADLINE
    ):
        return []  # in this cell, the direction itself is controlled or varied
    if task == "mixed" and cell.scenario not in ("complementary", "calibration") and size.name == "quick":
        return []
    ways = [way for way in ways_of(cell, size, seed) if not back or way in BACKWARD]
    found = _asked(
        cell.name + BACK * back,
        (cell.assistants[0], cell.draft) if back else (cell.draft, *cell.assistants),
        task,
        seed,
        size.items,
        ways=[way for way in ways if way != TREE],
        trees={TREE: TreeOf(_TREE_TASK)} if TREE in ways else {},
        shuffled=cell.shuffled,
        baselines=cell.scenario == "complementary" and size.name != "toy",
        max_tokens=MAX_TOKENS[task],
    )
    return [found]


def _of_study(study: Study, cell: Cell, task: str, seed: int, size: Size) -> list[Asked]:
    return [
        _asked(
            study.name,
            (cell.draft, cell.assistants[0]),
            f"{task} {limit}" if task == "report" else task,
            seed,
            max(2, round(size.items * study.share)),
            ways=study.ways,
            trees=study.trees,
            max_tokens=limit,
            seconds=study.seconds,
            alone=study.alone,
        )
        for limit in (LENGTHS if task == "report" else [MAX_TOKENS[task]])
    ]


def _asked(
    label: str,
    models: tuple[str, ...],
    task: str,
    seed: int,
    count: int,
    *,
    ways: Sequence[str],
    trees: Mapping[str, TreeOf],
    max_tokens: int,
    shuffled: bool = False,
    baselines: bool = False,
    seconds: float = 0.0,
    alone: bool = False,
) -> Asked:
    kind = task.split(maxsplit=1)[0]
    inputs = _models(models, seed)
    inputs["asked"] = _questions(kind, items_seed(), count, "test")
    steps = {way: f"tree_{at}" for at, way in enumerate(trees)}
    inputs |= {steps[way]: _tree(models, seed, of.task or kind, of.count) for way, of in trees.items()}
    settings: dict[str, Any] = {
        "task": kind,
        "ways": {way: repr(WAYS[way]) for way in ways},
        "trees": steps,
        "shuffled": shuffled,
        "both_ways": False,
        "baselines": baselines,
        "max_tokens": max_tokens,
        "concurrency": 1,
        "seconds": seconds,
        "library": _library(),
    }
    name = f"{label}: {task}, seed {seed}, {counted(len(ways) + len(trees), 'way')}"
    busy = len(models) * _ALONE + sum(_SECONDS.get(way, _OTHERWISE) for way in (*ways, *trees))
    busy = (busy + baselines * 2.6 * _OTHERWISE) * (_LONG * max_tokens / 128 if kind == "report" else 1)
    estimated = count * (busy if alone else busy / _CORES) * (3 if seconds else 1)
    step = Step(name, answers, settings, inputs, [FOLDER / "controls.py"], estimated, alone)
    return Asked(label, task, seed, step)


@cache
def _questions(task: str, seed: int, count: int, split: str) -> Step:
    settings = {"task": task, "world": WORLD_SEED, "seed": seed, "count": count, "split": split}
    code = [FOLDER / "worlds.py", *sorted((FOLDER / "tasks").glob("*.py"))]
    return Step(f"questions of {task}, {split}", questions, settings, code=code, seconds=1)


def _models(names: Sequence[str], seed: int) -> dict[str, Step]:
    """The steps that provide models, by input name: the draft, then the assistants."""
    roles = ["draft", "assistant", *(f"assistant_{at}" for at in range(1, len(names) - 1))]
    return {role: model_step(name, seed) for role, name in zip(roles, names, strict=True)}


@cache
def _tree(models: tuple[str, ...], seed: int, task: str, count: int) -> Step:
    inputs = {**_models(models, seed), "examples": _questions(task, 0, 48, "development")}
    settings = {"count": count, "library": _library()}
    words = f"tree for {' and '.join(models)}, seed {seed}, of {task} ({count})"
    return Step(words, tree, settings, inputs, seconds=5)


@cache
def _library() -> str:
    """SHA-256 (hex) of this library's code, because its methods, graders and clients influence the answers."""
    roots = [Path(one.__file__ or "").parent for one in (cosd_api, cosd_providers)]
    return digest(
        {
            f"{root.name}/{path.relative_to(root)}": code_digest(path)
            for root in roots
            for path in sorted(root.rglob("*.py"))
        }
    )
