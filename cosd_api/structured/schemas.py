"""JSON Schemas in a form that llguidance gets right: what it would get wrong is written differently, or refused.

Differences from the given schema:

- An object with `properties` has no other keys, unless the schema allows them or combines the object with others.
- `oneOf` becomes `anyOf`, provided that no value conforms to two of its schemas.
- Dates and times exist in the calendar, which llguidance's formats do not ensure.
- A bound beyond 2**53 is rounded to the inside; words that state no condition are left out.
"""

from __future__ import annotations

import json
import math
from itertools import combinations
from typing import Any
from urllib.parse import unquote

from cosd_api.errors import SettingError

__all__ = ["SupportedSchema"]

Schema = Any
"""A JSON value, which users give: a dictionary or a boolean if it is valid."""

_UNSUPPORTED = {
    **dict.fromkeys(("not", "if", "then", "else"), "express it with anyOf, enum or pattern"),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), "express it with anyOf"),
    **dict.fromkeys(("contains", "minContains", "maxContains", "uniqueItems"), "and check it in the answers"),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), "use additionalProperties or items"),
    **dict.fromkeys(("$dynamicRef", "$recursiveRef"), "use $ref"),
    "propertyNames": "use patternProperties",
}
_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_BOUNDS = {"minimum": math.inf, "exclusiveMinimum": math.inf, "maximum": -math.inf, "exclusiveMaximum": -math.inf}
"""Words of bounds, and the direction to the inside."""
_SIMPLE = {"type", "required", "pattern", "multipleOf", "const", "enum", *_COUNTS, *_BOUNDS}
_MAPS, _LISTS = {"properties", "patternProperties"}, {"prefixItems", "anyOf", "allOf", "oneOf"}
_COMBINING = {"$ref", "allOf", "anyOf", "oneOf"}
_NESTED = {"items", "additionalProperties", *_MAPS, *_LISTS}
_TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_DAY = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29"
_IN_ANY_YEAR = "(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31"
_DATE = f"(?:{_YEAR}-(?:{_IN_ANY_YEAR})|{_LEAP_DAY})"
_TIME = r"(?:[01][0-9]|2[0-3])(?::[0-5][0-9]){2}(?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_UUID = "^[0-9a-f]{{8}}-[0-9a-f]{{4}}-{}[0-9a-f]{{3}}-[89ab][0-9a-f]{{3}}-[0-9a-f]{{12}}$"
_FORMATS: dict[str, dict[str, Schema]] = {
    **{name: {"format": name} for name in ("duration", "email", "ipv4", "ipv6", "uri", "uuid")},
    **{f"uuid{version}": {"pattern": _UUID.format(version)} for version in range(1, 9)},  # pydantic's
    **{name: {} for name in ("binary", "password", "path")},  # pydantic's, for any text
    "hostname": {"format": "hostname", "maxLength": 253},
    "date": {"pattern": f"^{_DATE}$"},
    "time": {"pattern": f"^{_TIME}$"},
    "date-time": {"pattern": f"^{_DATE}T{_TIME}$"},
}
_UNSPELLABLE = {*map(chr, range(32)), "\x7f"} - set("\b\t\n\f\r")
_SPELLABLE = r"^[^\x00-\x07\x0b\x0e-\x1f\x7f]*$"


