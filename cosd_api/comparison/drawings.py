"""Charts for a comparison's page: quality against cost, intervals, calibration, and an analysis of replacements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from xml.etree.ElementTree import Element

from cosd_api.comparison.contestants import ORACLE, ContestantKind
from cosd_api.comparison.report import (
    rows_of,
)
from cosd_api.comparison.result import (
    Comparison,
)
from cosd_api.comparison.standings import ModelCalibration, PlaceCounts, Standing
from cosd_api.comparison.statistics import CalibrationBin, Estimated
from cosd_api.extend import counted
from cosd_api.report.html.charts import (
    Scale,
    axis_name,
    chart,
    diamond,
    key_entry,
    line,
    side_axis_name,
    side_tick,
    small_chart,
    tick,
)
from cosd_api.report.html.elements import element, in_line


def share(value: float | None) -> str:
    """Format a share as a percentage with one decimal."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.1f} %"


# Quality and cost.

_WIDTH, _HEIGHT = 760.0, 380.0
_LEFT, _TOP, _RIGHT = 52.0, 14.0, 24.0
_SIZE = 5.0
_LINE = 13.0  # height of a label
_CHARACTER = 7.2  # approximate width of a character in a label
_ALL_NAMED = 20  # with more contestants, only those on the frontier and the models alone are labelled
_KINDS: Mapping[ContestantKind, str] = {
    "alone": "one model alone",
    "method": "method",
    "baseline": "baseline",
    "derived": "derived from the models' answers",
}


def frontier_plot(found: Comparison) -> Element:
    """Plot accuracy, with its interval, against the tokens billed per answer; a line shows the frontier.

    Browsers show the contestant's name when the pointer is over a point.
    """
    spots = [one for one in rows_of(found) if one.answered and one.billed is not None and one.kind != "derived"]
    if not spots:
        return element("p", "note", "No answer is complete yet.")
    x, y = _axes(spots)
    label = f"Accuracy and billed tokens of {counted(len(spots), 'contestant')}"
    svg = chart(_WIDTH, _HEIGHT, label, name="frontier")
    svg.extend(_grid(x, y, "all" if found.more_assistants else "both"))
    oracle = next((one for one in found.standings if one.name == ORACLE and one.answered), None)
    if oracle is not None and not math.isnan(oracle.accuracy.value):
        height = y(oracle.accuracy.value)
        svg.append(element("path", "oracle", d=f"M{_LEFT:g} {height:.1f}H{_WIDTH - _RIGHT:g}"))
        words = f"oracle: {share(oracle.accuracy.value)}"
        svg.append(element("text", "tick", words, x=_LEFT + 4, y=height - 4))
    best = sorted((one for one in spots if one.on_frontier), key=lambda one: one.billed or 0)
    svg.append(element("path", "frontier", d=_steps([(x(one.billed or 0), y(one.accuracy.value)) for one in best])))
    for one in sorted(spots, key=lambda one: one.on_frontier):  # points on the frontier are drawn last, on top
        svg.append(_spot(one, x, y))
    named = [one for one in spots if len(spots) <= _ALL_NAMED or one.on_frontier or one.kind == "alone"]
    svg.extend(_labels(named, x, y))
    return element("div", None, svg, _key({one.kind for one in spots}, "an" if found.more_assistants else "the"))


def _axes(spots: Sequence[Standing]) -> tuple[Scale, Scale]:
    costs = [one.billed or 0.0 for one in spots]
    least, most = max(min(costs), 1.0), max(*costs, 2.0)
    log = most / least > 8
    low, high = (least / 1.3, most * 1.3) if log else (0.0, most * 1.1)
    bottom = max(0.0, math.floor(10 * min(one.accuracy.low for one in spots)) / 10)
    top = min(1.0, math.ceil(10 * max(one.accuracy.high for one in spots)) / 10)
    x = Scale(low, high, _LEFT, _WIDTH - _LEFT - _RIGHT, log)
    return x, Scale(bottom, top if top > bottom else bottom + 0.1, _HEIGHT - 44, _TOP + 44 - _HEIGHT)


def _grid(x: Scale, y: Scale, models: str) -> Iterator[Element]:
    bottom, right = y(y.low), _WIDTH - _RIGHT
    for value in y.ticks():
        yield line(f"M{_LEFT:g} {y(value):.1f}H{right:g}")
        yield side_tick(f"{100 * value:.0f} %", _LEFT - 7, y(value))
    for value in x.ticks():
        yield line(f"M{x(value):.1f} {_TOP:g}V{bottom:.1f}")
        yield tick(f"{value:,.0f}", x(value), bottom + 16)
    words = f"tokens read and written for an answer, {models} models" + (" (logarithmic)" if x.log else "")
    yield axis_name(words, (_LEFT + right) / 2, bottom + 35)
    yield side_axis_name("right answers", 12, (y(y.low) + y(y.high)) / 2)


def _steps(corners: Sequence[tuple[float, float]]) -> str:
    """The path of the frontier: for each cost, the best accuracy up to that cost."""
    if not corners:
        return "M0 0"
    first, *rest = corners
    return f"M{first[0]:.1f} {first[1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in rest)


