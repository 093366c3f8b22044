"""The figure of the laboratory: gain by pair, over complementarity and over calibration, and quality against cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.lab.analysis import accuracy, gain, room, table, ways
from benchmarks.lab.beyond import mended
from benchmarks.lab.claims import Scenarios
from benchmarks.lab.plan import BACK
from benchmarks.lab.protocol import CELLS
from cosd_api.comparison.contestants import BEST, ORACLE
from cosd_api.comparison.statistics import Estimated, frontier

__all__ = ["draw"]

# Colours of Okabe and Ito, for any colour vision; marks tell them apart in grey.
_STYLES: dict[str, dict[str, Any]] = {
    "cosd": {"color": "#0072B2", "marker": "o"},
    "cosd-1-1": {"color": "#D55E00", "marker": "v"},
    "cosd-surprise": {"color": "#009E73", "marker": "s"},
    "average": {"color": "#CC79A7", "marker": "D"},
    "rerank": {"color": "#777777", "marker": "^"},
}
_FRONTIER = "c-d"

Spot = tuple[float, str, Estimated]
"""A point of a curve: its place, its way to answer, and the gain."""


def draw(found: Scenarios, picture: Path) -> None:
    """Draw it; the same figures give the same file."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra of its own

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "cosd"
    from matplotlib import pyplot  # noqa: PLC0415

    by_share = [*_by_share(found)]
    curve = len({x for x, *_ in by_share}) > 1
    figure, (pairs, *shares, sure, cost) = pyplot.subplots(
        1, 3 + curve, figsize=(14 + 4 * curve, 4.2), layout="constrained"
    )
    _pairs(pairs, found)
    for axes in shares:
        _curve(axes, by_share, "share of the own domain in the training", "-")
    _curve(sure, [*_by_sureness(found)], "of the answers that cosd-1-1 puts right: with a sure token", "")
    _costs(cost, found)
    figure.savefig(picture, metadata={"Date": None})
    pyplot.close(figure)


def _pairs(axes: Any, found: Scenarios) -> None:
    """The gain of each way in each pair and direction; as a bar the room, up to the oracle."""
    cells = [cell for cell in CELLS if cell.scenario in ("complementary", "tokenizers", "calibration")]
    names = [name for cell in cells for name in (cell.name, cell.name + BACK) if name in found]
    for row, name in enumerate(names):
        axes.barh(row, 100 * room(found[name]), height=0.8, color="#DDDDDD", zorder=0)
        shown = [way for way in _STYLES if way in ways(found[name])]
        for at, way in enumerate(shown):
            one = gain(found[name], way)
            low, high = 100 * (one.value - one.low), 100 * (one.high - one.value)
            place = row + 0.6 * ((at + 0.5) / len(shown) - 0.5)
            axes.errorbar(100 * one.value, place, xerr=[[low], [high]], markersize=5, capsize=2, **_STYLES[way])
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.axvline(0, color="#000000", linewidth=0.8)
    axes.set_xlabel("gain over the better model of each task, points (bar: room)")
    axes.grid(alpha=0.3, axis="x")


def _by_share(found: Scenarios) -> Iterator[Spot]:
    for cell in CELLS:
        runs = found.get(cell.name, ())
        if runs and cell.scenario == "complementary" and cell.x is not None:
            yield from ((cell.x, way, gain(runs, way)) for way in _STYLES if way in ways(runs))


def _by_sureness(found: Scenarios) -> Iterator[Spot]:
    """Every pair with complementary knowledge, in both directions."""
    for cell in CELLS:
        for name in (cell.name, cell.name + BACK):
            runs = found.get(name, ())
            if runs and cell.scenario in ("complementary", "calibration"):
                everywhere = mended(runs, "cosd-1-1")
                share = everywhere.sure / max(1, everywhere.answers)
                yield from ((share, way, gain(runs, way)) for way in _STYLES if way in ways(runs))


def _curve(axes: Any, spots: list[Spot], label: str, line: str) -> None:
    for way, style in _STYLES.items():
        mine = sorted((x, 100 * one.value, 100 * one.low, 100 * one.high) for x, name, one in spots if name == way)
        if mine:
            xs, values, lows, highs = (list(column) for column in zip(*mine, strict=True))
            reach = [
                [value - low for value, low in zip(values, lows, strict=True)],
                [high - value for value, high in zip(values, highs, strict=True)],
            ]
            axes.errorbar(xs, values, yerr=reach, label=way, linestyle=line, markersize=5, capsize=2, **style)
    axes.axhline(0, color="#000000", linewidth=0.8)
    axes.set_xlabel(label)
    axes.set_ylabel("gain over the better model of each task, points")
    axes.grid(alpha=0.3)
    if spots:
        axes.legend(frameon=False, fontsize=8)


def _costs(axes: Any, found: Scenarios) -> None:
    """Quality against billed tokens, in one cell; the frontier as a line."""
    runs = found.get(_FRONTIER, ())
    rows = [row for row in table(runs) if row.way not in (BEST, ORACLE) and not row.way.startswith("rule ")]
    spots = [(row.tokens, 100 * row.accuracy.value) for row in rows]
    axes.scatter(*zip(*spots, strict=True), color="#0072B2", s=18) if spots else None
    for row, spot in zip(rows, spots, strict=True):
        axes.annotate(row.way, spot, textcoords="offset points", xytext=(4, 3), fontsize=7)
    line = [spots[at] for at in frontier(spots)]
    if line:
        axes.plot(*zip(*line, strict=True), color="#D55E00", linewidth=1.2)
        axes.set_xscale("log")
        axes.axhline(100 * accuracy(runs, ORACLE).value, color="#777777", linestyle="--", linewidth=1)
    axes.set_xlabel(f"tokens billed for an answer ({_FRONTIER}; dashed: oracle)")
    axes.set_ylabel("right answers, per cent")
    axes.grid(alpha=0.3)
