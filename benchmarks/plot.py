"""The plot of the section `simulated`: wall time relative to the draft alone, against the acceptance."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

__all__ = ["draw"]

HERE = Path(__file__).parent
PICTURE = HERE.parent / "docs" / "benchmark.svg"

# The colours of Okabe and Ito suit any colour vision; markers and dashes distinguish the lines in grey.
_STYLES: dict[str, dict[str, Any]] = {
    "b: K=32": {"color": "#E69F00", "marker": "^", "linestyle": (0, (1, 1.5)), "label": "(b) rounds of K = 32"},
    "b: K=16": {"color": "#D55E00", "marker": "v", "linestyle": (0, (3, 1.5)), "label": "(b) rounds of K = 16"},
    "b: K=8": {"color": "#CC79A7", "marker": "s", "linestyle": (0, (5, 1.5, 1, 1.5)), "label": "(b) rounds of K = 8"},
    "a: cosd-api": {"color": "#0072B2", "marker": "o", "linestyle": "-", "label": "(a) cosd-api"},
}
_FLOOR: dict[str, Any] = {"color": "#777777", "linestyle": "--", "linewidth": 1.2, "label": "floor"}


def draw(results: Path, picture: Path = PICTURE) -> Path:
    """Draw the saved results of the section; return the picture's path.

    Raises:
        FileNotFoundError: the section has not been run.
    """
    import matplotlib as mpl  # noqa: PLC0415 - an extra of its own

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "cosd"  # the same figures always give the same file
    from matplotlib import pyplot  # noqa: PLC0415

    lines = _lines(json.loads(results.read_text(encoding="utf-8")))
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    for name, style in _STYLES.items():
        if name in lines:
            axes.plot(*zip(*lines[name], strict=True), markersize=5.5, linewidth=1.8, **style)
    axes.plot(*zip(*lines["floor"], strict=True), **_FLOOR)
    axes.set_xticks([acceptance for acceptance, _ in lines["floor"]])
    axes.set_ylim(bottom=1)
    axes.set_xlabel("share of the draft's tokens that are kept")
    axes.set_ylabel("wall time / the draft alone writing the text")
    axes.set_title("Simulated pair, round trip 20 ms, texts of 512 tokens", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=150, metadata={"Date": None} if picture.suffix == ".svg" else None)
    pyplot.close(figure)
    return picture


def _lines(kept: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Points by method: acceptance, and wall time relative to the draft alone."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for figures in sorted(
        (table["figures"] for table in kept["tables"] if "runs" in table["figures"]),
        key=lambda figures: figures["case"]["acceptance"],
    ):
        case, runs = figures["case"], figures["runs"]
        if (case["round_trip"], case["context"]) != (0.02, 512):
            continue
        seconds = {name: [run["answer"]["seconds"] for run in done] for name, done in runs.items()}
        alone = seconds["d: draft alone"]
        for name, took in {**seconds, "floor": figures["floor"]}.items():
            ratios = [one / other for one, other in zip(took, alone, strict=False)]
            lines.setdefault(name, []).append((case["acceptance"], statistics.median(ratios)))
    return lines