def _spot(one: Standing, x: Scale, y: Scale) -> Element:
    """Draw the mark and the interval of a contestant, with its numbers as the title."""
    across, value = x(one.billed or 0.0), one.accuracy
    words = f"{one.name}: {share(value.value)} ({share(value.low)} to {share(value.high)}), {one.billed:,.0f} tokens"
    group = element("g", "spot best" if one.on_frontier else "spot", element("title", None, in_line(words)))
    group.append(element("path", "whisker", d=f"M{across:.1f} {y(value.low):.1f}V{y(value.high):.1f}"))
    classes = f"mark {one.kind}{' turned' if one.reverse and one.kind != 'alone' else ''}"
    group.append(element("path", classes, d=_mark(one.kind, across, y(value.value))))
    return group


def _mark(kind: ContestantKind, x: float, y: float) -> str:
    """The path of the mark for each kind of contestant: a square, a circle or a diamond."""
    size = _SIZE
    if kind == "alone":
        return f"M{x - size:.1f} {y - size:.1f}h{2 * size}v{2 * size}h{-2 * size}z"
    if kind == "method":
        half = f"a{size} {size} 0 1 0"
        return f"M{x - size:.1f} {y:.1f}{half} {2 * size} 0{half} {-2 * size} 0z"
    return diamond(x, y, 1.4 * size)


def _labels(spots: Sequence[Standing], x: Scale, y: Scale) -> Iterator[Element]:
    """Place the contestants' names next to their points, without overlaps."""
    taken: list[tuple[float, float, float]] = []
    for one in sorted(spots, key=lambda one: (-one.accuracy.value, one.billed or 0.0)):
        across, down = x(one.billed or 0.0), y(one.accuracy.value) - 6  # above the frontier's line
        wide = _CHARACTER * len(one.name)
        left = across + 8 + wide > _WIDTH - 4
        start = across - 8 - wide if left else across + 8
        while any(start < end and begin < start + wide and abs(down - other) < _LINE for begin, end, other in taken):
            down += 1
        taken.append((start, start + wide, down))
        anchor = "end" if left else "start"
        place = across - 8 if left else across + 8
        yield element("text", "name", in_line(one.name), x=place, y=down, text_anchor=anchor)


def _key(kinds: set[ContestantKind], which: str) -> Element:
    key, turned = element("ul", "key"), f", hollow if {which} assistant drafts"
    for kind, words in _KINDS.items():
        if kind in kinds:
            key.append(key_entry(f"mark {kind}", _mark(kind, 9, 9), words + turned * (kind == "method")))
    key.append(key_entry("frontier", "M1 9h16", "frontier: nothing cheaper is within one standard error"))
    return key


# Small charts inside tables.


def accuracy_bar(value: Estimated, mark: float) -> Element:
    """Draw an interval on an axis from 0 to 1, with a line at `mark`, such as the better model's accuracy."""
    axis = Scale(0, 1, 2, 136)
    svg = small_chart(140, 16)
    svg.append(line("M2 8h136"))
    if not math.isnan(mark):
        svg.append(element("path", "better", d=f"M{axis(mark):.1f} 1v14"))
    if not math.isnan(value.value):
        svg.append(element("path", "whisker", d=f"M{axis(value.low):.1f} 8H{axis(value.high):.1f}"))
        svg.append(element("circle", "mark", cx=axis(value.value), cy=8, r=3.5))
    return svg


def places_bar(counts: PlaceCounts) -> Element:
    """Draw the shares of replaced places where the assistant, the draft or neither was right, or this is unknown."""
    axis = Scale(0, max(counts.places, 1), 0, 160)
    svg = small_chart(160, 12)
    done = 0
    for name in ("assistant", "draft", "neither", "unknown"):
        number = int(getattr(counts, name))
        if number:
            svg.append(element("rect", f"part {name}", x=axis(done), y=1, width=axis(number) - axis(0), height=10))
        done += number
    return svg


# Calibration.

_SQUARE = 220.0


def calibration_plot(name: str, one: ModelCalibration) -> Element:
    """Plot the share of right answers against the mean probability, in bins; perfect calibration is the diagonal."""
    x, y = Scale(0, 1, 44, _SQUARE), Scale(0, 1, 12 + _SQUARE, -_SQUARE)
    label = (
        f"Calibration of the {name}: {share(one.mean.accuracy)} right, {share(one.mean.confidence)} by its own account"
    )
    svg = chart(_SQUARE + 60, _SQUARE + 60, label, classes="calibration")
    svg.append(element("rect", "frame", x=x(0), y=y(1), width=_SQUARE, height=_SQUARE))
    for step in (0.0, 0.25, 0.5, 0.75, 1.0):
        svg.append(tick(f"{step:g}", x(step), y(0) + 15))
        svg.append(side_tick(f"{step:g}", x(0) - 6, y(step)))
    svg.append(element("path", "diagonal", d=f"M{x(0):g} {y(0):g}L{x(1):g} {y(1):g}"))
    svg.extend(_bin(inside, one.mean.answers, x, y) for inside in one.mean.bins if inside.answers)
    svg.append(axis_name("mean probability of an answer's tokens", x(0.5), y(0) + 34))
    svg.append(side_axis_name("right answers", 10, y(0.5)))
    return svg


def _bin(one: CalibrationBin, total: int, x: Scale, y: Scale) -> Element:
    """Draw the circle of a bin; its size grows with the bin's share of the answers."""
    confidence, accuracy = one.confidence or 0.0, one.accuracy or 0.0
    words = f"{counted(one.answers, 'answer')}: {share(accuracy)} right, mean probability {confidence:.2f}"
    circle = element("circle", "mark", cx=x(confidence), cy=y(accuracy), r=3 + 11 * math.sqrt(one.answers / total))
    circle.append(element("title", None, words))
    return circle
