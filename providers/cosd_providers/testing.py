"""A provider for tests that needs no server: a scripted model, with delays and faults.

The simple form is a script of tokens and probabilities::

    draft = ScriptedProvider.from_texts({"2 + 2 =": [" 4", (".", 0.4)], "2 + 2 = 5": [("?", 0.9)]})

Each key is a text, and each value is the list of tokens that follow this text. The answer ends after the last token;
after a text without a script, it ends at once. In the full form, the model is any object with the attributes of
`LanguageModel`.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal, Protocol, Self, TypeAlias, cast

import anyio

from cosd_providers.allowed import none_allowed, search
from cosd_providers.contract import (
    Capabilities,
    Context,
    DraftEnd,
    Piece,
    Proposal,
    Question,
    ServerInfo,
    State,
    Token,
    WordEnds,
)
from cosd_providers.drafting import with_states
from cosd_providers.errors import ContextLengthError, ProviderError, UnsupportedError
from cosd_providers.forwarding import no_states
from cosd_providers.greedy import (
    TIES,
    Choice,
    Continuation,
    Draft,
    Position,
    answer,
    boundaries,
    with_alternatives,
    with_listed,
    within,
)
from cosd_providers.messages import Message, OnSpecialTokens, RenderedPrompt
from cosd_providers.sampling import DraftOptions
from cosd_providers.text import sendable, whole
from cosd_providers.usage import Usage

__all__ = ["Call", "Fault", "LanguageModel", "ScriptToken", "ScriptedProvider", "TableModel", "TextModel"]


ScriptToken: TypeAlias = str | bytes | tuple[str | bytes, float]
"""A token in a script: a text, or a text and its probability (1 by default). An empty text ends the sequence."""


_ABILITIES = (
    "token_ids",
    "end_prob",
    "probs",
    "sampling",
    "draws",
    "continues",
    "ids",
    "places",
    "watch",
    "finds_allowed",
)
"""Attributes of a `ScriptedProvider` that are also `Capabilities`."""

_DRAFT_OPTIONS = ("continuation", "alternatives", "temperature", "seed", "states")
"""Fields of a `Call` that are also `DraftOptions`."""


class LanguageModel(Protocol):
    """A language model, described by plain functions."""

    @property
    def tokens(self) -> Sequence[bytes]:
        """The bytes of every id."""
        ...

    @property
    def end_ids(self) -> Collection[int]:
        """The ids that end a sequence."""
        ...

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text."""
        ...

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        """Return the probability of every id after `ids`. The greedy choice is the first of the most probable ids."""
        ...


@dataclass
class TableModel:
    """A model that consists of a vocabulary and a function. Each step of its encoding uses the longest token that fits.

    Attributes:
        tokens: the bytes of every id.
        next: a function that returns the probability of every id after some ids.
        end_ids: the ids that end a sequence.
    """

    tokens: Sequence[bytes]
    next: Any
    end_ids: Collection[int] = ()

    def __post_init__(self) -> None:
        usable = [at for at, data in enumerate(self.tokens) if data and at not in self.end_ids]
        self._ids = {self.tokens[at]: at for at in reversed(usable)}
        self._longest = max(map(len, self._ids), default=0)

    def encode(self, text: bytes) -> list[int]:
        """The ids of `text`.

        Raises:
            ValueError: some part of the text cannot be encoded by any token.
        """
        ids: list[int] = []
        at = 0
        while at < len(text):
            sizes = range(min(self._longest, len(text) - at), 0, -1)
            size = next((n for n in sizes if text[at : at + n] in self._ids), None)
            if size is None:
                raise ValueError(f"no token of the model fits {text[at : at + 8]!r}")
            ids.append(self._ids[text[at : at + size]])
            at += size
        return ids


