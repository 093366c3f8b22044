"""A number for every pair of alpha and beta, as in the paper's Figure 2: as plain text, and where each stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Cell", "Heatmap", "percent"]


@dataclass(frozen=True, slots=True)
class Cell:
    """Where one number stands in the text.

    Attributes:
        start: of its characters, the spaces around it included.
        stop: behind them.
        value: the number, from 0 to 1.
        best: whether it is marked.
    """

    start: int
    stop: int
    value: float
    best: bool


@dataclass(frozen=True, slots=True)
class Heatmap:
    """One panel. As text alpha goes to the right and beta upwards, in percent, and the best pair has a `*`.

    Attributes:
        title: what the numbers are.
        values: from 0 to 1, by alpha and then by beta; every alpha has the same betas.
        best: the best alpha and beta, which are marked.
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

    def laid_out(self) -> tuple[str, list[Cell]]:
        """The text, and where its numbers are."""
        head = max(len("beta"), *(len(f"{beta:g}") for beta in self.betas))
        # Of a cell: its value and its mark, or the alpha below it, and a space on either side.
        width = max(len("*100.0"), *(len(f"{alpha:g}") for alpha in self.alphas)) + 2
        text, cells = f"{self.title}, in % (*: best)\n{'beta':>{head}}\n", list[Cell]()
        for beta in reversed(self.betas):
            text += f"{beta:>{head}g} "
            for alpha in self.alphas:
                value, best = self.values[alpha][beta], (alpha, beta) == self.best
                cells.append(Cell(len(text), len(text) + width, value, best))
                text += f"{('*' if best else '') + percent(value):>{width - 1}} "
            text += "\n"
        text += " " * head + " " + "".join(f"{alpha:>{width - 1}g} " for alpha in self.alphas) + " alpha"
        return text, cells

    def __str__(self) -> str:
        return self.laid_out()[0]


def percent(value: float) -> str:
    """Without its sign, which is in the title."""
    return f"{100 * value:.1f}"
