"""How much of the draft was kept, over the answer."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from cosd_api.records import FusedToken
from cosd_api.report.html.markup import element
from cosd_api.report.html.view import DRAFT

__all__ = ["Windowed", "figure", "shares"]

_WIDTH, _HEIGHT = 440.0, 150.0
_LEFT, _TOP = 46.0, 12.0
_WINDOWS = 40  # at most; a short answer has one for each few tokens
_SHORTEST = 4

Windowed = tuple[int, int, float | None]
"""From which token, to which (exclusive), and the share of the draft's tokens there that was kept; None without any."""


def shares(tokens: Sequence[FusedToken]) -> tuple[list[Windowed], list[float]]:
    """The share of draft tokens kept in windows of the answer, and up to and with each token.

    The last of the running ones is the answer's acceptance rate.
    """
    judged = [_counts(token) for token in tokens]
    running = list[float]()
    kept = replaced = 0
    for stays, goes in judged:
        kept, replaced = kept + stays, replaced + goes
        running.append(kept / (kept + replaced) if kept + replaced else 1.0)
    size = max(_SHORTEST, -(-len(tokens) // _WINDOWS))
    windows = list[Windowed]()
    for start in range(0, len(tokens), size):
        within = judged[start : start + size]
        stay, go = (sum(column) for column in zip(*within, strict=True))
        windows.append((start, start + len(within), stay / (stay + go) if stay + go else None))
    return windows, running


def _counts(token: FusedToken) -> tuple[int, int]:
    """How many of the draft's tokens were kept, and how many were replaced there."""
    if token.source == DRAFT:
        return 1, 0
    if token.replaced is None:
        return 0, 0
    return 0, max(1, len(token.replaced_tokens))


def figure(tokens: Sequence[FusedToken], rate: float) -> Element:
    """The drawing: a bar for each window, a line for the share so far."""
    windows, running = shares(tokens)
    label = f"Share of the draft's tokens that was kept, over the answer: {rate:.0%} in all"
    svg = element(
        "svg",
        None,
        viewBox=f"0 0 {_LEFT + _WIDTH + 12:g} {_TOP + _HEIGHT + 40:g}",
        id="acceptance",
        role="img",
        aria_label=label,
    )
    last = max(len(tokens), 1)
    for step in (0.0, 0.5, 1.0):
        svg.append(element("path", "grid", d=f"M{_LEFT:g} {_y(step):.1f}h{_WIDTH:g}"))
        svg.append(element("text", "tick", f"{step:.0%}", x=_LEFT - 7, y=_y(step) + 4, text_anchor="end"))
    for start, end, share in windows:
        if share is not None:
            x, wide = _x(start, last), _x(end, last) - _x(start, last)
            classes = "bar whole" if share == 1 else "bar"
            height = _y(0) - _y(share)
            gap = min(1.0, wide / 5)
            svg.append(element("rect", classes, x=x + gap / 2, y=_y(share), width=wide - gap, height=height))
    if running:
        so_far = "L".join(f"{_x(at + 0.5, last):.1f} {_y(share):.1f}" for at, share in enumerate(running))
        svg.append(element("path", "running", d=f"M{so_far}"))
    cuts = "".join(
        f"M{_x(at + 0.5, last):.1f} {_y(0) + 2:.1f}v6" for at, token in enumerate(tokens) if token.replaced is not None
    )
    if cuts:
        svg.append(element("path", "cuts", d=cuts))
    svg.append(element("path", "cursor", id="cursor", d=f"M0 {_TOP:g}v{_HEIGHT:g}", visibility="hidden"))
    for at in sorted({1, round(last / 4), round(last / 2), round(3 * last / 4), last} - {0}):
        svg.append(element("text", "tick", f"{at:,}", x=_x(at - 0.5, last), y=_y(0) + 21, text_anchor="middle"))
    middle = _LEFT + _WIDTH / 2
    svg.append(element("text", "axis", "token of the answer", x=middle, y=_y(0) + 37, text_anchor="middle"))
    # The script moves the cursor along.
    svg.attrib |= {"data-left": f"{_LEFT:g}", "data-width": f"{_WIDTH:g}"}
    return svg


def _x(at: float, last: int) -> float:
    return _LEFT + at / last * _WIDTH


def _y(share: float) -> float:
    return _TOP + (1 - share) * _HEIGHT
