"""Compare fusion methods and models on a user's own questions: graders, statistics, runs and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosd_api.extend import deferred

if TYPE_CHECKING:
    from cosd_api.comparison.prices import ComparisonEstimate, Price
    from cosd_api.comparison.result import Advice, Comparison, Standing

__all__ = ["Advice", "Comparison", "ComparisonEstimate", "Price", "Standing"]

if not TYPE_CHECKING:
    __getattr__ = deferred(
        __name__,
        {
            "Advice": "cosd_api.comparison.result",
            "Comparison": "cosd_api.comparison.result",
            "ComparisonEstimate": "cosd_api.comparison.prices",
            "Price": "cosd_api.comparison.prices",
            "Standing": "cosd_api.comparison.result",
        },
    )
