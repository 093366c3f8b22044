"""vLLM, by `/v1/completions`, `/tokenize` and `/detokenize`.

What the adapter relies on, as seen on a running server (0.32) and read in its source:

- A prompt is a text, ids, or a list of either; a text gets the model's special tokens, ids get nothing.
  `return_token_ids` tells the ids of both prompt and answer, so a generation goes on from its own ids.
- The text of an answer is right. The strings of its tokens are not always: a token that leaves a character unfinished
  has an empty one, alternatives are keyed by string, so that equal ones hide each other, and in older versions
  SentencePiece's lose their space. Where two tokens are equally probable the place is asked again by ids.
- Behind ids that end inside a character the server repeats text of the prompt: it is never asked there. It goes
  through the character's tokens again.
- The end of sequence is a token with a probability and a string; `finish_reason` is `"stop"`, `stop_reason` null or
  its id.
- `prompt_logprobs` are keyed by id. They do not use the prefix cache, and are refused in a stream.
- `max_tokens` beyond the context is cut in silence by new versions and refused by old ones: here it always fits.
- `/tokenize` renders messages, and with `/detokenize` that is a text with its special tokens: its ids are those that
  the chat route reads. (`/v1/chat/completions/render` answers 403 by default.) Such a text has its beginning of
  sequence; a second one is put before it unless `add_special_tokens` is off.
- With `skip_special_tokens` off, special tokens are text in an answer; the one that ends it never is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

from cosd_providers.contract import DraftEnd, Piece, Proposal, Question, ServerInfo, Token
from cosd_providers.engine import Adapter, checked_extra
from cosd_providers.errors import (
    ContextLengthError,
    InvalidRequestError,
    UnsupportedError,
)
from cosd_providers.greedy import TIES, answer, boundaries, prob, within
from cosd_providers.http.limits import Limits
from cosd_providers.http.transport import DEFAULT_TIMEOUT, HttpClient, Timeout, Transport
from cosd_providers.lazy import Lazy
from cosd_providers.strategies import Strategy, checked_strategy, counted, marked
from cosd_providers.text import sendable
from cosd_providers.tokenizers import load_tokenizer
from cosd_providers.usage import Usage
from cosd_providers.vllm.asking import Asking
from cosd_providers.vllm.drafting import Drafting
from cosd_providers.vllm.examining import VllmProbeClient
from cosd_providers.vllm.learning import learn
from cosd_providers.vllm.proposing import Proposing
from cosd_providers.vllm.reading import Scored, scored_positions
from cosd_providers.vllm.wire import OWNED, Head, Prompt, Server
from cosd_providers.vocabulary import spell

__all__ = ["Vllm"]


class Vllm(Adapter):
    """A model behind vLLM's server. See `contract.Provider`.

    Args:
        url: the server's URL, without `/v1`.
        model: a name of the model, or of an adapter (LoRA) on top of it; by default the model itself.
        api_key: the server's `--api-key`.
        headers: sent with every request.
        tokenizer: the model's own, where the server does not show the bytes of tokens; what `load_tokenizer` takes.
        extra_body: merged into every generation request, e.g. `{"priority": 1}` or `{"cache_salt": "..."}`.
        timeout: as in `Transport`.
        http_client: as in `Transport`.
        limits: as in `Transport`.
        strategy: how proposals are asked (`strategies.Strategy`); by default a list, or `"echo"` at every boundary of
            a text. All give the same answers. `"echo"` scores the text only where several places are asked: for one,
            the prompt costs less, and is in the server's cache.
        add_special_tokens: whether a prompt gets the model's beginning of sequence. Turn it off for prompts that were
            made by a chat template, which have it already.

    Raises:
        ValueError: `extra_body` sets what the fusion itself decides; or there is no such strategy.
    """

    strategies = ("echo", "list", "singles")

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
        strategy: Literal["echo", "list", "singles"] | None = None,
        add_special_tokens: bool = True,
    ) -> None:
        extra = checked_extra(extra_body, OWNED)
        self._strategy = checked_strategy(strategy, self.strategies)
        self._model = model
        self._tokenizer = None if tokenizer is None else load_tokenizer(tokenizer)
        self._transport = Transport(
            url, api_key=api_key, headers=headers, timeout=timeout, http_client=http_client, limits=limits
        )
        self._asking = Asking(self._transport, extra, add_special_tokens)
        self._server = Lazy[Server]()

    async def describe(self) -> ServerInfo:
        """Asks for version, models, special tokens and template, and has one token written, once."""
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
        prefix: Prompt = prompt + sendable(text) if continuation is None else list(continuation)
        prefix = await self._asking.sent(server.info.model, prefix)
        self._check_something(server, prefix)
        drafting = Drafting(
            self._transport,
            self._asking,
            server,
            prefix,
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
        server, whole = await self._known(), prompt + sendable(text)
        everywhere = (await self._scored(server, whole, usage))[0] if questions is None else None
        if questions is None:
            pieces = everywhere.pieces if everywhere else await self.tokenize(whole)
            questions = boundaries((piece.data for piece in pieces), len(prompt.encode()))
        for question in questions:
            self._check_something(server, prompt + sendable(text[: question.start]))
        way: Strategy = self._strategy or ("list" if len(questions) > 1 else "singles")
        if everywhere is not None:  # it is scored already
            way = "echo"
        elif way == "echo" and len({question.start for question in questions}) > 1:
            with suppress(ContextLengthError):  # what is asked may still fit
                everywhere = (await self._scored(server, whole, usage))[0]
        proposing = Proposing(self._asking, server, prompt, text, usage, singly=way == "singles", scored=everywhere)
        found = await answer(questions, proposing.ask)
        return counted(marked(found, "list", but=proposing.from_text) if way == "echo" else found, way, usage)

    async def score(self, prompt: str, text: bytes, *, usage: Usage) -> list[Token]:
        """One request; see `contract.Provider`.

        The first token of a model without a beginning of sequence has no probability where the prompt is empty.
        """
        server = await self._known()
        if not prompt + sendable(text):
            return []
        scored, probs = await self._scored(server, prompt + sendable(text), usage)
        if scored is None:
            words = "the server does not show which bytes its tokens are, or they do not spell the text"
            hint = "Give the model's tokenizer as `tokenizer`."
            raise UnsupportedError(words, endpoint=self._transport.endpoint, hint=hint)
        raw = [Token(piece.data, value) for piece, value in zip(scored.pieces, probs, strict=True)]
        return within(raw, len(prompt.encode()))

    async def tokenize(self, text: str) -> list[Piece]:
        """The server's own encoding, special tokens parsed as in a prompt, none added."""
        server = await self._known()
        pieces = await self._spelt(server, text, plain=True)
        if pieces is None:
            words = "the server does not show which bytes its tokens are, or they do not spell the text"
            hint = "Give the model's tokenizer as `tokenizer`."
            raise UnsupportedError(words, endpoint=self._transport.endpoint, hint=hint)
        return pieces

    async def _spelt(self, server: Server, text: str, *, plain: bool) -> list[Piece] | None:
        """The encoding of a text without what is put before it; None where its bytes cannot be known.

        It is also None where something else than that is put around the text, unless it is wanted `plain`.
        """
        encoded = await self._asking.encode(server.info.model, text, plain=plain)
        ids, strings = encoded.tokens, encoded.token_strs
        self._asking.counts.add(text, len(ids) + (len(server.beginning) if plain else 0))
        before = 0 if plain else len(server.beginning)
        if ids[:before] != server.beginning[:before]:
            return None
        pieces = None
        if strings is not None and len(strings) == len(ids):
            pieces = spell(text.encode(), list(zip(ids, strings, strict=True))[before:])
        if pieces is None and self._tokenizer is not None:
            pieces = self._tokenizer.encode(text)
            if [piece.id for piece in pieces] != ids[before:]:
                words = "the tokenizer that was given encodes text differently from the server: it is another one"
                raise UnsupportedError(words, endpoint=self._transport.endpoint)
        return pieces

    async def _scored(self, server: Server, text: str, usage: Usage) -> tuple[Scored | None, list[float | None]]:
        """The text as its own model sees it, with the probability of each of its tokens."""
        pieces = await self._spelt(server, text, plain=False)
        if not pieces:
            return None, []
        ids = [*server.beginning, *(piece.id for piece in pieces)]
        room = await self._asking.room(server, ids, 1)
        if room < 1:
            raise self._asking.too_long(server, room)
        [found] = await self._asking.batch(server.info.model, [ids], 1, usage, prompt_logprobs=TIES)
        ranked = found.prompt_logprobs
        if ranked is None or len(ranked) != len(ids):
            words = "the server does not give the probabilities of a text, although asked (prompt_logprobs)"
            raise UnsupportedError(words, endpoint=self._transport.endpoint, hint="Use strategy='list'.")
        ranked = ranked[len(server.beginning) :]
        probs: list[float | None] = []
        for piece, entry in zip(pieces, ranked, strict=True):
            own = (entry or {}).get(piece.id)
            probs.append(None if own is None else prob(own.logprob))
        return Scored(len(server.beginning), pieces, scored_positions(server, pieces, ranked, found)), probs

    async def _render(self, messages: list[dict[str, str]]) -> str:
        return await self._asking.rendered((await self._known()).info.model, messages)

    async def begun(self, prompt: str) -> str:
        """A rendered prompt with the beginning of sequence, where a user's own template has not written it."""
        server = await self._server.get(self._find)
        if self._template is None or not server.beginning:
            return prompt
        beginning = await self._asking.decode(server.info.model, server.beginning)
        return prompt if prompt.startswith(beginning) else beginning + prompt

    async def literal(self, pieces: Sequence[str]) -> Self | None:
        """The model, given token ids for a prompt: each piece encoded by itself."""
        head = await self._asking.headed((await self._known()).info.model, pieces)
        return None if head is None else await self._for_chat(head)

    async def _for_chat(self, head: Head | None = None) -> Self:
        """This server, asked to go on with texts that a chat template has begun."""
        await self._known()
        view = copy(self)
        view._is_chat, view._asking = True, self._asking.of_chat(head)
        return view

    async def probe_client(self) -> VllmProbeClient:
        """The server without checks, for a probe."""
        return VllmProbeClient(self._transport, self._asking, await self._known(), self.tokenize)

    async def snapshot(self) -> dict[str, Any]:
        """What is known of the server, for `restore`."""
        known = await self._known()
        return await self._kept(known, known.info.model)

    async def _known(self) -> Server:
        """What the server is; asked once."""
        known = await self._server.get(self._find)
        return replace(known, beginning=[]) if self._is_chat else known

    async def _find(self) -> Server:
        find = partial(learn, self._transport, self._asking, self._model, self._tokenizer is not None)
        return await self._recollected(Server, find)

    def _check_something(self, server: Server, prompt: Prompt) -> None:
        """An error where the server has nothing to go on from."""
        if not prompt and not server.beginning:
            words = "prompt and text are empty, and the model has no beginning-of-sequence token to go on from"
            raise InvalidRequestError(words, endpoint=self._transport.endpoint)
