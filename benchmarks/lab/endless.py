"""Long answers of models that cannot end a text. Added after the protocol was fixed; README.md explains why.

This module repeats the study `lengths`, with the same questions and ways, for copies of `c` and `d` in which one row of
the weights is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import weights
from benchmarks.lab.claims import CLAIMS, Decided, Scenarios, decided
from benchmarks.lab.graph import Step
from benchmarks.lab.models import MODEL
from benchmarks.lab.plan import Asked, asked
from benchmarks.lab.protocol import Size
from benchmarks.lab.runs import ALONE, Run

__all__ = ["ENDLESS", "endless", "endless_asked", "growth_claim", "long_runs", "without_end"]

ENDLESS = "endless"
"""The study's name on the command line."""

_STUDY = "lengths"
_NEVER = "ÿ"
"""The token of the byte 255 as vocabularies write it; this byte never occurs in UTF-8."""


def without_end(model: bytes) -> bytes:
    """Change a GGUF file so that the end of a text is always as improbable as a byte that occurs in no text.

    In the output matrix, the row of the end token is replaced by the row of that byte; nothing else changes.
    """
    fields, tensors = weights.weights_in(model)
    output = tensors["output.weight"]
    row = output.shape[0] * output.width
    end, never = (
        output.start + row * at
        for at in (fields["tokenizer.ggml.eos_token_id"], fields["tokenizer.ggml.tokens"].index(_NEVER))
    )
    return model[:end] + model[never : never + row] + model[end + row :]


def endless(folder: Path, settings: Mapping[str, Any], *, model: Path) -> None:  # noqa: ARG001 - as every step's
    """A step of the graph: write a copy of a model that cannot end a text."""
    (folder / MODEL).write_bytes(without_end((model / MODEL).read_bytes()))


def endless_asked(size: Size) -> list[Asked]:
    """The comparisons of the study, with models that cannot end a text."""
    return [_of(one) for one in asked(size) if one.cell == _STUDY]


def _of(one: Asked) -> Asked:
    code = [Path(weights.__file__)]
    models = {
        role: Step(f"{step.name}, without an end", endless, inputs={"model": step}, code=code)
        for role, step in one.step.inputs.items()
        if role in ALONE
    }
    step = replace(one.step, name=one.step.name.replace(_STUDY, ENDLESS), inputs={**one.step.inputs, **models})
    return replace(one, cell=ENDLESS, step=step)


def long_runs(runs: Sequence[Run]) -> Scenarios:
    """The runs of models that cannot end a text, under the names that the study `lengths` uses."""
    found: dict[str, list[Run]] = {}
    for one in runs:
        if one.cell == ENDLESS:
            found.setdefault(f"{_STUDY}, {one.task}", []).append(one)
    return found


def growth_claim(runs: Sequence[Run]) -> Decided:
    """The claim of CoSD's Table 7, decided by these runs, separately from the claims of the protocol."""
    [claim] = [one for one in CLAIMS if one.source == "CoSD, Table 7"]
    [one] = decided([claim], long_runs(runs))
    return one
