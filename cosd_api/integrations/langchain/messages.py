"""LangChain's messages as those of a fusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage

from cosd_api.errors import SettingError
from cosd_providers.messages import Message, checked_messages

__all__ = ["conversation"]

_ROLES: tuple[tuple[type[BaseMessage], str], ...] = (
    (HumanMessage, "user"),
    (SystemMessage, "system"),
    (AIMessage, "assistant"),
)


def conversation(messages: Sequence[BaseMessage]) -> tuple[Message, ...]:
    """What two chat models can be asked: texts of a system, users and assistants.

    Names of speakers are left out, as chat templates know none.

    Raises:
        SettingError: a message is a tool's or calls one, or holds something else than text.
    """
    plain = [_plain(message, at) for at, message in enumerate(messages)]
    try:
        return checked_messages(plain)
    except ValueError as error:
        raise SettingError(str(error)) from None


def _plain(message: BaseMessage, at: int) -> dict[str, Any]:
    """One message as in OpenAI's API, for a check that knows what may be in it."""
    role = next((role for kind, role in _ROLES if isinstance(message, kind)), None)
    if isinstance(message, ChatMessage):
        role = message.role
    if role is None:
        raise SettingError(f"messages[{at}] is a {type(message).__name__}: a fusion takes no tools and no functions")
    calls = message.tool_calls or message.invalid_tool_calls if isinstance(message, AIMessage) else None
    return {"role": role, "content": message.content, "tool_calls": calls}
