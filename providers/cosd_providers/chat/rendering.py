"""Rendering of conversations with a model's chat template, to the text that the model continues.

Not every template accepts every conversation. Some refuse a system message or successive messages of one role; some
silently drop a system message. In such cases, the conversation is folded into a form that every template accepts:
system messages are moved to the start of the user's first message, and successive messages of one role are joined.

Many templates render tools, calls and results, but templates and servers that do not know them often drop them in
silence. So a sample conversation with marks is rendered first. Ids of calls are replaced by numbers with nine
characters, the only form that some templates accept. A text that depends on random ids would also never be in a cache.

A user's message may contain the text of a special token, such as `<|im_end|>`, which the model would read as that
token. So this text is cut in two and, if the endpoint accepts ids, the pieces are encoded separately. The tags around
thoughts in the model's own messages remain unchanged, because templates look for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, groupby, pairwise, product
from typing import Any, Protocol, TypeVar

from anyio import to_thread

from cosd_providers.chat.leading_space import led
from cosd_providers.chat.templates import TemplateRefusal
from cosd_providers.contract import Piece, Provider
from cosd_providers.errors import ResponseError, StatusError, UnsupportedError
from cosd_providers.messages import (
    SAMPLE_NAME,
    Message,
    OnSpecialTokens,
    RenderedPrompt,
    Tool,
    ToolCall,
    ToolSample,
)

_T = TypeVar("_T")

Render = Callable[[list[dict[str, Any]]], Awaitable[str]]
"""Function that renders messages up to the start of the answer, or raises `TemplateRefusal`."""

_CUT = "\U000f1a7c"
"""Mark of a cut: a private-use character that is not expected in any user's text."""

_MARKS = ("580317", "740126")
"""Placeholders for a user's message and an answer, to find out what a template writes around them."""

_TOOL_MARKS = ("398201", "771045", "640972")
"""Placeholders for the description of a tool, the argument of a call, and its result."""

_SAMPLE_TOOL = Tool(
    SAMPLE_NAME, _TOOL_MARKS[0], '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}'
)
_SAMPLE = (
    Message("user", "a"),
    Message("assistant", "", (ToolCall("b", SAMPLE_NAME, json.dumps({"a": _TOOL_MARKS[1]})),)),
    Message("tool", _TOOL_MARKS[2], tool_call_id="b"),
)
_SAMPLE_ARGUMENTS = re.compile(r'\{\s*"a"\s*:\s*"' + _TOOL_MARKS[1] + r'"\s*\}')

_POSSIBLE = (re.compile(r"<[^<>]{1,60}>"), re.compile(r"\[[^\[\]\s]{1,60}\]"))
"""Patterns that match nearly all special tokens. A match for one pattern may contain a match for the other."""

_LONGEST = 62
"""Maximum number of characters that the patterns match."""

_SLICE = 1 << 16
"""Number of characters to search at a time, because no other thread can run during a search."""

_LONG = 1 << 16
"""Number of characters above which a conversation is processed in a thread."""

_ENCODED = 256
"""Number of possible special tokens to encode in one request, because parsing the tokens of a long text is slow."""

_USUAL = re.compile(
    r"<\|[^\s|<>]+\|>|<｜[^\s<>]+｜>|</?s>|<(bos|eos|pad|unk)>|<(start|end)_of_turn>|\[/?(INST|SYSTEM_PROMPT)\]"
)
"""Usual forms of special tokens, for endpoints that do not encode text."""

_HTML = re.compile(
    r"</?(a|b|blockquote|body|br|caption|code|div|em|h[1-6]|head|html|i|img|li|ol|p|pre|span|strong|su[bp]|table|tbody|td"
    r"|tfoot|th|thead|tr|u|ul)>"
)
"""HTML tags. Some models have tokens for them, but these tokens have no special meaning."""

_THOUGHT = re.compile(r"</?[\w:]*(think|thought|reason)[\w:]*>|\[/?THINK\]", re.IGNORECASE)
"""Tags around a model's thoughts."""

_QUOTED = 12  # an error quotes fewer than this number of successive characters of a message
_WHOLE = 4  # an error does not quote a whole message, unless the message has fewer characters than this


