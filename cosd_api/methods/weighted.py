"""Weights of the models, which methods share that average over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cosd_api.errors import SettingError
from cosd_api.methods.base import Written


@dataclass(frozen=True, kw_only=True)
class Weighted(Written):
    """A method in which each model has a weight.

    Attributes:
        weights: of the models, in their order; equal by default. Only their ratios count.

    Raises:
        SettingError: they are no weights.
    """

    symmetric: ClassVar[bool] = True

    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.weights is None:
            return
        numbers = isinstance(self.weights, Sequence) and all(
            isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one < math.inf for one in self.weights
        )
        if not numbers or not sum(self.weights) > 0:
            raise SettingError(f"weights must be numbers of at least 0, not all of them 0; not {self.weights!r}")
        object.__setattr__(self, "weights", tuple(map(float, self.weights)))

    def check_models(self, count: int) -> None:
        """Check that there is a weight for each model; see `Method.check_models`."""
        super().check_models(count)
        if self.weights is not None and len(self.weights) != count:
            raise SettingError(f"there are {len(self.weights)} weights for {count} models: give one for each")

    def options(self) -> dict[str, Any]:
        """Its own settings, as a result records them."""
        return super().options() | {"weights": None if self.weights is None else [*self.weights]}

    def shares(self, count: int, heard: Sequence[int]) -> dict[int, float]:
        """The weights of the models that are heard, of `count`, which sum to 1; equal ones if all others have none."""
        given = self.weights or (1.0,) * count
        total = sum(given[model] for model in heard)
        return {model: given[model] / total if total else 1 / len(heard) for model in heard}
