"""Verifiers, which decide from two probabilities between the draft's word and an assistant's."""

from __future__ import annotations

from cosd_api.verification.agreement import AgreementVerifier
from cosd_api.verification.cascades import DiffVerifier
from cosd_api.verification.co_llm import CoLLMVerifier
from cosd_api.verification.contract import (
    Needs,
    Verifier,
    coin_of,
    decides_by_place,
    needs_of,
    tie_of,
    verifier_at,
)
from cosd_api.verification.control import RandomVerifier
from cosd_api.verification.deferral import DeferralVerifier
from cosd_api.verification.match import MatchVerifier
from cosd_api.verification.place import Place, digest_of
from cosd_api.verification.rule import RuleVerifier
from cosd_api.verification.surprise import SurpriseVerifier
from cosd_api.verification.tree import TreeVerifier

__all__ = [
    "AgreementVerifier",
    "CoLLMVerifier",
    "DeferralVerifier",
    "DiffVerifier",
    "KnownVerifier",
    "MatchVerifier",
    "Needs",
    "Place",
    "RandomVerifier",
    "RuleVerifier",
    "SurpriseVerifier",
    "TreeVerifier",
    "Verifier",
    "coin_of",
    "decides_by_place",
    "digest_of",
    "needs_of",
    "tie_of",
    "verifier_at",
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
"""The verifiers that records and settings files can hold; `kind` tells them apart."""
