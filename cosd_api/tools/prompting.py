"""Conversations with tools in the form that each model reads.

A model's own chat template renders them if it knows tools and writes calls in the format of the answer. For any other
model, the definitions and the format are part of the system message, and calls and results are parts of turns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from cosd_api.tools.call_formats import DEFAULT_FORMAT, CallFormat, format_named, recognized
from cosd_providers.contract import Provider
from cosd_providers.messages import Message, ToolCall, ToolSample, Toolset, ToolTemplate


async def find_format(provider: Provider) -> CallFormat | None:
    """Find the format in which a model's template renders calls; None if it renders none, or in an unknown format.

    Raises:
        ProviderError: the model's server failed.
    """
    return recognized((await _sample(provider)).text)


async def as_model_reads(provider: Provider, messages: Sequence[Message]) -> Sequence[Message]:
    """Return a conversation in the form in which one model reads it.

    Raises:
        ProviderError: the model's server failed.
    """
    first, *rest = messages
    if not first.toolset and all(one.role != "tool" for one in messages):
        return messages
    sample = await _sample(provider)
    own = recognized(sample.text)
    form = format_named(first.toolset.call_format) if first.toolset else own or DEFAULT_FORMAT
    single = form.separator is None and any(len(one.tool_calls) > 1 for one in messages)
    if own is not form or single:
        return in_turns(messages, form)
    return [_with_instructions(first, form), *rest] if first.toolset and not sample.defines else messages


async def _sample(provider: Provider) -> ToolSample:
    return await provider.tool_sample() if isinstance(provider, ToolTemplate) else ToolSample()


def with_toolset(messages: Sequence[Message], toolset: Toolset) -> tuple[Message, ...]:
    """Add tools to a conversation: to its system message, if it begins with one."""
    first, *rest = messages
    if first.role == "system":
        return replace(first, toolset=toolset), *rest
    return Message("system", "", toolset=toolset), *messages


def in_turns(messages: Sequence[Message], form: CallFormat) -> list[Message]:
    """Rewrite a conversation without tools, calls and results: as text that every template renders."""
    names: dict[str, str] = {}
    found: list[Message] = []
    for one in messages:
        if one.toolset:
            found.append(_with_instructions(one, form))
        elif one.tool_calls:
            names |= {call.id: call.name for call in one.tool_calls}
            found.append(Message("assistant", _together([one.content, form.write(one.tool_calls)])))
        elif one.role == "tool":
            result = f"Result of {names[one.tool_call_id]}:\n{one.content}"
            if found[-1].role == "user":
                result = _together([found.pop().content, result])
            found.append(Message("user", result))
        else:
            found.append(one)
    return found


def _with_instructions(message: Message, form: CallFormat) -> Message:
    instructed = _instructions(message.toolset, form) if message.toolset else ""
    return Message("system", _together([message.content, instructed]))


def _instructions(toolset: Toolset, form: CallFormat) -> str:
    """Describe tools and the format of calls, for a system message."""
    several = "" if form.separator is None else " Several calls may follow each other."
    return "\n".join(
        [
            "You can call these tools. Each line describes one of them as JSON, with a schema of its arguments:",
            *(json.dumps(tool.definition["function"], ensure_ascii=False) for tool in toolset.tools),
            "",
            "To call a tool, end your answer with its name and arguments in this form:",
            form.write([ToolCall("", "name", '{"argument": "value"}')]),
            f"The user then sends the result.{several} If no tool is needed, answer in plain text.",
        ]
    )


def _together(texts: Sequence[str]) -> str:
    return "\n\n".join(text for text in texts if text)
