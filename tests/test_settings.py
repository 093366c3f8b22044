"""Settings are declared once: what takes them, what checks them and what records them agree."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from cosd_api import AgreementVerifier, CoSD, Fusion, SettingError, fuse, fuse_sync
from cosd_api.methods.base import method_from_text
from cosd_api.settings import AnswerLimits, AnswerOptions, FuseOptions, FusionOptions, FusionSettings
from cosd_api.types import Settings


def names(declared: Any) -> list[str]:
    return [one.name for one in fields(declared)]


def test_keywords_are_what_is_checked() -> None:
    assert list(FusionOptions.__annotations__) == names(FusionSettings)
    assert list(AnswerOptions.__annotations__) == names(AnswerLimits)


def test_a_result_records_every_setting() -> None:
    declared = {*names(FusionSettings), *names(AnswerLimits)} - {"own", "alternatives"}
    assert Settings.model_fields.keys() == declared | {"method_options", "contexts", "routes"}
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


# ------------------------------------------------------------------------------------------------------------- methods


def test_verifier_and_unit_are_those_of_the_method() -> None:
    short = FusionSettings.checked(verifier=AgreementVerifier(alpha=0.3), unit="token")
    long = FusionSettings.checked(method=CoSD(verifier=AgreementVerifier(alpha=0.3), unit="token"))
    assert short == long
    assert short.method == CoSD(verifier=short.verifier, unit=short.unit)
    assert FusionSettings.checked(method="cosd") == FusionSettings.checked() == FusionSettings()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "csd"}, "there is no method 'csd'; did you mean 'cosd'?"),
        ({"method": "other"}, "there is no method 'other'; the methods are cosd"),
        ({"method": 7}, 'method must be a name such as "cosd", or an object such as CoSD(), not 7'),
        ({"method": CoSD(), "unit": "word"}, "unit is given twice: in CoSD(...), and beside it"),
        ({"method": CoSD(), "verifier": AgreementVerifier()}, "verifier is given twice"),
    ],
)
def test_a_method_is_refused_in_words(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=re.escape(words)):
        FusionSettings.checked(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"draft": "http://a", "assistant": "http://b", "models": ["http://a", "http://b"]}, "give either models, or"),
        ({"models": ["http://a", "http://b"]}, "in 'cosd' one drafts: give draft and assistant"),
        ({"draft": "http://a"}, "assistant is missing: give the URL of a server"),
        ({}, "draft and assistant are missing: give the URL of a server"),
    ],
)
def test_models_are_refused_in_words(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=re.escape(words)):
        Fusion(**given)


def test_settings_of_a_method_may_be_text() -> None:
    assert method_from_text("cool", {"align": "true"}).options()["align"] is True
    assert method_from_text("average", {"weights": "2,1"}).options()["weights"] == [2.0, 1.0]
    for text in ("2", "2,x"):
        with pytest.raises(SettingError, match=f"weights of the method 'average' cannot be '{text}'"):
            method_from_text("average", {"weights": text})
