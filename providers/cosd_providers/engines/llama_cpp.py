"""Adapter for llama.cpp's own server, over its native `/completion` route, which `llama_cpp_completion` describes.

These facts were observed on running servers, from b4798 to 2026.10:

- Probabilities come from the raw softmax, before samplers, penalties and `logit_bias`.
- A prompt may mix text and ids. For `["text", 17, 4]`, the server encodes the text as if the text had been sent alone
  (with a beginning-of-sequence token if the model has one) and appends the ids. So a generation can be continued from
  its own ids without `/tokenize`.
- The response to a list of prompts is an array, but the response to a list of a single prompt is a bare object.
- At temperature 1, without any other sampler, the server draws from the raw softmax. With the same seed, it draws the
  same tokens.
- The server ends a generation at several tokens; `/props` names only one of them. A request that ignores them
  (`ignore_eos`) shows their ids, in its settings (since July 2025).
- With `--embeddings` and no pooling, `/embedding` returns the last hidden state (the input of the output layer) after
  each token of a prompt; `/completion` still works. The whole prompt must fit into one physical batch (`--ubatch-size`,
  512 tokens by default), and nothing is cached for later requests.
- Without `--swa-full`, a model with a sliding window (or a recurrent state) can continue only from a checkpoint, which
  the server takes four tokens before the end of a prompt. Whatever follows the checkpoint is read again, even if the
  text is shorter than the window. Reading four or more tokens at a time can change the last digits of probabilities.
- With `--context-shift`, the server discards the start of a full context and continues.
- The server assigns a request to the free slot that already contains the longest part of the request's prompt. If
  requests name a slot (`id_slot`) while other requests are in progress, some answers continue with another request's
  text. In 2026.10, with up to eight requests at a time, this happened to about five of 100 short answers with the
  default `--cache-ram`, and to none with `--cache-ram 0`. So this adapter names no slot. Even if no request names a
  slot, the cache may restore the state of another conversation into a slot while several requests are in progress
  (llama.cpp's issue 27148). If a request names an empty slot, the server does not use the cache at all (issue 28139).
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from itertools import accumulate
from typing import Annotated, Any, Literal, TypeVar, Unpack, cast
from urllib.parse import quote

from anyio import to_thread
from pydantic import BaseModel, Field, RootModel

from cosd_providers.allowed import search
from cosd_providers.chat.templates import TemplateRefusal
from cosd_providers.concurrency import Lazy
from cosd_providers.contract import (
    Capabilities,
    Context,
    DraftEnd,
    Piece,
    Proposal,
    Provider,
    Question,
    ServerInfo,
    State,
    Token,
)
from cosd_providers.drafting import IdsDraft, streamed, with_states
from cosd_providers.engine import Engine, EngineOptions, Models, ask_only, choose
from cosd_providers.engines.llama_cpp_completion import (
    FIELDS,
    LIST,
    OWNED,
    LlamaCppAnswer,
    LlamaCppClient,
    LlamaCppFacts,
    OneByte,
    PromptParts,
    sent_prompt,
    speculative,
)
from cosd_providers.engines.openai.probe_client import (
    CompletionsProbeClient,
    ProbeClient,
    RawReply,
    RawRequest,
    RawScores,
    grammar,
)
from cosd_providers.engines.token_ids_client import Head
from cosd_providers.errors import (
    AuthenticationError,
    ContextLengthError,
    InvalidRequestError,
    ResponseError,
    ServerError,
    StatusError,
    UnsupportedError,
)
from cosd_providers.forwarding import no_states
from cosd_providers.greedy import Continuation, Position, answer, boundaries, within
from cosd_providers.http.transport import FEW_IDLE
from cosd_providers.parsing import parse
from cosd_providers.sampling import DraftOptions
from cosd_providers.strategies import Strategy, counted, marked
from cosd_providers.text import sendable
from cosd_providers.token_counts import Counts
from cosd_providers.tokenizers import TEST_TEXT, Tokenizer, encoded
from cosd_providers.usage import Usage
from cosd_providers.vocabulary import ENDS

_CHATML = "<|im_start|>"
_MANY = 1000  # number of alternatives to offer if the vocabulary's size is unknown
_LINE = "\n"
_PART = 4096  # number of tokens of a long text to validate at a time
_LARGER = (
    "Start the server with --ubatch-size, and --batch-size, at least as large as its context; or give shorter prompts."
)
_NO_STATES = "Start it with --embeddings --pooling none; builds that then refuse completions are too old."

_SHORT = 800
"""The size in bytes of the longest prompt for which a list is assumed to be faster than single requests.

