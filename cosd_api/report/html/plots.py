"""Two plots: decisions by the draft's probability p and the assistant's probability q, and the share of tokens kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from xml.etree.ElementTree import Element

from cosd_api.extend import DRAFT, KnownVerifier, condition_of, counted, decides_by_place
from cosd_api.report.decisions import JudgedPlace, Outcome
from cosd_api.report.html.charts import (
    Corner,
    Scale,
    axis_name,
    chart,
    diamond,
    key_entry,
    line,
    polygon,
    side_axis_name,
    side_tick,
    tick,
)
from cosd_api.report.html.elements import element, in_line
from cosd_api.report.html.regions import shapes_of
from cosd_api.types import CustomVerifier, FusedToken

# The plane of p and q: the region where the verifier replaces, and the decisions of this answer.

_SIDE = 320.0
_LEFT, _TOP = 48.0, 14.0
_LANE = 26.0  # height of the lane below the plane, for decisions without q
_SIZE = 4.5

_MARKS: Mapping[Outcome, str] = {
    "agreed": "agreed",
    "tied": "a tie",
    "kept": "differed, kept",
    "replaced": "replaced",
    "outvoted": "another was surer",
}


def region(verifier: KnownVerifier | CustomVerifier) -> list[list[Corner]] | None:
    """The region of the plane where the verifier replaces, as polygons; None if it uses more than p and q."""
    return None if isinstance(verifier, CustomVerifier) or decides_by_place(verifier) else shapes_of(verifier)


def rule_in_words(verifier: KnownVerifier | CustomVerifier) -> str:
    """Describe the verifier's condition in words."""
    if isinstance(verifier, CustomVerifier):
        return f"a custom verifier: {in_line(verifier.description)}"
    return condition_of(verifier)


def points(found: Sequence[JudgedPlace]) -> list[tuple[float, float, int, Outcome]]:
    """For each decision with a known p, return its position in the drawing, the token's index and the outcome."""
    return [
        (round(_x(one.decision.draft_prob), 1), round(_y(one.decision.prob), 1), one.at, one.outcome)
        for one in found
        if one.decision.draft_prob is not None
    ]


def _x(p: float) -> float:
    return _LEFT + p * _SIDE


def _y(q: float | None) -> float:
    return _TOP + _SIDE + _LANE if q is None else _TOP + (1 - q) * _SIDE


def plane(verifier: KnownVerifier | CustomVerifier, found: Sequence[JudgedPlace]) -> Element:
    """Draw the plane of p and q, with a legend and notes.

    All points with the same outcome form one element; the script finds the point nearest to the pointer.
    """
    places = points(found)
    lane = any(one.decision.prob is None for one in found)
    width, height = _LEFT + _SIDE + 14, _TOP + _SIDE + 44 + (_LANE if lane else 0)
    label = f"{counted(len(places), 'decision')} in the plane of the two probabilities"
    svg = chart(width, height, label, name="plane")
    shapes = region(verifier)
    outline = "".join(polygon([(_x(p), _y(q)) for p, q in shape]) for shape in shapes or [])
    svg.append(element("rect", "frame", x=_LEFT, y=_TOP, width=_SIDE, height=_SIDE))
    if outline:
        svg.append(element("path", "region", d=outline))
        at_left = _x(0) + 8
        svg.append(element("text", "region-name", "replaced here", x=at_left, y=_TOP + 18))
    svg.extend(_axes(lane=lane))
    on_top: tuple[Outcome, ...] = ("agreed", "tied", "outvoted", "kept", "replaced")  # rarer outcomes are drawn on top
    for kind in on_top:
        drawn = "".join(_mark(kind, x, y) for x, y, _, of in places if of == kind)
        if drawn:
            svg.append(element("path", f"point {kind}", d=drawn))
    svg.append(element("circle", "ring", id="ring", r=9, visibility="hidden"))
    return element("div", "plane", svg, _key(found), *_notes(verifier, shapes, found, places))


def _axes(*, lane: bool) -> Iterator[Element]:
    bottom, middle = _TOP + _SIDE + (_LANE + 8 if lane else 0), _TOP + _SIDE / 2
    for step in (0.0, 0.25, 0.5, 0.75, 1.0):
        if 0 < step < 1:
            yield line(f"M{_x(step):g} {_TOP:g}v{_SIDE:g}M{_LEFT:g} {_y(step):g}h{_SIDE:g}")
        yield tick(f"{step:g}", _x(step), bottom + 15)
        yield side_tick(f"{step:g}", _LEFT - 7, _y(step))
    if lane:
        yield line(f"M{_LEFT:g} {_y(None):g}h{_SIDE:g}")
        yield side_tick("unknown", _LEFT - 4, _y(None))
    yield axis_name("p: the draft's probability of its own text", _LEFT + _SIDE / 2, bottom + 34)
    yield side_axis_name("q: the assistant's own probability", 12, middle)


def _mark(kind: Outcome, x: float, y: float, size: float = _SIZE) -> str:
    """The path of an outcome's mark: a circle, triangle, square, diamond or cross."""
    if kind == "agreed":
        wide = size * 1.3  # wide enough to be visible around a square at the same point
        half = f"a{wide:.2f} {wide:.2f} 0 1 0"
        return f"M{x - wide:.1f} {y:.1f}{half} {2 * wide:.2f} 0{half} {-2 * wide:.2f} 0z"
    if kind == "tied":
        wide = size * 1.3
        return polygon([(x - wide, y + size), (x, y - wide), (x + wide, y + size)])
    if kind == "kept":
        return polygon([(x - size, y - size), (x + size, y - size), (x + size, y + size), (x - size, y + size)])
    if kind == "replaced":
        return diamond(x, y, size * 1.5)
    return f"M{x - size:.1f} {y - size:.1f}l{2 * size} {2 * size}m{-2 * size} 0l{2 * size} {-2 * size}"


