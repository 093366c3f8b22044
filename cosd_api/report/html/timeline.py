"""The timeline: all requests to the draft and the assistants, in lanes, so that concurrent requests do not overlap."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from cosd_api.extend import DRAFT, counted
from cosd_api.report.html.cards import Cards, request_key
from cosd_api.report.html.charts import Scale, line, swatch, tick
from cosd_api.report.html.elements import element, in_line, seconds
from cosd_api.types import Request

Stretch = tuple[float, float]

_LEFT, _TOP = 150.0, 30.0
_LANE, _BAR = 26.0, 18.0
_NARROW, _WIDE = 780.0, 4000.0
_EACH = 10.0  # minimum pixels for each request, so that the bars of many requests do not overlap
_THIN = 1.5  # width of the narrowest bar
_LETTER = 7.0


@dataclass(slots=True)
class Row:
    """The requests of one endpoint, arranged in lanes without overlaps."""

    endpoint: str
    lanes: list[list[Request]] = field(default_factory=list[list[Request]])


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


def union(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Merge overlapping stretches of time; return them in order."""
    merged = list[Stretch]()
    for start, end in sorted(stretches):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        elif end > start:
            merged.append((start, end))
    return merged


def overlap(requests: Sequence[Request]) -> list[Stretch]:
    """Find the stretches of time in which the draft and an assistant worked at the same time."""
    drafting = union((one.start, one.end) for one in requests if one.endpoint == DRAFT)
    asking = union((one.start, one.end) for one in requests if one.endpoint != DRAFT)
    found = list[Stretch]()
    mine = theirs = 0
    while mine < len(drafting) and theirs < len(asking):
        start = max(drafting[mine][0], asking[theirs][0])
        end = min(drafting[mine][1], asking[theirs][1])
        if start < end:
            found.append((start, end))
        if drafting[mine][1] < asking[theirs][1]:
            mine += 1
        else:
            theirs += 1
    return found


def timeline(cards: Cards) -> Element:
    """Draw the timeline, with a sentence about the overlap and a legend."""
    result = cards.result
    requests = result.requests
    if not requests:
        return element("p", "note", "This result has no record of its requests.")
    found = rows(requests, [DRAFT, *(one.name for one in result.assistants)])
    end = max(result.timings.total, *(one.end for one in requests))
    begin = _begin(requests, end)
    width = min(_WIDE, max(_NARROW, _EACH * len(requests)))
    both = overlap(requests)
    sentence = _sentence(requests, both)
    bottom = _TOP + _LANE * sum(len(row.lanes) for row in found) + 8 * len(found)
    svg = element(
        "svg",
        "timeline",
        id="timeline",
        viewBox=f"0 0 {_LEFT + width + 16:g} {bottom + 22:g}",
        role="group",
        aria_label=f"Time line. {sentence}",
        data_roving="",
        data_wide="" if width > _NARROW else None,
        width=_LEFT + width + 16,
    )
    svg.append(_hatching())
    scale = Scale(begin, end, _LEFT, width)
    svg.extend(_time_axis(scale, bottom))
    svg.extend(
        element("rect", "both", x=scale(a), y=_TOP - 4, width=scale(b) - scale(a), height=bottom - _TOP + 4)
        for a, b in both
    )
    svg.extend(_all_rows(cards, found, scale))
    finals = sorted({token.final_at for token in result.tokens if token.final_at is not None})
    if finals:
        ticks = "".join(f"M{scale(at):.1f} {bottom + 2:.1f}v9" for at in finals)
        svg.append(element("path", "finals", d=ticks))
        svg.append(element("text", "row-name", "tokens final", x=_LEFT - 10, y=bottom + 11, text_anchor="end"))
    before = f" The first {seconds(begin)}, without any request, are not shown." if begin else ""
    note = element("p", "note", sentence + before)
    return element("div", None, element("div", "scrolling", svg), note, _key())


def _begin(requests: Sequence[Request], end: float) -> float:
    """The start of the timeline: 0, or later if the answer had to wait for the discovery of the servers."""
    first = min(request.start for request in requests)
    return max(0.0, first - 0.03 * (end - first)) if first > 0.2 * end else 0.0