class TextModel(TableModel):
    """A model that follows scripts. Its answers depend only on the text, not on how the text is split into tokens."""

    def __init__(self, scripts: Mapping[str, Sequence[ScriptToken]]) -> None:
        self._scripts = [
            (key.encode(), [_script_token(item) for item in script])
            for key, script in sorted(scripts.items(), key=lambda item: -len(item[0].encode()))
        ]
        texts = {data for _, script in self._scripts for data, _ in script}
        tails = {data[at:] for data in texts for at in range(1, len(data))}
        single = {bytes([byte]) for byte in range(256)}
        super().__init__([b"", *sorted((texts | tails | single) - {b""})], self._next, end_ids=(0,))

    def _next(self, ids: Sequence[int]) -> list[float]:
        probs = [0.0] * len(self.tokens)
        data, prob = self._look_up(b"".join(self.tokens[at] for at in ids))
        probs[self._ids.get(data, 0)] = prob
        return probs

    def _look_up(self, text: bytes) -> tuple[bytes, float]:
        """Look up the script's token after `text`, or the rest of that token if `text` ends inside it."""
        for key, script in self._scripts:
            if not text.startswith(key):
                continue
            at = len(key)
            for data, prob in script:
                rest = text[at : at + len(data)]
                if not data or (len(rest) < len(data) and data.startswith(rest)):
                    return (data[len(rest) :], prob) if at + len(rest) == len(text) else (b"", 1.0)
                if rest != data:
                    break
                at += len(data)
            else:
                if at == len(text):
                    return b"", 1.0
        return b"", 1.0


def _script_token(item: ScriptToken) -> tuple[bytes, float]:
    data, prob = item if isinstance(item, tuple) else (item, 1.0)
    return data.encode() if isinstance(data, str) else data, prob


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure of a request.

    Attributes:
        error: the error to raise; None to hang until the caller cancels the request.
        request: the number of the request that fails, where 1 is the provider's first request.
        tokens: number of raw tokens that the request yields before it fails.
    """

    error: ProviderError | None
    request: int = 1
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a provider's method, with its arguments.

    Attributes:
        kind: the name of the method; `"generate"` for `generate_with_states` as well.
        prompt: the prompt.
        text: the response so far.
        questions: the argument of `propose`.
        contexts: the contexts of `next_tokens`, `score_ids` and `list_allowed`. In these calls, `prompt` is from the
            first context and `text` from the last.
        ids: the ids in the context of `generate`, `score_ids` and `list_allowed`; None if the context is a text.
        max_tokens: the argument of `generate`.
        continuation: the argument of `generate`.
        alternatives: the number of alternatives.
        end: the argument of `score` and `score_ids`.
        temperature: the argument of `generate`.
        seed: the argument of `generate`.
        states: whether hidden states were requested.
    """

    kind: Literal["generate", "propose", "score", "score_ids", "hidden_states", "next_tokens", "list_allowed"]
    prompt: str
    text: bytes
    questions: tuple[Question, ...] | None = None
    max_tokens: int | None = None
    continuation: object = None
    alternatives: int = 0
    end: bool = False
    temperature: float = 0
    seed: int | None = None
    states: bool = False
    contexts: tuple[Context, ...] | None = None
    ids: tuple[int, ...] | None = None