class SupportedSchema:
    """A JSON Schema that is checked and rewritten for llguidance.

    Attributes:
        whole: the rewritten schema. Each value that conforms to it conforms to the given schema, too.
        parts: the rewritten schemas inside it, each with its place in the given schema; the innermost are first.

    Raises:
        SettingError: the schema is not supported, or no finite value conforms; the message says where.
    """

    def __init__(self, given: Schema) -> None:
        self._given = given
        self._definitions: dict[str, Schema] = {}
        self._names: dict[tuple[str, bool], str] = {}  # of definitions, by `$ref` and `alone`
        self._unions: list[tuple[str, list[Schema]]] = []
        self.parts: list[tuple[str, dict[str, Schema]]] = []
        root = self._part(given, "schema", alone=True)
        for where, options in self._unions:
            self._refuse_overlaps(options, where)
        finite: set[str] = set()
        while more := {name for name, one in self._definitions.items() if _finite(one, finite)} - finite:
            finite |= more
        for (reference, _), name in self._names.items():
            if name not in finite:
                raise _fault(_place(reference), "no finite value conforms, because each one contains another one")
        self.whole = self.with_definitions({"allOf": [root]} if isinstance(root, bool) else root)

    def with_definitions(self, part: dict[str, Schema]) -> dict[str, Schema]:
        """A part as a schema of its own."""
        return {**part, "$defs": self._definitions}

    def _part(self, given: Schema, where: str, *, alone: bool) -> Schema:
        """Rewrite a schema; `alone` is true unless a value must conform to another schema at the same time."""
        if isinstance(given, bool):
            return given
        given = dict(_typed(given, dict, where, "an object, true or false"))
        _refuse_words(given, where)
        if isinstance(given.get("items"), list):  # before 2020-12
            given |= {"prefixItems": given["items"], "items": given.get("additionalItems", True)}
        words = [one for one in given if one in _NESTED or one in _SIMPLE or one == "$ref"]
        combines = not _COMBINING.isdisjoint(words)
        only = [one for one in words if one != "type"]
        alone = alone and (not combines or (len(only) == 1 and (only[0] != "allOf" or len(given["allOf"]) == 1)))
        found = {one: _simple(one, given[one], _inside(where, one)) for one in words if one in _SIMPLE}
        found |= {one: self._nested(one, given[one], _inside(where, one), alone) for one in words if one in _NESTED}
        if "$ref" in given:
            found["$ref"] = self._reference(_typed(given["$ref"], str, _inside(where, "$ref"), "text"), where, alone)
        if alone and not combines and _closable(found):
            found["additionalProperties"] = False
        also = [{"pattern": _SPELLABLE}] if "pattern" in found else []
        also += [_format(given["format"], where)] if "format" in given and "string" in _types(found) else []
        kinds = {"type": found["type"]} if "type" in found else {}
        also = [{**kinds, **one} for one in also]
        if "oneOf" in found:
            self._unions.append((_inside(where, "oneOf"), given["oneOf"]))
            also.append({"anyOf": found.pop("oneOf")})
        if also:
            found["allOf"] = [*found.get("allOf", ()), *also]
        _refuse_repeated_keys(found, where)
        self.parts.append((where, found))
        return found

    def _nested(self, word: str, value: Schema, where: str, alone: bool) -> Schema:
        if word in _MAPS:
            inside = _typed(value, dict, where, "an object").items()
            return {key: self._part(one, _inside(where, key), alone=alone) for key, one in inside}
        if word in _LISTS:
            several = enumerate(_typed(value, list, where, "a list"))
            return [self._part(one, _inside(where, n), alone=alone) for n, one in several]
        return self._part(value, where, alone=alone)

    def _reference(self, reference: str, where: str, alone: bool) -> str:
        """The reference to a definition, which is the rewritten target of a `$ref`."""
        name = self._names.get((reference, alone))
        if name is None:
            self._names[reference, alone] = name = str(len(self._names))
            target = self._target(reference, where)
            self._definitions[name] = self._part(target, _place(reference), alone=alone)
        return f"#/$defs/{name}"

    def _target(self, reference: str, where: str) -> Schema:
        found = self._given
        for key in _keys(reference):
            try:
                found = found[int(key) if isinstance(found, list) else key]
            except (IndexError, KeyError, TypeError, ValueError):
                words = f"$ref {_shown(reference)} points to nothing in this schema"
                raise _fault(where, f"{words}; put the schema into $defs, and refer to it by #/$defs/name") from None
        return found

    def _refuse_overlaps(self, options: list[Schema], where: str) -> None:
        for (n, one), (m, other) in combinations(enumerate(options), 2):
            if not self._disjoint(one, other, 6):
                words = f"a value might conform to both {n} and {m}"
                remedy = "use anyOf, or give both a required key with different constants"
                raise _fault(where, f"{words}, so 'oneOf' is not supported here; {remedy}")

    def _disjoint(self, one: Schema, other: Schema, depth: int) -> bool:
        """True if it is evident that no value conforms to both schemas."""
        if one is False or other is False:
            return True
        if not depth or one is True or other is True:
            return False
        for a, b in ((one, other), (other, one)):
            unions = [a[word] for word in ("anyOf", "oneOf") if word in a]
            needed = [*a.get("allOf", ()), *([self._target(a["$ref"], "schema")] if "$ref" in a else ())]
            if any(all(self._disjoint(each, b, depth - 1) for each in union) for union in unions):
                return True
            if any(self._disjoint(each, b, depth - 1) for each in needed):
                return True
        values = _values(one), _values(other)
        if values[0] is not None and values[1] is not None and values[0].isdisjoint(values[1]):
            return True
        if (shared := _types(one) & _types(other)) != {"object"}:
            return not shared
        keys = {*one.get("required", ()), *other.get("required", ())}
        return any(self._disjoint(_property(one, key), _property(other, key), depth - 1) for key in keys)


