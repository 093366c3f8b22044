"""Teacher forcing: what each of two models would have written at every place of a reference text."""

from __future__ import annotations

from cosd_api.forcing.forced_pair import WantedSamples, teacher_force
from cosd_api.forcing.samples import (
    DeferralSample,
    ExampleSamples,
    Label,
    StrictRecord,
    sha256_of,
    state_from_text,
)

__all__ = [
    "DeferralSample",
    "ExampleSamples",
    "Label",
    "StrictRecord",
    "WantedSamples",
    "sha256_of",
    "state_from_text",
    "teacher_force",
]
