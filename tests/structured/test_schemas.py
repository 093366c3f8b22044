"""JSON Schemas: 500 drawn ones whose every text conforms, and every refusal in words."""

from __future__ import annotations

import contextlib
import json
from datetime import datetime, time
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]
from jsonschema.validators import validator_for  # type: ignore[import-untyped]

from cosd_api.errors import SettingError
from cosd_api.structured import Language
from support.language_walks import walk

Schema = Any
"""A JSON value."""


CHECKER = FormatChecker()
for name, kind in {"time": time, "date-time": datetime}.items():
    CHECKER.checks(name, ValueError)(lambda value, kind=kind: not isinstance(value, str) or kind.fromisoformat(value))


def check(text: bytes, schema: Schema) -> None:
    """Compare a finished text with the specification."""
    validator_for(schema, Draft202012Validator)(schema, format_checker=CHECKER).validate(json.loads(text.decode()))


# ------------------------------------------------------------------------------------------------ what conforms

KEYS = st.sampled_from(["a", "b", "key é", 'q"', "x\\y", "not", "$ref"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-20, 20) | st.sampled_from([0.5, -2.25, 1e21, "", "a", "é", "😀", 'x"\n']),
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(KEYS, inside, max_size=2),
    max_leaves=4,
)
PATTERNS = ["^a+$", "b", "^[^c]{2}$", "^(x|é)?$", "^[A-Z][a-z]*$", r"^\d{2}-\d$", "^😀+$", "^a|b$"]
FORMATS = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", "uuid4", "path"]
NOTES = st.fixed_dictionaries(
    {},
    optional={
        "title": st.text(max_size=3),
        "default": VALUES,
        "examples": st.lists(VALUES, max_size=1),
        "x-own": VALUES,
    },
)


