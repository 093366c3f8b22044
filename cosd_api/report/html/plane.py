"""The plane of the two probabilities: where the verifier replaces, and where this answer's decisions lie."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never
from xml.etree.ElementTree import Element

from cosd_api.report.html.markup import counted, element, in_line
from cosd_api.report.judged import Judged, Kind
from cosd_api.settings import CustomVerifier, KnownVerifier
from cosd_api.verification import AgreementVerifier, RuleVerifier, TreeVerifier

__all__ = ["Corner", "figure", "points", "region", "rule_in_words"]

Corner = tuple[float, float]

SIDE = 320.0
LEFT, TOP = 48.0, 14.0
_LANE = 26.0  # below the plane: decisions of an assistant that tells no probability
_SIZE = 4.5

_MARKS: Mapping[Kind, str] = {
    "agreed": "agreed",
    "kept": "differed, kept",
    "replaced": "replaced",
    "outvoted": "another was surer",
}


def region(verifier: KnownVerifier | CustomVerifier) -> list[list[Corner]] | None:
    """Where the verifier replaces: polygons in the plane of p and q, in [0, 1]; None where that is not known."""
    match verifier:
        case RuleVerifier(alpha=alpha, beta=beta):
            return _of_rule(min(alpha, 1.0), beta)
        case AgreementVerifier(alpha=alpha):
            return [_rectangle(0, min(alpha, 1.0), 0, 1)] if alpha > 0 else []
        case TreeVerifier():
            return list(_of_tree(verifier))
        case CustomVerifier():
            return None
        case _:
            assert_never(verifier)


def _of_rule(alpha: float, beta: float) -> list[list[Corner]]:
    """`p < alpha` and above the line `q = beta p`, which leaves the plane at its right or at its top."""
    if alpha <= 0 or math.isinf(beta):
        return []
    if beta * alpha >= 1:
        return [[(0, 0), (1 / beta, 1), (0, 1)]]
    return [[(0, 0), (alpha, beta * alpha), (alpha, 1), (0, 1)]]


def _of_tree(tree: TreeVerifier) -> Iterator[list[Corner]]:
    """A rectangle for each leaf that replaces."""
    open_nodes = [(0, 0.0, 1.0, 0.0, 1.0)]
    while open_nodes:
        index, left, right, low, high = open_nodes.pop()
        node = tree.nodes[index]
        if left >= right or low >= high:
            continue
        if node.threshold is None or node.left is None or node.right is None:
            if node.value == 1:
                yield _rectangle(left, right, low, high)
        elif node.feature == "p":
            open_nodes.append((node.left, left, min(right, node.threshold), low, high))
            open_nodes.append((node.right, max(left, node.threshold), right, low, high))
        else:
            open_nodes.append((node.left, left, right, low, min(high, node.threshold)))
            open_nodes.append((node.right, left, right, max(low, node.threshold), high))


def _rectangle(left: float, right: float, low: float, high: float) -> list[Corner]:
    return [(left, low), (right, low), (right, high), (left, high)]


def rule_in_words(verifier: KnownVerifier | CustomVerifier) -> str:
    """When the verifier replaces."""
    match verifier:
        case RuleVerifier(alpha=alpha, beta=beta):
            return f"replaces where p < {alpha:g} and q > {beta:g} × p"
        case AgreementVerifier(alpha=alpha):
            return f"replaces where p < {alpha:g}, whatever q is"
        case TreeVerifier(nodes=nodes):
            return f"a decision tree of {counted(len(nodes), 'node')}"
        case CustomVerifier(description=description):
            return f"a verifier of your own: {in_line(description)}"
        case _:
            assert_never(verifier)


def points(found: Sequence[Judged]) -> list[tuple[float, float, int, Kind]]:
    """Where each decision stands in the drawing, its token and its kind; without those whose p is not known."""
    return [
        (round(_x(one.decision.draft_prob), 1), round(_y(one.decision.prob), 1), one.at, one.kind)
        for one in found
        if one.decision.draft_prob is not None
    ]


def _x(p: float) -> float:
    return LEFT + p * SIDE


def _y(q: float | None) -> float:
    return TOP + SIDE + _LANE if q is None else TOP + (1 - q) * SIDE


def figure(verifier: KnownVerifier | CustomVerifier, found: Sequence[Judged]) -> Element:
    """The drawing with its caption. The points of one kind are one element; the script finds the nearest."""
    places = points(found)
    lane = any(one.decision.prob is None for one in found)
    width, height = LEFT + SIDE + 14, TOP + SIDE + 44 + (_LANE if lane else 0)
    label = f"{counted(len(places), 'decision')} in the plane of the two probabilities"
    svg = element("svg", None, id="plane", viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label)
    shapes = region(verifier)
    outline = "".join(_path([(_x(p), _y(q)) for p, q in shape]) for shape in shapes or [])
    svg.append(element("rect", "frame", x=LEFT, y=TOP, width=SIDE, height=SIDE))
    if outline:
        svg.append(element("path", "region", d=outline))
        at_left = _x(0) + 8
        svg.append(element("text", "region-name", "replaced here", x=at_left, y=TOP + 18))
    svg.extend(_axes(lane=lane))
    on_top: tuple[Kind, ...] = ("agreed", "outvoted", "kept", "replaced")  # the rarer ones last
    for kind in on_top:
        drawn = "".join(_mark(kind, x, y) for x, y, _, of in places if of == kind)
        if drawn:
            svg.append(element("path", f"point {kind}", d=drawn))
    svg.append(element("circle", "ring", id="ring", r=9, visibility="hidden"))
    return element("div", "plane", svg, _key(found), *_notes(shapes, found, places))


def _axes(*, lane: bool) -> Iterator[Element]:
    bottom = TOP + SIDE + (_LANE + 8 if lane else 0)
    for step in (0.0, 0.25, 0.5, 0.75, 1.0):
        if 0 < step < 1:
            yield element("path", "grid", d=f"M{_x(step):g} {TOP:g}v{SIDE:g}M{LEFT:g} {_y(step):g}h{SIDE:g}")
        yield element("text", "tick", f"{step:g}", x=_x(step), y=bottom + 15, text_anchor="middle")
        yield element("text", "tick", f"{step:g}", x=LEFT - 7, y=_y(step) + 4, text_anchor="end")
    if lane:
        yield element("path", "grid", d=f"M{LEFT:g} {_y(None):g}h{SIDE:g}")
        yield element("text", "tick", "not told", x=LEFT - 4, y=_y(None) + 4, text_anchor="end")
    yield element(
        "text", "axis", "p: how sure the draft was of its own", x=LEFT + SIDE / 2, y=bottom + 34, text_anchor="middle"
    )
    middle = TOP + SIDE / 2
    yield element(
        "text",
        "axis",
        "q: how sure the assistant was of its own",
        x=12,
        y=middle,
        text_anchor="middle",
        transform=f"rotate(-90 12 {middle:g})",
    )


def _mark(kind: Kind, x: float, y: float, size: float = _SIZE) -> str:
    """A shape for each kind: circle, square, diamond, cross."""
    if kind == "agreed":
        wide = size * 1.3  # seen around a square at the same place
        half = f"a{wide:.2f} {wide:.2f} 0 1 0"
        return f"M{x - wide:.1f} {y:.1f}{half} {2 * wide:.2f} 0{half} {-2 * wide:.2f} 0z"
    if kind == "kept":
        return _path([(x - size, y - size), (x + size, y - size), (x + size, y + size), (x - size, y + size)])
    if kind == "replaced":
        wide = size * 1.5
        return _path([(x - wide, y), (x, y - wide), (x + wide, y), (x, y + wide)])
    return f"M{x - size:.1f} {y - size:.1f}l{2 * size} {2 * size}m{-2 * size} 0l{2 * size} {-2 * size}"


def _path(corners: Sequence[Corner]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners) + "z"


def _key(found: Sequence[Judged]) -> Element:
    key = element("ul", "key")
    for kind, words in _MARKS.items():
        count = sum(one.kind == kind for one in found)
        if count:
            shape = element("svg", None, viewBox="0 0 18 18", aria_hidden="true")
            shape.append(element("path", f"point {kind}", d=_mark(kind, 9, 9)))
            key.append(element("li", None, shape, f" {words}: {count:,}"))
    return key


def _notes(
    shapes: list[list[Corner]] | None, found: Sequence[Judged], places: Sequence[tuple[float, float, int, Kind]]
) -> Iterator[Element]:
    if shapes is None:
        yield element("p", "note", "The verifier is one of your own: the region in which it replaces is not known.")
    elif not shapes:
        yield element("p", "note", "This verifier never replaces: there is no region in which it does.")
    if not found:
        yield element("p", "note", "No decision: the draft was so sure that nobody was asked.")
    elif len(places) < len(found):
        missing = counted(len(found) - len(places), "decision is", "decisions are")
        yield element("p", "note", f"{missing} not shown: the draft's probability was not told.")
