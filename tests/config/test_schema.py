"""The schema of settings files, for editors: it takes what `FusionConfig.load` takes, and refuses what that refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from cosd_api import FusionConfig, SettingError
from cosd_api.config.shape import (
    LimitsConfig,
    ServerConfig,
    ServerLimitsConfig,
    method_shapes,
    verifier_kinds,
)

VALIDATOR = jsonschema.Draft202012Validator(FusionConfig.model_json_schema())
HEAD: Mapping[str, Any] = {"draft": "http://a", "assistants": ["http://b"]}

Place = tuple[tuple[str, ...], dict[str, Any]]
"""A path in the file, and what has to stand beside it."""

TEXTS = (
    "1 1e3 Infinity x http://a http://a@b MY_KEY cool defer rule tree token word literal all draft raise warn partial"
)
VALUES: Sequence[Any] = (
    *(None, True, False, 0, 1, -1, 30, 0.5, 1.5, "", [], {}, ["x"], [""], [1, 2], [1, "2"], {"x": 1}),
    *(["http://a"], ["http://a", {"url": "http://b"}], {"kind": "rule"}, "route", *TEXTS.split()),
)
"""Values of every type that a field may have, and of others."""

MODELS: Mapping[str, Sequence[Any]] = {
    "draft": ["http://a", {"url": "http://a"}],
    "assistants": [["http://b"], []],
    "models": [["http://a", "http://b"], ["http://a"]],
}


def _inside(section: str, shape: type[BaseModel], **first: Any) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """The fields of a mapping in the file, with what has to stand beside them."""
    return [((section, name), first) for name in shape.model_fields if name not in first]


OWN = [
    *(((name,), {}) for name in FusionConfig.model_fields),
    *_inside("draft", ServerConfig, url="http://a"),
    *_inside("limits", LimitsConfig),
    *((("draft", "limits", name), {"url": "http://a"}) for name in ServerLimitsConfig.model_fields),
]
"""The places of a file, but for the settings of methods and verifiers."""
OTHERS = [
    *(one for name, shape in method_shapes().items() for one in _inside("method", shape, name=name)),
    *(one for kind, shape in verifier_kinds().items() for one in _inside("verifier", shape, kind=kind)),
]


def changed(at: tuple[str, ...], beside: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """A file with a value at a place."""
    for name in reversed(at[1:]):
        value = {name: value}
    return {**HEAD, at[0]: {**beside, **value} if len(at) > 1 else value}


def is_read(document: dict[str, Any]) -> bool:
    """Test whether a file is read; the files that it names, and which settings go together, are another matter."""
    try:
        FusionConfig.model_validate(document, strict=True)
    except (SettingError, ValidationError):
        return False
    return True


def is_taken(document: dict[str, Any]) -> bool:
    return bool(VALIDATOR.is_valid(document))


@given(st.sampled_from(OWN), st.sampled_from(VALUES))
@example((("method",), {}), None)
@example((("schema_version",), {}), True)
@example((("limits", "max_tokens"), {}), True)
@example((("max_ahead",), {}), "1")
@example((("max_ahead",), {}), -1)
@example((("method",), {}), "defer")
def test_the_schema_takes_what_is_read_and_nothing_else(place: Place, value: Any) -> None:
    document = changed(*place, value)
    assert is_taken(document) == is_read(document), document


@given(st.sampled_from(OTHERS), st.sampled_from(VALUES))
@example((("method", "align"), {"name": "cool"}), 1)
@example((("verifier", "beta"), {"kind": "rule"}), "Infinity")
@example((("verifier", "beta"), {"kind": "rule"}), "1")
def test_the_schema_takes_the_settings_of_methods_and_verifiers_that_are_read(place: Place, value: Any) -> None:
    """A method checks ranges by itself, which the schema does not know."""
    document = changed(*place, value)
    assert is_taken(document) or not is_read(document), document


@given(st.fixed_dictionaries({}, optional={name: st.sampled_from([None, *few]) for name, few in MODELS.items()}))
def test_models_are_given_in_one_of_two_ways(document: dict[str, Any]) -> None:
    assert is_taken(document) == is_read(document), document


@pytest.mark.parametrize("place", [*OWN, *OTHERS], ids=lambda place: f"{'.'.join(place[0])} {[*place[1].values()]}")
@pytest.mark.extended
def test_every_place_and_every_value(place: Place) -> None:
    for value in VALUES:
        document = changed(*place, value)
        assert is_taken(document) == is_read(document) or (place in OTHERS and not is_read(document)), document


@pytest.mark.parametrize(
    "value",
    [
        {**HEAD, "method": "coool"},
        {**HEAD, "method": {"name": "cool", "alin": True}},
        {**HEAD, "verifier": {"kind": "rule", "alpha": -1}},
        {**HEAD, "draft": {"url": "http://a", "api_key": "x"}},
    ],
)
def test_the_schema_refuses_what_loading_refuses(value: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(value)
