"""Training of verifiers: collect decision samples from two models, train trees and gates, and tune thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosd_api.extend import deferred

if TYPE_CHECKING:
    from cosd_api.training.answers import AnswerTuning
    from cosd_api.training.fit import Training
    from cosd_api.training.fit_deferral import DeferralTraining
    from cosd_api.training.tuning import RuleTuning

__all__ = ["AnswerTuning", "DeferralTraining", "RuleTuning", "Training"]

if not TYPE_CHECKING:
    __getattr__ = deferred(
        __name__,
        {
            "AnswerTuning": "cosd_api.training.answers",
            "DeferralTraining": "cosd_api.training.fit_deferral",
            "RuleTuning": "cosd_api.training.tuning",
            "Training": "cosd_api.training.fit",
        },
    )
