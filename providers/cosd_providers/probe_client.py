"""The probe's client for a server. It lacks an adapter's checks, so that wrong answers become visible.

Each engine derives its own client from `ProbeClient`, which builds the requests and reads the answers.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel

from cosd_providers.engine import Models
from cosd_providers.errors import InvalidRequestError, ResponseError, ServerError, UnsupportedError
from cosd_providers.greedy import TIES, Position
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.usage import Usage

__all__ = ["REPLY_WAYS", "Forcing", "ProbeClient", "Prompt", "RawReply", "RawRequest", "RawScores", "grammar"]

REPLY_WAYS: Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
    "": ({}, {}),
    "continue_final_message": ({"continue_final_message": True, "add_generation_prompt": False}, {}),
    "prefix": ({}, {"prefix": True}),
}
"""Ways to request the continuation of a partial reply, each with its fields for the request and for the message."""

Prompt = str | list[int]
"""A text, or the ids of a text. Before ids, the client inserts the special tokens that the server adds to a text."""

Forcing = Sequence[Callable[[str], Mapping[str, object]]]
"""Functions that, given a text, return request fields that may force a server to write it. All are tried in turn."""

_FORCED = 48  # the greatest number of tokens in a forced text


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A request to continue one or more prompts.

    Attributes:
        prompts: texts, or the ids of texts.
        limit: the greatest number of tokens in each answer.
        top: the number of alternatives at each position.
        temperature: the sampling temperature.
        fields: further fields of the request.
    """

    prompts: Sequence[Prompt]
    limit: int = 1
    top: int = TIES
    temperature: float = 0.0
    fields: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True)
class RawReply:
    """An unchecked answer.

    Attributes:
        text: the text.
        positions: the tokens of the answer, each with the most probable tokens at its position, as far as the server
            showed them.
        read: number of tokens in the prompt; None if the server does not report it.
        cached: number of prompt tokens from the server's cache; None if the server does not report it.
        written: number of tokens in the answer; None if the server does not report it.
        ended: whether the server reports that the model ended its answer.
    """

    text: str
    positions: Sequence[Position] = ()
    read: int | None = None
    cached: int | None = None
    written: int | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class RawScores:
    """Unchecked distributions at the tokens of a given text.

    Attributes:
        way: the kind of request that returned the distributions, e.g. `"echo"`.
        own: a position for each token of the text; a token's `prob` is None if it is unknown.
        specials: number of special tokens that the answer shows before the text.
        after: the position after the text, if the answer includes it.
    """

    way: str
    own: Sequence[Position]
    specials: int = 0
    after: Position | None = None


class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Billed(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chat(BaseModel):
    choices: list[_Choice] = []
    usage: _Billed | None = None


class ProbeClient(ABC):
    """Requests to a server without an adapter's checks. A request that the server refuses raises `UnsupportedError`.

    Args:
        transport: sends the requests.
        model: the model's id.
        chat: the route for messages; None if the server has no such route.
        models: the route that lists the models; None if the server has no such route.

    Attributes:
        forcing: functions that return, for a text, request fields that may force the server to write this text and end.
    """

    forcing: Forcing = ()

    def __init__(
        self,
        transport: Transport,
        model: str,
        *,
        chat: str | None = "/v1/chat/completions",
        models: str | None = "/v1/models",
    ) -> None:
        self._transport = transport
        self._model = model
        self._chat = chat
        self._models = models

    @abstractmethod
    async def send(self, request: RawRequest, usage: Usage) -> list[RawReply]:
        """Send all prompts in one request, and return the answers, however many there are."""

    @abstractmethod
    async def score(self, text: str, usage: Usage) -> RawScores:
        """Request the distributions at the tokens of a text."""

    async def settings(self) -> dict[str, int]:
        """Request the server's start options, as far as it reports them, e.g. the number of `"slots"`."""
        return {}

    async def models(self) -> list[str]:
        """List the names of the server's models."""
        try:
            found = await self._transport.get(self._models) if self._models is not None else None
            return [one.id for one in parse(Models, found, self._transport.endpoint).data]
        except (InvalidRequestError, ResponseError):
            raise self.unable("the server does not list its models") from None

    async def recite(self, text: str, prompt: str, usage: Usage) -> RawReply:
        """Force the model to answer with this text."""
        words = "no field makes the server write a given text"
        for force in self.forcing:
            fields = force(text)
            try:
                [reply] = await self.send(RawRequest([prompt], limit=_FORCED, fields=fields), usage)
            except (InvalidRequestError, ServerError, ResponseError, ValueError) as error:
                if len(self.forcing) == 1:
                    words = f"{', '.join(fields)} is refused: {_message(error)}"
                continue
            if reply.text == text:
                return reply
        raise self.unable(words)

    async def reply(
        self, message: str, limit: int, usage: Usage, *, started: str | None = None, way: str = ""
    ) -> RawReply:
        """Request a reply to a user's message over the chat route. Some servers repeat `started` in the reply.

        Args:
            message: the user's message.
            limit: the greatest number of tokens in the reply.
            usage: the ledger that counts the request.
            started: the partial reply to continue; None to request a new reply.
            way: one of `REPLY_WAYS`.
        """
        if self._chat is None:
            raise self.unable("there is no chat route")
        fields, marks = REPLY_WAYS[way if started is not None else ""]
        messages: list[dict[str, object]] = [{"role": "user", "content": message}]
        if started is not None:
            messages.append({"role": "assistant", "content": started, **marks})
        body = {"model": self._model, "messages": messages, "max_tokens": limit, "temperature": 0, **fields}
        try:
            data = await self._transport.post(self._chat, body, usage=usage)
            answer = parse(_Chat, data, self._transport.endpoint)
        except (InvalidRequestError, ServerError, ResponseError) as error:
            raise self.unable(f"the chat route refuses it: {_message(error)}") from error
        if not answer.choices:
            raise self.unable("the chat route answers without a choice")
        choice, billed = answer.choices[0], answer.usage or _Billed()
        usage.bill(billed.prompt_tokens or 0, billed.completion_tokens or 0)
        text, ended = choice.message.content or "", choice.finish_reason == "stop"
        return RawReply(text, written=billed.completion_tokens, ended=ended)

    def unable(self, words: str) -> UnsupportedError:
        """Create the error for a request that the server refuses."""
        return UnsupportedError(words, endpoint=self._transport.endpoint)


def grammar(text: str) -> str:
    """Return a grammar (in GBNF) that allows only this text."""
    return f"root ::= {json.dumps(text, ensure_ascii=False)}"


def _message(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__
