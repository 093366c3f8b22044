"""The probe's client for a server that speaks OpenAI's protocol."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress

from cosd_providers.engines.openai.client import OpenAIClient, Prefix
from cosd_providers.engines.openai.echo import hidden_tokens, spelt
from cosd_providers.engines.openai.logprobs import TokenAligner
from cosd_providers.engines.openai.wire import Answer, Billed, Completion
from cosd_providers.errors import InvalidRequestError, ResponseError, ServerError, UnsupportedError
from cosd_providers.greedy import TIES, Position
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.probe_client import Forcing, ProbeClient, RawReply, RawRequest, RawScores, grammar
from cosd_providers.usage import Usage

__all__ = ["CompletionsProbeClient", "probe_client"]


class CompletionsProbeClient(ProbeClient):
    """The probe's client for a server that speaks OpenAI's protocol.

    Args:
        transport: the server.
        path: the route for requests.
        body: a function that builds the body of a request from one or more prompts, a limit of tokens, and a number of
            alternatives.
        ends: strings and ids of known ends of sequence.
        model: the model's id.
        chat: the route for messages; None if there is no such route.
        models: the route of the list of models; None if there is no list.
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
        models: str | None = "/v1/models",
    ) -> None:
        super().__init__(transport, model, chat=chat, models=models)
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

    async def _post(self, body: Mapping[str, object], usage: Usage) -> Answer:
        answer = parse(Answer, await self._transport.post(self._path, body, usage=usage), self._transport.endpoint)
        if answer.usage is not None:
            usage.bill(answer.usage.prompt_tokens, answer.usage.completion_tokens or 0, answer.usage.cached)
        return answer

    def _reply(self, choice: Completion, billed: Billed | None) -> RawReply:
        positions: list[Position] = []
        with suppress(ResponseError):
            positions = list(TokenAligner(self._transport.endpoint, {*self._ends}).feed(choice))
        details = billed.prompt_tokens_details if billed else None
        return RawReply(
            choice.written,
            positions,
            billed.prompt_tokens or None if billed else None,
            details.cached_tokens if details else None,
            billed.completion_tokens if billed else None,
            choice.finish_reason == "stop",
        )


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
    return CompletionsProbeClient(
        transport, client.path, body, facts.ends, facts.model, chat=dialect.chat, models=dialect.models
    )
