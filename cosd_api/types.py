"""Types of the records that fusions return, for annotations.

The types of arguments are in `cosd_api`. The types of a comparison's results are in `cosd_api.apps.comparison`, and the
types of a training's results in `cosd_api.apps.training`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosd_api.estimate import EndpointEstimate, Estimate, Range
from cosd_api.records import (
    DraftToken,
    Endpoint,
    EndpointUsage,
    FusedToken,
    ListedToken,
    Request,
    Segment,
    SegmentCandidate,
    Timings,
    TokenDecision,
)
from cosd_api.settings import CustomVerifier, Settings
from cosd_providers.deferred import deferred

if TYPE_CHECKING:
    from cosd_api.forcing.samples import Sample
    from cosd_api.likelihood import LikelihoodToken, LogLikelihood
    from cosd_providers import ProbeReport

__all__ = [
    "CustomVerifier",
    "DraftToken",
    "Endpoint",
    "EndpointEstimate",
    "EndpointUsage",
    "Estimate",
    "FusedToken",
    "LikelihoodToken",
    "ListedToken",
    "LogLikelihood",
    "ProbeReport",
    "Range",
    "Request",
    "Sample",
    "Segment",
    "SegmentCandidate",
    "Settings",
    "Timings",
    "TokenDecision",
]

if not TYPE_CHECKING:
    __getattr__ = deferred(
        __name__,
        {
            "LikelihoodToken": "cosd_api.likelihood",
            "LogLikelihood": "cosd_api.likelihood",
            "ProbeReport": "cosd_providers",
            "Sample": "cosd_api.forcing.samples",
        },
    )
