"""The laboratory's figures: gain by complementarity, by calibration and by pair, and quality against cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.lab.analysis import (
    accuracy,
    better_overall,
    calibration_error,
    difference,
    gain,
    room,
    sure_and_wrong,
    table,
    ways,
)
from benchmarks.lab.beyond import mended
from benchmarks.lab.claims import Scenarios
from benchmarks.lab.plan import BACK
from benchmarks.lab.protocol import CELLS
from benchmarks.lab.runs import BEST, Run
from cosd_api.comparison.contestants import ORACLE
from cosd_api.comparison.statistics import Estimated, frontier

__all__ = ["draw", "draw_pairs"]

# The colours of Okabe and Ito suit any colour vision; markers distinguish the ways in grey.
_STYLES: dict[str, dict[str, Any]] = {
    "cosd": {"color": "#0072B2", "marker": "o", "label": "cosd: the rule, alpha = beta = 0.5"},
    "cosd-1-1": {"color": "#D55E00", "marker": "v", "label": "cosd-1-1: alpha = beta = 1"},
    "average": {"color": "#CC79A7", "marker": "D", "label": "average of the probabilities"},
    "cosd-surprise": {"color": "#009E73", "marker": "s", "label": "cosd-surprise"},
    "rerank": {"color": "#777777", "marker": "^", "label": "rerank"},
}
_CURVES = ("cosd", "cosd-1-1", "average")
_FRONTIER = "c-d"
_HALVES = 1.03
"""The position of `c-d`, beyond the end of the axis of shares, because its models divide every domain."""
_NUDGE = 0.004
"""The horizontal distance between ways at the same position, on an axis from 0 to 1."""

Spot = tuple[float, str, Estimated]
"""A point on a curve: its position, the way to answer, and the gain."""
Gains = Callable[[str, str], Estimated]
"""A function that returns a way's gain in a cell, over the better model of each task or over the better single
model."""


def draw(found: Scenarios, picture: Path) -> None:
    """Draw the curves and the frontier; the same figures always give the same file."""
    figure, places = _figure(2, 3, (15, 8.6))

    @cache
    def gains(name: str, way: str) -> Estimated:
        return gain(found[name], way)

    def over_single(name: str, way: str) -> Estimated:
        return difference(found[name], way, better_overall(found[name]))

    choices: dict[str, Gains] = {"model of each task": gains, "single model": over_single}
    for axes, (words, over) in zip(places[:2], choices.items(), strict=True):
        _complementarity(axes, found, over)
        axes.set_ylabel(f"gain over the better {words}, points")
    if places[0].get_legend_handles_labels()[0]:
        places[0].legend(frameon=False, fontsize=9)
    _costs(places[2], found)
    shares: tuple[tuple[str, Callable[[Sequence[Run]], float]], ...] = (
        ("of the draft's wrong answers: nowhere unsure, per cent", _sure),
        ("calibration error of the draft, points", lambda runs: 100 * calibration_error(runs, "draft")),
        ("of what cosd-1-1 puts right: with a sure token, per cent", _beyond),
    )
    for axes, (words, place) in zip(places[3:], shares, strict=True):
        _calibration(axes, found, place, gains)
        axes.set_xlabel(words)
        axes.set_ylabel("gain over the better model of each task, points")
    figure.savefig(picture, metadata={"Date": None})


def draw_pairs(found: Scenarios, picture: Path) -> None:
    """Draw the gain of each way in each pair and direction; bars show the room for gains up to the oracle's."""
    cells = [cell for cell in CELLS if cell.scenario not in ("control", "upper bound")]
    names = [name for cell in cells for name in (cell.name, cell.name + BACK) if name in found]
    figure, [axes] = _figure(1, 1, (9, 1.6 + 0.42 * len(names)))
    for row, name in enumerate(names):
        axes.barh(row, 100 * room(found[name]), height=0.8, color="#DDDDDD", zorder=0)
        shown = [way for way in _STYLES if way in ways(found[name])]
        for at, way in enumerate(shown):
            one = gain(found[name], way)
            reach = [[100 * (one.value - one.low)], [100 * (one.high - one.value)]]
            place = row + 0.6 * ((at + 0.5) / len(shown) - 0.5)
            style = _STYLES[way] | {"label": ""}
            axes.errorbar(100 * one.value, place, xerr=reach, linestyle="", markersize=5, capsize=2, **style)
    for style in _STYLES.values():
        axes.plot([], [], linestyle="", **style)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(1, len(names)) - 0.5, -0.5)
    axes.axvline(0, color="#000000", linewidth=0.8)
    axes.set_xlabel("gain over the better model of each task, points (bar: room)")
    axes.grid(alpha=0.3, axis="x")
    axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2)
    figure.savefig(picture, metadata={"Date": None})


