"""Conversations over a route for messages: they are sent as they are, where the server takes them so.

The server's chat template is not seen here. What has to be known of it is found out once, with a few tokens:

- Some take no message of the system, or not everywhere, or no two messages of one role in a row; some leave out in
  silence what the system says. Such conversations are folded (`chat.rendering.folded`).
- Some models begin their answers with a space, because their templates write one there. It is no part of the answer.
  Where an answer is continued, some servers write it (vLLM), to others it has to be sent (llama.cpp, SGLang).
- A special token in a user's message is read as such: it is warned of, or refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

from cosd_providers.chat.rendering import ChatAdapter, ChatRenderer, folded, joined
from cosd_providers.contract import Token
from cosd_providers.engines.openai.client import OpenAIClient, Prefix
from cosd_providers.engines.openai.wire import Answer, Conversation
from cosd_providers.errors import InvalidRequestError, ResponseError, ServerError, StatusError
from cosd_providers.greedy import Position
from cosd_providers.messages import Message, OnSpecialTokens
from cosd_providers.usage import Usage

__all__ = ["ChatRouteRenderer"]

_Kind = Literal["system", "systems", "neighbours"]
"""What not every template takes: a message of the system at the start, one elsewhere, two neighbours of one role."""

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
_GREETING = "Hello"
_FEW = 4  # tokens of an answer, enough to see one behind its first word
_SAME = 1e-3  # of a probability: less is rounding


class ChatRouteRenderer(ChatRenderer):
    """What was learned of how a server takes conversations.

    Args:
        endpoint: of the server, for errors.
        client: requests to the server.
    """

    def __init__(self, endpoint: str, client: OpenAIClient) -> None:
        super().__init__(endpoint)
        self._client = client
        self._takes: dict[_Kind, bool] = {}
        self._writes = False  # whether the server writes the lead

    async def begin(
        self, adapter: ChatAdapter, messages: Sequence[Message], on_special_tokens: OnSpecialTokens
    ) -> tuple[Conversation, str, str, tuple[str, ...]]:
        """What is sent: what stands around the prompt, the prompt; the lead of the model's own answer; and warnings."""
        special = await self._special(adapter, messages)
        warnings = (self._warn(special, on_special_tokens),) if special else ()
        begun: list[str] = []
        while messages[-1].role == "assistant":
            *messages, last = messages
            begun.insert(0, last.content)
        started = joined(begun)
        for kind in _kinds(messages):
            if kind not in self._takes:
                self._takes[kind] = await self._taken(_PROBES[kind])
            if not self._takes[kind]:
                messages = folded(messages)
                break
        if self._lead is None:
            self._lead, self._writes = await self._seen_lead()
        *earlier, asked = messages
        before = tuple(earlier)
        if started:
            own = started if self._writes else self._lead + started
            return Conversation(before, asked.role, own), asked.content, "", warnings
        written = self._lead if self._writes else ""
        return Conversation(before, asked.role, lead=written), asked.content, self._lead, warnings

    async def _taken(self, messages: Sequence[Message]) -> bool:
        """Whether the server takes such a conversation, and leaves nothing out."""
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
        """How many tokens the server reads of a conversation; None where it does not tell."""
        *earlier, last = messages
        answer = await self._one(Conversation(tuple(earlier), last.role), last.content, "", 1)
        return (answer.usage.prompt_tokens or None) if answer.usage else None

    async def _seen_lead(self) -> tuple[str, bool]:
        """The white space that the model begins its answers with, and whether the server writes it.

        Where it does, an answer that is continued without it goes on exactly as the model's own did.
        """
        if not self._client.facts.probs:
            return "", False
        try:
            own, text = await self._said("", _FEW), b""
            for position, after in pairwise(own):
                text += position.pick.token.data
                begun = text.decode("utf-8", "ignore")
                if begun.strip():
                    lead = begun[: len(begun) - len(begun.lstrip())]
                    again = await self._said(begun.lstrip(), 1) if lead else []
                    return lead, bool(again) and _alike(again[0].pick.token, after.pick.token)
        except (StatusError, ResponseError):
            return "", False
        return "", False

    async def _said(self, started: str, limit: int) -> list[Position]:
        answer = await self._one(Conversation(), _GREETING, started, limit)
        return [one for choice in answer.choices[:1] for one in self._client.positions(choice)]

    async def _one(self, conversation: Conversation, prompt: str, text: str, limit: int) -> Answer:
        """At most `limit` raw tokens of an answer; counted nowhere."""
        return await self._client.of_chat(conversation).one(Prefix(prompt, text), limit, Usage(), check=False)


def _alike(one: Token, other: Token) -> bool:
    if one.prob is None or other.prob is None:
        return False
    return (one.data, one.end) == (other.data, other.end) and abs(one.prob - other.prob) < _SAME


def _kinds(messages: Sequence[Message]) -> list[_Kind]:
    """What of a conversation not every template takes."""
    said = [one.role for one in messages]
    kinds: list[_Kind] = []
    if said[0] == "system":
        kinds.append("system")
        said = said[1:]
    if "system" in said:
        kinds.append("systems")
    spoken = [role for role in said if role != "system"]
    if spoken[:1] == ["assistant"] or any(one == other for one, other in pairwise(spoken)):
        kinds.append("neighbours")
    return kinds
