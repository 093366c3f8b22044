"""What SGLang is asked by the probe: freely, and without the adapter's own checks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from cosd_providers.engine import Models
from cosd_providers.engines.openai.examining import reply
from cosd_providers.errors import InvalidRequestError
from cosd_providers.findings import Prompt, Said, Scoring, unseen
from cosd_providers.greedy import TIES, Position, prob
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.sglang.asking import Asking
from cosd_providers.sglang.strings import Strings
from cosd_providers.sglang.wire import Answer, Server, Triple
from cosd_providers.usage import Usage

__all__ = ["SglangWire"]

_FORCED = 48  # tokens, at most, of a text that the server is made to write

_Tops = Sequence[Sequence[Triple] | None] | None


class SglangWire:
    """An SGLang server, asked freely: see `findings.Wire`.

    Args:
        transport: the server.
        asking: makes its requests.
        server: what is known of it.
    """

    def __init__(self, transport: Transport, asking: Asking, server: Server) -> None:
        self._transport = transport
        self._asking = asking
        self._server = server

    async def settings(self) -> dict[str, int]:
        """None that matter here are told."""
        return {}

    async def models(self) -> list[str]:
        """What `/v1/models` lists."""
        listed = parse(Models, await self._transport.get("/v1/models"), self._transport.endpoint)
        return [model.id for model in listed.data]

    async def ask(
        self, prompts: Sequence[Prompt], usage: Usage, *, limit: int = 1, top: int = TIES, temperature: float = 0.0
    ) -> list[Said]:
        """One request; before ids stands what the server puts before a text."""
        sent = [one if isinstance(one, str) else [*self._server.beginning, *one] for one in prompts]
        key = "text" if all(isinstance(one, str) for one in prompts) else "input_ids"
        fields: dict[str, Any] = {key: sent[0] if len(sent) == 1 else sent, "logprob_start_len": -1}
        answers = await self._post(limit, top, usage, {"temperature": temperature}, fields)
        return [await self._said(answer, usage) for answer in answers]

    async def score(self, text: str, usage: Usage) -> Scoring:
        """The tokens of a prompt, from the first one on."""
        [answer] = await self._post(1, TIES, usage, {}, {"text": text, "logprob_start_len": 0})
        meta = answer.meta_info
        if not meta.input_token_logprobs:
            words = "logprob_start_len is ignored: the answer does not hold the tokens of the prompt"
            raise unseen(self._transport.endpoint, words)
        own = await self._positions(meta.input_token_logprobs, meta.input_top_logprobs, usage)
        before = len(self._server.beginning)
        after = await self._positions(meta.output_token_logprobs or [], meta.output_top_logprobs, usage)
        return Scoring("logprob_start_len", own[before:], before, next(iter(after), None))

    async def recite(self, text: str, prompt: str, usage: Usage) -> Said:
        """By a regular expression that allows nothing else."""
        fields = {"text": prompt, "logprob_start_len": -1}
        try:
            [answer] = await self._post(_FORCED, TIES, usage, {"regex": re.escape(text)}, fields)
        except InvalidRequestError as error:
            raise unseen(self._transport.endpoint, f"regex is refused: {error.args[0]}") from error
        return await self._said(answer, usage)

    async def reply(self, message: str, limit: int, usage: Usage, *, started: str | None = None, way: str = "") -> Said:
        """By the chat route."""
        path, model = "/v1/chat/completions", self._server.info.model
        return await reply(self._transport, path, model, message, limit, usage, started=started, way=way)

    async def _post(
        self, limit: int, top: int, usage: Usage, sampling: dict[str, object], fields: dict[str, Any]
    ) -> list[Answer]:
        body = self._asking.body(self._server, limit, top=top, sampling=sampling, **fields)
        data = await self._transport.post("/generate", body, usage=usage)
        listed = cast("list[object]", data) if isinstance(data, list) else [cast("object", data)]
        answers = [parse(Answer, one, self._transport.endpoint) for one in listed]
        for answer in answers:
            meta = answer.meta_info
            usage.bill(meta.prompt_tokens, meta.completion_tokens, meta.cached_tokens)
        return answers

    async def _said(self, answer: Answer, usage: Usage) -> Said:
        meta = answer.meta_info
        ended = meta.finish_reason is not None and meta.finish_reason.type == "stop"
        if ended and meta.output_token_logprobs:
            Strings(self._asking, self._server, usage).ended(meta.output_token_logprobs[-1][1])
        positions = await self._positions(meta.output_token_logprobs or [], meta.output_top_logprobs, usage)
        written = meta.completion_tokens
        return Said(answer.text or "", positions, meta.prompt_tokens, meta.cached_tokens, written, ended)

    async def _positions(self, entries: Sequence[Triple], tops: _Tops, usage: Usage) -> list[Position]:
        """What is told at each token, with what the ids say."""
        strings = Strings(self._asking, self._server, usage)
        listed = [top or () for top in tops or [()] * len(entries)]
        runs = await strings.walk([token_id for _, token_id, _ in entries])
        await strings.know((*run, other) for run, top in zip(runs, listed, strict=False) for _, other, _ in top)
        return [
            Position(
                strings.choice(run, token_id, prob(own)),
                [strings.choice(run, other, prob(value)) for value, other, _ in top],
            )
            for run, (own, token_id, _), top in zip(runs, entries, listed, strict=False)
        ]