@dataclass
class ScriptedProvider:
    """A provider with a scripted model, which behaves like a provider with a server.

    Attributes:
        model: the model that computes the probabilities.
        name: the provider's name among the endpoints of a fusion.
        token_ids: whether a draft can be continued from its own ids; otherwise `DraftEnd.continuation` is None.
        end_prob: whether the probability of the end of sequence is reported.
        probs: whether any probabilities are reported.
        top_k: the largest number of alternatives per token; None for the whole vocabulary.
        sampling: whether the provider can draw from the model's own distribution.
        draws: whether the provider claims to draw only in its own way; in fact it draws as with `sampling`.
        continues: whether the provider continues a text; otherwise it only answers whole conversations.
        context: size of the context in tokens, prompt and answer together; None for no limit.
        answer_cue: the chat template's text before an answer; None for a model without a template.
        template: the chat template, a function that receives messages and returns the text to continue. By default,
            each message becomes a line such as `"user: Hello"`, and the answer follows `"assistant: "`.
        words: a function that returns the ends of the words into which the tokenizer splits a text; None if it is
            unknown.
        states: a function that returns the last hidden state after given ids; None if states are not reported.
        ids: whether the provider accepts contexts by ids; see `contract.IdContexts`.
        places: the largest number of contexts by ids in one request.
        watch: as in `contract.Capabilities`.
        finds_allowed: whether `list_allowed` lists the whole vocabulary; otherwise it raises an error.
        hides_parts: whether a draft after a context by ids leaves out the probability and the alternatives of a token
            that leaves a character unfinished, as llama.cpp does.
        request_delay: seconds before each request is answered.
        token_delay: seconds before each raw token of a draft is yielded.
        faults: the failures of the provider's requests.
        calls: the calls of the provider's methods so far, in order.
        requests: number of requests so far.
        open_requests: number of requests in progress; a test can check that it is 0 in the end.
    """

    model: LanguageModel
    name: str = "scripted"
    token_ids: bool = True
    end_prob: bool = True
    probs: bool = True
    top_k: int | None = None
    sampling: bool = True
    draws: bool = False
    continues: bool = True
    context: int | None = None
    answer_cue: str | None = None
    template: Callable[[Sequence[Message]], str] | None = None
    words: WordEnds | None = None
    states: Callable[[Sequence[int]], State] | None = None
    ids: bool = False
    places: int = 64
    watch: bool | None = None
    finds_allowed: bool = True
    hides_parts: bool = False
    request_delay: float = 0.0
    token_delay: float = 0.0
    faults: Sequence[Fault] = ()
    calls: list[Call] = field(default_factory=list[Call])
    requests: int = 0
    open_requests: int = 0

    @classmethod
    def from_texts(cls, scripts: Mapping[str, Sequence[ScriptToken]], **options: Any) -> ScriptedProvider:
        """Create a provider that follows scripts: each text is mapped to the tokens that follow it.

        Of several keys that fit a text, the longest is used. If the text ends inside a token, the rest of that token
        follows. The `options` are passed to the constructor.
        """
        return cls(TextModel(scripts), **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def describe(self) -> ServerInfo:
        """Describe the provider by its attributes."""
        top_k = self._listed(len(self.model.tokens) - 1) if self.probs else 0
        able: dict[str, Any] = {name: getattr(self, name) for name in _ABILITIES}
        able |= {"tokenize": True, "score": True, "top_k": top_k, "score_top_k": top_k, "words": self.words is not None}
        capabilities = Capabilities(**able, hidden_states=0 if self.states is None else len(self.states(())))
        info = ServerInfo("scripted:", "scripted", self.name, None, self.context, capabilities, self.answer_cue)
        return replace(info, ends=(*self.model.end_ids,)) if self.ids else info

    async def word_splitter(self) -> WordEnds | None:
        """Return the attribute `words`; see `contract.WordSplitter`."""
        return self.words

    async def render_prompt(
        self,
        messages: Sequence[Message],
        *,
        on_special_tokens: OnSpecialTokens = "warn",  # noqa: ARG002
    ) -> RenderedPrompt:
        """Render a conversation with `template`; see `messages.ChatProvider`."""
        if self.template is not None:
            return RenderedPrompt(self, self.template(messages))
        lines = [f"{message.role}: {message.content}" for message in messages]
        return RenderedPrompt(self, "\n".join(lines if messages[-1].role == "assistant" else [*lines, "assistant: "]))

    async def generate(
        self,
        context: Context,
        *,
        max_tokens: int,
        continuation: object = None,
        alternatives: int = 0,
        temperature: float = 0,
        seed: int | None = None,
        usage: Usage,
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Stream the model's tokens, then a `DraftEnd`. Tokens are greedy, or drawn by `random.Random(seed)`."""
        options = DraftOptions(alternatives, temperature, seed, continuation, raw=context.ids is not None)
        async with aclosing(self._draft(context, max_tokens, options, usage)) as items:
            async for item in items:
                yield item

    async def generate_with_states(
        self, context: Context, *, max_tokens: int, continuation: object = None, alternatives: int = 0, usage: Usage
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Stream tokens with their states, which need additional requests; see `contract.HiddenStates`."""
        states = self._reported()
        options = DraftOptions(alternatives, continuation=continuation, states=True, raw=context.ids is not None)
        start, draft = self._start(context, continuation), Draft(max_tokens, raw=options.raw)

        async def after(ids: Sequence[int], count: int) -> list[State]:
            whole = [*start, *ids]
            async with self._request(usage) as number:
                await self._fault(number, 0)
                usage.prompt_tokens += len(whole)
                return [states(whole[:at]) for at in range(len(whole) - count + 1, len(whole) + 1)]

        items = self._draft(context, max_tokens, options, usage, draft)
        async with aclosing(with_states(items, draft, after)) as stated:
            async for item in stated:
                yield item

    async def hidden_states(self, context: Context, *, usage: Usage) -> dict[int, State]:
        """Return the states at the boundaries of the model's encoding of the text; see `contract.HiddenStates`."""
        prompt, text = context.prompt, context.text
        states = self._reported()
        self.calls.append(Call("hidden_states", prompt, text, states=True))
        ids, start = self._encode(prompt, text), len(prompt.encode())
        asked = {one.start for one in boundaries((self.model.tokens[at] for at in ids), start)}
        async with self._request(usage) as number:
            await self._fault(number, 0)
            usage.prompt_tokens += len(ids)
            ends = accumulate((len(self.model.tokens[at]) for at in ids), initial=-start)
            return {end: states(ids[:at]) for at, end in enumerate(ends) if at and end in asked}

    def _reported(self) -> Callable[[Sequence[int]], State]:
        if self.states is None:
            raise no_states("scripted:", "states=...")
        return self.states

    async def _draft(
        self, context: Context, max_tokens: int, options: DraftOptions, usage: Usage, draft: Draft | None = None
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        given: dict[str, Any] = {name: getattr(options, name) for name in _DRAFT_OPTIONS}
        asked = Call("generate", context.prompt, context.text, max_tokens=max_tokens, ids=context.ids, **given)
        self.calls.append(asked)
        if context.text and not self.continues:
            hint = "continues=True"
            raise UnsupportedError("the scripted provider does not continue a text", endpoint="scripted:", hint=hint)
        sampled = options.sampled
        if sampled and not (self.sampling or self.draws):
            raise UnsupportedError("the scripted provider does not sample", endpoint="scripted:", hint="sampling=True")
        alternatives = self._listed(options.alternatives)
        chance = random.Random(options.seed) if sampled else None  # noqa: S311 - no secret
        start, draft = self._start(context, options.continuation), draft or Draft(max_tokens, raw=options.raw)
        async with self._request(usage) as number:
            usage.prompt_tokens += len(start)
            while not draft.over:
                if self._full(start, draft.ids, grown=bool(context.ids or context.text)):
                    yield DraftEnd("context")
                    return
                await self._fault(number, len(draft.ids))
                await anyio.sleep(self.token_delay)
                position = self._position(start + draft.ids, alternatives, chance)
                usage.completion_tokens += 1
                usage.answered(time.monotonic())
                listed = with_listed if options.raw else with_alternatives
                token = listed(position, alternatives)
                if options.raw and self.hides_parts and self._open(context, [*draft.ids, position.pick.id]):
                    token = replace(token, prob=None, alternatives=())
                for one in draft.feed(position.pick.id, token):
                    yield one
        keeps = self.token_ids and not options.raw
        yield DraftEnd("end") if draft.ended else DraftEnd("limit", (*start, *draft.ids) if keeps else None)

    def _start(self, context: Context, continuation: object) -> list[int]:
        """Return the ids that a draft continues."""
        if context.ids is not None:
            return self._path(context)
        if continuation is None:
            return self._encode(context.prompt, context.text)
        return list(cast("tuple[int, ...]", continuation))

    def _path(self, context: Context) -> list[int]:
        """Return all ids of a context by ids: the encoding of the prompt alone, followed by the context's ids."""
        self._check_ids()
        return [*self.model.encode(context.prompt.encode()), *(context.ids or ())]

    def _open(self, context: Context, ids: Sequence[int]) -> bool:
        """True if `ids`, after a context by ids, leave a character unfinished without ending the sequence."""
        if ids[-1] in self.model.end_ids:
            return False
        data = b"".join(self.model.tokens[at] for at in (*(context.ids or ()), *ids))
        return whole(data) < len(data)

    def _check_ids(self) -> None:
        if not self.ids:
            raise UnsupportedError("the scripted provider takes no ids", endpoint="scripted:", hint="ids=True")

    async def propose(
        self, context: Context, questions: Sequence[Question] | None, *, alternatives: int = 0, usage: Usage
    ) -> list[Proposal | None]:
        """Return the model's continuations, in rounds; each round sends one request for all open questions."""
        prompt, text = context.prompt, context.text
        asked = None if questions is None else tuple(questions)
        self.calls.append(Call("propose", prompt, text, asked, alternatives=alternatives))
        if asked is None:
            pieces = [self.model.tokens[at] for at in self._encode(prompt, text)]
            asked = tuple(boundaries(pieces, len(prompt.encode())))

        async def ask(chains: list[Continuation]) -> list[list[Position]]:
            async with self._request(usage) as number:
                await self._fault(number, 0)
                return [self._go_on(chain, prompt, text, usage) for chain in chains]

        return await answer(asked, ask, self._listed(alternatives))

    def _go_on(self, chain: Continuation, prompt: str, text: bytes, usage: Usage) -> list[Position]:
        """Return the next positions of one continuation with the model's own picks, as a server would return them."""
        start = self._encode(prompt, text[: chain.question.start])
        ids = start + chain.ids
        usage.prompt_tokens += len(ids)
        positions: list[Position] = []
        while len(positions) < chain.wanted and not self._full(ids, ()):
            positions.append(self._position(ids, chain.alternatives))
            ids.append(positions[-1].pick.id)
            usage.completion_tokens += 1
            if positions[-1].pick.token.end:
                break
        if not positions and not chain.ids:
            raise self._too_long(len(ids))
        return positions

    async def score(self, context: Context, *, alternatives: int = 0, end: bool = False, usage: Usage) -> list[Token]:
        """Return the tokens of the model's encoding of the text, with their probabilities; see `contract.Provider`."""
        prompt, text = context.prompt, context.text
        self.calls.append(Call("score", prompt, text, alternatives=alternatives, end=end))
        ids = self._encode(prompt, text)
        found = await self._score(ids, 0, alternatives, usage, end=end)
        return [*within(found[: len(ids)], len(prompt.encode())), *found[len(ids) :]]

    async def score_ids(
        self, context: Context, first: int, *, alternatives: int = 0, end: bool = False, usage: Usage
    ) -> list[Token]:
        """Score the ids of a context from index `first` on; see `contract.IdScores`."""
        prompt, text = context.prompt, context.text
        self.calls.append(
            Call("score_ids", prompt, text, alternatives=alternatives, end=end, contexts=(context,), ids=context.ids)
        )
        path = self._path(context)
        begin = len(path) - len(context.ids or ()) + first
        return await self._score(path, begin, alternatives, usage, end=end, raw=True)

    async def _score(
        self, ids: list[int], first: int, alternatives: int, usage: Usage, *, end: bool = False, raw: bool = False
    ) -> list[Token]:
        """Score ids from index `first` on and, with `end`, the end of sequence after the last id."""
        async with self._request(usage) as number:
            await self._fault(number, 0)
            usage.prompt_tokens += len(ids)
            asked: list[int | None] = [*ids[first:], None] if end else [*ids[first:]]
            return [self._scored(ids[:at], one, alternatives, raw=raw) for at, one in enumerate(asked, first)]

    def _scored(self, before: Sequence[int], token_id: int | None, alternatives: int, *, raw: bool = False) -> Token:
        """Score a token after earlier ids; an id of None means the end of sequence. A `raw` token is unchanged."""
        probs = self.model.next(before)
        if token_id is None:
            ends = sorted(self.model.end_ids)
            own = max(ends, key=lambda at: probs[at], default=None)
            token = Token(b"", None, end=True, name="</s>") if own is None else self._choice(own, probs[own]).token
        else:
            own, token = token_id, Token(self.model.tokens[token_id], probs[token_id])
        if own is None or not (alternatives or raw):
            return token
        listed = self._listed(alternatives)
        choose = with_listed if raw else with_alternatives
        return choose(Position(Choice(own, token), self._position(before, listed).top), listed)

    async def next_tokens(
        self, contexts: Sequence[Context], *, alternatives: int = 1, usage: Usage
    ) -> list[Token | None]:
        """Return the model's choice after each context, for up to `places` contexts per request; see `IdContexts`."""
        asked = tuple(contexts)
        prompt, text = (asked[0].prompt, asked[-1].text) if asked else ("", b"")
        self.calls.append(Call("next_tokens", prompt, text, alternatives=alternatives, contexts=asked))
        self._check_ids()
        found, listed = list[Token | None](), self._listed(alternatives)
        for at in range(0, len(asked), self.places):
            async with self._request(usage) as number:
                await self._fault(number, 0)
                found += [self._next_token(one, listed, usage) for one in asked[at : at + self.places]]
        return found

    def _next_token(self, context: Context, alternatives: int, usage: Usage) -> Token | None:
        path = self._path(context)
        if self._full(path, (), grown=bool(context.ids)):
            return None
        usage.prompt_tokens += len(path)
        usage.completion_tokens += 1
        return with_listed(self._position(path, alternatives), alternatives)

    async def list_allowed(self, context: Context, allowed: Callable[[bytes], bool], *, usage: Usage) -> list[Token]:
        """List the possible tokens up to the first allowed one; see `contract.AllowedTokens`."""
        self.calls.append(Call("list_allowed", context.prompt, context.text, contexts=(context,), ids=context.ids))
        if not self.finds_allowed:
            raise none_allowed("scripted:", hint="finds_allowed=True")
        path = self._start(context, None)

        async def ask(count: int) -> Token | None:
            async with self._request(usage) as number:
                await self._fault(number, 0)
                if self._full(path, (), grown=bool(context.ids or context.text)):
                    return None
                usage.prompt_tokens += len(path)
                usage.completion_tokens += 1
                return with_listed(self._position(path, count), count - 1)

        return await search(ask, allowed, len(self.model.tokens))

    async def encode(self, text: str) -> list[Piece]:
        """Encode the beginning of a response. The model has no special tokens to parse. See `contract.IdContexts`."""
        self._check_ids()
        return await self.tokenize(text)

    async def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text; see `contract.IdContexts`. Bytes that do not form a character are left out."""
        self._check_ids()
        unknown = [one for one in ids if not 0 <= one < len(self.model.tokens)]
        if unknown:
            raise UnsupportedError(f"the model has no token {unknown[0]}", endpoint="scripted:")
        return sendable(b"".join(self.model.tokens[one] for one in ids))

    async def tokenize(self, text: str) -> list[Piece]:
        """Encode `text` as the model does; see `contract.Provider`."""
        try:
            ids = self.model.encode(text.encode())
        except ValueError as error:
            raise UnsupportedError(str(error), endpoint="scripted:") from error
        return [Piece(at, self.model.tokens[at]) for at in ids]

    def _encode(self, prompt: str, text: bytes) -> list[int]:
        return self.model.encode((prompt + sendable(text)).encode())

    def _full(self, start: Sequence[int], ids: Sequence[int], *, grown: bool = False) -> bool:
        """True if the context is full; raises an error if `start` does not fit and is only the prompt (not `grown`)."""
        if self.context is not None and not ids and len(start) > self.context and not grown:
            raise self._too_long(len(start))
        return self.context is not None and len(start) + len(ids) >= self.context

    def _too_long(self, tokens: int) -> ContextLengthError:
        words = f"the text has {tokens} tokens, the model's context {self.context}"
        return ContextLengthError(words, endpoint="scripted:", status=400)

    def _listed(self, alternatives: int) -> int:
        """The number of alternatives to list if a request asks for `alternatives`."""
        return alternatives if self.top_k is None else min(alternatives, self.top_k)

    def _position(self, ids: Sequence[int], more: int = 0, chance: random.Random | None = None) -> Position:
        """Compute the position after `ids`, which lists `more` of the most probable tokens than usual.

        The pick is the most probable token, or is drawn with `chance`.
        """
        probs = self.model.next(ids)
        count = max(TIES, list(probs).count(max(probs))) + more
        best = heapq.nsmallest(count, range(len(probs)), key=lambda at: (-probs[at], at))
        choices = [self._choice(at, probs[at]) for at in best]
        pick = choices[0]
        if chance is not None:
            [drawn] = chance.choices(range(len(probs)), probs)
            pick = self._choice(drawn, probs[drawn])
        return Position(pick, [choice for choice in choices if choice.token.prob is not None])

    def _choice(self, token_id: int, prob: float) -> Choice:
        if token_id not in self.model.end_ids:
            return Choice(token_id, Token(self.model.tokens[token_id], prob if self.probs else None))
        told = prob if self.probs and self.end_prob else None
        return Choice(token_id, Token(b"", told, end=True, name="</s>"))

    @asynccontextmanager
    async def _request(self, usage: Usage) -> AsyncGenerator[int]:
        """Count a request, and yield its number, from 1."""
        usage.sent(time.monotonic())  # raises if the budget is spent
        self.requests += 1
        number = self.requests
        self.open_requests += 1
        try:
            await anyio.sleep(self.request_delay)
            yield number
            usage.answered(time.monotonic())
        finally:
            usage.closed(time.monotonic())
            self.open_requests -= 1

    async def _fault(self, number: int, tokens: int) -> None:
        for fault in self.faults:
            if fault.request == number and fault.tokens == tokens:
                if fault.error is not None:
                    raise fault.error
                await anyio.sleep_forever()
