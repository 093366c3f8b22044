"""Adding a run to the kept run: further cells with the same questions, asked on another day."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.lab.answers import answers
from benchmarks.lab.likelihoods import likelihoods
from benchmarks.lab.plan import BACK, Asked
from benchmarks.lab.runs import RunsFile

__all__ = ["merged", "parts_of"]

_Key = tuple[str, str, str, int]


def merged(kept: RunsFile, new: RunsFile, several: Sequence[Asked]) -> RunsFile:
    """The new run, with every kept result whose cell, task and seed the new run does not cover.

    If a cell is partly kept and partly replaced, it is listed under both days.

    Args:
        kept: the kept run; it is discarded if its protocol or its number of questions differs.
        new: the new run.
        several: all comparisons of the size, to list the comparisons that are still missing.
    """
    if any(kept.about[name] != new.about[name] for name in ("hash", "items")):
        return new
    made = {*_keys(new)}
    stays = [one for one in kept.runs if (answers.__name__, one.cell, one.task, one.seed) not in made]
    scored = [one for one in kept.about["likelihoods"] if _of_scored(one) not in made]
    fresh = parts_of(new)
    left = {one.cell.removesuffix(BACK) for one in stays} | {one["cell"] for one in scored}
    parts: list[dict[str, Any]] = [
        part | {"cells": cells}
        for part in parts_of(kept)
        if (cells := [cell for cell in part["cells"] if cell in left])
    ]
    parts += fresh
    have = {*_keys(kept), *made}
    changed = {
        "parts": parts,
        "seconds": sum(part["seconds"] for part in parts),
        "likelihoods": [*scored, *new.about["likelihoods"]],
        "to_come": [one.step.name for one in several if (one.step.kind, one.cell, one.task, one.seed) not in have],
    }
    return RunsFile([*stays, *new.runs], new.about | changed)


def parts_of(file: RunsFile) -> list[dict[str, Any]]:
    """The days on which a run was made, each with its `date`, `seconds`, `cells` and the hash of the `library`'s code.

    Runs that were kept before this list was introduced have neither the list nor the hash.
    """
    whole = {"date": file.about["date"], "seconds": file.about["seconds"], "library": ""}
    cells = dict.fromkeys(run.cell.removesuffix(BACK) for run in file.runs)
    found: list[dict[str, Any]] = file.about.get("parts") or [whole | {"cells": [*cells]}]
    return found


def _keys(file: RunsFile) -> Iterator[_Key]:
    """The keys of the comparisons and of the scored texts of a run."""
    yield from ((answers.__name__, one.cell, one.task, one.seed) for one in file.runs)
    yield from map(_of_scored, file.about["likelihoods"])


def _of_scored(one: dict[str, Any]) -> _Key:
    return likelihoods.__name__, one["cell"], one["task"], one["seed"]
