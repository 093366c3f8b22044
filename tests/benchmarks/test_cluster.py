"""The section on Ray, without Ray: `make bench` has it where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import cluster
from benchmarks.cluster import Case, Measured
from benchmarks.feeding import feed
from benchmarks.report import Options, Table
from stand_in_ray import StandInCluster, installed


async def test_without_ray_the_section_says_that_it_was_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And so `make bench` alone goes on."""
    monkeypatch.setenv("COSD_RAY_ENV", str(tmp_path / "nothing"))
    [table] = await cluster.run(Options())
    assert "`make test-ray` installs it" in table.markdown() and not table.rows


def test_there_are_no_more_actors_than_processors() -> None:
    assert [*cluster.ways(1)] == ["one process", "1 actor"]
    assert [*cluster.ways(7)] == ["one process", "1 actor", "2 actors", "4 actors"]
    assert cluster.ways(2)["2 actors"][-2:] == ["--actors", "2"] and cluster.ways(2)["one process"] == []


async def test_the_best_of_runs_that_take_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each row is the run with the highest rate, beside the first row's."""
    asked: list[Sequence[str]] = []

    async def measured(python: Path, case: Case, more: Sequence[str]) -> Measured:
        assert python == tmp_path / "bin" / "python" and case.lines > case.at_once
        asked.append(more)
        rate = 100.0 + len(asked)
        return Measured(rate / case.tokens, rate, 10.0, 1.0, 0.5)

    monkeypatch.setattr(cluster, "environment", lambda: tmp_path)

    async def fed(python: Path, options: Options, actors: int) -> Table:
        del python, options
        return Table("Feeding actors", ["actors"], [[actors]])

    monkeypatch.setattr(cluster, "measured", measured)
    monkeypatch.setattr(cluster, "fed", fed)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    table, feeding = await cluster.run(Options())
    assert feeding.rows == [[1]]
    assert asked == [*cluster.ways(1).values()] * 3
    assert [row[2:5] for row in table.rows] == [[105.0, "1.00", 1.0], [106.0, "1.01", 1.0]]
    assert [len(one) for one in table.figures.values()] == [3, 3]


async def test_what_feeding_takes() -> None:
    """Over the stand-in for Ray, every line is fed and answered."""
    one = StandInCluster()
    with installed(one):
        used, rate = await feed(10, 4, 2)
    assert used > 0 and rate > 0
    assert sum(actor.calls.count("answer") for actor in one.actors) == 10 and len(one.actors) == 2


@pytest.mark.extended
async def test_the_command_is_measured() -> None:
    """One process alone answers every line, at some rate; what fails is told."""
    found = await cluster.measured(sys.executable, Case(4, 2, 6), [])
    assert found.tokens == pytest.approx(6 * found.lines) and min(found.lines, found.start, found.servers) > 0
    with pytest.raises(RuntimeError, match="--no-such-option"):
        await cluster.measured(sys.executable, Case(1, 1, 1), ["--no-such-option"])
