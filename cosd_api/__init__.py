"""Fuse two or more language models while they write, through nothing but their HTTP APIs.

The method is Collaborative Speculative Decoding (Wang et al., ICML 2025, arXiv 2502.08020). A draft model writes. The
library asks assistant models, in batches, what they would have written instead. A rule or a small decision tree
decides, token by token, which model's word is kept.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cosd_api.errors import FusionClosedError, FusionError, GradingError, SettingError, TraceError
from cosd_api.fusion import Fusion, fuse, fuse_sync, log_likelihood, log_likelihood_sync
from cosd_api.methods.base import METHODS as _METHODS
from cosd_api.result import FusionResult, Trace
from cosd_api.stream import FusionStream
from cosd_api.verification import (
    AgreementVerifier,
    CoLLMVerifier,
    DeferralVerifier,
    DiffVerifier,
    MatchVerifier,
    RandomVerifier,
    RuleVerifier,
    SurpriseVerifier,
    TreeVerifier,
)
from cosd_api.version import __version__ as __version__
from cosd_providers import Message, connect, probe
from cosd_providers.deferred import deferred

if TYPE_CHECKING:
    from cosd_api.apps.comparison.comparing import compare
    from cosd_api.apps.training.answer_tuning import tune_answers
    from cosd_api.apps.training.collect import collect
    from cosd_api.apps.training.dataset import Samples
    from cosd_api.apps.training.fit import train_tree
    from cosd_api.apps.training.fit_deferral import train_deferral
    from cosd_api.apps.training.tuning import tune
    from cosd_api.config.file import FusionConfig
    from cosd_api.forcing.samples import Example
    from cosd_api.methods.average import Average
    from cosd_api.methods.chared import CharED
    from cosd_api.methods.cool import CoolFusion
    from cosd_api.methods.cosd import CoSD
    from cosd_api.methods.defer import Defer
    from cosd_api.methods.rerank import Rerank
    from cosd_api.methods.safe import Safe
    from cosd_api.methods.speculative import Speculative
    from cosd_api.methods.steps import Steps

__all__ = [
    "AgreementVerifier",
    "Average",
    "CharED",
    "CoLLMVerifier",
    "CoSD",
    "CoolFusion",
    "Defer",
    "DeferralVerifier",
    "DiffVerifier",
    "Example",
    "Fusion",
    "FusionClosedError",
    "FusionConfig",
    "FusionError",
    "FusionResult",
    "FusionStream",
    "GradingError",
    "MatchVerifier",
    "Message",
    "RandomVerifier",
    "Rerank",
    "RuleVerifier",
    "Safe",
    "Samples",
    "SettingError",
    "Speculative",
    "Steps",
    "SurpriseVerifier",
    "Trace",
    "TraceError",
    "TreeVerifier",
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
            **{name: f"cosd_api.methods.{module}" for module, name in (one.split(":") for one in _METHODS.values())},
            "Example": "cosd_api.forcing.samples",
            "FusionConfig": "cosd_api.config.file",
            "Samples": "cosd_api.apps.training.dataset",
            "collect": "cosd_api.apps.training.collect",
            "compare": "cosd_api.apps.comparison.comparing",
            "train_deferral": "cosd_api.apps.training.fit_deferral",
            "train_tree": "cosd_api.apps.training.fit",
            "tune": "cosd_api.apps.training.tuning",
            "tune_answers": "cosd_api.apps.training.answer_tuning",
        },
    )

logging.getLogger(__name__).addHandler(logging.NullHandler())
