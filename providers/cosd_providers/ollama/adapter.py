"""Ollama, by its own `/api/generate` with `raw`: the only one of its routes that goes on with a text as it is.

What the adapter relies on, from the server's source between 0.12.11 and 0.34 and from reports of its users, read in
November 2026; no such server was at hand to run:

- It takes text only, one prompt in a request. A draft goes on from text, and each place is asked by itself.
- It tells the most probable tokens since 0.12.11; older ones, and models in its cloud, leave them out without a word.
  One answer is asked for that before the first use. Probabilities are those of the raw softmax.
- The end of sequence is never shown, nor its probability: an answer that ended for `"stop"` ended with it.
- Where the model runs in llama.cpp's server (most of them, from about 0.30 on), a token that leaves a character
  unfinished is left out, and the one that completes it has no known probability; `bytes` are left out as well.
  Ollama's own engine shows them all, those of one character in one event.
- A text that is too long is cut to about half of the context unless both `truncate` and `shift` forbid it; then it is
  refused. That is proved once, with a text that cannot fit. An answer then ends where the context does.
- Whoever else uses the server without `shift: false`, or with another `num_ctx`, has the model loaded anew, and so
  has the next request from here.
- What the prompt has in tokens is told with the last event; on some versions without those from the cache, so that
  too little is billed then. A draft that is left early is billed what was seen.
- Its chat templates are Go's, and no route renders them: messages need a template of the user's own.
- A stream that says the same token for long (30 times, 100 in later versions) is broken off by the server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from cosd_providers.contract import Capabilities, DraftEnd, Piece, Proposal, Question, ServerInfo, Token
from cosd_providers.engine import NO_TEMPLATE, Adapter
from cosd_providers.engines.openai.discovery import unbegun
from cosd_providers.engines.openai.drafting import Drafting
from cosd_providers.engines.openai.proposing import Proposing
from cosd_providers.errors import UnsupportedError
from cosd_providers.greedy import boundaries
from cosd_providers.http.limits import Limits
from cosd_providers.http.transport import DEFAULT_TIMEOUT, HttpClient, Timeout, Transport
from cosd_providers.lazy import Lazy
from cosd_providers.ollama.asking import Generating, checked
from cosd_providers.ollama.examining import OllamaWire
from cosd_providers.ollama.learning import Known, learn
from cosd_providers.text import sendable
from cosd_providers.tokenizers import load_tokenizer
from cosd_providers.usage import Usage

__all__ = ["Ollama"]


class Ollama(Adapter):
    """A model behind Ollama. See `contract.Provider`.

    Args:
        url: the server's URL.
        model: its name, e.g. `"llama3.2"`; needed where the server has several.
        api_key: sent as a bearer token, for a proxy that wants one.
        headers: sent with every request.
        tokenizer: the model's own, as in `tokenizers.load_tokenizer`: for `tokenize`, and for every boundary.
        extra_body: merged into every generation request, e.g. `{"keep_alive": -1, "options": {"num_gpu": 0}}`.
        timeout: as in `Transport`; loading a model counts, too.
        http_client: as in `Transport`.
        limits: as in `Transport`.
        context: tokens that the model is loaded for (`num_ctx`), prompt and answer together. By default the server
            decides.

    Raises:
        ValueError: `extra_body` sets what the fusion itself decides.
    """

    _ready_route = "/api/version"

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
        context: int | None = None,
    ) -> None:
        extra = checked(extra_body)
        self._model = model
        self._context = context
        self._tokenizer = None if tokenizer is None else load_tokenizer(tokenizer)
        base = url.strip().rstrip("/").removesuffix("/api")
        self._transport = Transport(
            base, api_key=api_key, headers=headers, timeout=timeout, http_client=http_client, limits=limits
        )
        self._asking = Generating(self._transport, self._tokenizer, extra, context)
        self._known: Lazy[Known] = Lazy()

    async def describe(self) -> ServerInfo:
        """Loads the model, and finds out what fits and that the server does as it is told.

        Once; the proofs generate a few tokens, which are counted nowhere.
        """
        known = await self._know()
        return ServerInfo(
            endpoint=self._transport.endpoint,
            engine="ollama",
            model=known.model,
            build=known.build,
            context=known.context,
            capabilities=Capabilities(
                token_ids=False, end_prob=False, tokenize=self._tokenizer is not None, score=False
            ),
        )

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
        """Streams a draft; see `contract.Provider`. There is no continuation to go on from."""
        if continuation is not None:
            raise self._unsupported("a draft cannot go on from token ids: the server takes text only")
        await self._know()
        drafting = Drafting(self._asking, prompt, text, usage, alternatives)
        async with aclosing(drafting.draft(max_tokens)) as items:
            async for item in items:
                yield item

    async def propose(
        self, prompt: str, text: bytes, questions: Sequence[Question] | None, *, usage: Usage
    ) -> list[Proposal | None]:
        """One request for each place, several at once. See `contract.Provider`; `questions=None` needs a tokenizer."""
        await self._know()
        if questions is None:
            own = [piece.data for piece in await self.tokenize(prompt + sendable(text))]
            questions = boundaries(own, len(prompt.encode()))
        return await Proposing(self._asking, prompt, text, usage, strategy="singles").answer(questions)

    async def score(self, prompt: str, text: bytes, *, usage: Usage) -> list[Token]:  # noqa: ARG002
        """The server does not do that."""
        raise self._unsupported("the server does not give the probabilities of a given text")

    async def tokenize(self, text: str) -> list[Piece]:
        """The local tokenizer's encoding; the server encodes no text for others."""
        if self._tokenizer is None:
            raise self._unsupported("the server does not encode text", "Give the model's own as `tokenizer`.")
        return self._tokenizer.encode(text)

    async def _render(self, messages: list[dict[str, str]]) -> str:  # noqa: ARG002 - none can be
        words = "Ollama does not render a conversation for others: its templates are programs of its own"
        raise self._unsupported(words, NO_TEMPLATE)

    async def begun(self, prompt: str) -> str:
        """A rendered prompt without the beginning of sequence that the server puts before every text."""
        await self._know()
        return await unbegun(self._asking, prompt)

    async def examine(self) -> OllamaWire:
        """The server, to be asked freely."""
        await self._know()
        return OllamaWire(self._transport, self._asking)

    async def snapshot(self) -> dict[str, Any]:
        """What is known of the server, for `restore`."""
        known = await self._know()
        return await self._kept(known, known.model)

    async def _know(self) -> Known:
        """What has to be known before the first use; found out once, and counted nowhere."""
        known = await self._known.get(partial(self._recollected, Known, self._learn))
        self._asking.facts.model, self._asking.facts.context = known.model, known.context
        return known

    async def _learn(self) -> Known:
        return await learn(self._transport, self._asking, self._model, self._context, self._tokenizer)

    def _unsupported(self, words: str, hint: str = "") -> UnsupportedError:
        return UnsupportedError(words, endpoint=self._transport.endpoint, hint=hint)
