"""Conversations: messages, and the protocols of providers that accept messages.

Each model reads a conversation through its own chat template. The models share nothing but the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast, get_args, runtime_checkable

from cosd_providers.contract import Provider

Role = Literal["system", "user", "assistant", "tool"]

OnSpecialTokens = Literal["warn", "refuse"]
"""The reaction if a message contains the text of a special token and the endpoint accepts only text."""

SAMPLE_NAME = "sample_580317"
"""Name of the tool in a `ToolSample`."""

_ROLES = get_args(Role)

_SAME = {"developer": "system"}
"""Newer names of roles, and the names that this library uses instead."""

_LONGEST = 20  # length in characters of the longest name that an error message repeats


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call in an assistant's message.

    Attributes:
        id: name of the call, to which a message with the tool's result refers.
        name: name of the tool.
        arguments: the arguments: a JSON object as text.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a model may call.

    Attributes:
        name: name of the tool.
        description: text for the model.
        parameters: JSON schema of the arguments, as text.
    """

    name: str
    description: str = ""
    parameters: str = '{"type": "object", "properties": {}}'

    @property
    def definition(self) -> dict[str, Any]:
        """The tool in the format of OpenAI's API."""
        about = {"name": self.name, "description": self.description, "parameters": json.loads(self.parameters)}
        return {"type": "function", "function": about}


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools of a conversation.

    Attributes:
        tools: the tools.
        call_format: name of the format in which the answer calls a tool; see `cosd_api.tools`.
    """

    tools: tuple[Tool, ...]
    call_format: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Attributes:
        role: the author of the message: `"system"`, `"user"`, `"assistant"` or `"tool"`.
        content: the text.
        tool_calls: the calls in a message of the assistant, in addition to the text.
        tool_call_id: for the role `"tool"`, the id of the call whose result the message contains.
        toolset: for a system message at the start, the tools that the model may call.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    toolset: Toolset | None = None

    @property
    def texts(self) -> list[str]:
        """All texts of the message: its content, and the arguments of its calls."""
        return [self.content, *(call.arguments for call in self.tool_calls)]


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A conversation in the form that one endpoint reads.

    Attributes:
        provider: the provider that answers: the endpoint itself, or a view of the endpoint that shares its connections.
        prompt: the text that the model continues, for the provider's `generate`, `propose` and `score`.
        warnings: warnings for a reader of the answer.
        lead: white space that the template writes before every answer. It is part of the text that this model reads,
            but not of the answer that the models share.
        led: the provider for contexts by ids that begin with the ids of `lead`; None if `provider` itself serves
            contexts by ids.
    """

    provider: Provider
    prompt: str
    warnings: tuple[str, ...] = ()
    lead: str = ""
    led: Provider | None = None

    @property
    def on_path(self) -> Provider:
        """The provider for contexts by ids."""
        return self.led or self.provider


@runtime_checkable
class ChatProvider(Protocol):
    """A `contract.Provider` whose model also answers conversations."""

    async def render_prompt(
        self, messages: Sequence[Message], *, on_special_tokens: OnSpecialTokens = "warn"
    ) -> RenderedPrompt:
        """Render `messages` up to the point at which the model writes.

        The model writes from the start of its answer or, if the last message is a partial answer by the assistant, from
        the end of that message.

        Raises:
            UnsupportedError: the endpoint cannot answer this conversation; the hint suggests a remedy.
        """
        ...


@runtime_checkable
class OwnMessages(Protocol):
    """An optional protocol of providers that may have their own messages (`connect(url, system=..., messages=...)`)."""

    @property
    def own_messages(self) -> tuple[Message, ...]:
        """Messages that the provider puts before every conversation; no other model reads them."""
        ...


@dataclass(frozen=True, slots=True)
class ToolSample:
    """A chat template's rendering of a conversation with a tool call, which shows the format of the model's calls.

    Attributes:
        text: the text; empty if the template leaves out calls or results. The tool's name is `SAMPLE_NAME`.
        defines: whether the text contains the definition of the tool.
        parsed: whether the template expects the arguments of a call as an object instead of its text.
    """

    text: str = ""
    defines: bool = False
    parsed: bool = False


@runtime_checkable
class ToolTemplate(Protocol):
    """An optional protocol of chat providers whose chat template may render tools."""

    async def tool_sample(self) -> ToolSample:
        """Render a short conversation with a tool call and its result."""
        ...


def after_own(own: Sequence[Message], messages: Sequence[Message]) -> Sequence[Message]:
    """Put a model's own messages before a conversation.

    Templates accept a single system message, at the start. If both the model and the conversation have one, the
    conversation's system message is appended to the model's, after a blank line.
    """
    if not (own and messages and messages[0].role == "system"):
        return [*own, *messages]
    first, *rest = messages
    if own[0].role == "system":
        both = "\n\n".join(text for text in (own[0].content, first.content) if text)
        own, first = own[1:], replace(first, content=both)
    return [first, *own, *rest]


def checked_own(system: object, messages: object) -> tuple[Message, ...]:
    """Check a model's own messages, and return the system message, if any, followed by the other messages.

    Raises:
        ValueError: a message is invalid.
    """
    found: list[Message] = []
    if system is not None:
        if not isinstance(system, str):
            raise ValueError(f"system must be text, not {type(system).__name__}")
        found.append(Message("system", system))
    if messages is not None:
        if isinstance(messages, str | bytes | bytearray) or not isinstance(messages, Sequence):
            raise ValueError(f"messages must be a list of messages, not {type(messages).__name__}")
        found += [_checked(one, at) for at, one in enumerate(cast("Sequence[object]", messages))]
    if any(one.role == "system" for one in found[1:]):
        raise ValueError("only the first of a model's own messages may be a system message")
    if any(one.role == "tool" or one.tool_calls for one in found):
        raise ValueError("a model's own messages contain text only, without tool calls and their results")
    return tuple(found)


