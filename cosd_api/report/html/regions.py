"""The region in the plane of p and q in which a verifier replaces, found by calling the verifier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise

from cosd_api.extend import Verifier
from cosd_api.report.html.charts import Corner

__all__ = ["shapes_of"]

_COLUMNS, _ROWS = 32, 64
_NEAR = 1e-6
"""A jump of the borders within this distance in p is drawn as a vertical step."""
_STRAIGHT = 1e-4
"""Maximum distance between a border and the straight line that is drawn for it."""

_Borders = tuple[float, ...]
"""For one value of p, the values of q at which a verifier begins to replace, stops, begins again and so on."""


def shapes_of(verifier: Verifier) -> list[list[Corner]]:
    """Find the region, as polygons in the plane of p and q; the list is empty if the verifier never replaces.

    Parts of the region that are narrower than 1/64 in q may be missing.
    """

    @cache
    def borders(p: float) -> _Borders:
        return _borders(lambda q: verifier.replaces(p, q)) if verifier.contestable(p) else ()

    places = [at / _COLUMNS for at in range(_COLUMNS + 1)]
    stretches = [one for left, right in pairwise(places) for one in _stretches(borders, left, right)]
    runs: list[list[float]] = []
    for left, right in stretches:
        if runs and runs[-1][-1] == left and len(borders(runs[-1][0])) == len(borders(right)):
            runs[-1].append(right)
        else:
            runs.append([left, right])
    return [shape for run in runs for shape in _polygons(borders, run)]


def _borders(replaces: Callable[[float], bool]) -> _Borders:
    found: list[float] = []
    inside = replaces(0.0)
    if inside:
        found.append(0.0)
    for low, high in pairwise(at / _ROWS for at in range(_ROWS + 1)):
        if replaces(high) != inside:
            found.append(_border(replaces, low, high, inside=inside))
            inside = not inside
    return (*found, 1.0) if inside else tuple(found)


def _border(replaces: Callable[[float], bool], low: float, high: float, *, inside: bool) -> float:
    while high - low > _NEAR**2:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if replaces(middle) == inside:
            low = middle
        else:
            high = middle
    return high


def _stretches(borders: Callable[[float], _Borders], left: float, right: float) -> Iterator[tuple[float, float]]:
    """Split an interval of p into parts in which all borders are straight lines."""
    middle = (left + right) / 2
    ends, between = (borders(left), borders(right)), borders(middle)
    if len({len(ends[0]), len(ends[1]), len(between)}) == 1 and all(
        abs(one - (first + last) / 2) < _STRAIGHT for first, last, one in zip(*ends, between, strict=True)
    ):
        yield left, right
    elif right - left > _NEAR:
        yield from _stretches(borders, left, middle)
        yield from _stretches(borders, middle, right)


def _polygons(borders: Callable[[float], _Borders], run: Sequence[float]) -> Iterator[list[Corner]]:
    columns = list(zip(*(borders(p) for p in run), strict=True))
    for low, high in zip(columns[::2], columns[1::2], strict=True):
        bottom, top = (_without_straight([*zip(run, several, strict=True)]) for several in (low, high))
        yield [*bottom, *reversed(top)]


def _without_straight(line: Sequence[Corner]) -> list[Corner]:
    """Remove the points of a line at which it does not bend."""
    kept = [line[0]]
    for (p, q), (after, last) in pairwise(line[1:]):
        before, first = kept[-1]
        if abs(first + (last - first) * (p - before) / (after - before) - q) > _NEAR:
            kept.append((p, q))
    return [*kept, line[-1]]
