"""Teacher forcing: what each of two models would have written at every place of a reference text."""

from __future__ import annotations

from cosd_api.forcing.forced_pair import WantedSamples, hold
from cosd_api.forcing.samples import (
    DeferralSample,
    ExampleSamples,
    Label,
    Strict,
    sha256_of,
    state_from_text,
)

__all__ = [
    "DeferralSample",
    "ExampleSamples",
    "Label",
    "Strict",
    "WantedSamples",
    "hold",
    "sha256_of",
    "state_from_text",
]
