"""Conversations over a route for messages: the server renders them with its own template.

The following facts about the template are found out once, at the cost of a few tokens:

- Some templates refuse system messages, system messages after the first message, or consecutive messages of one role.
  Some silently drop system messages. Conversations that a template cannot render are folded (`chat.rendering.folded`).
- Some models begin their answers with a space that their template also writes. This space is not part of the answer. If
  a partial answer is to be continued, some servers write the space themselves (vLLM); other servers need it in the
  message (llama.cpp, SGLang).
- The server parses the text of a special token in a user's message, so such text causes a warning or a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

from cosd_providers.chat.rendering import ChatAdapter, ChatRenderer, begun_answer, folded
from cosd_providers.contract import Token
from cosd_providers.engines.openai.client import OpenAIClient, Prefix
from cosd_providers.engines.openai.wire import Conversation, WireAnswer
from cosd_providers.errors import InvalidRequestError, ResponseError, ServerError, StatusError, UnsupportedError
from cosd_providers.greedy import Position
from cosd_providers.messages import Message, OnSpecialTokens
from cosd_providers.usage import Usage

_Kind = Literal["system", "systems", "neighbours"]

_PROBES: Mapping[_Kind, tuple[Message, ...]] = {
    "system": (Message("system", "one two three"), Message("user", "a")),
    "systems": (
        Message("user", "a"),
        Message("assistant", "b"),
        Message("system", "one two three"),
        Message("user", "c"),
    ),
    "neighbours": (Message("user", "a"), Message("user", "b")),
}
"""Test conversations, one for each feature that not every template accepts."""

_GREETING = "Hello"
_FEW = 4  # number of tokens in a test answer, enough to reach the token after the first word
_SAME = 1e-3  # smaller differences between two probabilities count as rounding


class ChatRouteRenderer(ChatRenderer):
    """Renderer of conversations for the route for messages, which remembers what the template accepts."""

    def __init__(self, client: OpenAIClient) -> None:
        super().__init__(client.endpoint)
        self._client = client
        self._accepted: dict[_Kind, bool] = {}
        self._writes = False  # whether the server writes the leading space itself

    async def begin(
        self, adapter: ChatAdapter, messages: Sequence[Message], on_special_tokens: OnSpecialTokens
    ) -> tuple[Conversation, str, str, tuple[str, ...]]:
        """Return the messages around the prompt, the prompt, the leading space of the model's answer, and warnings."""
        if not self._client.partial and messages[-1].role == "assistant":
            raise no_partial(self._client.endpoint)
        special = await self._special(adapter, messages)
        warnings = (self._warn(special, on_special_tokens),) if special else ()
        messages, started = begun_answer(messages)
        for kind in _kinds(messages):
            if kind not in self._accepted:
                self._accepted[kind] = await self._accepts(_PROBES[kind])
            if not self._accepted[kind]:
                messages = folded(messages)
                break
        if self._lead is None:
            self._lead, self._writes = await self._leading_space()
        *earlier, asked = messages
        before = tuple(earlier)
        if started:
            own = started if self._writes else self._lead + started
            return Conversation(before, asked.role, own), asked.content, "", warnings
        written = self._lead if self._writes else ""
        return Conversation(before, asked.role, lead=written), asked.content, self._lead, warnings

    async def _accepts(self, messages: Sequence[Message]) -> bool:
        """Send these messages, and test whether the server accepts them and reads the system message, if any."""
        try:
            whole = await self._size(messages)
        except InvalidRequestError:
            return False
        except ServerError as error:
            if error.status != 500:
                raise
            return False
        without = tuple(one for one in messages if one.role != "system")
        if len(without) == len(messages) or whole is None:
            return True
        return whole != await self._size(without)

    async def _size(self, messages: Sequence[Message]) -> int | None:
        """Request the number of tokens that the server reads for a conversation; None if it is not reported."""
        *earlier, last = messages
        answer = await self._one(Conversation(tuple(earlier), last.role), last.content, "", 1)
        return (answer.usage.prompt_tokens or None) if answer.usage else None

    async def _leading_space(self) -> tuple[str, bool]:
        """Find the white space before the model's answers, and find out whether the server writes it.

        If the server writes it, a partial answer that is sent without the white space continues exactly like the
        model's own.
        """
        try:
            if not self._client.facts.probs:
                return await self._space_of_text()
            own, text = await self._answer("", _FEW), b""
            for position, after in pairwise(own):
                text += position.pick.token.data
                begun = text.decode("utf-8", "ignore")
                if begun.strip():
                    lead = begun[: len(begun) - len(begun.lstrip())]
                    again = await self._answer(begun.lstrip(), 1) if lead else []
                    return lead, bool(again) and _alike(again[0].pick.token, after.pick.token)
        except (StatusError, ResponseError):
            return "", False
        return "", False

    async def _space_of_text(self) -> tuple[str, bool]:
        """Like `_leading_space`, for servers that return no tokens: compare the texts of three answers.

        The first answer is the model's own. The other two continue its first word, once with and once without the
        leading space. The server is assumed to write the space if only the answer without the space continues like the
        model's own.
        """
        if not self._client.partial:
            return "", False
        own = await self._text("")
        said = own.lstrip()
        lead = own[: len(own) - len(said)] if said else ""
        if not lead:
            return "", False
        first = said.split()[0]
        rest = said[len(first) :]
        with_it, without = await self._text(lead + first), await self._text(first)
        return lead, not _same(with_it, rest) and _same(without, rest)

    async def _text(self, started: str) -> str:
        [choice] = (await self._one(Conversation(), _GREETING, started, _FEW)).choices
        return choice.written

    async def _answer(self, started: str, limit: int) -> list[Position]:
        answer = await self._one(Conversation(), _GREETING, started, limit)
        return [one for choice in answer.choices[:1] for one in self._client.positions(choice)]

    async def _one(self, conversation: Conversation, prompt: str, text: str, limit: int) -> WireAnswer:
        """Request an answer of at most `limit` raw tokens, which is not billed."""
        return await self._client.of_chat(conversation).one(Prefix(prompt, text), limit, Usage(), check=False)


def no_partial(endpoint: str) -> UnsupportedError:
    """Create the error for a partial answer over a route that does not continue answers."""
    words = "with api='messages' a partial answer is not continued"
    return UnsupportedError(words, endpoint=endpoint, hint="End the conversation with a user message.")


def _same(one: str, other: str) -> bool:
    """True if neither text is empty, and both are equal up to the end of the shorter text."""
    return bool(one) and bool(other) and one[: len(other)] == other[: len(one)]


def _alike(one: Token, other: Token) -> bool:
    if one.prob is None or other.prob is None:
        return False
    return (one.data, one.end) == (other.data, other.end) and abs(one.prob - other.prob) < _SAME


def _kinds(messages: Sequence[Message]) -> list[_Kind]:
    """The features of a conversation that not every template accepts."""
    roles = [one.role for one in messages]
    kinds: list[_Kind] = []
    if roles[0] == "system":
        kinds.append("system")
        roles = roles[1:]
    if "system" in roles:
        kinds.append("systems")
    spoken = [role for role in roles if role != "system"]
    if spoken[:1] == ["assistant"] or any(one == other for one, other in pairwise(spoken)):
        kinds.append("neighbours")
    return kinds
