"""SVG elements for the charts of all pages: scales, axes, shapes and legends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from cosd_api.report.html.elements import element

Corner = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis for values from `low` to `high`, drawn from coordinate `start` over `length`.

    Attributes:
        low: value at the beginning of the axis.
        high: value at the end of the axis.
        start: coordinate of the beginning.
        length: length in units of the drawing; negative if the axis points upwards.
        log: whether the axis is logarithmic.
    """

    low: float
    high: float
    start: float
    length: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The coordinate of a value; for a value outside the axis, the coordinate of the nearer end."""
        value = min(max(value, self.low), self.high)
        if self.low == self.high:
            part = 0.0
        elif self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * self.length

    def ticks(self) -> list[float]:
        """Round values for the ticks of the axis; a linear axis has about five to ten of them."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            wide = last - first > 3
            steps = [step * 10.0**power for power in range(first, last + 1) for step in ((1,) if wide else (1, 2, 5))]
            return [step for step in steps if self.low <= step <= self.high]
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = max(one * power for one in (1, 2, 5) if one * power <= rough * (1 + 1e-9))
        count = math.floor(self.high / step + 1e-9)
        return [at * step for at in range(math.ceil(self.low / step - 1e-9), count + 1)]


def chart(width: float, height: float, label: str, *, name: str | None = None, classes: str | None = None) -> Element:
    """Create an empty drawing; `label` describes it for screen readers, and `name` is its id."""
    size = f"0 0 {width:g} {height:g}"
    return element("svg", classes, id=name, viewBox=size, role="img", aria_label=label)


def small_chart(width: float, height: float) -> Element:
    """Create an empty drawing within a line of text; screen readers skip it, because the text says the same."""
    return element("svg", "interval", viewBox=f"0 0 {width:g} {height:g}", aria_hidden="true")


def line(d: str) -> Element:
    """A grid line along a path."""
    return element("path", "grid", d=d)


def tick(words: str, x: float, y: float) -> Element:
    """The label of a tick on a horizontal axis, centred at `x`."""
    return element("text", "tick", words, x=x, y=y, text_anchor="middle")


def side_tick(words: str, x: float, y: float) -> Element:
    """The label of a tick on a vertical axis; the label ends at `x`, and the tick is at `y`."""
    return element("text", "tick", words, x=x, y=y + 4, text_anchor="end")


def axis_name(words: str, x: float, y: float) -> Element:
    """The name of a horizontal axis, centred at `x`."""
    return element("text", "axis", words, x=x, y=y, text_anchor="middle")


def side_axis_name(words: str, x: float, y: float) -> Element:
    """The name of a vertical axis, written upwards and centred at `y`."""
    turn = f"rotate(-90 {x:g} {y:g})"
    return element("text", "axis", words, x=x, y=y, text_anchor="middle", transform=turn)


def polygon(corners: Sequence[Corner]) -> str:
    """The path of a closed shape."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners) + "z"


def diamond(x: float, y: float, half: float) -> str:
    """The path of a square standing on one corner; `half` is half its width."""
    return polygon([(x - half, y), (x, y - half), (x + half, y), (x, y + half)])


def key_entry(classes: str, shape: str, words: str) -> Element:
    """A legend entry: a shape and its label; the shape is a path within 18 by 18 units."""
    small = element("svg", None, viewBox="0 0 18 18", aria_hidden="true")
    small.append(element("path", classes, d=shape))
    return element("li", None, small, f" {words}")


def swatch(classes: str, words: str) -> Element:
    """A legend entry: a colour and its label."""
    return element("li", None, element("span", f"swatch {classes}"), f" {words}")
