"""The picture of docs/evidence.md: right answers and uncached tokens of each way."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.report import Table
from cosd_api.comparison.contestants import REVERSED

__all__ = ["drawn", "label"]


def label(name: str, labels: Mapping[str, str]) -> str:
    """The label of a way, or of a difference to it; if two have changed places, with the label of `REVERSED`."""
    before, name = ("to ", name[3:]) if name.startswith("to ") else ("", name)
    plain, turned, _ = name.partition(REVERSED)
    return f"{before}{labels.get(plain, plain)}{turned and labels.get(REVERSED, REVERSED)}"


def drawn(table: Table, labels: Mapping[str, str]) -> str:
    """The picture of a table of `outcomes.apart`, as SVG; the same table gives the same picture."""
    at = next(n for n, name in enumerate(table.columns) if name.startswith("all "))
    tokens = table.columns.index("uncached")
    figure = Figure(figsize=(8, 4.2))
    axes: Any = figure.subplots()
    for row in table.rows:
        if not row[tokens]:
            continue
        x, y = float(str(row[tokens]).replace(",", "")), float(str(row[at]))
        alone = row[0] in ("draft", "assistant")
        axes.plot(x, y, "s" if alone else "o", color="#777777" if alone else "#0072B2", markersize=7)
        words = label(str(row[0]), labels).replace("`", "")
        axes.annotate(words, (x, y), xytext=(6, -3), textcoords="offset points", fontsize=8)
    axes.set_xlabel("uncached tokens of an answer, all servers together")
    axes.set_ylabel("right answers, %")
    axes.margins(x=0.25, y=0.15)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "real pair", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
