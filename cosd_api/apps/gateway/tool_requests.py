"""Tools and formats in a request, with errors in OpenAI's format."""

from __future__ import annotations

from collections.abc import Sequence

from cosd_api import SettingError
from cosd_api.apps.gateway.api_errors import ApiError
from cosd_api.structured import ResponseFormat
from cosd_api.tools import ToolRequest
from cosd_providers import Message
from cosd_providers.messages import members

__all__ = ["read_format", "read_tools"]


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
    try:
        return ToolRequest.checked(tools, choice, messages, parallel=parallel, content=content)
    except SettingError as error:
        param = "tool_choice" if str(error).startswith("tool_choice") else "tools"
        raise ApiError(str(error), param=param) from None


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
    try:
        return ResponseFormat.of(given)
    except SettingError as error:
        raise ApiError(str(error), param="response_format") from None
