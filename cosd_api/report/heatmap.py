"""Accuracy over the rule's alpha and beta, as in the paper's Figure 2: in the terminal, and as a PNG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from cosd_api.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Heatmap", "check_plots", "drawn", "heatmap", "save_heatmaps"]

# Steps of cividis, which people see alike whatever colours they can tell apart; the lightest takes black text.
_STEPS = ("#00204d", "#31446b", "#666970", "#958f78", "#cab969", "#ffea46")
_LIGHT = 3  # from this step on

_DOTS = 200  # of the PNG, for each inch
_CELL = 0.8  # inches, at least


@dataclass(frozen=True, slots=True)
class Heatmap:
    """One panel: a number for every pair of alpha and beta.

    Attributes:
        title: what the numbers are.
        values: from 0 to 1, by alpha and then by beta; every alpha has the same betas.
        best: the recommended alpha and beta, which are marked.
    """

    title: str
    values: Mapping[float, Mapping[float, float]]
    best: tuple[float, float]

    @property
    def alphas(self) -> list[float]:
        """In ascending order."""
        return sorted(self.values)

    @property
    def betas(self) -> list[float]:
        """In ascending order."""
        return sorted(next(iter(self.values.values())))

    def shades(self) -> Callable[[float], float]:
        """How light a value is drawn, from 0 (the lowest of the panel) to 1; all alike are the lightest."""
        everything = [value for row in self.values.values() for value in row.values()]
        low, high = min(everything), max(everything)
        return lambda value: (value - low) / (high - low) if high > low else 1.0


def heatmap(panel: Heatmap, *, colour: bool) -> Text:
    """The panel as lines of text: alpha to the right and beta upwards, in percent, the recommended pair with a `*`.

    In colour the cells are shaded, too; nothing is told by colour alone.
    """
    head, cell = max(len("beta"), *(len(f"{beta:g}") for beta in panel.betas)), _width(panel)
    shade = panel.shades()
    text = Text(f"{panel.title}, in % (* recommended)\n{'beta':>{head}}\n")
    for beta in reversed(panel.betas):
        text.append(f"{beta:>{head}g} ")
        for alpha in panel.alphas:
            value, mark = panel.values[alpha][beta], "*" if (alpha, beta) == panel.best else ""
            style = _style(shade(value), best=bool(mark)) if colour else ""
            text.append(f"{mark + _percent(value):>{cell - 1}} ", style)
        text.append("\n")
    text.append(" " * head + " " + "".join(f"{alpha:>{cell - 1}g} " for alpha in panel.alphas) + " alpha")
    return text


def _width(panel: Heatmap) -> int:
    """Of a cell: its value and its mark, or the alpha below it, and a space on either side."""
    return max(len("*100.0"), *(len(f"{alpha:g}") for alpha in panel.alphas)) + 2


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _style(shade: float, *, best: bool) -> str:
    step = min(int(shade * len(_STEPS)), len(_STEPS) - 1)
    return f"{'bold ' if best else ''}{'#000000' if step >= _LIGHT else '#ffffff'} on {_STEPS[step]}"


def check_plots() -> None:
    """Sees whether pictures can be drawn: before anything that takes long.

    Raises:
        SettingError: matplotlib is missing; the message names the extra.
    """
    try:
        import_module("matplotlib")  # an extra of its own, and slow to load
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise SettingError('a picture needs matplotlib: pip install "cosd-api[plots]"') from None


def save_heatmaps(panels: Sequence[Heatmap], path: str | Path) -> None:
    """Writes the panels side by side as a PNG, whatever the file's name.

    Raises:
        SettingError: matplotlib is missing.
        OSError: the file cannot be written.
    """
    drawn(panels).savefig(path, format="png", dpi=_DOTS)


def drawn(panels: Sequence[Heatmap]) -> Figure:
    """The panels as a matplotlib figure, side by side; nothing of pyplot's state is touched.

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
    shades = [[shade(panel.values[alpha][beta]) for alpha in alphas] for beta in betas]
    axes.imshow(shades, cmap="cividis", vmin=0, vmax=1, origin="lower", aspect="equal")
    axes.set_xticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
    axes.set_yticks(range(len(betas)), [f"{beta:g}" for beta in betas])
    axes.tick_params(length=0, labelsize=11)
    axes.set_xlabel("alpha", fontsize=12)
    axes.set_ylabel("beta", fontsize=12)
    axes.set_title(f"{panel.title}, in %\nframed: recommended", fontsize=12)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for x, alpha in enumerate(alphas):
        for y, beta in enumerate(betas):
            best = (alpha, beta) == panel.best
            look: dict[str, Any] = {"color": "black" if shades[y][x] > 0.5 else "white", "fontsize": 12}
            axes.text(x, y, _percent(panel.values[alpha][beta]), ha="center", va="center", weight=_weight(best), **look)
    x, y = alphas.index(panel.best[0]), betas.index(panel.best[1])
    # Black within white is seen on every shade.
    for inset, colour, width in ((0.04, "white", 5.0), (0.04, "black", 2.5)):
        corner, side = (x - 0.5 + inset, y - 0.5 + inset), 1 - 2 * inset
        axes.add_patch(Rectangle(corner, side, side, fill=False, edgecolor=colour, linewidth=width))


def _weight(best: bool) -> str:
    return "bold" if best else "normal"
