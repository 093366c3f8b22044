"""The interface between a fusion and its servers: the extension point for further servers.

A provider has three main methods. `generate` continues a text and streams tokens with their probabilities. `propose`
returns the model's own choice at several places in a text. `score` returns the probabilities of a given text. All
probabilities are raw: they come from the model's full distribution at temperature 1. Each adapter decides how to obtain
them from its server.

All offsets are in bytes. If a `Context` has ids, answers contain the model's own tokens, with their ids. If a context
is a text, tokens consist of whole characters: in every adapter, neighbouring raw tokens that share a character become
one token with the lowest of their probabilities (`text.Merger`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, TypeAlias, runtime_checkable

from cosd_providers.usage import Usage

State: TypeAlias = Sequence[float]
"""A model's last hidden state at one position, from which the model computes the next token's probabilities."""


@dataclass(frozen=True, slots=True)
class Context:
    """The input that a model continues or scores: a prompt and the response so far.

    With `ids` (a *context by ids*), the model reads the encoding of the prompt alone, then these ids, exactly as the
    model wrote them. Prompt and response never merge into one token, and no part of the response is encoded again.
    Without `ids`, the server encodes prompt and response as one text. The model itself might have written the same text
    with different tokens.

    Attributes:
        prompt: the rendered prompt; special tokens are parsed, as in any prompt.
        text: the response so far, which is the same for all models.
        ids: the model's ids for `text`; empty at the start of a response. None if the model accepts only text.
    """

    prompt: str
    text: bytes = b""
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a model: after a context by ids, exactly as the model wrote it; after a text, in whole characters.

    Attributes:
        data: its bytes; empty for the end of sequence.
        prob: the model's probability of the token, in [0, 1]; None if the endpoint does not report it.
        end: whether this is the end of sequence (or of turn), which is a symbol distinct from all bytes.
        name: the end token in the model's own spelling, e.g. `"</s>"`, if known.
        alternatives: other tokens at the same position, in whole characters, or the end of sequence; the most probable
            first. Empty if they were not requested or are not known, or if several raw tokens were joined into this
            token. Two kinds of tokens are left out: parts of characters, and tokens with the same bytes as another
            token. Each of these counts as unlisted, and is therefore at most as probable as all unlisted tokens
            together.
        state: the model's state before the first raw token of this token; None unless the token was drafted by
            `HiddenStates.generate_with_states`.
        id: the token's id in the model's vocabulary, if the token was written after a context by ids. In that case
            `data` may be part of a character, and `alternatives` may be tokens of any kind, including parts of
            characters.
    """

    data: bytes
    prob: float | None
    end: bool = False
    name: str | None = None
    alternatives: tuple[Token, ...] = ()
    id: int | None = None
    state: State | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class DraftEnd:
    """The last item of a draft, with the reason why the draft ended.

    Attributes:
        reason: `"end"` (the last token was the end of sequence), `"limit"` (the draft has `max_tokens` tokens; if the
            server only `draws`, the server's own tokens are counted), `"context"` (the model's context is full) or
            `"filter"` (a content filter intervened).
        continuation: an opaque value with the draft's token ids, which a later call of `generate` continues. None if
            the endpoint accepts only text.
    """

    reason: Literal["end", "limit", "context", "filter"]
    continuation: Any = None