In our measurements (benchmarks/results/finished.md), a list is faster after a prompt of 35 tokens, but not after one
of 450.
"""

_M = TypeVar("_M", bound=BaseModel)


class _RawPiece(BaseModel):
    """A token in the response of `/tokenize`: a string, or bytes that are not valid text."""

    id: int
    piece: str | list[OneByte]


class _Pieces(BaseModel):
    """The response of `/tokenize`, whose tokens are validated in parts, as `_RawPieces`."""

    tokens: list[Any]


class _RawPieces(RootModel[list[_RawPiece]]):
    """A part of the tokens in the response of `/tokenize`."""

    def pieces(self) -> list[Piece]:
        """The tokens with their bytes."""
        return [
            Piece(one.id, one.piece.encode() if isinstance(one.piece, str) else bytes(one.piece)) for one in self.root
        ]


class _Text(BaseModel):
    """The response of `/detokenize`."""

    content: str


class _Ids(BaseModel):
    """The response of `/tokenize` without the pieces."""

    tokens: list[int]


class _Slot(BaseModel):
    """A slot in the response of `/slots`."""

    speculative: bool = False


class _Slots(RootModel[list[_Slot]]):
    """The response of `/slots`."""


class _Settings(BaseModel):
    """The settings of a slot."""

    n_ctx: int | None = None


class _Props(BaseModel):
    """The response of `/props`."""

    default_generation_settings: _Settings
    bos_token: str = ""
    eos_token: str = ""
    total_slots: int | None = None
    build_info: str | None = None


class _Rendered(BaseModel):
    """The response of `/apply-template`."""

    prompt: str


class _Embedded(BaseModel):
    """An entry in the response of `/embedding`: one row per token, or a single vector if the server pools the rows."""

    embedding: list[Any]


class _Embeddings(RootModel[Annotated[list[_Embedded], Field(min_length=1, max_length=1)]]):
    """The response of `/embedding` to one prompt."""


def _spells(pieces: Sequence[Piece], text: str) -> bool:
    """True if the pieces spell `text` exactly."""
    return b"".join(piece.data for piece in pieces) == text.encode()


class LlamaCppProbeClient(ProbeClient):
    """The probe's client for a llama.cpp server."""

    forcing = (lambda text: {"grammar": grammar(text)},)

    def __init__(self, client: LlamaCppClient) -> None:
        super().__init__(client.transport, client.facts.info.model)
        self._client = client

    async def send(self, request: RawRequest, usage: Usage) -> list[RawReply]:
        """Send one request. An empty text before ids adds the beginning of sequence, if the model has one."""
        sent: list[object] = [prompt if isinstance(prompt, str) else ["", *prompt] for prompt in request.prompts]
        more = {"return_tokens": True, "response_fields": [*FIELDS, "content"], "temperature": request.temperature}
        counts = {"n_predict": request.limit, "n_probs": request.top}
        fields: dict[str, Any] = {**more, **counts, **request.fields}
        answers = await self._client.unchecked(sent[0] if len(sent) == 1 else sent, usage, **fields)
        return [self._reply(one) for one in answers]

    async def score(self, text: str, usage: Usage) -> RawScores:
        """Try to score a text over OpenAI's route, because `/completion` has no field for scoring."""

        def body(prompt: object, limit: int, top: int) -> Mapping[str, object]:
            return {"model": self._model, "prompt": prompt, "max_tokens": limit, "logprobs": top, "temperature": 0}

        other = CompletionsProbeClient(self._transport, "/v1/completions", body, set(), self._model)
        return await other.score(text, usage)

    def _reply(self, one: LlamaCppAnswer) -> RawReply:
        # The token that completes a character also shows the bytes of hidden tokens. The probe needs only the bytes.
        positions = self._client.positions(one)
        if len(positions) < len(one.get("tokens", ())):
            positions = [
                Position(self._client.choice(entry), [*map(self._client.choice, entry.get("top_logprobs", ()))])
                for entry in one["completion_probabilities"] or ()
            ]
        read, written, ended = one["tokens_evaluated"], one["tokens_predicted"], one["stop_type"] == "eos"
        return RawReply(one.get("content", ""), positions, read, one["cached"], written, ended)


