"""The picture in docs/evidence.md: the right answers and uncached tokens of each way."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.report import Table
from cosd_api.apps.comparison.contestants import REVERSED

__all__ = ["drawn", "label"]


_OTHER = ("#777777", "s")
_STYLES = {
    "cosd": ("#D55E00", "o"),
    "cosd-0.9-1": ("#0072B2", "o"),
    "cosd-1-1": ("#009E73", "v"),
    "average": ("#CC79A7", "D"),
    "assistant": ("#777777", "^"),
}
"""Colour (of Okabe and Ito) and marker by way. Markers are hollow if draft and assistant are swapped."""


def label(name: str, labels: Mapping[str, str]) -> str:
    """The label of a way, or of a difference from it; with `REVERSED`'s label if draft and assistant are swapped."""
    before, name = ("vs ", name[3:]) if name.startswith("vs ") else ("", name)
    plain, turned, _ = name.partition(REVERSED)
    return f"{before}{labels.get(plain, plain)}{turned and labels.get(REVERSED, REVERSED)}"


def drawn(table: Table, labels: Mapping[str, str]) -> str:
    """Draw a table of `outcomes.apart` as SVG; the same table always gives the same picture."""
    at = next(n for n, name in enumerate(table.columns) if name.startswith("all "))
    tokens = table.columns.index("uncached")
    figure = Figure(figsize=(8, 4.2))
    axes: Any = figure.subplots()
    for row in table.rows:
        if not row[tokens]:
            continue
        x, y = float(str(row[tokens]).replace(",", "")), float(str(row[at]))
        plain, turned, _ = str(row[0]).partition(REVERSED)
        colour, mark = _STYLES.get(plain, _OTHER)
        words = label(str(row[0]), labels).replace("`", "")
        face = "none" if turned else colour
        axes.plot(x, y, mark, color=colour, markerfacecolor=face, markersize=8, linestyle="none", label=words)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    axes.set_xlabel("uncached tokens per answer, all servers together")
    axes.set_ylabel("right answers, %")
    axes.margins(x=0.25, y=0.15)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "real pair", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
