"""A model that has forgotten, fused with its earlier self, and compared with the mean of both models' weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.lab.analysis import difference, gain, ways
from benchmarks.lab.claims import Scenarios
from benchmarks.lab.numbers import percent, points, share
from benchmarks.lab.runs import BEST, Run
from benchmarks.report import Table
from cosd_api.comparison.contestants import ORACLE

__all__ = ["beside_mean", "forgetting"]

_MEAN = "mean of the weights"
_FUSED = ("cosd", "cosd-1-1", "cosd-tree", "average")
_LESS = ("cosd", "cosd-1-1")
_HOW_MUCH = ("mildly", "rather", "badly")


@dataclass(frozen=True)
class _Beside(Run):
    """A run with one additional way to answer: a model alone, taken from another run on the same questions."""

    mean: Run | None = None

    def right(self, way: str) -> dict[str, bool]:
        """See `Run.right`."""
        return self.mean.right("assistant") if self.mean is not None and way == _MEAN else super().right(way)


def beside_mean(fused: Sequence[Run], between: Sequence[Run]) -> list[Run]:
    """The runs of a forgetting cell, each with the additional answers of the mean of both models' weights."""
    means = {(one.task, one.seed): one for one in between}
    return [
        _Beside(one.cell, one.task, one.seed, one.comparison, one.facts, one.slots, means[one.task, one.seed])
        for one in fused
        if (one.task, one.seed) in means
    ]


def forgetting(found: Scenarios) -> Iterator[Table]:
    """The gains of each way to fuse, and of the mean of the weights, over the better model of each task."""
    rows: list[list[str | None]] = []
    for much in _HOW_MUCH:
        runs = beside_mean(found.get(f"forgot-{much}", ()), found.get(f"between-{much}", ()))
        if runs:
            alone = [percent(share(runs, way)) for way in ("draft", "assistant", BEST, ORACLE, _MEAN)]
            gains = [points(gain(runs, way)) if way in ways(runs) else None for way in _FUSED]
            apart = [points(difference(runs, way, _MEAN)) for way in _LESS]
            rows.append([f"forgot-{much}", *alone, *gains, points(gain(runs, _MEAN)), *apart])
    columns = ["forgotten", "before", "better of each task", "oracle", _MEAN, *_FUSED, _MEAN]
    columns += [f"{way} less {_MEAN}" for way in _LESS]
    title = "Forgetting: right answers in per cent; gains over the better model of each task, in points"
    yield Table(title, ["cell", *columns], rows)