class LlamaCpp(Engine[LlamaCppFacts]):
    """A model served by llama.cpp. See `contract.Provider`.

    Args:
        url: the server's URL, without `/v1`.
        tokenizer: the model's own tokenizer, in any form that `load_tokenizer` accepts. It only splits text into words
            (`contract.WordSplitter`), because the server encodes text.
        strategy: the kind of request for proposals (`strategies.Strategy`). The default is `"list"`, but `"singles"`
            for a single place or after a long prompt. All strategies return the same answers.
        options: as in `engine.Engine`: `model`, `api_key`, `headers`, `extra_body` (e.g.
            `{"cache_prompt": False}`), `timeout`, `http_client`, `limits`.

    Raises:
        ValueError: `extra_body` sets a field that the fusion controls, or the strategy is unknown.
    """

    strategies = ("list", "singles")
    by_ids = True

    _facts_type = LlamaCppFacts
    _ready_route = "/health"
    _head = Head()

    def __init__(
        self,
        url: str,
        *,
        tokenizer: object = None,
        strategy: Literal["list", "singles", "watch"] | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        super().__init__(url, owned=OWNED, strategy=strategy, tokenizer=tokenizer, **options)
        self._own: Lazy[bool] = Lazy()
        self._beginning: Lazy[str] = Lazy()
        self._characters: dict[bytes, list[Piece]] = {}
        self._counts = Counts()

    @property
    def encodes_locally(self) -> bool:
        """False, because the server encodes."""
        return False

    async def discovered(self) -> LlamaCppFacts:
        """Return the facts about the server, after a check that the tokenizer, if one was given, is the model's."""
        facts = await super().discovered()
        if self._tokenizer is not None:
            await self._own.get(partial(self._check_tokenizer, self._tokenizer))
        return facts

    async def _check_tokenizer(self, tokenizer: Tokenizer) -> bool:
        """Compare the encodings of a test text, if the tokenizer does not change it. Return True.

        Raises:
            UnsupportedError: the encodings differ.
        """
        try:
            given = [piece.id for piece in await encoded(tokenizer, TEST_TEXT)]
        except UnsupportedError:
            return True
        if given != [piece.id for piece in await self.tokenize(TEST_TEXT)]:
            hint = "It encodes a test text differently from the server. Give the model's own, or none."
            raise self._unsupported(f"{tokenizer.name!r} is not the tokenizer of this model", hint)
        return True

    def _client(self, facts: LlamaCppFacts) -> LlamaCppClient:
        extra = {"cache_prompt": True, **self._extra, **self._named()}
        return LlamaCppClient(self._transport, facts, extra, self._counts, self._parts)

    async def _parts(self, data: bytes) -> list[Piece]:
        """Find the raw tokens of one or a few characters in the model's own encoding; the result is cached."""
        found = self._characters.get(data)
        if found is None:
            if len(self._characters) >= _MANY:
                self._characters.clear()
            found = self._characters[data] = await self._encode(data.decode(), special=False)
        return found

    async def _draft(self, context: Context, max_tokens: int, options: DraftOptions, usage: Usage) -> IdsDraft:
        start = self._path(context) if options.continuation is None else [*options.continuation]
        stream = partial(self._client(await self.facts()).stream, usage, options, len(start))
        return IdsDraft(stream, start, max_tokens, alone=not context.text, raw=options.raw)

    async def generate_with_states(
        self, context: Context, *, max_tokens: int, continuation: Any = None, alternatives: int = 0, usage: Usage
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Stream a draft, and request the states of several tokens at a time; see `contract.HiddenStates`."""
        await self._stated()
        options = DraftOptions(alternatives, continuation=continuation, raw=context.ids is not None)
        draft = await self._draft(context, max_tokens, options, usage)

        async def begin() -> IdsDraft:
            return draft

        async def states(ids: Sequence[int], count: int) -> list[State]:
            return await self._states([*draft.start, *ids], count, usage)

        async with aclosing(with_states(streamed(begin), draft.draft, states)) as items:
            async for item in items:
                yield item

    async def hidden_states(self, context: Context, *, usage: Usage) -> dict[int, State]:
        """Request the states at all boundaries in one pass; see `contract.HiddenStates`."""
        prompt, text = context.prompt, context.text
        await self._stated()
        before, pieces, start = await self._encoded(prompt, text)
        ends = [0, *accumulate(len(piece.data) for piece in pieces)]
        asked = {question.start for question in boundaries((piece.data for piece in pieces), start)}
        first = next((at for at, end in enumerate(ends) if end - start in asked), len(ends))
        if not first and not self._head.ids and not await self._beginning.get(self._find_beginning):
            first = 1
        count = len(ends) - first
        if count <= 0:
            return {}
        found = await self._states([*before, *(piece.id for piece in pieces)], count, usage)
        pairs = zip(ends[first:], found, strict=True)  # if several states have the same offset, the last is kept
        return {end - start: state for end, state in pairs if end - start in asked}

    async def _states(self, prefix: PromptParts, count: int, usage: Usage) -> list[State]:
        """Request the last `count` hidden states of a prompt, up to the state after the whole prompt, in one pass.

        Raises:
            ContextLengthError: the prompt is too long for one pass.
            ResponseError: the server returned too few states, or states that are not lists of numbers.
        """
        endpoint, body = self._transport.endpoint, self._named(content=sent_prompt(prefix))
        try:
            data = await self._transport.post("/embedding", body, usage=usage)
        except ContextLengthError as error:
            words = f"the hidden states of a text are computed in one pass, and this one is too long: {error.args[0]}"
            raise ContextLengthError(words, endpoint=endpoint, status=error.status, hint=_LARGER) from error
        rows = self._read(_Embeddings, data).root[0].embedding
        usage.bill(len(rows), 0)
        if len(rows) < count or not all(isinstance(row, list) for row in rows[-count:]):
            raise ResponseError(f"/embedding gave {len(rows)} states, and {count} were asked for", endpoint=endpoint)
        try:
            return [array("f", cast("list[float]", row)) for row in rows[-count:]]
        except (TypeError, OverflowError):
            raise ResponseError("/embedding gave states that are no numbers", endpoint=endpoint) from None

    async def _stated(self) -> LlamaCppFacts:
        """Return the facts about the server, or raise an error if it does not report hidden states."""
        facts = await self.facts()
        if not facts.info.capabilities.hidden_states:
            raise no_states(self._transport.endpoint, _NO_STATES)
        return facts

    async def propose(
        self, context: Context, questions: Sequence[Question] | None, *, alternatives: int = 0, usage: Usage
    ) -> list[Proposal | None]:
        """Answer all questions in a few rounds of requests; see `contract.Provider`."""
        prompt, text = context.prompt, context.text
        client, everywhere = self._client(await self.facts()), questions is None
        if questions is None:
            _, pieces, start = await self._encoded(prompt, text)
            questions = boundaries((piece.data for piece in pieces), start)
        short = len(questions) > 1 and len(prompt.encode()) <= _SHORT
        strategy: Strategy = self._strategy or ("list" if everywhere or short else "singles")
        alone: set[int] = set()  # places that needed single requests despite the strategy

        async def written(open_: list[Continuation]) -> list[list[Position]]:
            prefixes = [[*self._prefix(prompt, text[: one.question.start]), *one.ids] for one in open_]
            wanted = max(one.wanted for one in open_)
            return await client.next(prefixes, wanted, usage, singly=strategy == "singles", alternatives=alternatives)

        async def single(one: Continuation) -> list[Position]:
            try:
                return (await written([one]))[0]
            except ContextLengthError:
                if not one.ids:  # the text alone is too long for this model
                    raise
                return []  # the continuation has filled the context

        async def ask(open_: list[Continuation]) -> list[list[Position]]:
            if len(open_) > 1:
                try:
                    return await written(open_)
                except ContextLengthError:
                    alone.update(one.question.start for one in open_)
            return [await single(one) for one in open_]

        found = await answer(questions, ask, alternatives)
        listed = {question.start for question in questions} - alone
        return counted(marked(found, "singles", but=listed), strategy, usage)

    async def next_tokens(
        self, contexts: Sequence[Context], *, alternatives: int = 1, usage: Usage
    ) -> list[Token | None]:
        """Request the next token after each context; see `contract.IdContexts`.

        Unless the strategy is `"list"`, the requests are sent one after another, so that each request finds the prompt
        of the previous request in the slot.
        """
        client = self._client(await self.facts())
        strategy: Strategy = "list" if self._strategy == "list" and len(contexts) > 1 else "singles"
        found = await client.after([*map(self._path, contexts)], 1 + alternatives, usage, singly=strategy == "singles")
        usage.answered_by(strategy, len(found))
        return found

    async def list_allowed(self, context: Context, allowed: Callable[[bytes], bool], *, usage: Usage) -> list[Token]:
        """Request longer and longer lists, up to the whole vocabulary; see `contract.AllowedTokens`."""
        client = self._client(await self.facts())

        async def ask(count: int) -> Token | None:
            [found] = await client.after([self._path(context)], count, usage, singly=True)
            return found

        return await search(ask, allowed, 1 + client.facts.info.capabilities.top_k)

    async def encode(self, text: str) -> list[Piece]:
        """Encode the beginning of a response with `/tokenize`; see `contract.IdContexts`."""
        pieces = await self._encode(text, special=False)
        if not _spells(pieces, text):
            # The tokenizer puts a space before every text, but not after a line break, which it never merges with text.
            # So the text is encoded after a line break, whose own tokens are then removed.
            line = await self._encode(_LINE, special=False)
            pieces = (await self._encode(_LINE + text, special=False))[len(line) :]
        if not _spells(pieces, text):
            words = "the server does not show which bytes its tokens are, or they do not spell the text"
            raise self._unsupported(words, "Give the model's tokenizer as `tokenizer`.")
        return pieces

    async def decode(self, ids: Sequence[int]) -> str:
        """Decode ids with `/detokenize`; see `contract.IdContexts`."""
        found = await self._transport.post("/detokenize", self._named(tokens=[*ids]))
        return self._read(_Text, found).content

    async def score(self, context: Context, *, alternatives: int = 0, end: bool = False, usage: Usage) -> list[Token]:
        """Score all tokens with lists of prompts, and improbable tokens with further requests; see `contract.Provider`.

        The reported end of sequence is the most probable token that ends a generation. If the prompt is empty and the
        model has no beginning of sequence, the first token has no probability.
        """
        prompt, text = context.prompt, context.text
        client = self._client(await self.facts())
        before, pieces, start = await self._encoded(prompt, text)
        first = sum(at <= start for at in accumulate(len(piece.data) for piece in pieces))
        known = [Token(piece.data, 1.0) for piece in pieces[:first]]
        if pieces and not prompt and not await self._beginning.get(self._find_beginning):
            known, first = [Token(pieces[0].data, None)], 1
        prefixes: list[PromptParts] = [[*before, *(piece.id for piece in pieces[:at])] for at in range(len(pieces) + 1)]
        asked = [*pieces[first:], None] if end else pieces[first:]
        found = await client.scored(prefixes[first : first + len(asked)], asked, usage, alternatives)
        scored = within([*known, *found[: len(pieces) - first]], start)
        return [*scored, found[-1]] if end else scored

    async def score_ids(
        self, context: Context, first: int, *, alternatives: int = 0, end: bool = False, usage: Usage
    ) -> list[Token]:
        """Score all ids with lists of prompts, and improbable ids with further requests; see `contract.IdScores`.

        The first id has no probability if nothing precedes it.
        """
        client = self._client(await self.facts())
        path, ids = self._path(context), [*(context.ids or ())]
        known: list[Token] = []
        if ids and not (first or context.prompt or await self._beginning.get(self._find_beginning)):
            known, first = [Token(b"", None, id=ids[0])], 1
        asked: list[Piece | None] = [Piece(one, b"") for one in ids[first:]]
        places = range(len(path) - len(asked), len(path) + end)
        asked += [None] if end else []
        return [*known, *await client.scored([path[:at] for at in places], asked, usage, alternatives, raw=True)]

    async def _encoded(self, prompt: str, text: bytes) -> tuple[PromptParts, list[Piece], int]:
        """Encode prompt and text; return the parts with fixed ids, the pieces after them, and the offset of the text.

        If no part has fixed ids, the first part is an empty text, for which the server adds a beginning-of-sequence
        token if the model has one.
        """
        rest = prompt.removeprefix(self._head.text)
        before: PromptParts = [*self._head.ids] if self._head.ids else [""]
        return before, await self.tokenize(rest + sendable(text)), len(rest.encode())

    async def _find_ends(self, client: LlamaCppClient, told: str) -> dict[int, str | None]:
        """Find all tokens that end a generation, with their names; `told` is the name that `/props` reports."""
        names = [*filter(None, (told, *ENDS))]
        pieces = [(piece.id, piece.data.decode(errors="replace")) for piece in await self._encode("".join(names))]
        named = {token_id: name for token_id, name in pieces if name in names}
        return {one: named.get(one) for one in sorted(await client.ignored_ends())}

    async def tokenize(self, text: str) -> list[Piece]:
        """Encode a text on the server. Special tokens are parsed as in a prompt, and no tokens are added."""
        pieces = await self._encode(text)
        surplus = sum(len(piece.data) for piece in pieces) - len(text.encode())
        if surplus == 1 and pieces[0].data[:1] == b" ":  # some tokenizers put a space before every text
            pieces[0] = Piece(pieces[0].id, pieces[0].data[1:])
        return pieces

    async def count_tokens(self, text: str) -> int:
        """Count the tokens of a text, without requesting their bytes; see `contract.TokenCounts`."""
        body = self._named(content=text, add_special=False, parse_special=True)
        return len(self._read(_Ids, await self._transport.post("/tokenize", body)).tokens)

    def _prefix(self, prompt: str, text: bytes) -> PromptParts:
        return [*self._head.ids, prompt.removeprefix(self._head.text) + sendable(text)]

    def _path(self, context: Context) -> PromptParts:
        """Convert a context for a request: the prompt as text, which the server encodes alone, followed by the ids."""
        if context.ids is None:
            return self._prefix(context.prompt, context.text)
        return [*self._prefix(context.prompt, b""), *context.ids]

    async def _ids(self, text: str) -> list[int]:
        """Request the ids of a text, with the beginning of sequence in front if the model has one."""
        body = self._named(content=text, add_special=True, parse_special=True)
        return self._read(_Ids, await self._transport.post("/tokenize", body)).tokens

    async def _encode(self, text: str, *, special: bool = True) -> list[Piece]:
        body = self._named(content=text, add_special=False, parse_special=special, with_pieces=True)
        found = self._read(_Pieces, await self._transport.post("/tokenize", body)).tokens
        parts = [found[at : at + _PART] for at in range(0, len(found), _PART)]

        def read() -> list[Piece]:
            return [piece for part in parts for piece in self._read(_RawPieces, part).pieces()]

        return read() if len(parts) < 2 else await to_thread.run_sync(read)

    def _named(self, **fields: object) -> dict[str, object]:
        return {**fields, "model": self._model} if self._model else fields

    def _read(self, kind: type[_M], data: object) -> _M:
        return parse(kind, data, self._transport.endpoint)

    async def _discover(self) -> LlamaCppFacts:
        ask = partial(ask_only, self._transport, looks="a llama.cpp server", url="`llama-server`")
        chosen = choose((await ask(Models, "/v1/models")).data, self._model, self._transport.endpoint)
        props = await ask(_Props, self._props_route())
        # Each idle connection occupies a thread of the server, which has more threads than slots. Half of the threads
        # are left for other clients.
        self._transport.idle = max(FEW_IDLE, (props.total_slots or 0) // 2)
        visible = await self._encode("a")
        if not visible:
            raise ResponseError("/tokenize gave no token for a letter", endpoint=self._transport.endpoint)
        others = (chosen.vocabulary or 1 + _MANY) - 1
        info = ServerInfo(
            endpoint=self._transport.endpoint,
            engine="llama.cpp",
            model=chosen.id,
            build=props.build_info,
            context=props.default_generation_settings.n_ctx,
            capabilities=Capabilities(
                token_ids=True,
                end_prob=True,
                tokenize=True,
                score=True,
                scores_by_token=True,
                top_k=others,
                score_top_k=others,
                sampling=True,
                hidden_states=await self._width(visible[-1].id),
                ids=True,
                places=LIST if self._strategy == "list" else 1,
                finds_allowed=True,
            ),
            answer_cue=await self._answer_cue(),
        )
        if await self._speculates():
            raise speculative(self._transport.endpoint)
        facts = LlamaCppFacts(info, {}, visible[-1].id)
        client = self._client(facts)
        ends = await self._find_ends(client, props.eos_token)
        able = replace(info.capabilities, reread=await client.reread())
        return replace(facts, info=replace(info, ends=(*ends,), capabilities=able), ends=ends)

    async def _width(self, visible: int) -> int:
        """Find the width of a hidden state; 0 if the server does not report a state for each token.

        Raises:
            ProviderError: there was no answer, or an error that may be temporary, so the width is unknown.
        """
        try:
            body = self._named(content=[visible, visible])
            [found] = self._read(_Embeddings, await self._transport.post("/embedding", body)).root
        except (InvalidRequestError, ContextLengthError, AuthenticationError):  # a proxy may forbid only this path
            return 0
        except ServerError as error:
            if error.status != HTTPStatus.INTERNAL_SERVER_ERROR:  # still loading, or an error of a proxy
                raise
            return 0
        except ResponseError as error:
            if error.retryable:  # after a temporary error, the width is still unknown
                raise
            return 0
        widths = {len(cast("list[object]", row)) if isinstance(row, list) else 0 for row in found.embedding}
        return widths.pop() if len(found.embedding) == 2 and len(widths) == 1 else 0

    def _props_route(self) -> str:
        return f"/props?model={quote(self._model)}" if self._model else "/props"

    async def _speculates(self) -> bool:
        """True if the server reports speculative decoding. A server that hides its slots does not report it."""
        try:
            return any(slot.speculative for slot in self._read(_Slots, await self._transport.get("/slots")).root)
        except (StatusError, ResponseError):
            return False

    async def _answer_cue(self) -> str | None:
        """Find the text that the chat template puts before an answer; None if the model has no template."""
        mark = "\U000f0000"
        try:
            rendered = await self._render([{"role": "user", "content": mark}])
        except (StatusError, ResponseError, UnsupportedError, TemplateRefusal):
            return None
        cue = rendered.rpartition(mark)[2]
        # For a model without a template, the server uses ChatML, whose marks are then usually not tokens of the model.
        own = _CHATML not in cue or len(await self._encode(_CHATML)) == 1
        return cue if own and mark in rendered else None

    async def _render(self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Render with `/apply-template`, which omits the beginning-of-sequence token that `/completion` adds."""
        try:
            body = self._named(messages=messages, **({"tools": [*tools]} if tools else {}))
            found = await self._transport.post("/apply-template", body)
            return self._read(_Rendered, found).prompt
        except InvalidRequestError as error:  # also raised for errors in the template
            if error.status == 404:  # a proxy may lack this route
                return await super()._render(messages, tools)
            raise TemplateRefusal(error.args[0]) from None

    async def begun(self, prompt: str) -> str:
        """Strip the beginning-of-sequence token, which the server puts before a text, from a prompt."""
        if self._template is None:
            return prompt  # the server has already omitted the token
        return prompt.removeprefix(await self._beginning.get(self._find_beginning))

    async def _find_beginning(self) -> str:
        """Find the string of the beginning-of-sequence token that the server puts before a text; empty if none."""
        if not await self._ids(""):
            return ""
        return self._read(_Props, await self._transport.get(self._props_route())).bos_token

    async def literal(self, pieces: Sequence[str]) -> Provider | None:
        """Return a view whose prompts are ids up to the last piece; None if the tokenizer adds spaces to pieces."""
        ids, more = await self._ids(pieces[0]), [await self._encode(piece) for piece in pieces[1:]]
        if b"".join(one.data for found in more for one in found) != "".join(pieces[1:]).encode():
            return None
        view = copy(self)
        view._head = Head("".join(pieces[:-1]), [*ids, *(one.id for found in more[:-1] for one in found)])
        return view

    async def probe_client(self) -> LlamaCppProbeClient:
        """Return a client without checks, for the probe."""
        return LlamaCppProbeClient(self._client(await self.facts()))
