"""The language of an answer with calls: the texts that it has, the bytes that it forces, and refused schemas."""

from __future__ import annotations

from typing import Any

import pytest

from cosd_api import SettingError
from cosd_api.structured import Language
from cosd_api.tools import FORMATS, CallFormat, ToolChoice, answer_grammar, check_parameters, checked_tools
from cosd_api.tools import format_named as named
from cosd_providers.messages import ToolCall

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}


def function(name: str, **about: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **about}}


TOOLS = checked_tools([function("weather", parameters=CITY), function("now"), function("log", parameters={})])
LIMA, NOW = ToolCall("", "weather", '{"city": "Li\\"ma}", "days": 2}'), ToolCall("", "now", "{}")
EACH = pytest.mark.parametrize("form", FORMATS, ids=lambda one: one.name)


def whole(language: Language, text: str) -> bool:
    """True if the language has the text."""
    return begins(language, text) and language.after(text.encode()).accepting


def begins(language: Language, text: str) -> bool:
    """True if the language has a text that begins like this."""
    return language.after(b"").accepts(text.encode())


def of(mode: Any, form: CallFormat, name: str = "", *, parallel: bool = True, content: Any = None) -> Language:
    return Language.lark(answer_grammar(TOOLS, ToolChoice(mode, name, parallel), form, content).text)


@EACH
def test_calls_are_required(form: CallFormat) -> None:
    language = of("required", form)
    assert whole(language, form.write([LIMA])) and whole(language, form.write([NOW]))
    assert whole(language, form.write([ToolCall("", "log", '{"any": [1]}')]))
    for text in ("Hello", "", form.write([ToolCall("", "then", "{}")]), form.write([ToolCall("", "now", '{"a": 1}')])):
        assert not whole(language, text)
    assert not begins(language, form.write([LIMA]) + "\nText")
    assert language.after(b"").forced.startswith((form.opening + form.start).encode())
    head = f"{form.opening}{form.start}w".encode()
    assert language.after(head).forced.decode() == f'eather{form.middle}{{"city": "'


@EACH
def test_parallel_calls(form: CallFormat) -> None:
    both = form.write([LIMA, NOW]) if form.separator is not None else f"{form.write([LIMA])}; {form.write([NOW])}"
    for mode in ("required", "auto"):
        assert whole(of(mode, form), both) is (form.separator is not None)
        single = of(mode, form, parallel=False)
        assert not begins(single, both) and whole(single, form.write([LIMA]))
        assert single.after(form.write([LIMA]).encode()).stopped


@EACH
def test_the_models_decide(form: CallFormat) -> None:
    language = of("auto", form)
    for text in ("", "Hello", "Grüße, {x}\n<b>", "x", "<tool", " {", form.write([LIMA])):
        assert whole(language, text), text
    assert not begins(language, form.write([ToolCall("", "then", "{}")]))
    assert not language.after((form.marker or "{").encode()).accepting
    assert language.after(b"Hello").forced == b""


@EACH
def test_no_call_is_allowed(form: CallFormat) -> None:
    language = of("none", form)
    assert whole(language, "Hello <tool_call>{") and whole(language, "")
    assert not begins(language, form.write([NOW])) and not begins(language, form.write([NOW])[0])


def test_a_call_begins_at_its_marker() -> None:
    hermes, plain = of("auto", named("hermes")), of("auto", named("json"))
    called, said = named("hermes").write([LIMA]), named("json").write([LIMA])
    assert whole(hermes, f"Let me see.\n{called}") and not begins(hermes, "Let me see.\n<tool_call>Hm")
    assert whole(plain, f"Let me see.\n{said} Hm") and not begins(plain, "{}")


@EACH
def test_one_tool_is_required(form: CallFormat) -> None:
    language = of("required", form, "now")
    assert whole(language, form.write([NOW])) and not begins(language, form.write([LIMA]))
    assert not whole(language, "")
    assert of("required", form, "now", parallel=False).after(b"").forced.decode() == form.write([NOW])


def test_an_answer_of_json_or_calls() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for form in (one for one in FORMATS if one.marker):
        language = of("auto", form, content=schema)
        assert whole(language, '{"a": 1}') and whole(language, form.write([NOW])) and not begins(language, "Hello")
        assert whole(of("required", form, content=schema), form.write([NOW]))
        assert not begins(of("required", form, content=schema), '{"a": 1}')


def test_an_object_has_the_listed_properties_unless_its_schema_allows_more() -> None:
    more = {"city": {"type": "string"}}
    schemas = [{"properties": more}, {"properties": more, "additionalProperties": True}, {"allOf": [{"required": []}]}]
    form = named("json")
    for schema, expected in zip(schemas, (False, True, True), strict=True):
        tools = checked_tools([function("a", parameters=schema)])
        language = Language.lark(answer_grammar(tools, ToolChoice("required"), form).text)
        assert whole(language, form.write([ToolCall("", "a", '{"x": 1}')])) is expected


def test_schemas_that_are_refused() -> None:
    check_parameters(TOOLS)
    unsupported = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(SettingError, match=r"^tools\[1\]\.function\.parameters: .*uniqueItems"):
        check_parameters(checked_tools([function("now"), function("a", parameters=unsupported)]))