def _sentence(requests: Sequence[Request], both: Sequence[Stretch]) -> str:
    if any(request.kind == "score" for request in requests):
        written, scored = (sum(request.kind == kind for request in requests) for kind in ("draft", "score"))
        shared = sum(end - start for start, end in both)
        words = f"{counted(written, 'text')} written and {scored:,} scored"
        return f"{words}; the first model and others were at work at the same time during {seconds(shared)}."
    asking = sum(end - start for start, end in union((r.start, r.end) for r in requests if r.endpoint != DRAFT))
    if not asking:
        return "No assistant was asked."
    shared = sum(end - start for start, end in both)
    return (
        f"Of {seconds(asking)} in which an assistant was asked, the draft was working during {seconds(shared)} "
        f"({shared / asking:.0%})."
    )


def _hatching() -> Element:
    pattern = element(
        "pattern", None, id="hatch", width=6, height=6, patternUnits="userSpaceOnUse", patternTransform="rotate(45)"
    )
    pattern.append(element("rect", "hatch", width=2.2, height=6))
    return element("defs", None, pattern)


def _all_rows(cards: Cards, found: Sequence[Row], scale: Scale) -> Iterator[Element]:
    """Yield the names of the rows, then the bars in order of time, which is also the order of keyboard navigation."""
    y = _TOP
    bars = list[tuple[Request, Element]]()
    for row in found:
        name, model = row.endpoint, cards.models.get(row.endpoint, "")
        yield element("text", "row-name", in_line(name), x=_LEFT - 10, y=y + 9, text_anchor="end")
        yield element("text", "row-model", _short(model), x=_LEFT - 10, y=y + 21, text_anchor="end")
        for lane in row.lanes:
            for request in lane:
                bars.append((request, _bar(cards, request, y + (_LANE - _BAR) / 2, scale)))
            y += _LANE
        y += 8
    yield from (bar for _, bar in sorted(bars, key=lambda one: one[0].start))


def _bar(cards: Cards, request: Request, y: float, scale: Scale) -> Element:
    """Draw one request: pale until its first token, then solid. A question to an assistant has only one part."""
    x, end = scale(request.start), scale(request.end)
    wide = max(_THIN, end - x)
    card = cards.request(request)
    kind = "question" if request.kind == "score" else request.kind
    label = f"{card.title}, {card.mark}: {card.words[0]}, {card.foot[0]}"
    group = element("g", f"bar {kind} {request.outcome}", data_r=request_key(request), role="img", aria_label=label)
    group.append(element("rect", "whole", x=x, y=y, width=wide, height=_BAR, rx=min(3.0, wide / 2)))
    if request.first is not None:
        writes = scale(request.first)
        group.append(element("rect", "writing", x=writes, y=y, width=max(0.0, x + wide - writes), height=_BAR))
    if request.outcome != "done":
        group.append(element("rect", "broken", x=x, y=y, width=wide, height=_BAR, fill="url(#hatch)"))
    words = _in_bar(request)
    left = x if request.first is None else scale(request.first)
    if request.outcome == "done" and x + wide - left > _LETTER * len(words) + 6:
        group.append(element("text", "in-bar", words, x=left + 5, y=y + 13))
    return group


def _in_bar(request: Request) -> str:
    if request.kind in ("question", "watch"):
        return counted(request.places, "place")
    if request.kind == "score":
        return "score"
    return counted(request.tokens, "token")


def _short(model: str) -> str:
    return model if len(model) <= 20 else f"{model[:19]}…"


def _time_axis(scale: Scale, bottom: float) -> Iterator[Element]:
    if scale.high <= scale.low:
        return
    step = _step((scale.high - scale.low) / 8)
    for number in range(math.ceil(scale.low / step), int(scale.high / step) + 1):
        x = scale(number * step)
        yield line(f"M{x:.1f} {_TOP - 6:g}V{bottom:g}")
        yield tick(_time(number * step, step), x, _TOP - 12)


def _step(least: float) -> float:
    """The smallest number that is at least `least` and is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)


def _time(at: float, step: float) -> str:
    if step < 1 and at < 1:
        return f"{at * 1000:.3g} ms" if at else "0"
    return f"{at:.3g} s"


def _key() -> Element:
    return element(
        "ul",
        "key",
        swatch("waiting", "draft, waiting for its first token"),
        swatch("writing", "draft, writing"),
        swatch("question", "assistant, asked"),
        swatch("cancelled", "cancelled: its result could no longer matter"),
        swatch("both", "both at work"),
    )
