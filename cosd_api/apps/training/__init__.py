"""Training of verifiers: collect decision samples from two models, train trees and gates, and tune thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosd_providers.deferred import deferred

if TYPE_CHECKING:
    from cosd_api.apps.training.answer_tuning import AnswerTuning
    from cosd_api.apps.training.fit import Training
    from cosd_api.apps.training.fit_deferral import DeferralTraining
    from cosd_api.apps.training.tuning import RuleTuning

__all__ = ["AnswerTuning", "DeferralTraining", "RuleTuning", "Training"]

if not TYPE_CHECKING:
    __getattr__ = deferred(
        __name__,
        {
            "AnswerTuning": "cosd_api.apps.training.answer_tuning",
            "DeferralTraining": "cosd_api.apps.training.fit_deferral",
            "RuleTuning": "cosd_api.apps.training.tuning",
            "Training": "cosd_api.apps.training.fit",
        },
    )
