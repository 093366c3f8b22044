"""The picture in docs/evidence.md: the differences from the better model in the scenarios of the paper."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.real_pair.outcomes import better
from benchmarks.report import Table
from cosd_api.apps.comparison.contestants import REVERSED

__all__ = ["drawn", "label"]


_STYLES = {"cosd": ("#D55E00", "o"), "cosd-0.9-1": ("#0072B2", "D")}
"""Colour (of Okabe and Ito) and marker of the rules. Markers are hollow if draft and assistant are swapped."""


def label(name: str, labels: Mapping[str, str]) -> str:
    """The label of a way, or of a difference from it; with `REVERSED`'s label if draft and assistant are swapped."""
    before, name = ("vs ", name[3:]) if name.startswith("vs ") else ("", name)
    plain, turned, _ = name.partition(REVERSED)
    return f"{before}{labels.get(plain, plain)}{turned and labels.get(REVERSED, REVERSED)}"


def drawn(scenarios: Mapping[str, Table], labels: Mapping[str, str]) -> str:
    """Draw tables of `outcomes.apart` as SVG; the same tables always give the same picture.

    For each scenario, the picture shows by how many points the paper's rule and the default, with either model as the
    draft, differ from the better model alone, with the simultaneous 95 % interval.
    """
    figure = Figure(figsize=(8, 1 + 0.95 * len(scenarios)))
    axes: Any = figure.subplots()
    named: dict[str, Any] = {}
    for at, table in enumerate(scenarios.values()):
        rows = [one for one in table.rows if str(one[0]).partition(REVERSED)[0] in _STYLES]
        for number, row in enumerate(rows):
            plain, turned, _ = str(row[0]).partition(REVERSED)
            value, low, high = (float(one) for one in re.findall(r"[-+][\d.]+", str(row[better(table)])))
            colour, mark = _STYLES[plain]
            shown = axes.errorbar(
                value,
                at + 0.6 * (number / max(1, len(rows) - 1) - 0.5),
                xerr=[[value - low], [high - value]],
                fmt=mark,
                color=colour,
                markerfacecolor="none" if turned else colour,
                capsize=3,
            )
            named.setdefault(label(str(row[0]), labels).replace("`", ""), shown)
    axes.axvline(0, color="#777777", linewidth=1)
    axes.set_yticks(range(len(scenarios)), [*scenarios])
    axes.invert_yaxis()
    axes.set_xlabel("right answers, points above the better model alone")
    axes.legend([*named.values()], [*named], fontsize=8, frameon=False)
    axes.grid(alpha=0.3, axis="x")
    figure.tight_layout()
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "real pair", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
