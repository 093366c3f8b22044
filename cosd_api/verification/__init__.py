"""Verifiers, which decide between the draft's word and an assistant's word, usually by the words' probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cosd_api.verification.agreement import AgreementVerifier
from cosd_api.verification.cascades import DiffVerifier
from cosd_api.verification.co_llm import CoLLMVerifier
from cosd_api.verification.control import RandomVerifier
from cosd_api.verification.decision_place import Place, digest_of
from cosd_api.verification.deferral import (
    DEFERRAL_FEATURES,
    MOST_LISTED,
    DeferralVerifier,
    DeferralWeights,
    deferral_features,
)
from cosd_api.verification.gate_files import Gate
from cosd_api.verification.match import MatchVerifier
from cosd_api.verification.rule import RuleVerifier, shortened
from cosd_api.verification.surprise import SurpriseVerifier
from cosd_api.verification.trained_file import write_whole
from cosd_api.verification.tree import TreeNode, TreeVerifier
from cosd_api.verification.verifier import (
    Needs,
    Trained,
    Verifier,
    coin_of,
    condition_of,
    decides_by_place,
    needs_of,
    tie_of,
    verifier_at,
)

__all__ = [
    "DEFERRAL_FEATURES",
    "KINDS",
    "MOST_LISTED",
    "TRAINED",
    "AgreementVerifier",
    "CoLLMVerifier",
    "DeferralVerifier",
    "DeferralWeights",
    "DiffVerifier",
    "Gate",
    "KnownVerifier",
    "MatchVerifier",
    "Needs",
    "Place",
    "RandomVerifier",
    "RuleVerifier",
    "SurpriseVerifier",
    "Trained",
    "TreeNode",
    "TreeVerifier",
    "Verifier",
    "coin_of",
    "condition_of",
    "decides_by_place",
    "default_of",
    "deferral_features",
    "digest_of",
    "needs_of",
    "numbers_of",
    "shortened",
    "tie_of",
    "verifier_at",
    "write_whole",
]

KnownVerifier = (
    RuleVerifier
    | TreeVerifier
    | AgreementVerifier
    | DiffVerifier
    | MatchVerifier
    | RandomVerifier
    | SurpriseVerifier
    | DeferralVerifier
    | CoLLMVerifier
)
"""The verifiers that records and settings files can contain; the field `kind` identifies the class."""

KINDS: Mapping[str, type[BaseModel]] = {one.model_fields["kind"].default: one for one in get_args(KnownVerifier)}
"""The classes in `KnownVerifier`, by kind."""

TRAINED: Mapping[str, type[Trained]] = {kind: one for kind, one in KINDS.items() if issubclass(one, Trained)}
"""The classes of trained verifiers, by kind. Each trained verifier is stored in a separate file."""


def default_of(kind: str) -> Verifier:
    """Create the verifier of this kind with default settings.

    Raises:
        pydantic.ValidationError: the verifier has a setting without a default.
    """
    made: Any = KINDS[kind]()
    found: Verifier = made
    return found


def numbers_of(kind: str) -> dict[str, FieldInfo] | None:
    """Return the settings of the verifier of this kind, by name, if all of them are numbers; otherwise None."""
    fields = {name: field for name, field in KINDS[kind].model_fields.items() if name != "kind"}
    types: list[Any] = [field.annotation for field in fields.values()]
    return fields if all(one in (int, float) for one in types) else None