def checked_messages(given: object) -> tuple[Message, ...]:
    """Check a conversation, which consists of messages or OpenAI's dictionaries (`{"role": "user", "content": "..."}`).

    The content may be a list of text parts. The role `"developer"` becomes `"system"`.

    Raises:
        ValueError: a message is invalid, the conversation has no user message, or the result of a call is missing.
    """
    if isinstance(given, str | bytes | bytearray) or not isinstance(given, Sequence):
        raise ValueError(f"a conversation is a list of messages, not {type(given).__name__}")
    several = cast("Sequence[object]", given)
    messages = tuple(_checked(one, at) for at, one in enumerate(several))
    if not messages:
        raise ValueError("the conversation is empty: there is nothing to answer")
    if all(message.role != "user" for message in messages):
        raise ValueError("the conversation has no user message: there is nothing to answer")
    _check_results(messages)
    return messages


def _check_results(messages: Sequence[Message]) -> None:
    """Check that each result follows its call, and that the last message does not wait for results.

    Raises:
        ValueError: a message is out of place.
    """
    made = set[str]()
    for at, one in enumerate(messages):
        made |= {call.id for call in one.tool_calls}
        if one.role == "tool" and one.tool_call_id not in made:
            raise ValueError(f"messages[{at}] is the result of a tool call that no earlier message makes")
    if messages[-1].tool_calls:
        words = "the last message calls tools: append their results"
        raise ValueError(f'{words}, {{"role": "tool", "tool_call_id": ..., "content": ...}}')


def _checked(given: object, at: int) -> Message:
    calls: tuple[ToolCall, ...] = ()
    call_id: object = ""
    toolset = None
    if isinstance(given, Message):
        role, content = cast("object", given.role), cast("object", given.content)
        calls, call_id, toolset = given.tool_calls, given.tool_call_id, given.toolset
    elif isinstance(given, Mapping):
        fields = cast("Mapping[str, object]", given)
        role, content, call_id = fields.get("role"), fields.get("content"), fields.get("tool_call_id") or ""
        if fields.get("function_call"):
            raise ValueError(f"messages[{at}] has function_call, which is obsolete: give tool_calls")
        if several := fields.get("tool_calls"):
            calls = _calls(several, at)
            content = content or ""
    else:
        words = f"not {type(given).__name__}"
        raise ValueError(f'messages[{at}] must be a Message or {{"role": ..., "content": ...}}, {words}')
    role = _SAME.get(role, role) if isinstance(role, str) else role
    if role not in _ROLES:
        known = ", ".join(map(repr, _ROLES))
        raise ValueError(f"messages[{at}] has the role {_shown(role)}; known are {known}")
    if calls and role != "assistant":
        raise ValueError(f"messages[{at}] has tool_calls, which only messages of the assistant have")
    if (role == "tool") != bool(call_id) or not isinstance(call_id, str):
        raise ValueError(f"messages[{at}]: a message of the role 'tool', and no other, has a text as its tool_call_id")
    message = Message(cast("Role", role), _text(content, at), calls, call_id, toolset)
    for text in message.texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"messages[{at}] is not valid Unicode text at character {error.start}") from None
    return message


def members(value: object) -> Mapping[str, object]:
    """Return a JSON object that a user gives; an empty one for any other value."""
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _calls(given: object, at: int) -> tuple[ToolCall, ...]:
    """Check the tool calls of a message in OpenAI's format. Empty arguments become `{}`."""
    found: list[ToolCall] = []
    for n, one in enumerate(cast("Sequence[object]", given) if isinstance(given, list | tuple) else [None]):
        call = members(one)
        fields = members(call.get("function"))
        parts = (call.get("id"), fields.get("name"), fields.get("arguments") or "{}")
        texts = [part for part in parts if isinstance(part, str) and part]
        if len(texts) < len(parts):
            words = 'must be {"id": ..., "type": "function", "function": {"name": ..., "arguments": "{...}"}}'
            raise ValueError(f"messages[{at}].tool_calls[{n}] {words}")
        try:
            valid = isinstance(json.loads(texts[2]), dict)
        except ValueError:
            valid = False
        if not valid:
            raise ValueError(f"messages[{at}].tool_calls[{n}] has arguments that are not the text of a JSON object")
        found.append(ToolCall(*texts))
    return tuple(found)


def _text(content: object, at: int) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, bytes | bytearray) or not isinstance(content, Sequence):
        raise ValueError(f"the content of messages[{at}] must be text, not {type(content).__name__}")
    texts: list[str] = []
    for part in cast("Sequence[object]", content):
        fields = cast("Mapping[str, object]", part) if isinstance(part, Mapping) else dict[str, object](text=part)
        text, kind = fields.get("text"), fields.get("type", "text")
        if kind != "text":
            raise ValueError(f"messages[{at}] has a part of the type {_shown(kind)}: a fusion takes text only")
        if not isinstance(text, str):
            raise ValueError(f"the text of a part of messages[{at}] must be text, not {type(text).__name__}")
        texts.append(text)
    return "".join(texts)


def _shown(word: object) -> str:
    """The form in which an error message shows a value. A string that is not a name is hidden, as it may be private."""
    if word is None or (isinstance(word, str) and word.isidentifier() and len(word) <= _LONGEST):
        return repr(word)
    return "'...'" if isinstance(word, str) else f"of type {type(word).__name__}"