def _figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    import matplotlib as mpl  # noqa: PLC0415 - an extra of its own
    from matplotlib.figure import Figure  # noqa: PLC0415

    mpl.rcParams["svg.hashsalt"] = "cosd"
    figure = Figure(figsize=size, layout="constrained")
    return figure, [*figure.subplots(rows, columns, squeeze=False).flat]


# Gain against complementarity.


def _complementarity(axes: Any, found: Scenarios, over: Gains) -> None:
    """Draw each way's gain against the share of the own domain, and the oracle's gain; `c-d` is beyond the axis."""
    cells = {cell.name: cell.x for cell in CELLS if cell.scenario == "complementary" and cell.x is not None}
    spots = [(x, name) for name, x in cells.items() if name in found]
    halves = [(_HALVES, _FRONTIER)] if _FRONTIER in found else []
    for places, line in ((sorted(spots), "-"), (halves, "")):
        for at, way in enumerate(_CURVES):
            mine = [(x + _NUDGE * (at - 1), way, over(name, way)) for x, name in places if way in ways(found[name])]
            _errors(axes, mine, way, line, filled=True, named=line == "-" or not spots)
        if places:
            rooms = [100 * over(name, ORACLE).value for _, name in places]
            style = {"color": "#777777", "linestyle": "--", "marker": "_"}
            axes.plot([x for x, _ in places], rooms, label="the oracle" if line or not spots else "", **style)
    axes.axhline(0, color="#000000", linewidth=0.8)
    ticks = {x: f"{x:.2f}" for x, _ in spots} | ({_HALVES: "c-d"} if halves else {})
    axes.set_xticks([*ticks], [*ticks.values()])
    axes.set_xlabel("share of the own domain (c-d: halves of every domain)")
    axes.grid(alpha=0.3)


# Gain against calibration.


def _sure(runs: Sequence[Run]) -> float:
    sure, wrong = sure_and_wrong(runs, "draft")
    return 100 * sure / max(1, wrong)


def _beyond(runs: Sequence[Run]) -> float:
    everywhere = mended(runs, "cosd-1-1")
    return 100 * everywhere.sure / max(1, everywhere.answers)


def _calibration(axes: Any, found: Scenarios, place: Callable[[Sequence[Run]], float], gains: Gains) -> None:
    """Draw all pairs that divide the domains and vary in calibration; hollow markers mean swapped models."""
    cells = [cell.name for cell in CELLS if cell.scenario == "calibration" or cell.name in ("a-b", _FRONTIER)]
    for back in ("", BACK):
        names = [name + back for name in cells if name + back in found]
        spots = {name: place(found[name]) for name in names}
        for way in _CURVES:
            mine = [(spots[name], way, gains(name, way)) for name in names if way in ways(found[name])]
            _errors(axes, mine, way, "", filled=not back, named=not back)
        for name in names:
            lowest = min(gains(name, way).value for way in _CURVES if way in ways(found[name]))
            spot = spots[name], 100 * lowest
            axes.annotate(name.replace(BACK, " rev."), spot, textcoords="offset points", xytext=(4, -9), fontsize=7)
    axes.axhline(0, color="#000000", linewidth=0.8)
    axes.margins(x=0.12)
    axes.grid(alpha=0.3)


def _errors(axes: Any, spots: Sequence[Spot], way: str, line: str, *, filled: bool, named: bool) -> None:
    if not spots:
        return
    xs, values = [x for x, *_ in spots], [100 * one.value for *_, one in spots]
    reach = [[100 * (one.value - one.low) for *_, one in spots], [100 * (one.high - one.value) for *_, one in spots]]
    style = _STYLES[way] | ({} if named else {"label": ""}) | ({} if filled else {"markerfacecolor": "none"})
    axes.errorbar(xs, values, yerr=reach, linestyle=line, markersize=5, capsize=2, **style)


# Quality against cost.


def _costs(axes: Any, found: Scenarios) -> None:
    """Draw quality against billed tokens in one cell, with a line for the frontier."""
    runs = found.get(_FRONTIER, ())
    rows = [row for row in table(runs) if row.way not in (BEST, ORACLE) and not row.way.startswith("rule ")]
    spots = [(row.tokens, 100 * row.accuracy.value) for row in rows]
    axes.scatter(*zip(*spots, strict=True), color="#0072B2", s=18) if spots else None
    for row, spot in zip(rows, spots, strict=True):
        axes.annotate(row.way, spot, textcoords="offset points", xytext=(4, 3), fontsize=7)
    axes.margins(x=0.14)  # leaves room for the names
    line = [spots[at] for at in frontier(spots)]
    if line:
        axes.plot(*zip(*line, strict=True), color="#D55E00", linewidth=1.2)
        axes.set_xscale("log")
        axes.axhline(100 * accuracy(runs, ORACLE).value, color="#777777", linestyle="--", linewidth=1)
    axes.set_xlabel(f"tokens billed for an answer ({_FRONTIER}; dashed: oracle)")
    axes.set_ylabel("right answers, per cent")
    axes.grid(alpha=0.3)
