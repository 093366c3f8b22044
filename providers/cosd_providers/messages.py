"""Conversations: messages, and the protocol of providers that accept messages.

Each model reads a conversation through its own chat template. The models share nothing but the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast, get_args, runtime_checkable

from cosd_providers.contract import Provider

Role = Literal["system", "user", "assistant"]

OnSpecialTokens = Literal["warn", "refuse"]
"""The reaction if a message contains the text of a special token and the endpoint accepts only text."""

_ROLES = get_args(Role)

_SAME = {"developer": "system"}
"""Newer names of roles, and the names that this library uses instead."""

_LONGEST = 20  # length in characters of the longest name that an error message repeats


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Attributes:
        role: the author of the message: `"system"`, `"user"` or `"assistant"`.
        content: the text.
    """

    role: Role
    content: str


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


def after_own(own: Sequence[Message], messages: Sequence[Message]) -> Sequence[Message]:
    """Put a model's own messages before a conversation.

    Templates accept a single system message, at the start. If both the model and the conversation have one, the
    conversation's system message is appended to the model's, after a blank line.
    """
    if not (own and messages and messages[0].role == "system"):
        return [*own, *messages]
    first, *rest = messages
    if own[0].role == "system":
        own, first = own[1:], Message("system", f"{own[0].content}\n\n{first.content}")
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
    return tuple(found)


def checked_messages(given: object) -> tuple[Message, ...]:
    """Check a conversation, which consists of messages or OpenAI's dictionaries (`{"role": "user", "content": "..."}`).

    The content may be a list of text parts. The role `"developer"` becomes `"system"`.

    Raises:
        ValueError: a message is invalid, or the conversation has no user message.
    """
    if isinstance(given, str | bytes | bytearray) or not isinstance(given, Sequence):
        raise ValueError(f"a conversation is a list of messages, not {type(given).__name__}")
    several = cast("Sequence[object]", given)
    messages = tuple(_checked(one, at) for at, one in enumerate(several))
    if not messages:
        raise ValueError("the conversation is empty: there is nothing to answer")
    if all(message.role != "user" for message in messages):
        raise ValueError("the conversation has no user message: there is nothing to answer")
    return messages


def _checked(given: object, at: int) -> Message:
    if isinstance(given, Message):
        role, content = cast("object", given.role), cast("object", given.content)
    elif isinstance(given, Mapping):
        fields = cast("Mapping[str, object]", given)
        role, content = fields.get("role"), fields.get("content")
        for name in ("tool_calls", "tool_call_id", "function_call"):
            if fields.get(name):
                raise ValueError(f"messages[{at}] has {name}: a fusion takes no tools")
    else:
        words = f"not {type(given).__name__}"
        raise ValueError(f'messages[{at}] must be a Message or {{"role": ..., "content": ...}}, {words}')
    role = _SAME.get(role, role) if isinstance(role, str) else role
    if role not in _ROLES:
        known = ", ".join(map(repr, _ROLES))
        raise ValueError(f"messages[{at}] has the role {_shown(role)}; known are {known}")
    text = _text(content, at)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"messages[{at}] is not valid Unicode text at character {error.start}") from None
    return Message(cast("Role", role), text)


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
