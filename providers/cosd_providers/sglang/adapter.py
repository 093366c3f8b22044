"""SGLang, by its native `/generate`, and `/v1/tokenize` and `/v1/detokenize`.

What the adapter relies on, as read in the server's source (0.5, November 2025 and later); no such server was at hand
to run:

- A prompt is a text or ids, or a list of either; a text gets the model's special tokens, ids get nothing. Here it is
  always ids. Every token of prompt and answer comes with its id, so nothing is compared by its text.
- `logprob_start_len` says from where on the tokens of a prompt get probabilities. The first of them has none: what it
  takes was computed at the token before. All before that may come from the prefix cache: so one scored text, from the
  first place that is asked on, costs little however long the prompt is.
- The most probable tokens are listed in order, with ids, as many as are asked for. At temperature 0 the probabilities
  are those of the raw softmax. Some versions gave 1 and 0 there: that is refused.
- A stream repeats in each event all before it, unless the server was started with `--incremental-streaming-output`.
- The end of sequence is a token of the answer. `finish_reason` is then `"stop"` and tells its id; but an answer that
  has all the tokens that were asked for ended for its `"length"`, whatever its last token is. A special token that was
  not seen to end an answer is forced once, to see. A plain token that ends a sequence by the model's configuration
  alone is known only once it did.
- A prompt and an answer that do not fit together are refused; near the end of the context the answer is cut.
- `--allow-auto-truncate` cuts a prompt in silence: that is seen by the number of tokens that were read.
- What a request leaves out falls back to `--preferred-sampling-params`.
- `/v1/tokenize` renders messages since 2026, as the chat route does; with `/v1/detokenize` that is a text.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, Literal, Self

from cosd_providers.contract import DraftEnd, Piece, Proposal, Question, ServerInfo, Token
from cosd_providers.engine import Adapter, checked_extra
from cosd_providers.errors import InvalidRequestError, UnsupportedError
from cosd_providers.greedy import answer, boundaries, within
from cosd_providers.http.limits import Limits
from cosd_providers.http.transport import DEFAULT_TIMEOUT, HttpClient, Timeout, Transport
from cosd_providers.lazy import Lazy
from cosd_providers.sglang.asking import Asking
from cosd_providers.sglang.drafting import Drafting
from cosd_providers.sglang.echo import Echo
from cosd_providers.sglang.examining import SglangProbeClient
from cosd_providers.sglang.learning import learn
from cosd_providers.sglang.proposing import Proposing
from cosd_providers.sglang.strings import Strings
from cosd_providers.sglang.wire import OWNED, Server
from cosd_providers.strategies import Strategy, checked_strategy, counted, marked
from cosd_providers.text import sendable
from cosd_providers.tokenizers import load_tokenizer
from cosd_providers.usage import Usage

__all__ = ["Sglang"]


class Sglang(Adapter):
    """A model behind SGLang's server. See `contract.Provider`.

    Args:
        url: the server's URL, without `/v1`.
        model: a name of the model, or of an adapter (LoRA) on top of it; by default the model itself.
        api_key: the server's `--api-key`.
        headers: sent with every request.
        tokenizer: the model's own, for servers that do not encode text for others; what `load_tokenizer` takes. It
            also saves the questions what tokens say.
        extra_body: merged into every generation request, e.g. `{"priority": 1}` or `{"cache_salt": "..."}`.
        timeout: as in `Transport`.
        http_client: as in `Transport`.
        limits: as in `Transport`.
        strategy: how proposals are asked (`strategies.Strategy`); by default `"echo"`, which scores the text where more
            than one place of it is asked, and reads the server's cache. All give the same answers.
        add_special_tokens: whether a prompt gets the model's beginning of sequence. Turn it off for prompts that were
            made by a chat template, which have it already.

    Raises:
        ValueError: `extra_body` sets what the fusion itself decides; or there is no such strategy.
    """

    strategies = ("echo", "list", "singles")

    _ready_route = "/v1/models"

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
        self._add_special_tokens = add_special_tokens
        self._transport = Transport(
            url, api_key=api_key, headers=headers, timeout=timeout, http_client=http_client, limits=limits
        )
        local = None if tokenizer is None else load_tokenizer(tokenizer)
        self._asking = Asking(self._transport, extra, local, add_special_tokens)
        self._server = Lazy[Server]()

    async def describe(self) -> ServerInfo:
        """Asks for version, models, encoding and template, and has one token written, once."""
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
        if continuation is None:
            [start] = await self._asking.prompts(server, [prompt + sendable(text)])
        else:
            start = list(continuation)
        self._check_something(server, start)
        drafting = Drafting(
            self._transport,
            self._asking,
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
        for question in questions:
            self._check_something(server, prompt + sendable(text[: question.start]))
        several = len(questions) > 1
        way: Strategy = self._strategy or ("echo" if everywhere or several else "singles")
        singly, echo = way == "singles", way == "echo" and several
        proposing = Proposing(self._asking, server, prompt, text, usage, singly=singly, echo=echo)
        found = await answer(questions, proposing.ask)
        return counted(marked(found, "list", but=proposing.from_text) if way == "echo" else found, way, usage)

    async def score(self, prompt: str, text: bytes, *, usage: Usage) -> list[Token]:
        """One request; see `contract.Provider`.

        The first token of a model without a beginning of sequence has no probability where the prompt is empty.
        """
        server = await self._known()
        whole, size = prompt + sendable(text), len(prompt.encode())
        pieces = await self.tokenize(whole)
        [ids] = await self._asking.prompts(server, [whole])
        ends = list(accumulate(len(piece.data) for piece in pieces))
        first = sum(end <= size for end in ends)  # the first token that ends behind the prompt
        if first >= len(pieces):
            return []
        if self._asking.room(server, ids, 1) < 1:
            raise self._asking.too_long(server, ids)
        echo = Echo(self._asking, server, Strings(self._asking, server, usage), usage)
        probs = [0.0] * first + await echo.probs(ids, len(ids) - len(pieces) + first)
        return within((Token(piece.data, value) for piece, value in zip(pieces, probs, strict=True)), size)

    async def tokenize(self, text: str) -> list[Piece]:
        """The server's own encoding, none added; how tokens share the bytes of a character is not told (`Strings`)."""
        server = await self._known()
        if self._asking.tokenizer is not None and self._asking.head is None:
            return self._asking.tokenizer.encode(text)
        [ids] = await self._asking.encode(server.info.model, [text])
        found = await Strings(self._asking, server, Usage()).spelt(ids)
        joined = b"".join(found)
        if joined == b" " + text.encode():  # which a SentencePiece tokenizer puts before a text
            at = next(at for at, data in enumerate(found) if data)
            found[at], joined = found[at][1:], text.encode()
        if joined != text.encode():
            words = "what the server's tokens say does not join to the text"
            hint = "Give the model's tokenizer as `tokenizer`."
            raise UnsupportedError(words, endpoint=self._transport.endpoint, hint=hint)
        return [Piece(token_id, data) for token_id, data in zip(ids, found, strict=True)]

    async def _render(self, messages: list[dict[str, str]]) -> str:
        return await self._asking.rendered((await self._known()).info.model, messages)

    async def begun(self, prompt: str) -> str:
        """A rendered prompt with the beginning of sequence, where a user's own template has not written it."""
        server = await self._server.get(self._find)
        if self._template is None or not server.beginning:
            return prompt
        try:
            [beginning] = await self._asking.decode(server.info.model, [server.beginning], specials=True)
        except InvalidRequestError:  # older versions decode nothing for others
            return prompt
        return prompt if prompt.startswith(beginning) else beginning + prompt

    async def literal(self, pieces: Sequence[str]) -> Self | None:
        """The model, given token ids for a prompt: each piece encoded by itself."""
        head = await self._asking.headed((await self._known()).info.model, pieces)
        return None if head is None else await self._for_chat(head)

    async def _for_chat(self, head: tuple[str, Sequence[int]] | None = None) -> Self:
        """This server, asked to go on with texts that a chat template has begun."""
        await self._known()
        view = copy(self)
        view._is_chat, view._add_special_tokens, view._asking = True, False, self._asking.of_chat(head)
        return view

    async def probe_client(self) -> SglangProbeClient:
        """The server without checks, for a probe."""
        return SglangProbeClient(self._transport, self._asking, await self._known())

    async def snapshot(self) -> dict[str, Any]:
        """What is known of the server, for `restore`."""
        known = await self._known()
        return await self._kept(known, known.info.model)

    async def _known(self) -> Server:
        """What the server is; asked once."""
        known = await self._server.get(self._find)
        return replace(known, beginning=[], shows=True) if self._is_chat else known

    async def _find(self) -> Server:
        find = partial(learn, self._transport, self._asking, self._model)
        return await self._recollected(Server, find)

    def _check_something(self, server: Server, prompt: str | list[int]) -> None:
        """An error where the server has nothing to go on from."""
        if not prompt and not (self._add_special_tokens and server.beginning):
            words = "prompt and text are empty, and the model has no beginning-of-sequence token to go on from"
            raise InvalidRequestError(words, endpoint=self._transport.endpoint)
