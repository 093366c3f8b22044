"""Heatmaps of accuracy over the rule's alpha and beta, as in the paper's Figure 2, in the terminal and as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from cosd_api.extend import check_installed
from cosd_api.training.report import Heatmap, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Heatmap", "check_plots", "drawn", "heatmap", "save_heatmaps"]

# Steps of the colour map cividis, which is suitable for colour-blind readers.
_STEPS = ("#00204d", "#31446b", "#666970", "#958f78", "#cab969", "#ffea46")
_LIGHT = 3  # index of the first step that needs black text

_DOTS = 200  # dots per inch of the PNG
_CELL = 0.8  # minimum width and height of a cell, in inches


def heatmap(panel: Heatmap, *, colour: bool) -> Text:
    """Render a panel as lines of text; if colours may be used, the cells are shaded."""
    words, cells = panel.laid_out()
    text, shade = Text(words), panel.shades()
    if colour:
        for cell in cells:
            text.stylize(_style(shade(cell.value), best=cell.best), cell.start, cell.stop)
    return text


def _style(shade: float, *, best: bool) -> str:
    step = min(int(shade * len(_STEPS)), len(_STEPS) - 1)
    return f"{'bold ' if best else ''}{'#000000' if step >= _LIGHT else '#ffffff'} on {_STEPS[step]}"


def check_plots() -> None:
    """Check that matplotlib can be imported; call this before a long computation.

    Raises:
        SettingError: matplotlib is missing; the message names the extra that installs it.
    """
    check_installed("matplotlib", "a picture needs matplotlib", "plots")


def save_heatmaps(panels: Sequence[Heatmap], path: str | Path) -> None:
    """Save the panels side by side as a PNG, regardless of the file's extension.

    Raises:
        SettingError: matplotlib is missing.
        OSError: the file cannot be written.
    """
    drawn(panels).savefig(path, format="png", dpi=_DOTS)


def drawn(panels: Sequence[Heatmap]) -> Figure:
    """Draw the panels side by side as a matplotlib figure, without changing the state of pyplot.

    Raises:
        SettingError: matplotlib is missing.
    """
    check_plots()
    from matplotlib.figure import Figure  # noqa: PLC0415

    columns, rows = (max(4, *(len(getattr(panel, name)) for panel in panels)) for name in ("alphas", "betas"))
    size = (len(panels) * (columns * _CELL + 1.0), rows * _CELL + 1.0)
    figure = Figure(figsize=size, layout="constrained")
    for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        _draw(panel, axes)
    return figure


def _draw(panel: Heatmap, axes: Axes) -> None:
    from matplotlib.patches import Rectangle  # noqa: PLC0415

    alphas, betas, shade = panel.alphas, panel.betas, panel.shades()
    shown = [[panel.values[alpha].get(beta) for alpha in alphas] for beta in betas]
    shades = [[float("nan") if value is None else shade(value) for value in row] for row in shown]  # NaN stays blank
    axes.imshow(shades, cmap="cividis", vmin=0, vmax=1, origin="lower", aspect="equal")
    axes.set_xticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
    axes.set_yticks(range(len(betas)), [f"{beta:g}" for beta in betas])
    axes.tick_params(length=0, labelsize=11)
    axes.set_xlabel("alpha", fontsize=12)
    axes.set_ylabel("beta", fontsize=12)
    axes.set_title(f"{panel.title}, in %\nframed: best", fontsize=12)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for x, alpha in enumerate(alphas):
        for y, beta in enumerate(betas):
            if (value := shown[y][x]) is None:
                continue
            look: dict[str, Any] = {"color": "black" if shades[y][x] > 0.5 else "white", "fontsize": 12}
            weight = "bold" if (alpha, beta) == panel.best else "normal"
            axes.text(x, y, percent(value), ha="center", va="center", weight=weight, **look)
    x, y = alphas.index(panel.best[0]), betas.index(panel.best[1])
    # A black frame inside a white one is visible on every shade.
    for inset, colour, width in ((0.04, "white", 5.0), (0.04, "black", 2.5)):
        corner, side = (x - 0.5 + inset, y - 0.5 + inset), 1 - 2 * inset
        axes.add_patch(Rectangle(corner, side, side, fill=False, edgecolor=colour, linewidth=width))
