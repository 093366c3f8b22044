"""Tools and tool choices as given: those accepted, and the messages for the others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cosd_api import SettingError
from cosd_api.tools import ToolChoice, checked_choice, checked_tools

NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
FORM = '{"type": "function", "function": {"name": ..., "parameters": {...}}}'
NAMED = 'or {"type": "function", "function": {"name": ...}}'


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "now", **function}}


def test_tools_in_openais_format() -> None:
    schema = {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}
    [one] = checked_tools([tool(description="Zeit für alle", parameters=schema, strict=True)])
    assert (one.name, one.description, json.loads(one.parameters)) == ("now", "Zeit für alle", schema)
    [without] = checked_tools((NOW,))
    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    assert json.loads(without.parameters) == empty and not without.description
    [any_] = checked_tools([tool(parameters={"type": "object"})])
    assert json.loads(any_.parameters) == {"type": "object"}
    [untyped] = checked_tools([tool(parameters={"properties": {"a": {}}})])
    assert json.loads(untyped.parameters) == {"type": "object", "properties": {"a": {}}}
    assert checked_tools([]) == ()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("now", "tools must be a list of tools, not str"),
        (NOW, "tools must be a list of tools, not dict"),
        (["now"], f"tools[0] must be {FORM}"),
        ([NOW, {"type": "web_search"}], f"tools[1] must be {FORM}"),
        ([{"type": "function", "name": "now"}], f"tools[0] must be {FORM}"),
        ([tool(name="")], "tools[0].function.name must be 1 to 64 letters, digits, '_' or '-'"),
        ([tool(name="no w")], "tools[0].function.name must be 1 to 64 letters, digits, '_' or '-'"),
        ([tool(name="a" * 65)], "tools[0].function.name must be 1 to 64 letters, digits, '_' or '-'"),
        ([tool(description=7)], "tools[0].function.description must be text, not int"),
        ([tool(parameters=[])], "tools[0].function.parameters must be a JSON schema, not list"),
        ([tool(parameters={"type": "array"})], "tools[0].function.parameters must be the schema of an object"),
        ([tool(parameters={"title": "\ud800"})], "tools[0].function is not valid JSON"),
        ([tool(parameters={"title": b""})], "tools[0].function is not valid JSON"),
        ([NOW, tool(), NOW], "tools has two tools with the name 'now'"),
    ],
)
def test_tools_that_are_refused(given: Any, words: str) -> None:
    with pytest.raises(SettingError) as caught:
        checked_tools(given)
    assert str(caught.value).startswith(words)


def test_choices() -> None:
    tools = checked_tools([NOW])
    assert checked_choice(None, tools) == checked_choice("auto", tools) == ToolChoice("auto")
    assert checked_choice(None, ()) == checked_choice("auto", ()) == checked_choice("none", tools) == ToolChoice("none")
    assert checked_choice("required", tools, parallel=False) == ToolChoice("required", "", parallel=False)
    assert checked_choice(NOW, tools) == ToolChoice("required", "now", parallel=False)


@pytest.mark.parametrize(
    ("given", "some", "words"),
    [
        ("any", True, f"tool_choice must be 'none', 'auto', 'required' {NAMED}"),
        ({"type": "function"}, True, f"tool_choice must be 'none', 'auto', 'required' {NAMED}"),
        ({"function": {"name": "now"}}, True, f"tool_choice must be 'none', 'auto', 'required' {NAMED}"),
        ({"type": "function", "function": {"name": "then"}}, True, "tool_choice requires a tool that is not in tools"),
        (NOW, False, "tool_choice requires a tool that is not in tools"),
        ("required", False, "tool_choice needs tools"),
    ],
)
def test_choices_that_are_refused(given: Any, some: bool, words: str) -> None:
    with pytest.raises(SettingError) as caught:
        checked_choice(given, checked_tools([NOW] if some else []))
    assert str(caught.value) == words
