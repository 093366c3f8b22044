"""A conversation becomes the text that a model goes on from, by whatever renders its chat template.

Templates differ in what they take: some refuse a system message or two messages of one role, or leave a system message
out in silence. Then the conversation is given in a form that every template takes: what the system says stands at the
start of the user's first message, and neighbours of one role are one message.

A text that a user wrote may hold a special token as text (`<|im_end|>`). Rendered, it would be read as the token. So it
is cut inside, and the pieces are encoded each by itself where ids can be sent. What a model has thought stays as it is
in its own messages: templates look for it there.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cosd_providers.chat.templates import TemplateRefusal
from cosd_providers.errors import UnsupportedError
from cosd_providers.messages import Message

__all__ = ["Render", "Rendering", "candidates", "cut", "folded", "joined", "lead_of", "pieces", "rendered"]

Render = Callable[[list[dict[str, str]]], Awaitable[str]]
"""Renders dictionaries, up to where the answer begins. Raises `TemplateRefusal` for what it does not take."""

_CUT = "\U000f1a7c"
"""Stands where a text is cut; a private character, which no text of a user holds for a reason."""

_MARKS = ("580317", "740126")
"""Stand for an answer and for what follows it."""

_SPECIAL = re.compile(r"(?=(<[^<>]{1,60}>|\[[^\[\]\s]{1,60}\]))")
"""What may be a special token: nearly all of them are written so. They may overlap."""

_THOUGHT = re.compile(r"</?[\w:]*(think|thought|reason)[\w:]*>|\[/?THINK\]", re.IGNORECASE)
"""What stands around what a model has thought."""

_QUOTED = 12  # characters of a message that an error may not repeat
_TOLD = 4  # characters of a whole message that it may not


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendered conversation.

    Attributes:
        text: what the model reads; where messages were cut, the cuts are in it (see `pieces`).
        is_refused: whether the template has not taken the conversation as it was.
    """

    text: str
    is_refused: bool


async def rendered(render: Render, messages: Sequence[Message], *, fold: bool, endpoint: str) -> Rendering:
    """The conversation as the model reads it, up to where its answer begins.

    Args:
        render: renders messages.
        messages: the conversation; its last message is not the assistant's.
        fold: whether it is known that the template takes a folded one only.
        endpoint: of the server, for errors.

    Raises:
        UnsupportedError: the template takes it in no form.
    """
    refusal = "it leaves out what a message says"
    first = folded(messages) if fold else tuple(messages)
    for form in dict.fromkeys((first, folded(messages))):
        try:
            text = await render(_dictionaries(form))
            if _holds(text, form) or await _takes(render, form):
                return Rendering(text, form is not first)
        except TemplateRefusal as error:
            refusal = _discreet(str(error)[:200], messages)
    words = f"the chat template does not take this conversation: {refusal}"
    raise UnsupportedError(words, endpoint=endpoint, hint="Another one can be given: connect(url, chat_template=...).")


def _dictionaries(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": one.role, "content": one.content} for one in messages]


def folded(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The conversation in a form that every template takes: user and assistant in turn, the user first."""
    said = [one.content for one in messages if one.role == "system"]
    result: list[Message] = []
    for one in messages:
        if one.role == "system":
            continue
        if not result and one.role == "assistant":
            result.append(Message("user", ""))  # a template that wants a user first gets an empty one
        if result and result[-1].role == one.role:
            result[-1] = replace(one, content=joined([result[-1].content, one.content]))
        else:
            result.append(one)
    first = next(at for at, one in enumerate(result) if one.role == "user")
    result[first] = replace(result[first], content=joined([*said, result[first].content]))
    return tuple(result)


def joined(contents: Iterable[str]) -> str:
    """What several messages say, as one."""
    return "\n\n".join(content for content in contents if content)


def _holds(text: str, messages: Sequence[Message]) -> bool:
    """Whether all that system and users say is there. What an assistant has thought some templates leave out."""
    at = 0
    for one in messages:
        if one.role != "assistant":
            found = text.find(one.content.strip(), 0 if one.role == "system" else at)
            if found < 0:
                return False
            at = at if one.role == "system" else found  # some write that before the last message
    return True


async def _takes(render: Render, messages: Sequence[Message]) -> bool:
    """Whether all of it is taken, though some of it is written in another way: a mark behind each message is there."""
    marked = [replace(one, content=f"{one.content} {_MARKS[0]}{at}.") for at, one in enumerate(messages)]
    text = await render(_dictionaries(marked))
    return all(f"{_MARKS[0]}{at}." in text for at, one in enumerate(messages) if one.role != "assistant")


def _discreet(words: str, messages: Sequence[Message]) -> str:
    """A template's own words, as far as they do not repeat what a message says."""
    said = [text for one in messages if len(text := one.content.strip()) >= _TOLD]
    chunks = {text[at : at + _QUOTED] for text in said for at in range(max(1, len(text) - _QUOTED + 1))}
    for at in range(len(words)):
        if any(words[at : at + size] in chunks for size in range(_TOLD, _QUOTED + 1)):
            return f"{words[:at]}..."
    return words


async def lead_of(render: Render) -> str:
    """The white space that the template writes between where an answer begins and its first character.

    It shows where an answer is given: `"[INST] Q[/INST]"` goes on as `"[INST] Q[/INST] A</s>"`. The answer of the model
    itself begins with it, too, so that it is no part of what models share.
    """
    asked = [{"role": "user", "content": _MARKS[0]}]
    given = [*asked, {"role": "assistant", "content": _MARKS[1]}, *asked]
    try:
        before, after = await render(asked), await render(given)
    except TemplateRefusal:
        return ""
    lead = after.partition(_MARKS[1])[0].removeprefix(before)
    return lead if before + lead == after.partition(_MARKS[1])[0] and not lead.strip() else ""


def candidates(messages: Iterable[Message]) -> set[str]:
    """What in the messages may be a special token."""
    return {found for one in messages for found in _SPECIAL.findall(one.content) if not _is_own(found, one)}


def _is_own(special: str, message: Message) -> bool:
    return message.role == "assistant" and _THOUGHT.fullmatch(special) is not None


def cut(messages: Sequence[Message], special: Iterable[str]) -> tuple[Message, ...]:
    """The messages with a cut inside each of the `special` tokens that they hold as text."""
    marks: Mapping[str, str] = {one: one[0] + _CUT + one[1:] for one in special}
    result: list[Message] = []
    for message in messages:
        content = message.content
        for plain, parted in marks.items():
            content = content if _is_own(plain, message) else content.replace(plain, parted)
        result.append(replace(message, content=content))
    return tuple(result)


def pieces(text: str) -> list[str]:
    """The parts of a text that was cut: between two of them nothing may be read as a special token."""
    return text.split(_CUT)
