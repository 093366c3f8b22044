"""Fuse two or more language models while they write, through nothing but their HTTP APIs.

Collaborative Speculative Decoding (Wang et al., ICML 2025, arXiv 2502.08020): a draft model writes, assistant models
are asked in batches what they would have written, and a rule or a small decision tree decides, token by token, whose
word stands.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cosd_api.errors import FusionClosedError, FusionError, GradingError, SettingError, TraceError
from cosd_api.estimate import EndpointEstimate, Estimate, Range
from cosd_api.fusion import Fusion, fuse, fuse_sync, log_likelihood, log_likelihood_sync
from cosd_api.likelihood import LikelihoodToken, LogLikelihood
from cosd_api.methods.adafuse import AdaFuse
from cosd_api.methods.average import Average
from cosd_api.methods.base import Method
from cosd_api.methods.cascade import Cascade
from cosd_api.methods.chared import CharED
from cosd_api.methods.cool import CoolFusion
from cosd_api.methods.cosd import CoSD
from cosd_api.methods.defer import Defer
from cosd_api.methods.nudging import Nudging
from cosd_api.methods.rerank import Rerank
from cosd_api.methods.route import Route
from cosd_api.methods.safe import Safe
from cosd_api.methods.speculative import Speculative
from cosd_api.methods.steps import Steps
from cosd_api.methods.switch import Switch
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
from cosd_api.result import FusionResult, Trace
from cosd_api.settings import CustomVerifier, Settings, Tuning
from cosd_api.stream import FusionStream
from cosd_api.verification import (
    AgreementVerifier,
    CoLLMVerifier,
    DeferralVerifier,
    DiffVerifier,
    MatchVerifier,
    Needs,
    Place,
    RandomVerifier,
    RuleVerifier,
    SurpriseVerifier,
    TreeVerifier,
    Verifier,
)
from cosd_api.version import __version__
from cosd_providers import connect, probe
from cosd_providers.deferred import deferred
from cosd_providers.messages import Message

if TYPE_CHECKING:
    from cosd_api.batch.actor import FusionActor
    from cosd_api.comparison.compare import advise, compare
    from cosd_api.comparison.prices import ComparisonEstimate, Price
    from cosd_api.comparison.result import Advice, Comparison
    from cosd_api.comparison.standings import Standing
    from cosd_api.config.file import FusionConfig
    from cosd_api.training.answers import AnswerTuning, tune_answers
    from cosd_api.training.collect import collect
    from cosd_api.training.dataset import Example, Sample, Samples
    from cosd_api.training.fit import train_tree
    from cosd_api.training.fit_deferral import DeferralTraining, train_deferral
    from cosd_api.training.report import Training
    from cosd_api.training.tuning import RuleTuning, tune
    from cosd_providers import ProbeReport

__all__ = [
    "AdaFuse",
    "Advice",
    "AgreementVerifier",
    "AnswerTuning",
    "Average",
    "Cascade",
    "CharED",
    "CoLLMVerifier",
    "CoSD",
    "Comparison",
    "ComparisonEstimate",
    "CoolFusion",
    "CustomVerifier",
    "Defer",
    "DeferralTraining",
    "DeferralVerifier",
    "DiffVerifier",
    "DraftToken",
    "Endpoint",
    "EndpointEstimate",
    "EndpointUsage",
    "Estimate",
    "Example",
    "FusedToken",
    "Fusion",
    "FusionActor",
    "FusionClosedError",
    "FusionConfig",
    "FusionError",
    "FusionResult",
    "FusionStream",
    "GradingError",
    "LikelihoodToken",
    "LogLikelihood",
    "MatchVerifier",
    "Message",
    "Method",
    "Needs",
    "Nudging",
    "Place",
    "Price",
    "ProbeReport",
    "RandomVerifier",
    "Range",
    "Request",
    "Rerank",
    "Route",
    "RuleTuning",
    "RuleVerifier",
    "Safe",
    "Sample",
    "Samples",
    "Segment",
    "SegmentCandidate",
    "SettingError",
    "Settings",
    "Speculative",
    "Standing",
    "Steps",
    "SurpriseVerifier",
    "Switch",
    "Timings",
    "TokenDecision",
    "Trace",
    "TraceError",
    "Training",
    "TreeVerifier",
    "Tuning",
    "Verifier",
    "__version__",
    "advise",
    "collect",
    "compare",
    "connect",
    "fuse",
    "fuse_sync",
    "log_likelihood",
    "log_likelihood_sync",
    "probe",
    "train_deferral",
    "train_tree",
    "tune",
    "tune_answers",
]

if not TYPE_CHECKING:
    __getattr__ = deferred(
        __name__,
        {
            "FusionActor": "cosd_api.batch.actor",
            "FusionConfig": "cosd_api.config.file",
            "Mixture": "cosd_api.methods.average",  # a name that ends
            "AnswerTuning": "cosd_api.training.answers",
            "tune_answers": "cosd_api.training.answers",
            "collect": "cosd_api.training.collect",
            "Advice": "cosd_api.comparison.result",
            "advise": "cosd_api.comparison.compare",
            "Comparison": "cosd_api.comparison.result",
            "ComparisonEstimate": "cosd_api.comparison.prices",
            "Price": "cosd_api.comparison.prices",
            "Standing": "cosd_api.comparison.standings",
            "compare": "cosd_api.comparison.compare",
            "Example": "cosd_api.training.dataset",
            "Sample": "cosd_api.training.dataset",
            "Samples": "cosd_api.training.dataset",
            "train_tree": "cosd_api.training.fit",
            "DeferralTraining": "cosd_api.training.fit_deferral",
            "train_co_llm": "cosd_api.training.fit_deferral",
            "train_deferral": "cosd_api.training.fit_deferral",
            "Training": "cosd_api.training.report",
            "RuleTuning": "cosd_api.training.tuning",
            "tune": "cosd_api.training.tuning",
            "ProbeReport": "cosd_providers",
            "ChowVerifier": "cosd_api.verification.agreement:chow_verifier",
        },
        moved={"CoLLM": "cosd_api:Defer", "CoLLMTraining": "cosd_api:DeferralTraining"},
    )

logging.getLogger(__name__).addHandler(logging.NullHandler())
