"""The probe's client of SGLang."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from cosd_providers.greedy import TIES, Position, prob
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.probe_client import ProbeClient, Prompt, RawReply, RawScores
from cosd_providers.sglang.asking import Asking
from cosd_providers.sglang.strings import Strings
from cosd_providers.sglang.wire import Answer, Server, Triple
from cosd_providers.usage import Usage

__all__ = ["SglangProbeClient"]

_Tops = Sequence[Sequence[Triple] | None] | None


class SglangProbeClient(ProbeClient):
    """An SGLang server.

    Args:
        transport: the server.
        asking: makes its requests.
        server: what is known of it.
    """

    forcing = (lambda text: {"regex": re.escape(text)},)

    def __init__(self, transport: Transport, asking: Asking, server: Server) -> None:
        super().__init__(transport, server.info.model)
        self._asking = asking
        self._server = server

    async def ask(
        self,
        prompts: Sequence[Prompt],
        usage: Usage,
        *,
        limit: int = 1,
        top: int = TIES,
        temperature: float = 0.0,
        **fields: object,
    ) -> list[RawReply]:
        """One request; further fields are those of the sampling."""
        sent = [one if isinstance(one, str) else [*self._server.beginning, *one] for one in prompts]
        key = "text" if all(isinstance(one, str) for one in prompts) else "input_ids"
        asked: dict[str, Any] = {key: sent[0] if len(sent) == 1 else sent, "logprob_start_len": -1}
        answers = await self._post(limit, top, usage, {"temperature": temperature, **fields}, asked)
        return [await self._reply(answer, usage) for answer in answers]

    async def score(self, text: str, usage: Usage) -> RawScores:
        """The tokens of a prompt, from the first one on."""
        [answer] = await self._post(1, TIES, usage, {}, {"text": text, "logprob_start_len": 0})
        meta = answer.meta_info
        if not meta.input_token_logprobs:
            raise self.unable("logprob_start_len is ignored: the answer does not hold the tokens of the prompt")
        own = await self._positions(meta.input_token_logprobs, meta.input_top_logprobs, usage)
        before = len(self._server.beginning)
        after = await self._positions(meta.output_token_logprobs or [], meta.output_top_logprobs, usage)
        return RawScores("logprob_start_len", own[before:], before, next(iter(after), None))

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

    async def _reply(self, answer: Answer, usage: Usage) -> RawReply:
        meta = answer.meta_info
        ended = meta.finish_reason is not None and meta.finish_reason.type == "stop"
        if ended and meta.output_token_logprobs:
            Strings(self._asking, self._server, usage).ended(meta.output_token_logprobs[-1][1])
        positions = await self._positions(meta.output_token_logprobs or [], meta.output_top_logprobs, usage)
        read, cached = meta.prompt_tokens, meta.cached_tokens
        return RawReply(answer.text or "", positions, read, cached, meta.completion_tokens, ended)

    async def _positions(self, entries: Sequence[Triple], tops: _Tops, usage: Usage) -> list[Position]:
        """The tokens of an answer with the bytes of their ids."""
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