class ChatAdapter(Protocol):
    """The methods of an adapter that a renderer uses."""

    async def render(self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Render messages; see `Render`. `tools` are the tools in the format of OpenAI's API."""
        ...

    async def begun(self, prompt: str) -> str:
        """Return the prompt without the beginning-of-sequence token if the server adds this token itself."""
        ...

    async def literal(self, pieces: Sequence[str]) -> Provider | None:
        """Return a view of the model whose prompt is sent as ids, with each piece encoded separately.

        Return None if the endpoint accepts only text.
        """
        ...

    async def tokenize(self, text: str) -> list[Piece]:
        """See `contract.Provider`."""
        ...


class ChatRenderer:
    """Renderer of conversations for one endpoint. It remembers which kinds of conversations the template refuses."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._refused: set[tuple[bool, bool, bool]] = set()  # shapes of the conversations that the template refused
        self._lead: str | None = None
        self._tool_sample: ToolSample | None = None

    async def tool_sample(self, adapter: ChatAdapter) -> ToolSample:
        """Render a sample conversation with a tool; the sample is rendered only once."""
        if self._tool_sample is None:
            self._tool_sample = await _tool_sample(adapter)
        return self._tool_sample

    async def render_prompt(
        self, adapter: ChatAdapter, messages: Sequence[Message], on_special_tokens: OnSpecialTokens
    ) -> RenderedPrompt:
        """Render `messages` for the model of `adapter`; see `messages.ChatProvider`."""
        assert isinstance(adapter, Provider)
        if self._lead is None:
            self._lead = await leading_space(adapter.render)
        special = await self._special(adapter, messages)
        asked = await _in_thread(messages, lambda: [_cut(one, special) for one in messages])
        asked, answer = begun_answer(asked)
        tools = asked[0].toolset.tools if asked[0].toolset else ()
        asked = asked[1:] if tools and not asked[0].content else asked
        render: Render = adapter.render
        parsed = False
        if tools or any(one.role == "tool" for one in asked):
            parsed = (await self.tool_sample(adapter)).parsed
            render = partial(adapter.render, tools=[tool.definition for tool in tools])
        shape, fold = _shape(asked), _shape(asked) in self._refused
        text, refused = await rendered(render, asked, fold=fold, endpoint=self._endpoint, parsed=parsed)
        if refused:
            self._refused.add(shape)
        if answer:
            text += self._lead + answer
        first, *more = text.split(_CUT) if special else [text]
        pieces = [await adapter.begun(first), *more]
        literal = await adapter.literal(pieces) if special else adapter
        warnings = (self._warn(special, on_special_tokens),) if literal is None else ()
        provider = adapter if literal is None else literal
        prompt = "".join(pieces)
        if self._lead and not answer:
            return led(provider, self._lead, prompt, warnings)
        return RenderedPrompt(provider, prompt, warnings)

    async def _special(self, adapter: ChatAdapter, messages: Sequence[Message]) -> list[str]:
        """Find the model's special tokens whose text appears in the messages."""
        possible = await _in_thread(messages, partial(_possible, messages))
        whole = set[bytes]()
        for at in range(0, len(possible), _ENCODED):
            try:
                pieces = await adapter.tokenize("\n".join(possible[at : at + _ENCODED]))
            except UnsupportedError:
                return [one for one in possible if _USUAL.fullmatch(one)]
            # Bytes are compared instead of positions, because some special tokens include the white space around them.
            whole |= {piece.data for piece in pieces}
        return [one for one in possible if one.encode() in whole]

    def _warn(self, special: Sequence[str], on_special_tokens: OnSpecialTokens) -> str:
        words = f"a message holds {', '.join(special)} as text, which the model reads as its special token"
        if on_special_tokens == "refuse":
            hint = "Remove it from the message, or give on_special_tokens='warn'."
            raise UnsupportedError(f"{words}; this server takes no token ids", endpoint=self._endpoint, hint=hint)
        return f"{self._endpoint}: {words} (this server takes no token ids)"


async def rendered(
    render: Render, messages: Sequence[Message], *, fold: bool, endpoint: str, parsed: bool = False
) -> tuple[str, bool]:
    """Render a conversation up to the start of the answer.

    Args:
        render: function that renders messages.
        messages: the conversation, whose last message is not the assistant's.
        fold: whether the template is known to accept only the folded form.
        endpoint: the server's URL, for error messages.
        parsed: see `messages.ToolSample`.

    Returns:
        The text, and whether the template refused the conversation and accepted only its folded form.

    Raises:
        UnsupportedError: the template does not accept the conversation in any form.
    """
    refusal = "it leaves out what a message says"
    first = folded(messages) if fold else tuple(messages)
    for form in dict.fromkeys((first, folded(messages))):
        try:
            text = await render(_dictionaries(form, parsed=parsed))
            if _holds(text, form) or await _marks_appear(render, form, parsed=parsed):
                return text, form is not first
        except TemplateRefusal as error:
            refusal = await _in_thread(messages, partial(_discreet, str(error)[:200], messages))
    words = f"the chat template does not accept this conversation: {refusal}"
    raise UnsupportedError(words, endpoint=endpoint, hint="Give another one: connect(url, chat_template=...).")


def folded(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Fold a conversation into a form that every template accepts: user and assistant alternate, the user first."""
    said = [one.content for one in messages if one.role == "system"]
    turns = groupby((one for one in messages if one.role != "system"), _turn)
    several = [[*turn] for _, turn in turns]
    first, *others = [replace(turn[0], content=joined(one.content for one in turn)) for turn in several]
    if first.role == "assistant":  # some templates require that the first message is the user's
        first, others = Message("user", ""), [first, *others]
    return replace(first, content=joined([*said, first.content])), *others


def _turn(message: Message) -> tuple[str, int]:
    """A key that is equal for successive messages that may be joined: not for calls and their results."""
    return message.role, id(message) if message.tool_calls or message.role == "tool" else 0


def begun_answer(messages: Sequence[Message]) -> tuple[list[Message], str]:
    """Split a conversation into its messages up to the last that is not the assistant's, and the answer begun there."""
    end = next(at for at in range(len(messages), 0, -1) if messages[at - 1].role != "assistant")
    return [*messages[:end]], joined(one.content for one in messages[end:])


def joined(contents: Iterable[str]) -> str:
    """Join the contents of several messages to one text, with blank lines between them."""
    return "\n\n".join(content for content in contents if content)


async def leading_space(render: Render) -> str:
    """Find the white space that the template writes before an answer.

    To find it, a conversation is rendered without and with an answer: `"[INST] Q[/INST]"` becomes
    `"[INST] Q[/INST] A</s>"`. The model itself also begins its answer with this space, which is therefore not part of
    the text that the models share.
    """
    asked = [{"role": "user", "content": _MARKS[0]}]
    given = [*asked, {"role": "assistant", "content": _MARKS[1]}, *asked]
    try:
        before, after = await render(asked), await render(given)
    except TemplateRefusal:
        return ""
    start = after.partition(_MARKS[1])[0]
    space = start.removeprefix(before)
    return space if before + space == start and not space.strip() else ""


async def _tool_sample(adapter: ChatAdapter) -> ToolSample:
    """Render the sample, with its arguments as an object or as text. Some templates show only one of them as JSON."""
    for parsed in (True, False):
        try:
            text = await adapter.render(_dictionaries(_SAMPLE, parsed=parsed), [_SAMPLE_TOOL.definition])
        except (TemplateRefusal, UnsupportedError, StatusError, ResponseError):
            continue
        call = _SAMPLE_ARGUMENTS.search(text)
        if call and _TOOL_MARKS[2] in text[call.end() :]:
            return ToolSample(text, _TOOL_MARKS[0] in text, parsed)
    return ToolSample()


def _dictionaries(messages: Sequence[Message], *, parsed: bool = False) -> list[dict[str, Any]]:
    """Convert messages to the format of OpenAI's API, but with `parsed` arguments and other ids; see the module."""
    numbers, fresh = dict[str, str](), count()
    found: list[dict[str, Any]] = []
    for one in messages:
        fields: dict[str, Any] = {"role": one.role, "content": one.content}
        if one.tool_calls:
            fields["content"] = one.content or None
            fields["tool_calls"] = []
        for call in one.tool_calls:
            number = numbers[call.id] = f"call{next(fresh):05}"
            arguments: object = json.loads(call.arguments) if parsed else call.arguments
            function = {"name": call.name, "arguments": arguments}
            fields["tool_calls"].append({"id": number, "type": "function", "function": function})
        if one.role == "tool":
            fields["tool_call_id"] = numbers[one.tool_call_id]
        found.append(fields)
    return found


def _shape(messages: Sequence[Message]) -> tuple[bool, bool, bool]:
    """Test a conversation for features that templates refuse.

    The features are a system message, a system message that is not the first message, and roles that do not alternate.
    """
    roles = [one.role for one in messages]
    turns = [role for role in roles if role != "system"]
    irregular = turns[0] != "user" or any(one == other for one, other in pairwise(turns))
    return "system" in roles, "system" in roles[1:], irregular


def _holds(text: str, messages: Sequence[Message]) -> bool:
    """Test whether a text contains all system and user messages.

    The assistant's messages are not checked, because some templates drop the thoughts in them.
    """
    at = 0
    for one in messages:
        if one.role != "assistant":
            found = text.find(one.content.strip(), 0 if one.role == "system" else at)
            if found < 0:
                return False
            at = at if one.role == "system" else found  # some templates put a system message before the last message
    return True


async def _marks_appear(render: Render, messages: Sequence[Message], *, parsed: bool = False) -> bool:
    """Test whether the template keeps all messages, even if rewritten: a mark at the end of each must still appear."""
    marked = [replace(one, content=f"{one.content} {_MARKS[0]}{at}.") for at, one in enumerate(messages)]
    text = await render(_dictionaries(marked, parsed=parsed))
    return all(f"{_MARKS[0]}{at}." in text for at, one in enumerate(messages) if one.role != "assistant")


async def _in_thread(messages: Sequence[Message], work: Callable[[], _T]) -> _T:
    """Call `work`. If the conversation is long, do so in a thread, so that the event loop is not blocked."""
    long = sum(len(text) for one in messages for text in one.texts) > _LONG
    return await to_thread.run_sync(work) if long else work()


def _possible(messages: Sequence[Message]) -> list[str]:
    """Find all distinct texts in the messages that may be special tokens."""
    found = set[str]()
    for message in messages:
        for kind, text in product(_POSSIBLE, message.texts):
            for at in range(0, len(text), _SLICE):
                part = {*kind.findall(text, at, at + _SLICE + _LONGEST)}
                found |= {one for one in part - found if not _is_thought(one, message)}
    return sorted(one for one in found if not _HTML.fullmatch(one))


def _discreet(words: str, messages: Sequence[Message]) -> str:
    """Cut off a template's error message before it quotes a message of the conversation."""
    said = [text for one in messages for said in one.texts if len(text := said.strip()) >= _WHOLE]
    whole = tuple(text for text in said if len(text) < _QUOTED)
    for at in range(len(words)):
        quoted = words[at : at + _QUOTED]
        if words.startswith(whole, at) or (len(quoted) == _QUOTED and any(quoted in text for text in said)):
            return f"{words[:at]}..."
    return words


def _is_thought(special: str, message: Message) -> bool:
    return message.role == "assistant" and _THOUGHT.fullmatch(special) is not None


def _cut(message: Message, special: Sequence[str]) -> Message:
    """Insert a cut into each of the `special` tokens that the message contains as text."""

    def cut(text: str, special: Iterable[str]) -> str:
        for one in special:
            text = text if _is_thought(one, message) else text.replace(one, one[0] + _CUT + one[1:])
        return text

    usual = [one for one in special if _USUAL.fullmatch(one)]  # others, such as [1], are also JSON outside of strings
    calls = tuple(replace(call, arguments=cut(call.arguments, usual)) for call in message.tool_calls)
    return replace(message, content=cut(message.content, special), tool_calls=calls)
