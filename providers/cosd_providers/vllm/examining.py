"""The probe's client of vLLM."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from cosd_providers.contract import Piece, Token
from cosd_providers.engines.openai.probe_client import CompletionsProbeClient
from cosd_providers.engines.openai.wire import Ranked
from cosd_providers.errors import InvalidRequestError
from cosd_providers.greedy import TIES, Choice, Position, prob
from cosd_providers.http.transport import Transport
from cosd_providers.probe_client import RawReply, RawRequest, RawScores
from cosd_providers.usage import Usage
from cosd_providers.vllm.asking import Asking
from cosd_providers.vllm.wire import Server

__all__ = ["VllmProbeClient"]


class VllmProbeClient(CompletionsProbeClient):
    """A vLLM server.

    Args:
        transport: the server.
        asking: makes its requests.
        server: what is known of it.
        encode: gives the tokens of a text.
    """

    def __init__(
        self, transport: Transport, asking: Asking, server: Server, encode: Callable[[str], Awaitable[list[Piece]]]
    ) -> None:
        def body(prompt: object, limit: int, top: int) -> Mapping[str, object]:
            return asking.body(server.info.model, prompt, limit, logprobs=top)

        super().__init__(transport, "/v1/completions", body, server.ends, server.info.model)
        self._server = server
        self._encode = encode

    async def send(self, request: RawRequest, usage: Usage) -> list[RawReply]:
        """One request."""
        sent = [one if isinstance(one, str) else [*self._server.beginning, *one] for one in request.prompts]
        return await super().send(replace(request, prompts=sent), usage)

    async def score(self, text: str, usage: Usage) -> RawScores:
        """By `prompt_logprobs`, whose entries are keyed by id."""
        pieces = await self._encode(text)
        sent = [*self._server.beginning, *(piece.id for piece in pieces)]
        try:
            answer = await self._post({**self._body(sent, 1, TIES), "prompt_logprobs": TIES}, usage)
        except InvalidRequestError as error:
            raise self.unable(f"prompt_logprobs is refused: {error.args[0]}") from error
        ranked = answer.choices[0].prompt_logprobs if answer.choices else None
        if ranked is None or len(ranked) != len(sent):
            raise self.unable("prompt_logprobs is ignored: the answer does not hold it")
        before = len(self._server.beginning)
        own = [_position(piece, entry or {}) for piece, entry in zip(pieces, ranked[before:], strict=True)]
        after = next(iter(self._reply(answer.choices[0], None).positions), None)
        return RawScores("prompt_logprobs", own, before, after)


def _position(piece: Piece, entry: Mapping[int, Ranked]) -> Position:
    own = entry.get(piece.id)
    others = [
        Choice(token_id, Token((one.decoded_token or "").encode(), prob(one.logprob)))
        for token_id, one in entry.items()
        if token_id != piece.id
    ]
    return Position(Choice(piece.id, Token(piece.data, prob(own.logprob) if own else None)), others)