@dataclass(frozen=True, slots=True)
class Question:
    """A place in the response at which an assistant is asked for its own continuation.

    Attributes:
        start: the place's byte offset in the response. The assistant reads the text before the place, and judges the
            text after it.
        tokens: the draft's tokens from `start` on; an empty token is the draft's end of sequence. These tokens break
            ties, and determine when the answer is complete.
        word: whether the answer is a text (`unit="word"`). The text continues until it covers the draft's tokens, or
            until it differs from them and its word is complete. If false, the answer is a single token (`unit="token"`,
            Algorithm 1).
    """

    start: int
    tokens: tuple[bytes, ...]
    word: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """A model's choice at one place: its greedy continuation of the text before the place, in its own encoding.

    Attributes:
        start: the place's byte offset in the response.
        tokens: at least one token. If the model ended the sequence, the last token is the end of sequence.
        strategy: the kind of request that found the proposal (`strategies.Strategy`), as counted in the ledger; None if
            it is not reported.
    """

    start: int
    tokens: tuple[Token, ...]
    strategy: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Piece:
    """A token of an encoded text: its id and its raw bytes (which may be part of a character)."""

    id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of an endpoint.

    Attributes:
        token_ids: after a pause, a draft continues from its own token ids.
        end_prob: the endpoint reports the probability of the end of sequence.
        tokenize: the endpoint encodes text.
        score: the endpoint reports the probabilities of a given text.
        scores_by_token: scoring needs a separate prompt for each token of the text, and the server reads and bills each
            prompt in full. If False, the server reads the text only once.
        probs: the endpoint reports the probabilities of the tokens that it generates. Without probabilities, an
            assistant can only agree or disagree.
        top_k: the largest number of alternatives per token from `generate` and `propose`; 0 if none are listed.
        score_top_k: the largest number of alternatives per token from `score`.
        sampling: `generate(temperature=1, seed=...)` draws from the model's own distribution, with raw probabilities.
        draws: `generate(temperature=1, seed=...)` draws in the server's own way: possibly from a distribution other
            than the model's own, and possibly different tokens for the same seed. The probabilities of drawn tokens may
            be unknown.
        continues: the endpoint continues a text or a partial answer. If False, it only answers conversations
            (`messages.ChatProvider`), and `generate` accepts no `text`.
        hidden_states: the width of the model's last hidden state; 0 if the endpoint does not report hidden states
            (`HiddenStates`).
        ids: the endpoint accepts contexts by ids, and shows the ids of its tokens (`IdContexts`).
        places: the best number of contexts per request in `IdContexts.next_tokens`. If it is 1, each context is sent in
            a request of its own, one request after the other; thanks to its cache, the server then reads no token
            twice.
        watch: whether an assistant with contexts by ids answers in a stream that stays open (the strategy `"watch"`,
            see `strategies.Strategy`); None leaves the decision to the fusion.
        reread: number of tokens, out of six in the server's cache, that it reads again if another token follows them. 0
            means that restarting a draft is cheap; otherwise a fusion should restart a draft as seldom as possible.
            None if it is unknown.
        words: the endpoint knows how its model splits a text into words before encoding it (`WordSplitter`).
        finds_allowed: however improbable it is, the endpoint finds the most probable token that a caller allows
            (`AllowedTokens`).
        texts: the endpoint shows the text of each token. False once it has sent an answer whose tokens all had empty
            strings; such an answer cannot be divided into tokens, so an assistant cannot answer.
    """

    token_ids: bool
    end_prob: bool
    tokenize: bool
    score: bool
    probs: bool = True
    top_k: int = 0
    score_top_k: int = 0
    sampling: bool = False
    draws: bool = False
    continues: bool = True
    hidden_states: int = 0
    scores_by_token: bool = False
    ids: bool = False
    places: int = 64
    watch: bool | None = None
    reread: int | None = None
    words: bool = False
    finds_allowed: bool = False
    texts: bool = True


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The description of an endpoint, for use in results, error messages and checks.

    Attributes:
        endpoint: its URL, without credentials.
        engine: the kind of server, e.g. `"llama.cpp"`.
        model: the model's id.
        build: the server's version, if it reports one.
        context: size of the context in tokens, prompt and answer together; None if unknown.
        capabilities: its abilities.
        longest_prompt: the largest allowed number of tokens in a prompt and the answer so far together, if this limit
            is less than `context`.
        answer_cue: the chat template's text between a user's message and the answer; None if unknown.
        ends: the ids that end a generation, as far as they are known in advance.
    """

    endpoint: str
    engine: str
    model: str
    build: str | None
    context: int | None
    capabilities: Capabilities
    answer_cue: str | None = None
    longest_prompt: int | None = None
    ends: tuple[int, ...] = ()


