"""Compare fusion methods and models on a user's own questions: graders, statistics, runs and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosd_providers.deferred import deferred

if TYPE_CHECKING:
    from cosd_api.apps.comparison.prices import ComparisonEstimate, Price
    from cosd_api.apps.comparison.standings import Advice, Comparison, Standing

__all__ = ["Advice", "Comparison", "ComparisonEstimate", "Price", "Standing"]

if not TYPE_CHECKING:
    __getattr__ = deferred(
        __name__,
        {
            "Advice": "cosd_api.apps.comparison.standings",
            "Comparison": "cosd_api.apps.comparison.standings",
            "ComparisonEstimate": "cosd_api.apps.comparison.prices",
            "Price": "cosd_api.apps.comparison.prices",
            "Standing": "cosd_api.apps.comparison.standings",
        },
    )