def _fault(where: str, words: str) -> SettingError:
    return SettingError(f"{where}: {words}")


def _inside(where: str, key: str | int) -> str:
    """The place of a value inside another one, such as `schema.properties.age`."""
    plain = isinstance(key, str) and key.removeprefix("$").replace("-", "_").isidentifier()
    return f"{where}.{key}" if plain else f"{where}[{json.dumps(key, ensure_ascii=False)}]"


def _shown(value: Schema) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _typed(value: Schema, kinds: type | tuple[type, ...], where: str, words: str) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise _fault(where, f"must be {words}, not {_shown(value)}")
    return value


def _refuse_words(given: dict[str, Schema], where: str) -> None:
    for word, remedy in _UNSUPPORTED.items():
        if word in given and not (word == "uniqueItems" and given[word] is False):
            words = f"the keyword '{word}' is not supported in structured answers"
            raise _fault(where, f"{words}; remove it{'' if remedy.startswith('and') else ', or'} {remedy}")
    if "$id" in given and where != "schema":
        raise _fault(where, "the keyword '$id' is supported only at the top; remove it")


def _refuse_repeated_keys(found: dict[str, Schema], where: str) -> None:
    """Refuse a number of keys that an object might reach by repeating one: llguidance counts a repeated key again."""
    named_only = found.get("additionalProperties") is False and "patternProperties" not in found
    if not named_only and found.get("minProperties", 0) > len(found.get("required", ())) + 1:
        words = "'minProperties' may exceed the number of required keys by at most one"
        raise _fault(where, f"{words}, because a key that the schema does not name might be repeated; lower it")


def _simple(word: str, value: Schema, where: str) -> Schema:
    """The value of a word that has no schemas inside."""
    if word in ("const", "enum"):
        _refuse_constants(value if word == "const" else _typed(value, list, where, "a list"), where)
    elif word in _COUNTS:
        if _typed(value, int, where, "a whole number") < 0:
            raise _fault(where, f"must be at least 0, not {value}")
    elif word == "multipleOf":
        _typed(value, (int, float), where, "a number")
    elif word in _BOUNDS:
        return _rounded(_typed(value, (int, float), where, "a number"), _BOUNDS[word], where)
    elif word == "pattern":
        _typed(value, str, where, "text")
    elif word == "type":
        several = [value] if isinstance(value, str) else _typed(value, list, where, "text or a list")
        if not several or not all(one in _TYPES for one in several):
            raise _fault(where, f"must be one or several of {', '.join(_TYPES)}, not {_shown(value)}")
    elif not all(isinstance(one, str) for one in _typed(value, list, where, "a list of keys")):
        raise _fault(where, f"must be a list of keys, not {_shown(value)}")
    return value


def _rounded(bound: float, inside: float, where: str) -> float:
    """The nearest float on the inside of a bound; llguidance would take the nearest on either side."""
    try:
        near = float(bound)
    except OverflowError:
        raise _fault(where, f"{_shown(bound)} is too large") from None
    return bound if near == bound else int(near if (near > bound) == (inside > 0) else math.nextafter(near, inside))


