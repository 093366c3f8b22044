"""Any server that speaks OpenAI's protocol, by `/v1/completions` or, where an answer can be continued, by messages.

Such a server takes text only, and each shows its tokens in its own way: `openai_reading` gives them their bytes, and
`dialects` says what else differs. What the adapter makes of that:

- A draft has no continuation: it goes on from its text. Within one draft that is avoided: where a character is not
  finished at the limit, the same text is asked again with more tokens.
- Questions go as a list of prompts, as single prompts, or with `strategy="echo"`, where the server is proved to give
  the probabilities of a prompt, in one request for all. An echo answers a question in mid-text only where the model's
  own encoding of what stands before it is known to be the start of its encoding of the whole text: with a local
  tokenizer. Without one it answers at the end of the text alone, and the rest goes as prompts.
- A server may hide tokens that leave a character unfinished (llama.cpp does): the token that completes the character
  then has no known probability (None). That server's native adapter knows it.
- Before the first use it is looked into, where it is in doubt, whether a prompt reaches the model as it is (`templates`
  of the dialect) and whether an answer that is continued keeps the white space at its end (`api="chat"`).
- The usage of a stream comes with its last event on most servers: one that is closed early counts what was seen.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from cosd_providers.contract import (
    Capabilities,
    DraftEnd,
    Piece,
    Proposal,
    Question,
    ServerInfo,
    Token,
    Usage,
)
from cosd_providers.errors import ResponseError, UnsupportedError
from cosd_providers.http.adapter import Adapter, checked_extra
from cosd_providers.http.transport import DEFAULT_TIMEOUT, HttpClient, Timeout, Transport
from cosd_providers.once import Once
from cosd_providers.openai.asking import OWNED, Asking, Prefix
from cosd_providers.openai.chains import Chains
from cosd_providers.openai.dialects import Dialect, dialect_of
from cosd_providers.openai.drafting import Drafting
from cosd_providers.openai.echo import Echo, Scored
from cosd_providers.openai.learning import Known, check_raw, check_started, check_tokenizer, choose
from cosd_providers.scoring import answer, boundaries, within
from cosd_providers.text import sendable
from cosd_providers.tokenization import load_tokenizer

__all__ = ["OpenAICompatible"]


class OpenAICompatible(Adapter):
    """A model behind an API like OpenAI's. See `contract.Provider`.

    Args:
        url: the server's URL; a trailing `/v1` does no harm.
        model: its id; needed where the server has several, or does not list them.
        api_key: sent as a bearer token.
        headers: sent with every request.
        tokenizer: the model's own, as in `tokenization.load_tokenizer`: for `tokenize`, counting and `strategy="echo"`.
        extra_body: merged into every generation request.
        timeout: as in `Transport`.
        http_client: as in `Transport`.
        dialect: what kind of server it is: a name of `dialects.DIALECTS`, or a `Dialect`.
        api: `"completions"` gives the model the prompt as it is; `"chat"` gives it as a user's message, and the
            response so far as the start of the answer.
        context: tokens that fit, prompt and answer together, where the server does not tell.
        strategy: how questions are asked: `"list"` of prompts, `"singles"`, or `"echo"`. By default a list where the
            server takes one, else singles. All give the same answers.

    Raises:
        ValueError: the dialect is not known, or `extra_body` sets what the fusion itself decides.
    """

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
        dialect: str | Dialect = "openai",
        api: Literal["completions", "chat"] = "completions",
        context: int | None = None,
        strategy: Literal["echo", "list", "singles"] | None = None,
    ) -> None:
        self._dialect = dialect_of(dialect)
        owned = OWNED | {*self._dialect.greedy, *self._dialect.whole, *(self._dialect.continues or ())}
        extra = checked_extra(extra_body, owned)
        if strategy not in (None, "echo", "list", "singles") or api not in ("completions", "chat"):
            raise ValueError("strategy is 'echo', 'list', 'singles' or None; api is 'completions' or 'chat'")
        if api == "chat" and strategy in ("echo", "list"):
            raise ValueError(f"strategy={strategy!r} needs api='completions': messages go one by one")
        self._model = model
        self._api: Literal["completions", "chat"] = api
        self._context = context
        self._strategy = strategy
        self._tokenizer = None if tokenizer is None else load_tokenizer(tokenizer)
        base = url.strip().rstrip("/").removesuffix("/v1")
        self._transport = Transport(base, api_key=api_key, headers=headers, timeout=timeout, http_client=http_client)
        self._asking = Asking(self._transport, self._dialect, api, self._tokenizer, extra)
        if strategy == "singles":
            self._asking.lists = False
        self._echo = Echo(self._asking, self._dialect)
        self._known: Once[Known] = Once()
        self._info: Once[ServerInfo] = Once()

    def __repr__(self) -> str:
        return (
            f"OpenAICompatible({self._transport.endpoint!r}, model={self._model!r}, dialect={self._dialect.engine!r})"
        )

    async def describe(self) -> ServerInfo:
        """Asks for models and context, whether prompts reach the model as they are, and whether the server can score.

        Once; the proofs generate a few tokens, which are counted nowhere.
        """
        return await self._info.get(self._describe)

    async def _describe(self) -> ServerInfo:
        known = await self._know()
        return ServerInfo(
            endpoint=self._transport.endpoint,
            engine=self._dialect.engine,
            model=known.model,
            build=None,
            context=known.context,
            capabilities=Capabilities(
                token_ids=False,
                end_prob=self._dialect.end_prob if self._api == "completions" else self._dialect.chat_end_prob,
                tokenize=self._tokenizer is not None,
                score=await self._scores(Usage()),
            ),
        )

    async def generate(
        self, prompt: str, text: bytes, *, max_tokens: int, continuation: Any = None, usage: Usage
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Streams a draft; see `contract.Provider`. There is no continuation to go on from."""
        if continuation is not None:
            raise self._unsupported("a draft cannot go on from token ids: the server takes text only", "")
        context = (await self._know()).context
        await self._asking.check_whole(Prefix(prompt, sendable(text)), usage)
        drafting = Drafting(self._asking, prompt, text, usage, context)
        async with aclosing(drafting.draft(max_tokens)) as items:
            async for item in items:
                yield item

    async def propose(
        self, prompt: str, text: bytes, questions: Sequence[Question] | None, *, usage: Usage
    ) -> list[Proposal | None]:
        """All questions in one request where the server can, and one more for those that need it.

        See `contract.Provider`. `questions=None` needs a tokenizer, or a server that scores.
        """
        await self._know()
        whole = Prefix(prompt, sendable(text))
        await self._asking.check_whole(whole, usage)
        scored: Scored | None = None
        if self._strategy == "echo" or (questions is None and self._tokenizer is None):
            if not await self._scores(usage):
                raise self._cannot_score()
            if whole.whole:
                try:
                    scored = await self._echo.score(whole, usage)
                except ResponseError:  # of this text it does not hold what it should: the places are asked one by one
                    if questions is None:
                        raise
        if questions is None:
            own = [piece.data for piece in self._tokenizer.encode(whole.whole)] if self._tokenizer else []
            if scored is not None:
                own = [position.pick.token.data for position in scored.positions]
            questions = boundaries(own, len(prompt.encode()))
        chains = Chains(
            self._asking,
            prompt,
            text,
            usage,
            scored if self._strategy == "echo" else None,
            self._tokenizer,
        )
        return await answer(questions, chains.ask)

    async def score(self, prompt: str, text: bytes, *, usage: Usage) -> list[Token]:
        """One request, where the server is proved to score; see `contract.Provider`.

        Where the model has no beginning-of-sequence token, the first token of all has no probability (None).
        """
        await self._know()
        if not await self._scores(usage):
            raise self._cannot_score()
        whole = Prefix(prompt, sendable(text))
        await self._asking.check_whole(whole, usage)
        if not whole.text:
            return []
        scored = await self._echo.score(whole, usage)
        return within(scored.tokens(), len(prompt.encode()))

    async def tokenize(self, text: str) -> list[Piece]:
        """The local tokenizer's encoding; no server of this kind encodes text."""
        if self._tokenizer is None:
            raise self._unsupported("the server does not encode text", "Give the model's own as `tokenizer`.")
        return self._tokenizer.encode(text)

    async def _know(self) -> Known:
        """What has to be known before the first use; found out once, and counted nowhere."""
        return await self._known.get(self._learn)

    async def _learn(self) -> Known:
        known = await choose(self._transport, self._dialect, self._model)
        self._asking.model = known.model
        if self._api == "completions" and self._dialect.templates:
            await check_raw(self._asking)
        if self._api == "completions" and self._tokenizer is not None:
            await check_tokenizer(self._asking, self._dialect, self._tokenizer)
        if self._api == "chat" and self._dialect.continues is not None:
            await check_started(self._asking)
        return known if self._context is None else Known(known.model, self._context)

    async def _scores(self, usage: Usage) -> bool:
        """Whether the server is proved to score."""
        return self._api == "completions" and await self._echo.proved(usage)

    def _cannot_score(self) -> UnsupportedError:
        words = "the server does not give the probabilities of a given text, or not the right ones (echo, logprobs)"
        hint = "Use it without `score` and strategy='echo', and with a `tokenizer` where every boundary is asked."
        return self._unsupported(words, hint)

    def _unsupported(self, words: str, hint: str) -> UnsupportedError:
        return UnsupportedError(words, endpoint=self._transport.endpoint, hint=hint)