@runtime_checkable
class Provider(Protocol):
    """A model behind an API. Creating a provider does no I/O; leaving its context manager closes its connections.

    A provider can be entered several times, and can serve any number of fusions at once. Every method may raise
    `ProviderError`.
    """

    @property
    def name(self) -> str:
        """A short human-readable name, which is unique within a fusion."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def describe(self) -> ServerInfo:
        """Find out the server's kind, model and abilities. Later calls send no request."""
        ...

    def generate(
        self,
        context: Context,
        *,
        max_tokens: int,
        continuation: Any = None,
        alternatives: int = 0,
        temperature: float = 0,
        seed: int | None = None,
        usage: Usage,
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Stream a continuation of a context, either with the most probable tokens or with randomly drawn tokens.

        If the context has ids (`Capabilities.ids`), the tokens are the model's own, with their ids: they may be parts
        of characters, and `max_tokens` counts ids. If the context is a text, raw tokens are joined into whole
        characters.

        The draft yields at most `max_tokens` tokens (fewer only if the model ends its answer or cannot continue), then
        one `DraftEnd`. If the `continuation` of an earlier draft of whole characters is given, the new draft continues
        from that draft's own token ids, which must decode to `context.text`. Closing the iterator closes the request
        and frees the server.

        With `alternatives`, each token has up to this number of the other most probable tokens at its position, as far
        as the endpoint reports them. An implementation must leave out tokens that it is not certain of, because some
        methods rely on complete lists.

        With `temperature=1`, each token is drawn from the model's full distribution, and has its own probability in
        that distribution; the most probable token is the drawn token or its first alternative. With the same `seed`,
        the server draws the same tokens again, as far as it can. Use a different seed for each draft: equal seeds use
        equal random numbers. Without `Capabilities.sampling`, only the weaker guarantee of `Capabilities.draws` holds.

        If the response has grown too long for the model's context, the draft ends at once with the reason `"context"`.
        If the prompt alone is too long, `ContextLengthError` is raised.

        Raises:
            ValueError: `temperature` is neither 0 nor 1.
            UnsupportedError: `temperature` is 1, and the endpoint cannot draw (`describe().capabilities`).
        """
        ...

    async def propose(
        self, context: Context, questions: Sequence[Question] | None, *, alternatives: int = 0, usage: Usage
    ) -> list[Proposal | None]:
        """Return the model's choice for each question, in order; None for a choice that cannot be known.

        Offsets refer to `context.text`; the context has no ids. `questions=None` asks for one token at every boundary
        of the model's own encoding of that text, in as few requests as the endpoint allows: a single request if the
        endpoint scores text or accepts several texts at once. `alternatives` is as in `generate`.
        """
        ...

    async def score(self, context: Context, *, alternatives: int = 0, end: bool = False, usage: Usage) -> list[Token]:
        """Return the tokens of the model's own encoding of `context.text`, each with its conditional probability.

        With `alternatives`, each token has up to this number of the other most probable tokens at its position. The
        first alternative is the most probable token, unless the token itself is the most probable. A token that begins
        in `prompt` has no alternatives.

        With `end`, one more token is added: the end of sequence after the text (the most probable one if the model has
        several), with its probability, or with None if the endpoint does not report that probability.

        Raises:
            UnsupportedError: the endpoint cannot score text (`describe().capabilities`).
        """
        ...

    async def tokenize(self, text: str) -> list[Piece]:
        """Encode `text` as the model does, without adding a special token.

        Raises:
            UnsupportedError: the endpoint cannot encode text (`describe().capabilities`).
        """
        ...


@runtime_checkable
class Ready(Protocol):
    """An optional protocol of providers that can open a connection in advance."""

    async def keep_ready(self) -> bool | None:
        """Open a connection for the next request if that saves noticeable time. No error is ever raised.

        Returns:
            False if this provider never opens a connection in advance, so that there is no need to call the method
            again.
        """
        ...


@runtime_checkable
class Alive(Protocol):
    """An optional protocol of providers that can check, at no cost, whether the server currently answers."""

    async def check_alive(self) -> None:
        """Send the server a request that does not run the model.

        Raises:
            ProviderError: the server does not answer, or reports that it is not ready.
        """
        ...


@runtime_checkable
class DescribesAgain(Protocol):
    """An optional protocol of providers that remember what their server is, and can find it out again."""

    async def describe_again(self) -> ServerInfo:
        """Describe the server anew, because it may have been restarted, with another model even.

        Raises:
            ProviderError: the server does not answer, or cannot be used.
        """
        ...


@runtime_checkable
class HiddenStates(Protocol):
    """An optional protocol of providers that can report their model's last hidden states.

    `Capabilities.hidden_states` shows whether the server reports hidden states. If it does not, both methods raise
    `UnsupportedError`. Both raise `ContextLengthError` if a text is too long for the server to report its states.
    """

    def generate_with_states(
        self, context: Context, *, max_tokens: int, continuation: Any = None, alternatives: int = 0, usage: Usage
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Stream the same tokens as a greedy `generate`, each with its `state`.

        The states belong to the ids that the model wrote in the draft, even if the text encodes to other ids. They may
        come from additional requests, each for the states of several tokens; `usage` counts these requests.
        """
        ...

    async def hidden_states(self, context: Context, *, usage: Usage) -> dict[int, State]:
        """Return the states at the boundaries of the model's own encoding of `context.text`, keyed by byte offset.

        Only boundaries between characters count; the end of the text is one of them. The state at the first boundary is
        missing if no token precedes it.
        """
        ...


@runtime_checkable
class IdContexts(Protocol):
    """An optional protocol of providers that accept contexts by ids and show the ids of their tokens.

    `Capabilities.ids` shows whether the server does both.
    """

    async def next_tokens(
        self, contexts: Sequence[Context], *, alternatives: int = 1, usage: Usage
    ) -> list[Token | None]:
        """Return the model's most probable token after each context by ids, in order; None for a context that is full.

        If several tokens are equally probable, the server decides. Each token has its id and up to `alternatives` of
        the next most probable tokens, sorted by probability. All tokens are unchanged, and may include parts of
        characters and ends of sequence.
        """
        ...

    async def encode(self, text: str) -> list[Piece]:
        """Encode the beginning of a response; no token is added, and special tokens in `text` are not parsed.

        Raises:
            UnsupportedError: the endpoint cannot encode text for contexts by ids.
        """
        ...

    async def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text as the server shows it, including special tokens.

        Raises:
            UnsupportedError: the endpoint cannot decode ids, or does not know one of the ids.
        """
        ...


@runtime_checkable
class IdScores(Protocol):
    """An optional protocol of providers with contexts by ids that can report the probabilities of given ids."""

    async def score_ids(
        self, context: Context, first: int, *, alternatives: int = 0, end: bool = False, usage: Usage
    ) -> list[Token]:
        """Return a token for each id in a context from index `first` on, with its id and its conditional probability.

        The tokens may lack their bytes, because the caller already knows them. `alternatives` and `end` are as in
        `Provider.score`, but alternatives may be parts of characters.

        Raises:
            UnsupportedError: the endpoint cannot score ids.
        """
        ...


@runtime_checkable
class AllowedTokens(Protocol):
    """An optional protocol of providers that list tokens far beyond `Capabilities.top_k`, e.g. for a grammar."""

    async def list_allowed(self, context: Context, allowed: Callable[[bytes], bool], *, usage: Usage) -> list[Token]:
        """Return next tokens after a context, the most probable first; the most probable allowed token is one of them.

        All tokens are unchanged, and may be parts of characters, whether the context has ids or is a text. Tokens that
        are not allowed may be in the list, too. Probabilities are raw, so tokens outside the list have the rest of the
        probability. Each token has its id, if the server shows ids. Tokens whose bytes are unknown are not found.

        Args:
            context: the prompt and the response so far.
            allowed: a function that receives the bytes of a token, or no bytes for the end of sequence.
            usage: the ledger of requests and tokens.

        Returns:
            The tokens; an empty list if no possible token is allowed, or if the context is full.

        Raises:
            UnsupportedError: the server cannot list enough tokens; the hint says which option of the server would help.
        """
        ...


@runtime_checkable
class TokenCounts(Protocol):
    """An optional protocol of providers that count the tokens of a long text without listing them."""

    async def count_tokens(self, text: str) -> int:
        """Return the number of pieces that `Provider.tokenize` would return.

        Raises:
            UnsupportedError: the endpoint cannot count tokens.
        """
        ...


async def token_count(provider: Provider, text: str) -> int:
    """Count the tokens of a text, with the provider's own `count_tokens` if it has one (`TokenCounts`)."""
    if isinstance(provider, TokenCounts):
        return await provider.count_tokens(text)
    return len(await provider.tokenize(text))


WordEnds: TypeAlias = Callable[[str], Sequence[int]]
"""A function that returns the ends of the words of a text.

The ends are ascending offsets in characters. White space usually belongs to the word after it.
"""


@runtime_checkable
class WordSplitter(Protocol):
    """An optional protocol of providers that know how their model splits a text into words before encoding it."""

    async def word_splitter(self) -> WordEnds | None:
        """Return the function that finds the ends of words; None if it is unknown. The function sends no requests."""
        ...


@runtime_checkable
class KnownVocabulary(Protocol):
    """An optional protocol of providers that know all tokens of their model."""

    async def crossing_token(self) -> bytes | None:
        """Return a token that crosses a space between words (`vocabulary.crosses_space`). No request is sent.

        Returns:
            The first such token; None if there is none, or if the tokens are unknown.
        """
        ...
