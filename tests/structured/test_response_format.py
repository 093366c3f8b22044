"""Formats of answers: what users give, what they get back, and what is refused."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from cosd_api.errors import SettingError
from cosd_api.structured import LarkGrammar, ResponseFormat


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    friend: Cat | None = None


class Owner(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    paid: Decimal
    tags: set[str]


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("given", "name", "text", "value"),
    [
        (SCHEMA, "schema", '{"a": 1}', {"a": 1}),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}},
            "x",
            '{"a": 1}',
            {"a": 1},
        ),
        ({"type": "json_schema", "name": "x", "schema": SCHEMA}, "x", '{"a": 1}', {"a": 1}),
        ({"type": "json_object"}, "json_object", '{"b": [1.5]}', {"b": [1.5]}),
        (Cat, "Cat", '{"kind": "cat"}', Cat(kind="cat")),
        (list[Cat], "list", '[{"kind": "cat"}]', [Cat(kind="cat")]),
        (
            Owner,
            "Owner",
            '{"pet": {"kind": "dog"}, "paid": 1.10, "tags": ["a", "a"]}',
            Owner(pet=Dog(kind="dog"), paid=Decimal("1.10"), tags={"a"}),
        ),
        (re.compile("YES|no", re.IGNORECASE), "regex", "yEs", "yEs"),
        ({"type": "regex", "pattern": "a+"}, "regex", "aa", "aa"),
        (["yes", "no"], "choice", "no", "no"),
        ({"type": "choice", "choices": ["yes"]}, "choice", "yes", "yes"),
        (LarkGrammar('start: "a" "b"'), "lark", "ab", "ab"),
        ({"type": "lark", "grammar": 'start: "a"'}, "lark", "a", "a"),
    ],
)
def test_formats(given: Any, name: str, text: str, value: Any) -> None:
    found = ResponseFormat.of(given)
    assert found is not None and ResponseFormat.of(found) is found
    assert (found.name, found.parse(text), found == ResponseFormat.of(given)) == (name, value, True)
    again = ResponseFormat.of(found.record)
    assert again is not None and again.language == found.language
    with pytest.raises(ValueError, match=r"^the text ends before the format allows it: was it cut short by max_tokens"):
        found.parse("")


def test_any_text_has_no_format() -> None:
    assert ResponseFormat.of(None) is None and ResponseFormat.of({"type": "text"}) is None


def test_values_of_unfinished_texts() -> None:
    found, choice = ResponseFormat.of(Cat), ResponseFormat.of(["yes"])
    assert found is not None and choice is not None
    assert found.partial('{"kind": "ca') == {"kind": "ca"}
    assert found.partial("") is None
    assert choice.partial("ye") == "ye"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("a|b", "response_format is invalid: compile a regular expression with re.compile, not str"),
        (
            5,
            "response_format is invalid: give a JSON schema, a pydantic model or another type, a compiled",
        ),
        ({"type": "json_schema"}, "response_format of the type json_schema needs json_schema with a schema inside"),
        ({"type": "regex"}, "response_format of the type regex needs 'pattern', which is a text"),
        (
            {"type": "choice", "choices": "a"},
            "response_format of the type choice needs 'choices', which is a list of texts",
        ),
        (re.compile(b"a"), "response_format is invalid: compile the regular expression from text, not bytes"),
        (
            re.compile("a", re.ASCII),
            "regex: the flags re.ASCII and re.VERBOSE are not supported; write it without them",
        ),
        (type(lambda: 0), "response_format: pydantic has no JSON schema of function: "),
    ],
)
def test_refusals(given: Any, words: str) -> None:
    with pytest.raises(SettingError) as error:
        ResponseFormat.of(given)
    assert str(error.value).startswith(words)