def some(kind: str | list[str], **words: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    """Schemas of a type with some of these words."""
    return st.fixed_dictionaries({"type": st.just(kind)}, optional=words)


def low_high(low: str, high: str, least: int = 0, most: int = 3) -> st.SearchStrategy[Schema]:
    return st.tuples(st.integers(least, most), st.integers(0, 3)).map(lambda one: {low: one[0], high: sum(one)})


def joined(*several: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.tuples(*several).map(lambda found: {key: one for each in found for key, one in each.items()})


SCALARS = st.one_of(
    st.just(True),
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": ["integer", "null"]}, {}]),
    VALUES.map(lambda one: {"const": one}),
    st.lists(VALUES, min_size=1, max_size=3).map(lambda some: {"enum": some}),
    joined(some("integer", multipleOf=st.sampled_from([1, 2, 7])), low_high("minimum", "maximum", -9, 9)),
    some("number", multipleOf=st.sampled_from([0.5, 2, 3])),
    some("number", exclusiveMinimum=st.just(-1.5), exclusiveMaximum=st.just(2.25)),
    joined(some("string"), low_high("minLength", "maxLength")),
    some("string", pattern=st.sampled_from(PATTERNS)),
    some("string", format=st.sampled_from(FORMATS)),
    st.sampled_from(["a", "b"]).map(lambda name: {"$ref": f"#/$defs/{name}"}),
)


def objects(inside: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    named = st.dictionaries(KEYS, inside, max_size=3)
    return st.one_of(
        named.flatmap(
            lambda found: st.fixed_dictionaries(
                {"type": st.just("object"), "properties": st.just(found)},
                optional={
                    "required": st.lists(st.sampled_from([*found, "z"]), unique=True, max_size=3),
                    "additionalProperties": st.booleans() | inside,
                },
            )
        ),
        joined(
            some("object", patternProperties=st.dictionaries(st.sampled_from(["^p", "^q[0-9]$"]), inside, max_size=2)),
            low_high("minProperties", "maxProperties", 0, 1),
        ),
    )


def arrays(inside: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    some_items = some("array", items=inside, prefixItems=st.lists(inside, min_size=1, max_size=2))
    return joined(some_items, st.just({}) | low_high("minItems", "maxItems"))


def combined(inside: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    several = st.lists(inside, min_size=1, max_size=3)
    return st.one_of(*(several.map(lambda found, word=word: {word: found}) for word in ("anyOf", "oneOf", "allOf")))  # type: ignore[misc]


SCHEMAS = st.recursive(
    joined(SCALARS.map(lambda one: {} if one is True else one), NOTES),
    lambda inside: objects(inside) | arrays(inside) | combined(inside) | joined(combined(inside), objects(inside)),
    max_leaves=8,
)


def language_of(schema: Schema) -> Language | None:
    """The language, or None if it is refused in words that begin with the place."""
    with contextlib.suppress(SettingError):
        return Language.json_schema(schema)
    with pytest.raises(SettingError, match=r"(?s)^schema[^:]*: .{10}"):
        Language.json_schema(schema)
    return None


@given(SCHEMAS, SCHEMAS, SCHEMAS, st.integers(0, 2**32))
@settings(max_examples=500)
def test_each_text_conforms(root: Schema, a: Schema, b: Schema, seed: int) -> None:
    schema = {**root, "$defs": {"a": a, "b": b}}
    if (language := language_of(schema)) is not None and (text := walk(language, Random(seed), 120)) is not None:
        check(text, schema)


# ------------------------------------------------------------------------------------------------ what is refused


def within(word: str, value: Schema) -> Schema:
    return {"type": "object", "properties": {"age": {word: value}}}


REMEDIES = {
    **dict.fromkeys(("not", "if", "then", "else"), ", or express it with anyOf, enum or pattern"),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), ", or express it with anyOf"),
    **dict.fromkeys(("contains", "minContains", "maxContains", "uniqueItems"), " and check it in the answers"),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), ", or use additionalProperties or items"),
    **dict.fromkeys(("$dynamicRef", "$recursiveRef"), ", or use $ref"),
    "propertyNames": ", or use patternProperties",
}


@pytest.mark.parametrize("word", REMEDIES)
def test_unsupported_words_are_named_with_their_place(word: str) -> None:
    words = (
        f"schema.properties.age: the keyword '{word}' is not supported in structured answers; remove it{REMEDIES[word]}"
    )
    with pytest.raises(SettingError) as error:
        Language.json_schema(within(word, {}))
    assert str(error.value) == words


ENDLESS = {"$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}}}
FINITE = "schema.$defs.n: no finite value conforms, because each one contains another one"
OVERLAP = (
    "a value might conform to both 0 and 1, so 'oneOf' is not supported here; use anyOf, or give both a required key"
)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({**ENDLESS, "$ref": "#/$defs/n"}, FINITE),
        ({**ENDLESS, "items": {"$ref": "#/$defs/n"}}, FINITE),
        ({"$ref": "#"}, "schema: no finite value conforms, because each one contains another one"),
        (False, "schema: no value conforms: schema is false"),
        (
            within("allOf", [{"type": "integer", "minimum": 5}, {"maximum": 3}]) | {"required": ["age"]},
            "schema.properties.age: no value conforms: minimum (5) is greater than maximum (3)",
        ),
        (
            within("pattern", "(?=a)"),
            "schema.properties.age: look-around, including look-ahead and look-behind, is not supported",
        ),
        (
            within("pattern", r"\bw"),
            "schema.properties.age: word boundaries, and anchors inside an expression, are not supported",
        ),
        (within("pattern", r"(a)\1"), "schema.properties.age: backreferences are not supported"),
        (
            {"type": "string", "pattern": "^\\x01$"},
            "schema: no value conforms: Regex is empty",
        ),
        (
            within("$ref", "https://x.org/y"),
            'schema.properties.age: $ref "https://x.org/y" points to nothing in this schema; put',
        ),
        (
            within("$ref", "#/$defs/a"),
            'schema.properties.age: $ref "#/$defs/a" points to nothing in this schema; put the schema',
        ),
        (within("oneOf", [{"type": "integer"}, {"type": "number"}]), f"schema.properties.age.oneOf: {OVERLAP}"),
        (within("oneOf", [{"type": "object"}, {"required": ["a"]}]), f"schema.properties.age.oneOf: {OVERLAP}"),
        (
            within("format", "regex"),
            'schema.properties.age: the format "regex" is not supported; remove it, use pattern, or one of:',
        ),
        (
            within("minProperties", 2),
            "schema.properties.age: 'minProperties' may exceed the number of required keys by at most one",
        ),
        (
            within("const", "a\x01"),
            "schema.properties.age.const: the character U+0001 cannot be written in an answer; remove it",
        ),
        (
            within("enum", [[{"\x7f": 1}]]),
            "schema.properties.age.enum: the character U+007F cannot be written in an answer",
        ),
        (
            within("const", 2**53 + 1),
            "schema.properties.age.const: the number 9007199254740993 has more digits than a float; give",
        ),
        (within("maximum", 10**400), "schema.properties.age.maximum: 1000000000000"),
        (within("exclusiveMinimum", True), "schema.properties.age.exclusiveMinimum: must be a number, not true"),
        (within("minLength", -1), "schema.properties.age.minLength: must be at least 0, not -1"),
        (within("minItems", 1.5), "schema.properties.age.minItems: must be a whole number, not 1.5"),
        (
            within("type", "strin"),
            "schema.properties.age.type: must be one or several of null, boolean, integer, number, string",
        ),
        (within("required", "a"), 'schema.properties.age.required: must be a list of keys, not "a"'),
        (within("required", [1]), "schema.properties.age.required: must be a list of keys, not [1]"),
        (within("anyOf", {}), "schema.properties.age.anyOf: must be a list, not {}"),
        (within("properties", []), "schema.properties.age.properties: must be an object, not []"),
        (within("pattern", 1), "schema.properties.age.pattern: must be text, not 1"),
        (within("$id", "x"), "schema.properties.age: the keyword '$id' is supported only at the top; remove it"),
        ({"properties": {"first name": {"not": {}}}}, "schema.properties[\"first name\"]: the keyword 'not'"),
        ({"anyOf": [True, 5]}, "schema.anyOf[1]: must be an object, true or false, not 5"),
        ({"const": float("nan")}, "schema: not a JSON Schema: Out of range float values are not JSON compliant"),
        ({"enum": {1}}, "schema: not a JSON Schema: Object of type set is not JSON serializable"),
        ({"const": "\ud800"}, "schema: half a surrogate pair is not a character; remove it"),
    ],
)
def test_refusals(schema: Schema, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingError) as error:
        Language.json_schema(schema)
    assert str(error.value).startswith(words)
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_a_schema_that_is_nested_too_deep_is_refused() -> None:
    schema: Schema = {}
    for _ in range(900):
        schema = {"items": schema}
    with pytest.raises(SettingError, match=r"^schema: not a JSON Schema: it is nested too deep$"):
        Language.json_schema(schema)


