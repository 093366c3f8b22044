"""Building blocks for new methods, verifiers and applications.

This module complements `cosd_api`, `cosd_api.types` and `cosd_providers`. The library's own applications (comparison,
training, gateway, batches, command line, reports and integrations) use only these four modules. Names in this module
may change in any release before 1.0; the changelog lists the changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosd_api.alignment import Unit
from cosd_api.budget import SharedLimit
from cosd_api.checks import (
    OwnMessages,
    between,
    check_between,
    check_choice,
    check_count,
    check_installed,
    check_own,
    check_positive,
    check_stop,
    check_unit,
)
from cosd_api.decoding.commands import Contender, DecidedSegment
from cosd_api.decoding.model import Lost, Model, Stream
from cosd_api.decoding.passage import Passage, joined
from cosd_api.decoding.program import Answer, OpenSegment
from cosd_api.decoding.route import Routes
from cosd_api.decoding.timeline import RequestKind
from cosd_api.decoding.words import common_ends, ends_of_words
from cosd_api.endpoints import Endpoints, Facts
from cosd_api.event_loop import event_loop_name, own_process, run_async
from cosd_api.methods.base import (
    DEFAULT_METHOD,
    METHODS,
    DraftFirst,
    Method,
    Program,
    method_from_text,
    method_named,
)
from cosd_api.methods.cool import LONGEST, most_segments
from cosd_api.methods.cost import FINER, HIGHEST_SCORED, SCORED, Assumptions, Bounds, Cost, Plan, Reading
from cosd_api.methods.loader import is_address
from cosd_api.methods.needs import Models, RoleNeeds, check_draws
from cosd_api.methods.perplexity import ByPerplexity, ProposedText, ProposedTexts, choose_text
from cosd_api.methods.prompt_weights import prompt_nlls, prompt_weights
from cosd_api.methods.weighted import Weighted
from cosd_api.records import DRAFT, Probability, Record, Seconds
from cosd_api.settings import (
    DEFAULT_MAX_TOKENS,
    REFUSED_SETTINGS,
    AnswerLimits,
    AnswerOptions,
    Asking,
    FusionOptions,
    OnAssistantError,
    OnBudget,
    declared_setting,
    describe_verifier,
    refuse_settings,
)
from cosd_api.sync import iterate_sync, sync_portal, synchronous
from cosd_api.telemetry import callers_context
from cosd_api.together import together
from cosd_api.verification import (
    KINDS,
    TRAINED,
    KnownVerifier,
    Needs,
    Place,
    Verifier,
    WithOutline,
    condition_of,
    default_of,
    numbers_of,
)
from cosd_api.verification.deferral import (
    DEFERRAL_FEATURES,
    MOST_LISTED,
    DeferralWeights,
    deferral_features,
)
from cosd_api.verification.gate_kinds import Gate
from cosd_api.verification.rule import shortened
from cosd_api.verification.trained_file import write_whole
from cosd_api.verification.tree import TreeNode
from cosd_api.wording import counted, in_words, paragraph, with_article, with_notes
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Alive
from cosd_providers.deferred import deferred
from cosd_providers.http.clients import EventLoop, http_stack
from cosd_providers.http.retries import RetriedFailures
from cosd_providers.messages import ChatProvider, OnSpecialTokens, after_own, checked_messages
from cosd_providers.suggestions import suggestion
from cosd_providers.text import readable

if TYPE_CHECKING:
    from cosd_api.config.document import Document, FieldPath, read_document
    from cosd_api.config.faults import config_error, config_errors
    from cosd_api.config.shape import ServerConfig, ServerLimitsConfig
    from cosd_api.forcing.holding import WantedSamples, hold
    from cosd_api.forcing.samples import (
        DeferralSample,
        ExampleSamples,
        Label,
        Strict,
        sha256_of,
        state_from_text,
    )
    from cosd_providers.probe import PROBE_PROMPT, definition_of
    from cosd_providers.probe.report import in_digits

__all__ = [  # noqa: RUF022 - by subject
    # Methods. To define a new way to fuse, derive from `Program` or `DraftFirst`.
    "DEFAULT_METHOD",
    "FINER",
    "HIGHEST_SCORED",
    "LONGEST",
    "METHODS",
    "SCORED",
    "Answer",
    "Assumptions",
    "Bounds",
    "ByPerplexity",
    "Contender",
    "Cost",
    "DecidedSegment",
    "DraftFirst",
    "Lost",
    "Method",
    "Model",
    "Models",
    "OpenSegment",
    "Passage",
    "Plan",
    "Program",
    "ProposedText",
    "ProposedTexts",
    "Reading",
    "RoleNeeds",
    "Stream",
    "Unit",
    "Weighted",
    "check_draws",
    "choose_text",
    "common_ends",
    "ends_of_words",
    "is_address",
    "joined",
    "method_from_text",
    "method_named",
    "most_segments",
    "prompt_nlls",
    "prompt_weights",
    # Verifiers.
    "DEFERRAL_FEATURES",
    "KINDS",
    "MOST_LISTED",
    "TRAINED",
    "DeferralWeights",
    "Gate",
    "KnownVerifier",
    "Needs",
    "Place",
    "TreeNode",
    "Verifier",
    "WithOutline",
    "condition_of",
    "default_of",
    "deferral_features",
    "numbers_of",
    "shortened",
    "write_whole",
    # Settings.
    "DEFAULT_MAX_TOKENS",
    "REFUSED_SETTINGS",
    "AnswerLimits",
    "AnswerOptions",
    "Asking",
    "Document",
    "FieldPath",
    "FusionOptions",
    "OnAssistantError",
    "OnBudget",
    "OwnMessages",
    "ServerConfig",
    "ServerLimitsConfig",
    "between",
    "check_between",
    "check_choice",
    "check_count",
    "check_installed",
    "check_own",
    "check_positive",
    "check_stop",
    "check_unit",
    "config_error",
    "config_errors",
    "declared_setting",
    "describe_verifier",
    "read_document",
    "refuse_settings",
    # Records.
    "DRAFT",
    "Probability",
    "Record",
    "RetriedFailures",
    "Routes",
    "RequestKind",
    "Seconds",
    # Servers.
    "PROBE_PROMPT",
    "Alive",
    "ChatProvider",
    "Endpoints",
    "EventLoop",
    "Facts",
    "OnSpecialTokens",
    "SharedLimit",
    "after_own",
    "checked_messages",
    "concurrently",
    "definition_of",
    "http_stack",
    "in_digits",
    # Reference texts.
    "DeferralSample",
    "ExampleSamples",
    "Label",
    "Strict",
    "WantedSamples",
    "hold",
    "sha256_of",
    "state_from_text",
    # Running.
    "callers_context",
    "deferred",
    "event_loop_name",
    "iterate_sync",
    "own_process",
    "run_async",
    "sync_portal",
    "synchronous",
    "together",
    # Words.
    "counted",
    "in_words",
    "paragraph",
    "readable",
    "suggestion",
    "with_article",
    "with_notes",
]

if not TYPE_CHECKING:
    __getattr__ = deferred(
        __name__,
        {
            "DeferralSample": "cosd_api.forcing.samples",
            "Document": "cosd_api.config.document",
            "ExampleSamples": "cosd_api.forcing.samples",
            "FieldPath": "cosd_api.config.document",
            "Label": "cosd_api.forcing.samples",
            "PROBE_PROMPT": "cosd_providers.probe",
            "ServerConfig": "cosd_api.config.shape",
            "ServerLimitsConfig": "cosd_api.config.shape",
            "Strict": "cosd_api.forcing.samples",
            "WantedSamples": "cosd_api.forcing.holding",
            "config_error": "cosd_api.config.faults",
            "config_errors": "cosd_api.config.faults",
            "definition_of": "cosd_providers.probe",
            "hold": "cosd_api.forcing.holding",
            "in_digits": "cosd_providers.probe.report",
            "read_document": "cosd_api.config.document",
            "sha256_of": "cosd_api.forcing.samples",
            "state_from_text": "cosd_api.forcing.samples",
        },
    )
