"""What TGI is asked by the probe: freely, and without the adapter's own checks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cosd_providers.contract import Token
from cosd_providers.engines.openai.examining import reply
from cosd_providers.engines.tgi import Event, Generated, TgiClient, parameters
from cosd_providers.errors import InvalidRequestError
from cosd_providers.findings import Prompt, Said, Scoring, unseen
from cosd_providers.greedy import TIES, Choice, Position
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.usage import Usage

__all__ = ["TgiWire"]

_FORCED = 48  # tokens, at most, of a text that the server is made to write


class Last(Event):
    """An event; the last one has the whole text."""

    generated_text: str | None = None


class TgiWire:
    """A TGI server, asked freely: see `findings.Wire`.

    Args:
        transport: the server.
        client: encodes texts and reads answers.
    """

    def __init__(self, transport: Transport, client: TgiClient) -> None:
        self._transport = transport
        self._client = client

    async def settings(self) -> dict[str, int]:
        """None that matter."""
        return {}

    async def models(self) -> list[str]:
        """The one of `/info`."""
        return [(await self._client.info()).model_id]

    async def ask(
        self, prompts: Sequence[Prompt], usage: Usage, *, limit: int = 1, top: int = TIES, temperature: float = 0.0
    ) -> list[Said]:
        """One text."""
        if len(prompts) != 1 or not isinstance(prompts[0], str):
            raise unseen(self._transport.endpoint, "/generate takes one text at a time")
        sampling: dict[str, object] = {"do_sample": True, "temperature": temperature} if temperature else {}
        return [await self._said(prompts[0], {**parameters(limit, top), **sampling}, usage)]

    async def score(self, text: str, usage: Usage) -> Scoring:
        """By `decoder_input_details`, which tells of each token its own probability and no other."""
        own = await self._client.encode(text)
        body = {"inputs": text, "parameters": parameters(1, self._client.facts.top, prefill=True)}
        try:
            answer = await self._transport.post("/generate", body, usage=usage)
        except InvalidRequestError as error:
            raise unseen(self._transport.endpoint, f"decoder_input_details is refused: {error.args[0]}") from error
        details = parse(Generated, answer, self._transport.endpoint).details
        usage.bill(len(own.all), details.generated_tokens)
        if not details.prefill:
            raise unseen(self._transport.endpoint, "decoder_input_details is ignored: nothing of the prompt is told")
        if [word.id for word in details.prefill] != own.all:
            raise unseen(self._transport.endpoint, "the tokens of the prompt are not those of /tokenize")
        told = details.prefill[own.before :]
        positions = [
            Position(Choice(word.id, Token(data, word.prob))) for word, data in zip(told, own.data, strict=False)
        ]
        return Scoring("prefill", positions, own.before)

    async def recite(self, text: str, prompt: str, usage: Usage) -> Said:
        """By a regular expression that allows nothing else."""
        grammar = {"grammar": {"type": "regex", "value": re.escape(text)}}
        try:
            return await self._said(prompt, {**parameters(_FORCED, self._client.facts.top), **grammar}, usage)
        except InvalidRequestError as error:
            raise unseen(self._transport.endpoint, f"a grammar is refused: {error.args[0]}") from error

    async def reply(self, message: str, limit: int, usage: Usage, *, started: str | None = None, way: str = "") -> Said:
        """By the chat route."""
        path, model = "/v1/chat/completions", self._client.facts.info.model
        return await reply(self._transport, path, model, message, limit, usage, started=started, way=way)

    async def _said(self, text: str, asked: dict[str, object], usage: Usage) -> Said:
        events: list[Last] = []
        body = {"inputs": text, "parameters": asked}
        async with self._transport.stream("/generate_stream", body, usage=usage) as stream:
            events += [parse(Last, event, self._transport.endpoint) async for event in stream]
        last = events[-1] if events else None
        details = last.details if last else None
        read = details.input_length if details else None
        usage.bill(read or 0, len(events))
        return Said(
            (last.generated_text or "" if last else ""),
            [self._client.position(event) for event in events],
            read,
            None,
            len(events),
            details is not None and details.finish_reason == "eos_token",
        )
