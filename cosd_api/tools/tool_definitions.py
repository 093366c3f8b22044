"""Tools and the choice between them, as users give them in the format of OpenAI's API."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from cosd_api.errors import SettingError
from cosd_providers.messages import Tool, members

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KNOWN = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The calls that an answer may contain.

    Attributes:
        mode: `"none"` is an answer without calls, `"auto"` lets the models decide, and `"required"` is an answer of
            one or more calls.
        name: the only tool that may be called; empty for all tools.
        parallel: whether an answer may contain several calls.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    name: str = ""
    parallel: bool = True


def checked_tools(given: object) -> tuple[Tool, ...]:
    """Check tools in OpenAI's format, `{"type": "function", "function": {"name": ..., "parameters": {...}}}`.

    Raises:
        SettingError: a tool is invalid.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise SettingError(f"tools must be a list of tools, not {type(given).__name__}")
    tools = tuple(_checked(one, f"tools[{at}]") for at, one in enumerate(cast("Sequence[object]", given)))
    names = [tool.name for tool in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SettingError(f"tools has two tools with the name {twice!r}")
    return tools


def checked_choice(given: object, tools: Sequence[Tool], *, parallel: bool = True) -> ToolChoice:
    """Check a tool choice in OpenAI's format. None is `"auto"` if there are tools, else `"none"`.

    A tool that is named is called once, as by OpenAI: clients that name one read a single call.

    Raises:
        SettingError: the choice is invalid, or the tool is unknown.
    """
    if given in (None, "none") or (given == "auto" and not tools):
        return ToolChoice("auto" if given is None and tools else "none", parallel=parallel)
    choice = members(given)
    name = members(choice.get("function")).get("name")
    if choice.get("type") != "function" or not isinstance(name, str):
        if given not in _KNOWN:
            words = 'or {"type": "function", "function": {"name": ...}}'
            raise SettingError(f"tool_choice must be {', '.join(map(repr, _KNOWN))} {words}")
        name = ""
    if not tools or (name and name not in [tool.name for tool in tools]):
        raise SettingError("tool_choice requires a tool that is not in tools" if name else "tool_choice needs tools")
    return ToolChoice("auto" if given == "auto" else "required", name, parallel and not name)


def _checked(given: object, at: str) -> Tool:
    about = members(members(given).get("function"))
    if members(given).get("type") != "function" or not about:
        raise SettingError(f'{at} must be {{"type": "function", "function": {{"name": ..., "parameters": {{...}}}}}}')
    name, description = about.get("name"), about.get("description") or ""
    no_arguments: dict[str, object] = {"properties": {}}
    parameters = no_arguments if about.get("parameters") is None else about["parameters"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SettingError(f"{at}.function.name must be 1 to 64 letters, digits, '_' or '-'")
    if not isinstance(description, str):
        raise SettingError(f"{at}.function.description must be text, not {type(description).__name__}")
    if not isinstance(parameters, Mapping):
        raise SettingError(f"{at}.function.parameters must be a JSON schema, not {type(parameters).__name__}")
    schema: dict[str, object] = {"type": "object", **members(cast("object", parameters))}
    if schema.get("properties") == {}:  # a tool without arguments
        schema.setdefault("additionalProperties", False)
    if schema["type"] != "object":
        raise SettingError(f"{at}.function.parameters must be the schema of an object (type: object)")
    try:
        text = json.dumps(schema, ensure_ascii=False)
        f"{text}{description}".encode()
    except (TypeError, ValueError, RecursionError):
        raise SettingError(f"{at}.function is not valid JSON") from None
    return Tool(name, description, text)
