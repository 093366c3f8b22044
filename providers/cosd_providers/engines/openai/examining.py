"""What a server that speaks OpenAI's protocol is asked by the probe: freely, and without the adapter's own checks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from cosd_providers.engines.openai.client import OpenAIClient, Prefix
from cosd_providers.engines.openai.dialects import Dialect
from cosd_providers.engines.openai.echo import hidden_tokens, spelt
from cosd_providers.engines.openai.logprobs import TokenAligner
from cosd_providers.engines.openai.wire import Answer, Billed, Completion, Models, bill
from cosd_providers.errors import InvalidRequestError, ResponseError, ServerError
from cosd_providers.findings import Prompt, Said, Scoring, unseen
from cosd_providers.greedy import TIES, Position
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.usage import Usage

__all__ = ["CompletionsWire", "grammar", "reply", "wire_of"]

_FORCED = 48  # tokens, at most, of a text that a server is made to write

_CONTINUES: Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
    "": ({}, {}),
    "continue_final_message": ({"continue_final_message": True, "add_generation_prompt": False}, {}),
    "prefix": ({}, {"prefix": True}),
}
"""How a reply is said to be started: fields of the request, and of the message. What is not known is mostly ignored."""


def grammar(text: str) -> str:
    """A grammar (GBNF) that allows one text."""
    return f"root ::= {json.dumps(text, ensure_ascii=False)}"


_FORCES: Sequence[Callable[[str], Mapping[str, object]]] = (
    lambda text: {"grammar": grammar(text)},
    lambda text: {"structured_outputs": {"choice": [text]}},
    lambda text: {"guided_choice": [text]},
    lambda text: {"regex": re.escape(text)},
)
"""How servers are made to write a text: llama.cpp, vLLM, vLLM before 0.12, SGLang."""


class CompletionsWire:
    """A server that speaks OpenAI's protocol, asked freely: see `findings.Wire`.

    Args:
        transport: the server.
        path: the route for raw text.
        body: makes a request of a prompt (or several), a limit of tokens, and a number of alternatives.
        ends: strings and ids of ends of sequence that are known.
        model: the model's id.
        chat: the route for messages; None where there is none.
        models: the list of models; None where there is none.
    """

    def __init__(
        self,
        transport: Transport,
        path: str,
        body: Callable[[object, int, int], Mapping[str, object]],
        ends: set[str | int],
        model: str,
        *,
        chat: str | None = "/v1/chat/completions",
        models: str | None = "/v1/models",
    ) -> None:
        self._transport = transport
        self._path = path
        self._body = body
        self._ends = {*ends}
        self._model = model
        self._chat = chat
        self._models = models

    async def settings(self) -> dict[str, int]:
        """None are told."""
        return {}

    async def models(self) -> list[str]:
        """What the server lists."""
        try:
            found = await self._transport.get(self._models) if self._models is not None else None
            return [one.id for one in parse(Models, found, self._transport.endpoint).data]
        except (InvalidRequestError, ResponseError):
            raise unseen(self._transport.endpoint, "the server does not list its models") from None

    async def ask(
        self, prompts: Sequence[Prompt], usage: Usage, *, limit: int = 1, top: int = TIES, temperature: float = 0.0
    ) -> list[Said]:
        """The answers in the order of their indices; as many as came."""
        prompt = prompts[0] if len(prompts) == 1 else list(prompts)
        return await self._sent({**self._body(prompt, limit, top), "temperature": temperature}, usage)

    async def score(self, text: str, usage: Usage) -> Scoring:
        """The echo of a text."""
        try:
            data = await self._post({**self._body(text, 1, TIES), "echo": True}, usage)
        except (InvalidRequestError, ServerError) as error:
            raise unseen(self._transport.endpoint, f"echo with logprobs is refused: {_words(error)}") from error
        endpoint, ends = self._transport.endpoint, {*self._ends}
        shown, rest = spelt(data.choices[0], text.encode(), endpoint, ends) if data.choices else ([], [])
        if not shown:
            words = "echo with logprobs is ignored: the answer does not begin with the text's own tokens"
            raise unseen(endpoint, words)
        first = 0 if shown[0].pick.token.data or shown[0].pick.open else 1
        return Scoring("echo", shown[first:], first + (hidden_tokens(data, len(shown)) or 0), next(iter(rest), None))

    async def recite(self, text: str, prompt: str, usage: Usage) -> Said:
        """An answer that can only be this text, by whatever the server knows of."""
        for force in _FORCES:
            body = {**self._body(prompt, _FORCED, TIES), **force(text)}
            try:
                [said] = await self._sent(body, usage)
            except (InvalidRequestError, ServerError, ResponseError, ValueError):
                continue
            if said.text == text:
                return said
        raise unseen(self._transport.endpoint, "no field makes the server write a given text")

    async def reply(self, message: str, limit: int, usage: Usage, *, started: str | None = None, way: str = "") -> Said:
        """By the chat route."""
        return await reply(self._transport, self._chat, self._model, message, limit, usage, started=started, way=way)

    async def _post(self, body: Mapping[str, object], usage: Usage) -> Answer:
        answer = parse(Answer, await self._transport.post(self._path, body, usage=usage), self._transport.endpoint)
        bill(usage, answer.usage)
        return answer

    async def _sent(self, body: Mapping[str, object], usage: Usage) -> list[Said]:
        answer = await self._post(body, usage)
        choices = sorted(answer.choices, key=lambda choice: choice.index)
        return [self._said(choice, answer.usage if len(choices) == 1 else None) for choice in choices]

    def _said(self, choice: Completion, billed: Billed | None) -> Said:
        positions: list[Position] = []
        with suppress(ResponseError):
            positions = list(TokenAligner(self._transport.endpoint, {*self._ends}).feed(choice))
        details = billed.prompt_tokens_details if billed else None
        return Said(
            choice.written,
            positions,
            billed.prompt_tokens or None if billed else None,
            details.cached_tokens if details else None,
            billed.completion_tokens if billed else None,
            choice.finish_reason == "stop",
        )


def wire_of(client: OpenAIClient, dialect: Dialect, transport: Transport, api: str) -> CompletionsWire:
    """The server behind an adapter."""

    def body(prompt: object, limit: int, top: int) -> Mapping[str, object]:
        text = prompt if isinstance(prompt, str) else ""
        plain = client.body(Prefix(text, ""), limit)
        if api == "completions":
            return {**plain, "prompt": prompt, "logprobs": top}
        if not isinstance(prompt, str):
            raise unseen(transport.endpoint, "a message is one text")
        return {**plain, "logprobs": True, "top_logprobs": top}

    return CompletionsWire(
        transport, client.path, body, client.facts.ends, client.facts.model, chat=dialect.chat, models=dialect.models
    )


async def reply(
    transport: Transport,
    path: str | None,
    model: str,
    message: str,
    limit: int,
    usage: Usage,
    *,
    started: str | None = None,
    way: str = "",
) -> Said:
    """The reply to a message by the chat route; some servers repeat what it was `started` with.

    Raises:
        UnsupportedError: there is no such route, or it refuses this.
    """
    if path is None:
        raise unseen(transport.endpoint, "there is no chat route")
    fields, marks = _CONTINUES[way if started is not None else ""]
    messages: list[dict[str, object]] = [{"role": "user", "content": message}]
    if started is not None:
        messages.append({"role": "assistant", "content": started, **marks})
    body = {"model": model, "messages": messages, "max_tokens": limit, "temperature": 0, **fields}
    try:
        answer = parse(Answer, await transport.post(path, body, usage=usage), transport.endpoint)
    except (InvalidRequestError, ServerError, ResponseError) as error:
        raise unseen(transport.endpoint, f"the chat route refuses it: {_words(error)}") from error
    bill(usage, answer.usage)
    if not answer.choices:
        raise unseen(transport.endpoint, "the chat route answers without a choice")
    choice, billed = answer.choices[0], answer.usage
    written = billed.completion_tokens if billed else None
    return Said(choice.written, written=written, ended=choice.finish_reason == "stop")


def _words(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__
