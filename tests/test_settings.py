"""Settings are declared once: what takes them, what checks them and what records them agree."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from cosd_api import Fusion, Settings, Tuning, fuse, fuse_sync
from cosd_api.settings import AnswerLimits, AnswerOptions, FuseOptions, FusionOptions, FusionSettings


def names(declared: Any) -> list[str]:
    return [one.name for one in fields(declared)]


def test_keywords_are_what_is_checked() -> None:
    assert list(FusionOptions.__annotations__) == names(FusionSettings)
    assert list(AnswerOptions.__annotations__) == names(AnswerLimits)


def test_a_result_records_every_setting() -> None:
    declared = {*names(FusionSettings), *names(Tuning), *names(AnswerLimits)} - {"tuning"}
    assert Settings.model_fields.keys() == declared | {"method_options"}
    recorded = Settings.of(FusionSettings(), AnswerLimits(), "word")
    defaults = Settings(verifier=FusionSettings().verifier, unit="word", max_tokens=AnswerLimits().max_tokens)  # type: ignore[arg-type]
    assert recorded == defaults


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (Fusion, FusionOptions),
        (Fusion.stream, AnswerOptions),
        (Fusion.generate, AnswerOptions),
        (Fusion.map, AnswerOptions),
        (fuse, FuseOptions),
        (fuse_sync, FuseOptions),
    ],
)
def test_help_spells_them_out(function: Callable[..., Any], options: Any) -> None:
    shown = inspect.signature(function).parameters
    assert options.__annotations__.keys() <= shown.keys()
    assert not any(one.kind is one.VAR_KEYWORD for one in shown.values())
    if "max_tokens" in shown:
        assert str(shown["max_tokens"]) == "max_tokens: 'int' = 256"
