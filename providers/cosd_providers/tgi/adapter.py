"""Hugging Face TGI (text-generation-inference), by its native `/generate` and `/generate_stream`.

What the adapter relies on, from the server's published API document (version 3.3.6) and its source; no such server
was at hand to run:

- It takes text only. A draft goes on from text, and a chain that needs more is asked again from the same text.
- Greedy decoding is what it does where nothing samples; probabilities are then those of the raw softmax, that of the
  end of sequence too. Every token is held against the most probable ones (`top_n_tokens`). The neuron backend has no
  numbers and the llama.cpp backend always samples: both are refused.
- An answer that has all the tokens that were asked for ended for its `"length"`, whatever its last token is. Where that
  is a special token that was not seen to end an answer, one token more is asked for once, to see.
- `/tokenize` counts bytes.
- A token that leaves a character unfinished has an empty text, and the one that completes it the text of both. A
  listed token is decoded alone: a part of a character is U+FFFD there.
- Of the tokens of a prompt it tells the probability, never the alternatives, and only where it was started with
  `--enable-prefill-logprobs`. A token above one half is the most probable one: that is the **filter** of `propose`.
- Errors of `/generate_stream` come as an event, after a status of success.
- A prompt that is too long is refused; where the server has no fast tokenizer, it is cut without a word.
- `/chat_tokenize` renders messages. Its text has the beginning of sequence that `/generate` puts before every text: it
  is taken off. Special tokens that a user's message holds as text are read as such: no request takes ids.
- Only the end of a stream tells what the prompt has in tokens. A draft that is left before it is billed what was
  counted beside it; where the text is long and most of it was counted before, what it then has in proportion.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Capabilities, DraftEnd, Piece, Proposal, Question, ServerInfo, Token
from cosd_providers.engine import Adapter, ask_only, checked_extra
from cosd_providers.errors import ModelChoiceError
from cosd_providers.greedy import Continuation, Position, along, answer, boundaries, within
from cosd_providers.http.limits import Limits
from cosd_providers.http.retries import until_answered
from cosd_providers.http.transport import DEFAULT_TIMEOUT, HttpClient, Timeout, Transport
from cosd_providers.lazy import Lazy
from cosd_providers.strategies import Strategy, checked_strategy, counted, marked
from cosd_providers.text import sendable
from cosd_providers.tgi.drafting import Drafting
from cosd_providers.tgi.examining import TgiWire
from cosd_providers.tgi.reading import Around, Server
from cosd_providers.tgi.requests import Requests
from cosd_providers.tgi.wire import OWNED, Info
from cosd_providers.tokenizers import load_tokenizer
from cosd_providers.usage import Usage

__all__ = ["Tgi"]

_DOUBLED = 16  # raw tokens of a chain, up to which as many are asked for again

_Known = dict[int, tuple[list[int], list[Position]]]


class Tgi(Adapter):
    """A model behind TGI. See `contract.Provider`.

    Args:
        url: the server's URL.
        model: its id; only to be sure that it is the right one, a server has one.
        api_key: the server's `--api-key`.
        headers: sent with every request.
        tokenizer: the model's own, or what `load_tokenizer` takes: only for servers that do not encode text for others
            (no fast tokenizer), where prompts may come near the limit.
        extra_body: merged into the `parameters` of every generation, e.g. `{"adapter_id": "name"}`.
        timeout: as in `Transport`.
        http_client: as in `Transport`.
        limits: as in `Transport`.
        strategy: how proposals are asked (`strategies.Strategy`); by default by the filter where the server has it and
            more than one place is asked for. All give the same answers.

    Raises:
        ValueError: `extra_body` sets what the fusion itself decides, `tokenizer` cannot be read, or there is no such
            strategy.
    """

    strategies = ("filter", "singles")

    _ready_route = "/health"

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tokenizer: object = None,
        extra_body: Mapping[str, object] | None = None,
        timeout: Timeout = DEFAULT_TIMEOUT,
        http_client: HttpClient | None = None,
        limits: Limits | None = None,
        strategy: Literal["filter", "singles"] | None = None,
    ) -> None:
        extra = checked_extra(extra_body, OWNED)
        self._model = model
        self._strategy = checked_strategy(strategy, self.strategies)
        self._transport = Transport(
            url, api_key=api_key, headers=headers, timeout=timeout, http_client=http_client, limits=limits
        )
        local = load_tokenizer(tokenizer) if tokenizer is not None else None
        self._requests = Requests(self._transport, extra, local)
        self._server = Lazy[Server]()

    async def describe(self) -> ServerInfo:
        """Asks what the server has and what it was started with, once; for the latter it generates one token."""
        return (await self._known()).info

    async def generate(
        self,
        prompt: str,
        text: bytes,
        *,
        max_tokens: int,
        continuation: Any = None,
        alternatives: int = 0,
        usage: Usage,
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Streams a draft; see `contract.Provider`. It goes on from text alone: no draft has a continuation."""
        del continuation
        server = await self._known()
        drafting = Drafting(self._requests, server, prompt, text, usage, alternatives)
        async with aclosing(drafting.draft(max_tokens)) as items:
            async for item in items:
                yield item

    async def propose(
        self, prompt: str, text: bytes, questions: Sequence[Question] | None, *, usage: Usage
    ) -> list[Proposal | None]:
        """All questions as the strategy says, and once more those that need it; see `contract.Provider`."""
        server = await self._known()
        if questions is None:
            pieces = await self.tokenize(prompt + sendable(text))
            questions = boundaries((piece.data for piece in pieces), len(prompt.encode()))

        async def ask(chains: list[Continuation], known: _Known | None = None) -> list[Iterable[Position]]:
            async def ask_one(chain: Continuation) -> Iterable[Position]:
                if known and not chain.ids and chain.question.start in known:
                    return along(chain, *known[chain.question.start])
                return await self._go_on(server, chain, prompt, text, usage)

            return await concurrently([partial(ask_one, chain) for chain in chains])

        able = server.prefill and server.around is not None and not server.around.after
        way: Strategy = self._strategy or ("filter" if able and len(questions) > 1 else "singles")
        known = await self._filtered(server, prompt, text, questions, usage) if way == "filter" else None
        found = await answer(questions, partial(ask, known=known))
        return counted(found if known is None else marked(found, "singles", but=known), way, usage)

    async def _go_on(
        self, server: Server, chain: Continuation, prompt: str, text: bytes, usage: Usage
    ) -> list[Position]:
        """What follows in a chain: asked from the last text that only the chain knows, past what is known already."""
        taken, data = chain.turned
        before = prompt + sendable(text[: chain.question.start] + data)
        again = chain.ids[taken:]
        wanted = len(again) + max(chain.wanted, min(len(again), _DOUBLED))  # it goes through all again each time
        limit = await self._requests.room(server, before, wanted)
        if limit <= len(again):
            if not chain.ids:  # the text itself is too long for this model
                raise await self._requests.too_long(server, before)
            return []  # its answer has reached the end of the context: it cannot go on

        async def read(attempt: int) -> list[Position]:
            async with self._requests.stream(server, before, limit, usage, attempt=attempt, top=server.top) as events:
                return [server.position(event) async for event in events]

        positions = await until_answered(read)
        if [position.pick.id for position in positions[: len(again)]] != again:
            return []  # the server has changed its mind: what was known stands, and nothing can follow
        return positions[len(again) :]

    async def _filtered(
        self, server: Server, prompt: str, text: bytes, questions: Sequence[Question], usage: Usage
    ) -> _Known:
        """What one scored text tells: for places in it the text's own ids from there, and what the model says.

        It answers only where the encoding of the text before is what the encoding of the whole begins with.
        """
        starts = sorted({question.start for question in questions})
        if not server.prefill:
            raise server.unscored()
        least = 1 if self._strategy else 2
        if server.around is None or server.around.after:
            return {}
        whole = prompt + sendable(text)
        if len(starts) < least or await self._requests.room(server, whole, 1) < 1:
            return {}
        cuts = [whole, *(prompt + sendable(text[:at]) for at in starts)]
        own, *parts = await concurrently([partial(self._requests.encode, server, cut) for cut in cuts])
        sizes = {at: len(part.ids) for at, part in zip(starts, parts, strict=True)}
        places = {at: sizes[at] for at, part in zip(starts, parts, strict=True) if own.ids[: sizes[at]] == part.ids}
        if len(places) < least:
            return {}
        scored = await self._requests.prefill(server, whole, own, usage)
        told = {at: server.likely(scored, place) for at, place in places.items()}
        return {at: (own.ids[places[at] :], positions) for at, positions in told.items() if positions}

    async def score(self, prompt: str, text: bytes, *, usage: Usage) -> list[Token]:
        """One request for all tokens; see `contract.Provider`."""
        server = await self._known()
        if not server.prefill:
            raise server.unscored()
        whole = prompt + sendable(text)
        own = await self._requests.encode(server, whole)
        if await self._requests.room(server, whole, 1) < 1:
            raise await self._requests.too_long(server, whole)
        scored = await self._requests.prefill(server, whole, own, usage)
        return within(scored.tokens(), len(prompt.encode()))

    async def tokenize(self, text: str) -> list[Piece]:
        """The server's own encoding; of tokens that share a character the last one has the bytes of all."""
        return await self._requests.pieces(await self._known(), text)

    async def _for_chat(self) -> Self:
        """This server, special tokens in its answer shown."""
        view = copy(self)
        view._is_chat = True
        return view

    async def _render(self, messages: list[dict[str, str]]) -> str:
        return await self._requests.rendered(messages)

    async def begun(self, prompt: str) -> str:
        """A rendered prompt without the beginning of sequence that the server puts before every text."""
        return await self._requests.unbegun(await self._known(), prompt)

    async def examine(self) -> TgiWire:
        """The server, to be asked freely."""
        return TgiWire(self._transport, self._requests, await self._known())

    async def snapshot(self) -> dict[str, Any]:
        """What is known of the server, for `restore`."""
        known = await self._known()
        return await self._kept(known, known.info.model)

    async def _known(self) -> Server:
        """What the server is; asked once."""
        known = await self._server.get(partial(self._recollected, Server, self._learn))
        return replace(known, shows=True) if self._is_chat else known

    async def _served(self, model: str) -> dict[str, Any]:
        """By `/info`: older versions have no `/v1/models`."""
        info = await self._info()
        return {"id": info.model_id, "version": info.version} if info.model_id == model else {}

    async def _learn(self) -> Server:
        card = await self._info()
        letter = await self._requests.letter()
        around = Around.seen(letter) if letter else None
        answer, top = await self._requests.abilities()
        prefill = bool(answer.details.prefill)
        able = Capabilities(token_ids=False, end_prob=True, tokenize=self._requests.encodes(around), score=prefill)
        info = ServerInfo(
            endpoint=self._transport.endpoint,
            engine="tgi",
            model=card.model_id,
            build=card.version,
            context=card.max_total_tokens,
            capabilities=able,
            longest_prompt=card.max_input_tokens,
            answer_cue=await self._requests.answer_cue(),
        )
        server = Server(info, card.max_input_tokens, around, prefill and around is not None, top)
        server.check(letter, answer)
        return server

    async def _info(self) -> Info:
        """What only this engine answers."""
        looks = "TGI (text-generation-inference)"
        info = await ask_only(self._transport, Info, "/info", looks=looks, url="the server")
        if self._model not in (None, info.model_id):
            words = f"no model {self._model!r}; the server has {info.model_id!r}"
            raise ModelChoiceError(words, endpoint=self._transport.endpoint, hint="Give that as `model`, or none.")
        return info