def _refuse_constants(value: Schema, where: str) -> None:
    """Refuse constants that llguidance would change."""
    if isinstance(value, list | dict):
        inside: list[Schema] = [*value, *(value.values() if isinstance(value, dict) else ())]
        for one in inside:
            _refuse_constants(one, where)
    elif isinstance(value, str) and (bad := sorted(_UNSPELLABLE.intersection(value))):
        raise _fault(where, f"the character U+{ord(bad[0]):04X} cannot be written in an answer; remove it")
    elif isinstance(value, int) and (abs(value) >= 2**1023 or int(float(value)) != value):
        raise _fault(where, f"the number {_shown(value)} has more digits than a float; give it as text")


def _format(name: Schema, where: str) -> dict[str, Schema]:
    if not isinstance(name, str) or name not in _FORMATS:
        known = ", ".join(sorted(one for one in _FORMATS if one == "uuid" or not one.startswith("uuid")))
        raise _fault(where, f"the format {_shown(name)} is not supported; remove it, use pattern, or one of: {known}")
    return _FORMATS[name]


def _keys(reference: str) -> list[str]:
    """The keys of a local reference, which is a JSON pointer; for any other reference, itself, which is no key."""
    if not reference.startswith("#/"):
        return [] if reference == "#" else [reference]
    return [unquote(key).replace("~1", "/").replace("~0", "~") for key in reference[2:].split("/")]


def _place(reference: str) -> str:
    place = "schema"
    for key in _keys(reference):
        place = _inside(place, key)
    return place


def _closable(found: dict[str, Schema]) -> bool:
    """True if the object names all keys that it needs, and says nothing about others."""
    named = found.get("properties")
    if not named or "additionalProperties" in found or "patternProperties" in found:
        return False
    return set(named) >= set(found.get("required", ())) and len(named) >= found.get("minProperties", 0)


def _types(schema: dict[str, Schema]) -> set[str]:
    """The types of the values that may conform; an integer is a number, too."""
    if (values := _values(schema)) is not None:
        return {kind for kind, _ in values}
    given = schema.get("type", _TYPES)
    found = {given} if isinstance(given, str) else {*given}
    return found | {"integer"} if "number" in found else found


def _values(schema: dict[str, Schema]) -> set[tuple[str, str]] | None:
    """The listed values, each as its type and its JSON text; None if they are not listed."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if listed is None:
        return None
    return {(_type(one), json.dumps(json.loads(json.dumps(one), parse_int=float), sort_keys=True)) for one in listed}


def _type(value: Schema) -> str:
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    kinds = {"bool": "boolean", "int": "integer", "str": "string", "list": "array", "dict": "object"}
    return kinds.get(type(value).__name__, "null")


def _property(schema: dict[str, Schema], key: str) -> Schema:
    """The schema of a key; False if objects cannot have the key."""
    others = "patternProperties" in schema or schema.get("additionalProperties", True)
    return schema.get("properties", {}).get(key, others)


def _finite(schema: Schema, finite: set[str]) -> bool:
    """True if there is a finite value, provided that the definitions with these names have one."""
    if isinstance(schema, bool) or "const" in schema or "enum" in schema:
        return schema is not False
    needed = [*schema.get("allOf", ())]
    if "$ref" in schema and schema["$ref"].rpartition("/")[2] not in finite:
        return False
    if not all(_finite(one, finite) for one in needed) or not any(
        _finite(one, finite) for one in schema.get("anyOf", [True])
    ):
        return False
    kinds = _types(schema)
    first, fewest = schema.get("prefixItems", []), schema.get("minItems", 0)
    items = [*first[:fewest], *([schema.get("items", True)] if fewest > len(first) else ())]
    values = [_property(schema, key) for key in schema.get("required", ())]
    return (
        bool(kinds - {"array", "object"})
        or ("array" in kinds and all(_finite(one, finite) for one in items))
        or ("object" in kinds and all(_finite(one, finite) for one in values))
    )