def _key(found: Sequence[JudgedPlace]) -> Element:
    key = element("ul", "key")
    for kind, words in _MARKS.items():
        count = sum(one.outcome == kind for one in found)
        if count:
            key.append(key_entry(f"point {kind}", _mark(kind, 9, 9), f"{words}: {count:,}"))
    return key


def _notes(
    verifier: KnownVerifier | CustomVerifier,
    shapes: list[list[Corner]] | None,
    found: Sequence[JudgedPlace],
    places: Sequence[tuple[float, float, int, Outcome]],
) -> Iterator[Element]:
    why = None
    if isinstance(verifier, CustomVerifier):
        why = "This is a custom verifier: the region where it replaces is unknown."
    elif shapes is None:
        basis = getattr(verifier, "basis", "decides by more than p and q")
        why = f"It {basis}, so there is no region where it replaces."
    elif not shapes:
        why = "This verifier never replaces, so there is no region."
    if why is not None:
        yield element("p", "note", why)
    if not found:
        yield element("p", "note", "No decision: the draft was sure everywhere, so no assistant was asked.")
    elif len(places) < len(found):
        missing = counted(len(found) - len(places), "decision is", "decisions are")
        yield element("p", "note", f"{missing} not shown: the draft's probability is unknown.")


# The share of the draft's tokens that were kept, over the course of the answer.

_CHART_WIDTH, _CHART_HEIGHT = 440.0, 150.0
_CHART_LEFT, _CHART_TOP = 46.0, 12.0
_WINDOWS = 40  # maximum number of windows
_SHORTEST = 4  # minimum number of tokens in a window

Window = tuple[int, int, float | None]
"""First token, last token (exclusive), and the share of draft tokens kept between them. The share is None if no draft
token was judged in the window."""


def shares(tokens: Sequence[FusedToken]) -> tuple[list[Window], list[float]]:
    """Compute the share of draft tokens kept, for each window of the answer and, cumulatively, up to each token.

    The last of these cumulative shares is the acceptance rate of the answer.
    """
    judged = [_counts(token) for token in tokens]
    running = list[float]()
    kept = replaced = 0
    for stays, goes in judged:
        kept, replaced = kept + stays, replaced + goes
        running.append(kept / (kept + replaced) if kept + replaced else 1.0)
    size = max(_SHORTEST, -(-len(tokens) // _WINDOWS))
    windows = list[Window]()
    for start in range(0, len(tokens), size):
        within = judged[start : start + size]
        stay, go = (sum(column) for column in zip(*within, strict=True))
        windows.append((start, start + len(within), stay / (stay + go) if stay + go else None))
    return windows, running


def _counts(token: FusedToken) -> tuple[int, int]:
    """Return the number of draft tokens kept and the number of draft tokens replaced at a token."""
    if token.source == DRAFT:
        return int(token.verified), 0
    if token.replaced is None:
        return 0, 0
    return 0, max(1, len(token.replaced_tokens))


def acceptance(tokens: Sequence[FusedToken], rate: float | None) -> Element:
    """Draw the share of draft tokens kept: a bar for each window, and a line for the share up to each token."""
    windows, running = shares(tokens)
    bottom = _CHART_TOP + _CHART_HEIGHT
    svg = element(
        "svg",
        None,
        viewBox=f"0 0 {_CHART_LEFT + _CHART_WIDTH + 12:g} {bottom + 40:g}",
        id="acceptance",
        role="img",
        aria_label="Share of the draft's tokens that was kept, over the answer"
        + ("" if rate is None else f": {rate:.0%} in all"),
    )
    last = max(len(tokens), 1)

    x = Scale(0, last, _CHART_LEFT, _CHART_WIDTH)

    def y(share: float) -> float:
        return _CHART_TOP + (1 - share) * _CHART_HEIGHT

    for step in (0.0, 0.5, 1.0):
        svg.append(line(f"M{_CHART_LEFT:g} {y(step):.1f}h{_CHART_WIDTH:g}"))
        svg.append(side_tick(f"{step:.0%}", _CHART_LEFT - 7, y(step)))
    for start, end, share in windows:
        if share is not None:
            wide = x(end) - x(start)
            gap = min(1.0, wide / 5)
            classes = "bar whole" if share == 1 else "bar"
            svg.append(
                element("rect", classes, x=x(start) + gap / 2, y=y(share), width=wide - gap, height=bottom - y(share))
            )
    if running:
        way = "L".join(f"{x(at + 0.5):.1f} {y(share):.1f}" for at, share in enumerate(running))
        svg.append(element("path", "running", d=f"M{way}"))
    replaced = [at for at, token in enumerate(tokens) if token.replaced is not None]
    if replaced:
        ticks = "".join(f"M{x(at + 0.5):.1f} {bottom + 2:.1f}v6" for at in replaced)
        svg.append(element("path", "cuts", d=ticks))
    cursor = f"M0 {_CHART_TOP:g}v{_CHART_HEIGHT:g}"
    svg.append(element("path", "cursor", id="cursor", d=cursor, visibility="hidden"))
    for at in sorted({1, round(last / 4), round(last / 2), round(3 * last / 4), last} - {0}):
        svg.append(tick(f"{at:,}", x(at - 0.5), bottom + 21))
    svg.append(axis_name("token of the answer", x(last / 2), bottom + 37))
    # The page's script moves this cursor.
    svg.attrib |= {"data-left": f"{_CHART_LEFT:g}", "data-width": f"{_CHART_WIDTH:g}"}
    return svg
