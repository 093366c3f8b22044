"""Numbers of the laboratory's pages, as they are written."""

from __future__ import annotations

import math

from cosd_api.comparison.statistics import Estimated

__all__ = ["interval", "percent", "points"]


def percent(value: float) -> str:
    """A share in per cent."""
    return "–" if math.isnan(value) else f"{100 * value:.1f}"


def points(found: Estimated | None) -> str:
    """A difference in points, with its interval."""
    if found is None or math.isnan(found.value):
        return "–"
    value, low, high = (
        f"{100 * end:+.1f}".replace("+0.0", "0.0").replace("-0.0", "0.0")
        for end in (found.value, found.low, found.high)
    )
    return f"{value} [{low}, {high}]"


def interval(found: Estimated) -> str:
    """A share in per cent, with its interval."""
    return f"{percent(found.value)} [{percent(found.low)}, {percent(found.high)}]"
