"""The probe's clients, which lack an adapter's checks, so that wrong answers become visible.

`CompletionsProbeClient` is for servers that speak OpenAI's protocol. Other engines derive their own from `ProbeClient`.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cosd_providers.engines.openai.client import OpenAIClient, Prefix
from cosd_providers.engines.openai.echo import hidden_tokens, spelt
from cosd_providers.engines.openai.logprobs import TokenAligner
from cosd_providers.engines.openai.wire import Billed, Completion, WireAnswer
from cosd_providers.errors import InvalidRequestError, ResponseError, ServerError, UnsupportedError
from cosd_providers.greedy import TIES, Position
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.usage import Usage

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
    """A request to continue one or more prompts."""

    prompts: Sequence[Prompt]  # texts, or the ids of texts
    limit: int = 1  # the greatest number of tokens in each answer
    top: int = TIES  # the number of alternatives at each position
    temperature: float = 0.0
    fields: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True)
class RawReply:
    """An unchecked answer."""

    text: str
    # the tokens of the answer, each with the most probable tokens at its position, as far as the server showed them
    positions: Sequence[Position] = ()
    read: int | None = None  # number of tokens in the prompt; None if the server does not report it
    cached: int | None = None  # number of prompt tokens from the server's cache; None if the server does not report it
    written: int | None = None  # number of tokens in the answer; None if the server does not report it
    ended: bool = False  # whether the server reports that the model ended its answer


@dataclass(frozen=True, slots=True)
class RawScores:
    """Unchecked distributions at the tokens of a given text."""

    way: str  # the kind of request that returned the distributions, e.g. `"echo"`
    own: Sequence[Position]  # a position for each token of the text; a token's `prob` is None if it is unknown
    specials: int = 0  # number of special tokens that the answer shows before the text
    after: Position | None = None  # the position after the text, if the answer includes it


class ProbeClient(ABC):
    """Requests to a server without an adapter's checks. A request that the server refuses raises `UnsupportedError`."""

    # functions that return, for a text, request fields that may force the server to write this text and end
    forcing: Forcing = ()

    def __init__(
        self,
        transport: Transport,
        model: str,
        *,
        chat: str | None = "/v1/chat/completions",
    ) -> None:
        self._transport = transport
        self._model = model
        self._chat = chat  # the route for messages; None if the server has no such route

    @abstractmethod
    async def send(self, request: RawRequest, usage: Usage) -> list[RawReply]:
        """Send all prompts in one request, and return the answers, however many there are."""

    @abstractmethod
    async def score(self, text: str, usage: Usage) -> RawScores:
        """Request the distributions at the tokens of a text."""

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

        With `started`, the reply continues this partial reply in one of the `REPLY_WAYS`.
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
            answer = parse(WireAnswer, data, self._transport.endpoint)
        except (InvalidRequestError, ServerError, ResponseError) as error:
            raise self.unable(f"the chat route refuses it: {_message(error)}") from error
        if not answer.choices:
            raise self.unable("the chat route answers without a choice")
        choice, billed = answer.choices[0], answer.usage or Billed()
        usage.bill(billed.prompt_tokens, billed.completion_tokens or 0)
        return RawReply(choice.written, written=billed.completion_tokens, ended=choice.finish_reason == "stop")

    def unable(self, words: str) -> UnsupportedError:
        """Create the error for a request that the server refuses."""
        return UnsupportedError(words, endpoint=self._transport.endpoint)


class CompletionsProbeClient(ProbeClient):
    """The probe's client for a server that speaks OpenAI's protocol.

    `body` builds the body of a request from one or more prompts, a limit of tokens, and a number of alternatives;
    `ends` are strings and ids of known ends of sequence.
    """

    forcing: Forcing = (
        lambda text: {"grammar": grammar(text)},  # llama.cpp
        lambda text: {"structured_outputs": {"choice": [text]}},  # vLLM
        lambda text: {"guided_choice": [text]},  # vLLM before 0.12
        lambda text: {"regex": re.escape(text)},  # SGLang
    )

    def __init__(
        self,
        transport: Transport,
        path: str,
        body: Callable[[object, int, int], Mapping[str, object]],
        ends: set[str | int],
        model: str,
        *,
        chat: str | None = "/v1/chat/completions",
    ) -> None:
        super().__init__(transport, model, chat=chat)
        self._path = path
        self._body = body
        self._ends = {*ends}

    async def send(self, request: RawRequest, usage: Usage) -> list[RawReply]:
        """Send one request, and return the answers in the order of their indices."""
        prompt = request.prompts[0] if len(request.prompts) == 1 else list(request.prompts)
        body = self._body(prompt, request.limit, request.top)
        answer = await self._post({**body, "temperature": request.temperature, **request.fields}, usage)
        choices = sorted(answer.choices, key=lambda choice: choice.index)
        return [self._reply(choice, answer.usage if len(choices) == 1 else None) for choice in choices]

    async def score(self, text: str, usage: Usage) -> RawScores:
        """Score a text with an echo."""
        try:
            data = await self._post({**self._body(text, 1, TIES), "echo": True}, usage)
        except (InvalidRequestError, ServerError) as error:
            raise self.unable(f"echo with logprobs is refused: {error.args[0]}") from error
        endpoint, ends = self._transport.endpoint, {*self._ends}
        shown, rest = spelt(data.choices[0], text.encode(), endpoint, ends) if data.choices else ([], [])
        if not shown:
            words = "echo with logprobs is ignored: the answer does not begin with the text's own tokens"
            raise self.unable(words)
        first = 0 if shown[0].pick.token.data or shown[0].pick.open else 1
        return RawScores("echo", shown[first:], first + (hidden_tokens(data, len(shown)) or 0), next(iter(rest), None))

    async def _post(self, body: Mapping[str, object], usage: Usage) -> WireAnswer:
        answer = parse(WireAnswer, await self._transport.post(self._path, body, usage=usage), self._transport.endpoint)
        if answer.usage is not None:
            usage.bill(answer.usage.prompt_tokens, answer.usage.completion_tokens or 0, answer.usage.cached)
        return answer

    def _reply(self, choice: Completion, billed: Billed | None) -> RawReply:
        positions: list[Position] = []
        with suppress(ResponseError):
            positions = list(TokenAligner(self._transport.endpoint, {*self._ends}).feed(choice))
        bill = billed or Billed()
        cached = bill.prompt_tokens_details.cached_tokens if bill.prompt_tokens_details else None
        ended = choice.finish_reason == "stop"
        return RawReply(choice.written, positions, bill.prompt_tokens or None, cached, bill.completion_tokens, ended)


def probe_client(client: OpenAIClient, transport: Transport) -> CompletionsProbeClient:
    """Return the client with which the probe queries an adapter's server."""

    def body(prompt: object, limit: int, top: int) -> Mapping[str, object]:
        if client.api != "completions" and not isinstance(prompt, str):
            raise UnsupportedError("a message is one text", endpoint=transport.endpoint)
        plain = client.body(Prefix(prompt if isinstance(prompt, str) else "", ""), limit)
        if client.api == "completions":
            return {**plain, "prompt": prompt, "logprobs": top}
        return {**plain, "logprobs": True, "top_logprobs": top}

    dialect, facts = client.dialect, client.facts
    return CompletionsProbeClient(transport, client.path, body, facts.ends, facts.model, chat=dialect.chat)


def grammar(text: str) -> str:
    """Return a grammar (in GBNF) that allows only this text."""
    return f"root ::= {json.dumps(text, ensure_ascii=False)}"


def _message(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__
