"""Records that come back: the types of what fusions, comparisons and trainings return, for annotations.

What a caller passes in is in `cosd_api`; what it gets back is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosd_api.estimate import EndpointEstimate, Estimate, Range
from cosd_api.likelihood import LikelihoodToken, LogLikelihood
from cosd_api.records import (
    DraftToken,
    Endpoint,
    EndpointUsage,
    FusedToken,
    Request,
    Segment,
    SegmentCandidate,
    Timings,
    TokenDecision,
)
from cosd_api.settings import CustomVerifier, Settings
from cosd_providers.deferred import deferred

if TYPE_CHECKING:
    from cosd_api.comparison.prices import ComparisonEstimate, Price
    from cosd_api.comparison.result import Advice, Comparison
    from cosd_api.comparison.standings import Standing
    from cosd_api.forcing.samples import Sample
    from cosd_api.training.answers import AnswerTuning
    from cosd_api.training.fit_deferral import CoLLMTraining, DeferralTraining
    from cosd_api.training.report import Training
    from cosd_api.training.tuning import RuleTuning
    from cosd_providers import ProbeReport

__all__ = [
    "Advice",
    "AnswerTuning",
    "CoLLMTraining",
    "Comparison",
    "ComparisonEstimate",
    "CustomVerifier",
    "DeferralTraining",
    "DraftToken",
    "Endpoint",
    "EndpointEstimate",
    "EndpointUsage",
    "Estimate",
    "FusedToken",
    "LikelihoodToken",
    "LogLikelihood",
    "Price",
    "ProbeReport",
    "Range",
    "Request",
    "RuleTuning",
    "Sample",
    "Segment",
    "SegmentCandidate",
    "Settings",
    "Standing",
    "Timings",
    "TokenDecision",
    "Training",
]

if not TYPE_CHECKING:
    __getattr__ = deferred(
        __name__,
        {
            "Advice": "cosd_api.comparison.result",
            "AnswerTuning": "cosd_api.training.answers",
            "CoLLMTraining": "cosd_api.training.fit_deferral",
            "Comparison": "cosd_api.comparison.result",
            "ComparisonEstimate": "cosd_api.comparison.prices",
            "DeferralTraining": "cosd_api.training.fit_deferral",
            "Price": "cosd_api.comparison.prices",
            "ProbeReport": "cosd_providers",
            "RuleTuning": "cosd_api.training.tuning",
            "Sample": "cosd_api.forcing.samples",
            "Standing": "cosd_api.comparison.standings",
            "Training": "cosd_api.training.report",
        },
    )
