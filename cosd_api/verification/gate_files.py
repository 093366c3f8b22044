"""The two kinds of trained gates, and a function that reads a gate of either kind from its file or its fields."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import from_json

from cosd_api.errors import SettingError
from cosd_api.verification.co_llm import CoLLMVerifier
from cosd_api.verification.deferral import DeferralVerifier

__all__ = ["GATES", "TRAIN_A_GATE", "Gate", "gate_of"]

Gate = DeferralVerifier | CoLLMVerifier
"""A trained gate."""
GATES: Mapping[str, type[Gate]] = {"deferral": DeferralVerifier, "co-llm": CoLLMVerifier}
"""The classes of gates, by kind."""

TRAIN_A_GATE = "cosd train-deferral makes one from examples, and DeferralVerifier.load(path) reads it"
"""Advice on how to obtain a gate, for error messages."""
_MOST_BYTES = 2_000_000


def gate_of(given: object) -> Gate:
    """Return the gate that `given` describes: a gate, the path of its file, or its fields (including `kind`).

    Raises:
        SettingError: the gate is invalid, or `given` has a different type.
        OSError: the file cannot be read.
    """
    if isinstance(given, Gate):
        return given
    if isinstance(given, str | Path):
        return _kind(_fields(Path(given))).load(given)
    if isinstance(given, Mapping):
        fields = cast("Mapping[str, Any]", given)
        try:
            return _kind(fields).model_validate(fields)
        except ValidationError as error:
            raise SettingError(f"gate is invalid: {error.errors(include_url=False)[0]['msg']}") from None
    words = "gate must be a DeferralVerifier, a CoLLMVerifier or the path of the file of one"
    raise SettingError(f"{words}, not {given!r}: {TRAIN_A_GATE}")


def _kind(fields: Mapping[str, Any]) -> type[Gate]:
    """Return the class of the gate with these fields; if `kind` is unknown, a class that will refuse the fields."""
    return GATES.get(str(fields.get("kind")), DeferralVerifier)


def _fields(path: Path) -> Mapping[str, Any]:
    """Read a gate's fields from a file. An invalid file yields no fields, because `load` reports the error later."""
    with suppress(OSError, ValueError), path.open("rb") as file:
        found = from_json(file.read(_MOST_BYTES).decode("utf-8-sig"))
        if isinstance(found, dict):
            return cast("dict[str, Any]", found)
    return {}
