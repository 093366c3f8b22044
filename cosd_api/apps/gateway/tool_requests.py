"""Tools in a request: their check, and the form in which a fusion is asked."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from cosd_api import Fusion, SettingError
from cosd_api.apps.gateway.api_errors import ApiError
from cosd_api.structured import LarkGrammar, ResponseFormat
from cosd_api.tools import (
    DEFAULT_FORMAT,
    CallFormat,
    ToolChoice,
    answer_grammar,
    check_parameters,
    checked_choice,
    checked_tools,
    find_format,
    format_named,
    with_toolset,
)
from cosd_providers import Message, ProviderError
from cosd_providers.messages import Tool, Toolset, members

__all__ = ["ToolRequest", "read_format", "read_tools"]


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """The tools of a request.

    Attributes:
        tools: the tools.
        choice: the calls that the answer may contain.
        content: JSON schema of an answer without calls; None for text.
    """

    tools: tuple[Tool, ...]
    choice: ToolChoice
    content: Mapping[str, Any] | None

    async def call_format(self, fusion: Fusion, name: str | None) -> CallFormat:
        """Return the format of this name; by default, the format of the first model that can be asked.

        An answer in JSON needs a format with a marker, which tells a call from other JSON.
        """
        found = None if name is None else format_named(name)
        for provider in (fusion.endpoints.draft, *fusion.endpoints.assistants) if found is None else ():
            with suppress(ProviderError):  # the answer itself raises it, or continues without the model
                found = await find_format(provider)
                break
        return DEFAULT_FORMAT if found is None or (self.content is not None and not found.marker) else found

    def asked(self, messages: Sequence[Message], form: CallFormat) -> tuple[tuple[Message, ...], LarkGrammar]:
        """Return the conversation with the tools that may be called, and the format of the answer."""
        grammar = answer_grammar(self.tools, self.choice, form, self.content)
        if self.choice.mode == "none":
            return tuple(messages), grammar
        return with_toolset(messages, Toolset(self.tools, form.name)), grammar


def read_tools(
    tools: object,
    choice: object,
    messages: Sequence[Message],
    *,
    parallel: bool | None,
    content: ResponseFormat | None,
) -> ToolRequest | None:
    """Check the fields `tools` and `tool_choice`; None if tools cannot affect the answer.

    Raises:
        ApiError: a field is invalid, or the tools cannot be enforced.
    """
    with _refused("tools"):
        checked = checked_tools(tools or [])
    with _refused("tool_choice"):
        chosen = checked_choice(choice, checked, parallel=parallel is not False)
    if not checked or (chosen.mode == "none" and content is not None):
        return None
    if chosen.mode != "none" and messages[-1].role == "assistant":
        raise ApiError("tools are refused: an answer that has begun, in the last message, calls none", param="tools")
    with _refused("tools"):
        check_parameters(checked)
    schema = None if content is None else content.record.get("json_schema", {}).get("schema", {"type": "object"})
    return ToolRequest(checked, chosen, schema)


def read_format(given: object) -> ResponseFormat | None:
    """Check the field `response_format`; None for text.

    Raises:
        ApiError: the format is invalid, or cannot be enforced.
    """
    if given is None:
        return None
    if members(given).get("type") not in ("json_schema", "json_object"):
        words = "its type must be text, json_object or json_schema"
        raise ApiError(f"response_format is refused: {words}", param="response_format")
    with _refused("response_format"):
        return ResponseFormat.of(given)


@contextmanager
def _refused(name: str) -> Generator[None]:
    """Convert errors about a field to errors in OpenAI's format."""
    try:
        yield
    except SettingError as error:
        raise ApiError(str(error), param=name) from None
