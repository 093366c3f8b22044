"""llama.cpp's own server, by its native `/completion`.

What the adapter relies on, as seen on running servers:

- Probabilities are those of the raw softmax, before samplers, penalties and `logit_bias`.
- A prompt may mix text and ids: `["text", 17, 4]` encodes the text as if it stood alone (with a
  beginning-of-sequence token where the model has one) and appends the ids. So a generation goes on from its
  own ids without `/tokenize`.
- A prompt list is answered in one array; a list of one by a bare object.
- A raw token that leaves a character unfinished is **hidden**: no event, no entry. The token that completes
  the character then shows the bytes of both, but its own probability alone. `tokens_predicted` and `tokens`
  count it, which is how it is noticed. A hidden token is found by `Completions.peek`; from behind it, the rest shows.
- After a stream the server closes the connection, sometimes a moment late: the client does not keep it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from cosd_providers.chat.templates import TemplateRefusal
from cosd_providers.contract import Capabilities, DraftEnd, Piece, Proposal, Provider, Question, ServerInfo, Token
from cosd_providers.engine import Adapter, ask_only, checked_extra, no_model
from cosd_providers.errors import InvalidRequestError, ResponseError, StatusError, UnsupportedError
from cosd_providers.greedy import answer, boundaries, within
from cosd_providers.http.limits import Limits
from cosd_providers.http.transport import DEFAULT_TIMEOUT, HttpClient, Timeout, Transport
from cosd_providers.lazy import Lazy
from cosd_providers.llama_cpp.completions import Completions
from cosd_providers.llama_cpp.drafting import Drafting
from cosd_providers.llama_cpp.examining import LlamaCppWire
from cosd_providers.llama_cpp.reading import Server
from cosd_providers.llama_cpp.wire import OWNED, Head, Ids, Models, Pieces, Props, Rendered, Slots
from cosd_providers.parsing import parse
from cosd_providers.strategies import Strategy, checked_strategy, counted
from cosd_providers.text import sendable
from cosd_providers.usage import Usage

__all__ = ["LlamaCpp"]

_CHATML = "<|im_start|>"

_SHORT = 800
"""Bytes of a prompt up to which one list is faster than single requests (docs/benchmark.md: 35 tokens, not 450)."""

_M = TypeVar("_M", bound=BaseModel)


class LlamaCpp(Adapter):
    """A model behind llama.cpp's server. See `contract.Provider`.

    Args:
        url: the server's URL, without `/v1`.
        model: its id or alias; needed where the server has several.
        api_key: the server's `--api-key`.
        headers: sent with every request.
        extra_body: merged into every generation request, e.g. `{"cache_prompt": False}` or `{"id_slot": 0}`.
        timeout: as in `Transport`.
        http_client: as in `Transport`.
        limits: as in `Transport`.
        strategy: how proposals are asked (`strategies.Strategy`); by default a list, but single requests for one
            place or after a long prompt. All give the same answers.

    Raises:
        ValueError: `extra_body` sets what the fusion itself decides; or there is no such strategy.
    """

    strategies = ("list", "singles")

    _ready_route = "/health"
    _head: Head = Head()

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, object] | None = None,
        timeout: Timeout = DEFAULT_TIMEOUT,
        http_client: HttpClient | None = None,
        limits: Limits | None = None,
        strategy: Literal["list", "singles"] | None = None,
    ) -> None:
        extra = checked_extra(extra_body, OWNED)
        self._strategy = checked_strategy(strategy, self.strategies)
        self._model = model
        self._transport = Transport(
            url, api_key=api_key, headers=headers, timeout=timeout, http_client=http_client, limits=limits
        )
        self._completions = Completions(self._transport, model, extra)
        self._server: Lazy[Server] = Lazy()
        self._beginning: Lazy[str] = Lazy()

    async def describe(self) -> ServerInfo:
        """Asks for models, context and special tokens, once."""
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
        """Streams a draft; see `contract.Provider`."""
        server = await self._known()
        start = self._head.prefix(prompt, text) if continuation is None else list(continuation)
        drafting = Drafting(
            self._transport,
            self._completions,
            server,
            start,
            alone=not text,
            alternatives=alternatives,
            usage=usage,
        )
        async with aclosing(drafting.draft(max_tokens)) as items:
            async for item in items:
                yield item

    async def propose(
        self, prompt: str, text: bytes, questions: Sequence[Question] | None, *, usage: Usage
    ) -> list[Proposal | None]:
        """All questions as the strategy says, and once more those that need it; see `contract.Provider`."""
        server, everywhere = await self._known(), questions is None
        if questions is None:
            pieces = await self.tokenize(prompt + sendable(text))
            questions = boundaries((piece.data for piece in pieces), len(prompt.encode()))
        short = len(questions) > 1 and len(prompt.encode()) <= _SHORT
        way: Strategy = self._strategy or ("list" if everywhere or short else "singles")
        start, singly = partial(self._head.prefix, prompt), way == "singles"
        go_on = partial(self._completions.go_on, server, start=start, text=text, usage=usage, singly=singly)
        return counted(await answer(questions, go_on), way, usage)

    async def score(self, prompt: str, text: bytes, *, usage: Usage) -> list[Token]:
        """One request for all tokens, and one more for each improbable token; see `contract.Provider`."""
        server = await self._known()
        pieces = await self.tokenize(prompt + sendable(text))
        start, ends, at = len(prompt.encode()), list[int](), 0
        for piece in pieces:
            at += len(piece.data)
            ends.append(at)
        first = next((i for i, end in enumerate(ends) if end > start), len(pieces))
        ids = [piece.id for piece in pieces]
        # An empty text first: it stands for the beginning-of-sequence token, where the model has one.
        before: list[list[str | int]] = [["", *ids[:i]] for i in range(first, len(ids))]
        probs = await self._completions.probs(server, before, ids[first:], usage)
        raw = [Token(piece.data, 1.0) for piece in pieces[:first]]
        raw += [Token(piece.data, prob) for piece, prob in zip(pieces[first:], probs, strict=True)]
        return within(raw, start)

    async def tokenize(self, text: str) -> list[Piece]:
        """The server's own encoding, special tokens parsed as in a prompt, none added."""
        pieces = await self._encode(text)
        surplus = sum(len(piece.data) for piece in pieces) - len(text.encode())
        if surplus == 1 and pieces[0].data[:1] == b" ":  # some tokenizers put a space before every text
            pieces[0] = Piece(pieces[0].id, pieces[0].data[1:])
        return pieces

    async def begun(self, prompt: str) -> str:
        """Without the beginning-of-sequence token that the server puts before a text."""
        if self._template is None:
            return prompt  # the server has seen to it
        return prompt.removeprefix(await self._beginning.get(self._find_beginning))

    async def _find_beginning(self) -> str:
        """The beginning-of-sequence token that the server puts before a text; empty where it puts none."""
        return (await self._ask_props()).bos_token if await self._ids("", special=True) else ""

    async def literal(self, pieces: Sequence[str]) -> Provider | None:
        """The model, given ids for all of a prompt but its last piece; None where its tokenizer adds spaces to them."""
        ids, more = await self._ids(pieces[0], special=True), [await self._encode(piece) for piece in pieces[1:]]
        if b"".join(one.data for found in more for one in found) != "".join(pieces[1:]).encode():
            return None
        view = copy(self)
        view._head = Head("".join(pieces[:-1]), (*ids, *(one.id for found in more[:-1] for one in found)))
        return view

    async def _ids(self, text: str, *, special: bool) -> list[int]:
        body = self._named(content=text, add_special=special, parse_special=True)
        return self._read(Ids, await self._transport.post("/tokenize", body)).tokens

    async def _encode(self, text: str) -> list[Piece]:
        asked = self._named(content=text, add_special=False, parse_special=True, with_pieces=True)
        return self._read(Pieces, await self._transport.post("/tokenize", asked)).pieces()

    def _named(self, **fields: object) -> dict[str, object]:
        return {**fields, "model": self._model} if self._model else fields

    async def examine(self) -> LlamaCppWire:
        """The server, to be asked freely."""
        return LlamaCppWire(self._transport, self._completions, await self._known())

    async def snapshot(self) -> dict[str, Any]:
        """What is known of the server, for `restore`."""
        known = await self._known()
        return await self._kept(known, known.info.model)

    async def _known(self) -> Server:
        """What the server is; asked once."""
        return await self._server.get(partial(self._recollected, Server, self._learn))

    async def _learn(self) -> Server:
        ask = partial(ask_only, self._transport, looks="a llama.cpp server", url="`llama-server`")
        model = self._choose(await ask(Models, "/v1/models"))
        props = await ask(Props, self._props_route())
        end = await self._encode(props.eos_token)
        visible = await self._encode("a")
        if not visible:
            raise ResponseError("/tokenize gave no token for a letter", endpoint=self._transport.endpoint)
        able = Capabilities(token_ids=True, end_prob=True, tokenize=True, score=True)
        info = ServerInfo(
            endpoint=self._transport.endpoint,
            engine="llama.cpp",
            model=model,
            build=props.build_info,
            context=props.default_generation_settings.n_ctx,
            capabilities=able,
            answer_cue=await self._answer_cue(),
        )
        server = Server(info, {end[0].id: props.eos_token} if len(end) == 1 else {}, visible[-1].id)
        if await self._speculates():
            raise server.speculative()
        return server

    async def _answer_cue(self) -> str | None:
        """What the chat template writes before an answer; None where the model has no template of its own."""
        mark = "\U000f0000"
        try:
            rendered = await self._render([{"role": "user", "content": mark}])
        except (StatusError, ResponseError, UnsupportedError, TemplateRefusal):
            return None
        cue = rendered.rpartition(mark)[2]
        # A model without a template is given ChatML by the server: then its marks are no tokens of the model.
        own = _CHATML not in cue or len(await self._encode(_CHATML)) == 1
        return cue if own and mark in rendered else None

    async def _render(self, messages: list[dict[str, str]]) -> str:
        """By `/apply-template`, which leaves out the beginning-of-sequence token that `/completion` adds."""
        try:
            found = await self._transport.post("/apply-template", self._named(messages=messages))
            return self._read(Rendered, found).prompt
        except InvalidRequestError as error:  # what the template raises comes so
            if error.status == 404:  # an older server
                return await super()._render(messages)
            raise TemplateRefusal(error.args[0]) from None

    def _props_route(self) -> str:
        return f"/props?model={quote(self._model)}" if self._model else "/props"

    async def _ask_props(self) -> Props:
        return self._read(Props, await self._transport.get(self._props_route()))

    async def _speculates(self) -> bool:
        """Whether the server says so; it need not show its slots."""
        try:
            return any(slot.speculative for slot in self._read(Slots, await self._transport.get("/slots")).root)
        except (StatusError, ResponseError):
            return False

    def _choose(self, models: Models) -> str:
        """The id of the model to use."""
        for model in models.data:
            if self._model in (model.id, *model.aliases) or (self._model is None and len(models.data) == 1):
                return model.id
        raise no_model(self._model, (model.id for model in models.data), self._transport.endpoint)

    def _read(self, kind: type[_M], data: object) -> _M:
        return parse(kind, data, self._transport.endpoint)
