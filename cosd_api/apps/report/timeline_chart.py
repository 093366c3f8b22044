"""The timeline: all requests to the draft and the assistants, in lanes, so that concurrent requests do not overlap.

This module computes the coordinates; the page's template draws them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cosd_api import FusionResult
from cosd_api.apps.report.phrases import seconds
from cosd_api.extend import DRAFT
from cosd_api.types import Request

__all__ = ["Row", "rows", "timeline"]

_LEFT, _TOP = 150.0, 30.0
_LANE, _GAP = 26.0, 8.0
_NARROW, _WIDE = 780.0, 4000.0
_EACH = 10.0  # minimum pixels for each request, so that the bars of many requests do not overlap
_THIN = 1.5  # width of the narrowest bar
_TICKS = 5


@dataclass(slots=True)
class Row:
    """The requests of one endpoint, arranged in lanes without overlaps."""

    endpoint: str
    lanes: list[list[Request]] = field(default_factory=list[list[Request]])


@dataclass(frozen=True, slots=True)
class Bar:
    """One request in the drawing, in pixels.

    Attributes:
        writing: the coordinate of the first token; None if it is unknown.
    """

    request: Request
    x: float
    y: float
    width: float
    writing: float | None


@dataclass(frozen=True, slots=True)
class TimelineDrawing:
    """The drawing, in pixels.

    Attributes:
        note: a sentence on the time that is not shown; empty if all is shown.
        width: width of the drawing.
        bottom: lower end of the lanes.
        wide: whether the drawing is wider than a page.
        names: for each row, the top of its first lane, and the name of its endpoint.
        bars: the requests in order of time, which is also the order of keyboard navigation.
        ticks: coordinates and labels of the time axis.
        finals: coordinates of the times at which tokens became final.
    """

    note: str
    width: float
    bottom: float
    wide: bool
    names: list[tuple[float, str]]
    bars: list[Bar]
    ticks: list[tuple[float, str]]
    finals: list[float]


def rows(requests: Iterable[Request], endpoints: Iterable[str]) -> list[Row]:
    """Make a row for each endpoint, in the given order, even if the endpoint has no requests."""
    found = {name: Row(name, [[]]) for name in endpoints}
    for request in sorted(requests, key=lambda one: one.start):
        lanes = found.setdefault(request.endpoint, Row(request.endpoint, [[]])).lanes
        free = next((lane for lane in lanes if not lane or lane[-1].end <= request.start), None)
        if free is None:
            lanes.append([request])
        else:
            free.append(request)
    return list(found.values())


def timeline(result: FusionResult) -> TimelineDrawing | None:
    """Arrange the requests of an answer; None if the result has no record of its requests."""
    requests = result.requests
    if not requests:
        return None
    end = max(result.timings.total, *(one.end for one in requests))
    begin = _begin(requests, end)
    width = min(_WIDE, max(_NARROW, _EACH * len(requests)))

    def x(at: float) -> float:
        return _LEFT + min(max((at - begin) / (end - begin or 1), 0), 1) * width

    names, bars, y = list[tuple[float, str]](), list[Bar](), _TOP
    for row in rows(requests, [DRAFT, *(one.name for one in result.assistants)]):
        names.append((y, row.endpoint))
        for lane in row.lanes:
            for one in lane:
                writing = None if one.first is None else x(one.first)
                bars.append(Bar(one, x(one.start), y, max(_THIN, x(one.end) - x(one.start)), writing))
            y += _LANE
        y += _GAP
    ticks = [begin + (end - begin) * at / (_TICKS - 1) for at in range(_TICKS)]
    return TimelineDrawing(
        note=f"The first {seconds(begin)}, without any request, are not shown." if begin else "",
        width=_LEFT + width + 30,
        bottom=y,
        wide=width > _NARROW,
        names=names,
        bars=sorted(bars, key=lambda one: one.request.start),
        ticks=[(x(at), seconds(at)) for at in ticks],
        finals=sorted({x(token.final_at) for token in result.tokens if token.final_at is not None}),
    )


def _begin(requests: Sequence[Request], end: float) -> float:
    """The start of the timeline: 0, or later if the answer had to wait for the discovery of the servers."""
    first = min(request.start for request in requests)
    return max(0.0, first - 0.03 * (end - first)) if first > 0.2 * end else 0.0