# ------------------------------------------------------------------------------------------------ what is made right


def accepts(schema: Schema, text: str) -> bool:
    """Test whether a text is a whole text of the language."""
    language = Language.json_schema(schema)
    return language.after(b"").accepts(text.encode()) and language.after(text.encode()).accepting


DRAFT_7 = "http://json-schema.org/draft-07/schema#"
NAMED = {"type": "object", "properties": {"a": {"type": "integer"}}}
CAT = {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]}
DOG = {
    "type": "object",
    "properties": {"kind": {"enum": ["dog", "wolf"]}, "cats": {"items": CAT}},
    "required": ["kind"],
}
PETS = {"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], "$defs": {"cat": CAT, "dog": DOG}}


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        (NAMED, ["{}", '{"a": 1}'], ['{"b": 1}', '{"a": 1, "b": 1}']),
        ({**NAMED, "additionalProperties": True}, ['{"a": 1, "b": 1}'], ['{"\\u0061": "x"}']),
        ({**NAMED, "required": ["b"]}, ['{"a": 1, "b": null}'], ['{"a": 1}']),
        ({"allOf": [NAMED, {"properties": {"b": {}}, "required": ["b"]}]}, ['{"a": 1, "b": []}'], ['{"a": 1}']),
        ({**NAMED, "anyOf": [{"required": ["b"]}]}, ['{"a": 1, "b": 2}'], ["{}"]),
        ({"anyOf": [NAMED, {"type": "null"}]}, ["null", "{}"], ['{"b": 1}']),
        (
            PETS,
            ['{"kind": "cat"}', '{"kind": "wolf", "cats": [{"kind": "cat"}]}'],
            ['{"kind": "cow"}', '{"kind": "cat", "x": 1}'],
        ),
        ({"oneOf": [{"type": ["string", "null"]}, {"type": "integer"}]}, ["null", "1", '"x"'], ["1.5"]),
        (
            {"format": "date", "type": "string"},
            ['"2024-02-29"', '"2000-02-29"', '"2023-12-31"'],
            ['"2023-02-29"', '"1900-02-29"'],
        ),
        (
            {"format": "date-time", "type": "string"},
            ['"2024-02-29T23:59:59.5Z"'],
            ['"2023-02-29T00:00:00Z"', '"2024-01-01T24:00:00Z"'],
        ),
        ({"format": "int32", "type": "integer"}, ["5"], ['"5"']),
        ({"type": "integer", "minimum": 2**53 + 1}, [str(2**53 + 2)], [str(2**53 + 1), str(2**53)]),
        ({"type": "integer", "maximum": 2**63 - 1}, ["5"], [str(2**63)]),
        (
            {"$schema": DRAFT_7, "items": [{"type": "null"}], "additionalItems": False, "type": "array"},
            ["[]", "[null]"],
            ["[1]", "[null, null]"],
        ),
        ({"$defs": {"a/b%": {"type": "null"}}, "$ref": "#/$defs/a~1b%25"}, ["null"], ["1"]),
        (
            {"x-guidance": {"whitespace_flexible": True}, "type": "array", "uniqueItems": False},
            ["[1, 2]"],
            ["[1,2]", "[ 1]"],
        ),
        ({"const": {"b": 1, "a": [True, 0.5]}}, ['{"b": 1, "a": [true, 0.5]}'], ['{"a": [true, 0.5], "b": 1}']),
    ],
)
def test_meanings(schema: Schema, accepted: list[str], refused: list[str]) -> None:
    assert [one for one in [*accepted, *refused] if accepts(schema, one)] == accepted
    for text in accepted:
        check(text.encode(), schema)
