"""The protocol between a fusion and its servers: the extension point.

A provider has three main methods. `generate` continues a text and streams tokens with their probabilities. `propose`
returns the model's own choice at several places of a text. `score` returns the probabilities of a given text. All
probabilities are raw: the values of the model's full distribution at temperature 1. The adapter decides how to get them
from its server.

All offsets are in bytes. For a `Context` by ids, answers contain the model's own tokens, with their ids. For a text,
tokens consist of whole characters: in every adapter, neighbouring raw tokens that share a character become one token
with the lowest of their probabilities (`text.Merger`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, TypeAlias, runtime_checkable

from cosd_providers.usage import Usage

__all__ = [
    "Alive",
    "Capabilities",
    "Context",
    "DraftEnd",
    "HiddenStates",
    "IdContexts",
    "IdScores",
    "Piece",
    "Proposal",
    "Provider",
    "Question",
    "Ready",
    "ServerInfo",
    "State",
    "Token",
    "TokenCounts",
    "WordEnds",
    "WordSplitter",
    "token_count",
]


State: TypeAlias = Sequence[float]
"""A model's last hidden state at one position: the vector from which it computes the next token's probabilities."""


@dataclass(frozen=True, slots=True)
class Context:
    """The input after which a model continues, or judges: a prompt and the response so far.

    With `ids` it is the model's own path: the encoding of the prompt alone, then these ids, exactly as the model wrote
    them. Prompt and response never merge into one token, and no part of the response is encoded again. Without `ids`
    the server encodes prompt and text as one text, possibly into other tokens than the model would write.

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
    """A token of a model: in whole characters, or after a context by ids exactly as the model wrote it.

    Attributes:
        data: its bytes; empty for the end of sequence.
        prob: the model's probability of the token, in [0, 1]; None if the endpoint does not report it.
        end: whether this is the end of sequence (or of turn), which is a symbol in addition to the 256 bytes.
        name: the end token in the model's own spelling, e.g. `"</s>"`, if known.
        alternatives: other tokens at the same position, in whole characters, or the end of sequence; the most probable
            first. Empty unless requested and known, and empty if several raw tokens were joined. Parts of characters
            and tokens with the same bytes as another are left out: the unlisted probability bounds each of them.
        state: the model's state before the first raw token of this token; None unless the token was drafted by
            `HiddenStates.generate_with_states`.
        id: its id in the model's vocabulary, after a context by ids. Then `data` may be part of a character, and
            `alternatives` may be tokens of any kind, including parts of characters.
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
    """The last item of a draft: the reason for its end.

    Attributes:
        reason: `"end"` (the last token was the end of sequence), `"limit"` (the draft has `max_tokens` tokens, or that
            number of the server's own tokens if the server only `draws`), `"context"` (the model's context is full) or
            `"filter"` (a content filter intervened).
        continuation: an opaque value from whose token ids a later `generate` continues. None if the endpoint accepts
            only text.
    """

    reason: Literal["end", "limit", "context", "filter"]
    continuation: Any = None


@dataclass(frozen=True, slots=True)
class Question:
    """A place in the response at which an assistant is asked for its own continuation.

    Attributes:
        start: byte offset in the response: the text before it is given, the text after it is judged.
        tokens: the draft's tokens from `start` on; an empty token is the draft's end of sequence. They decide ties, and
            determine when the answer is complete.
        word: whether the answer continues until it covers the tokens, or differs from them and has completed its word
            (`unit="word"`). Otherwise the answer is a single token (`unit="token"`, Algorithm 1).
    """

    start: int
    tokens: tuple[bytes, ...]
    word: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """A model's choice at one place: its greedy continuation of its own encoding of the text before the place.

    Attributes:
        start: byte offset in the response.
        tokens: at least one token. An end of sequence is an explicit token, and the last.
        strategy: the kind of request that found it (`strategies.Strategy`), as counted in the ledger; None if it is not
            reported.
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
        token_ids: a draft continues from its own token ids after a pause.
        end_prob: the endpoint reports the probability of the end of sequence.
        tokenize: the endpoint encodes text.
        score: the endpoint reports the probabilities of a given text.
        scores_by_token: scoring needs a prompt for each token of the text, and the server reads and bills each prompt
            in full. If False, the server reads the text once.
        probs: the endpoint reports the probabilities of the tokens that it generates. Without them an assistant can
            only agree or disagree.
        top_k: the largest number of alternatives per token from `generate` and `propose`; 0 if none are listed.
        score_top_k: the largest number of alternatives per token from `score`.
        sampling: `generate(temperature=1, seed=...)` draws from the model's own distribution, with raw probabilities.
        draws: `generate(temperature=1, seed=...)` draws in the server's own way: possibly from another distribution
            than the model's own, and possibly other tokens for the same seed. Drawn tokens then need no probability.
        continues: the endpoint continues a text or a partial answer. If False, it only answers conversations
            (`messages.ChatProvider`), and `generate` accepts no `text`.
        hidden_states: the width of the model's last hidden state; 0 if the endpoint does not report it
            (`HiddenStates`).
        ids: the endpoint accepts a `Context` by ids, and shows the ids of its tokens (`IdContexts`).
        places: the best number of contexts in one request of `IdContexts.next_tokens`. 1 means one request for each
            context, in quick succession, so that the server reads no token twice.
        watch: whether an assistant with contexts by ids answers by a stream that stays open (`strategies.Strategy`);
            None leaves the decision to the fusion.
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


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The description of an endpoint, for results, messages and checks.

    Attributes:
        endpoint: its URL, without credentials.
        engine: the kind of server, e.g. `"llama.cpp"`.
        model: the model's id.
        build: the server's version, if it reports one.
        context: size of the context in tokens, prompt and answer together; None if unknown.
        capabilities: its abilities.
        longest_prompt: the largest number of tokens in a prompt and the answer so far, if it is less than `context`.
        answer_cue: the chat template's text between a user's message and the answer; None if unknown.
        ends: ids that end a generation, as far as they are known in advance.
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
    """A model behind an API. Constructing one does no I/O; leaving it as a context manager closes its connections.

    It can be entered several times, and serve any number of fusions at once. A `Context` is the prompt and the response
    so far. Every method may raise `ProviderError`.
    """

    @property
    def name(self) -> str:
        """A short human-readable name, unique within a fusion."""
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
        """Continue a context, either always with the most probable token or at random.

        After a context by ids (`Capabilities.ids`) the tokens are the model's own, with their ids: they may be parts of
        characters, and `max_tokens` counts ids. After a text, raw tokens are joined into whole characters.

        Yields at most `max_tokens` tokens (fewer only if the model ended or cannot continue), and then one `DraftEnd`.
        If the `continuation` of an earlier draft of whole characters is given, the new draft continues from that
        draft's own token ids, which decode to `context.text`. Closing the iterator closes the request and frees the
        server.

        With `alternatives` each token has up to this number of the other most probable tokens at its position, as far
        as the endpoint reports them. Leave out uncertain tokens. Methods that decide by alternatives need complete
        lists.

        With `temperature=1` each token is drawn from the model's full distribution, and has its own probability in that
        distribution; the most probable token is the drawn token or its first alternative. With the same `seed` the
        server draws the same tokens again, as far as it can. Use a different seed for each draft: equal seeds use equal
        random numbers. Without `Capabilities.sampling` only the weaker promise of `draws` holds.

        If the response has grown too long for the model's context, the draft ends at once with the reason `"context"`.
        If the prompt alone is too long, `ContextLengthError` is raised.

        Raises:
            ValueError: `temperature` is neither 0 nor 1.
            UnsupportedError: it is 1, and the endpoint cannot draw (`describe().capabilities`).
        """
        ...

    async def propose(
        self, context: Context, questions: Sequence[Question] | None, *, alternatives: int = 0, usage: Usage
    ) -> list[Proposal | None]:
        """Return the model's choice for each question, in order; None if it cannot be known.

        Offsets refer to `context.text`; the context has no ids. `questions=None` asks for one token at every boundary
        of the model's own encoding of that text, in as few requests as the endpoint allows: a single request if it
        scores text or accepts several texts at once. `alternatives` is as in `generate`.
        """
        ...

    async def score(self, context: Context, *, alternatives: int = 0, end: bool = False, usage: Usage) -> list[Token]:
        """Return the tokens of the model's own encoding of `context.text`, each with its conditional probability.

        With `alternatives` each token has up to this number of the other most probable tokens at its position. The
        first of them is the most probable token, unless the token itself is. A token that begins in `prompt` has no
        alternatives.

        With `end` a last token is added: the end of sequence after the text (the most probable if there are several),
        with its probability, or None if the endpoint does not report it.

        Raises:
            UnsupportedError: the endpoint cannot do this (`describe().capabilities`).
        """
        ...

    async def tokenize(self, text: str) -> list[Piece]:
        """Encode `text` as the model does, without adding a special token.

        Raises:
            UnsupportedError: the endpoint cannot do this (`describe().capabilities`).
        """
        ...


@runtime_checkable
class Ready(Protocol):
    """A provider that can open a connection in advance. Optional."""

    async def keep_ready(self) -> bool | None:
        """Open a connection for the next request, if that saves noticeable time. Never raises.

        Returns:
            False if this provider never opens a connection in advance, so that the caller need not call again.
        """
        ...


@runtime_checkable
class Alive(Protocol):
    """A provider that can check, at no cost, whether its server answers now. Optional."""

    async def check_alive(self) -> None:
        """Send the server a request that does not run the model.

        Raises:
            ProviderError: the server does not answer, or reports that it is not ready.
        """
        ...


@runtime_checkable
class HiddenStates(Protocol):
    """A provider that can report its model's last hidden states. Optional.

    `Capabilities.hidden_states` shows whether the server reports them. If it does not, both methods raise
    `UnsupportedError`. They raise `ContextLengthError` if a text is longer than the server allows for states.
    """

    def generate_with_states(
        self,
        context: Context,
        *,
        max_tokens: int,
        continuation: Any = None,
        alternatives: int = 0,
        usage: Usage,
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Stream the same tokens as a greedy `generate`, each with its `state`.

        The states belong to the ids that the model wrote in the draft, even if the text encodes to other ids. They may
        come from additional requests, each for several tokens, which `usage` counts.
        """
        ...

    async def hidden_states(self, context: Context, *, usage: Usage) -> dict[int, State]:
        """Return the states at the boundaries of the model's own encoding of `context.text`, keyed by byte offset.

        Boundaries are between characters; the end of the text is one of them. The first state is missing if no token
        precedes it.
        """
        ...


@runtime_checkable
class IdContexts(Protocol):
    """A provider that accepts contexts by ids and shows ids. Optional.

    `Capabilities.ids` shows whether the server can do this.
    """

    async def next_tokens(
        self, contexts: Sequence[Context], *, alternatives: int = 1, usage: Usage
    ) -> list[Token | None]:
        """Return the model's most probable token after each context by ids, in order; None if the context is full.

        The server decides between equally probable tokens. Each token has its id and up to `alternatives` of the next
        most probable tokens, sorted. These are unchanged: they include parts of characters and ends.
        """
        ...

    async def encode(self, text: str) -> list[Piece]:
        """Encode a response that begins with `text`; no token is added, and special tokens are not parsed.

        Raises:
            UnsupportedError: the endpoint cannot do this.
        """
        ...

    async def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text as the server shows it, including special tokens.

        Raises:
            UnsupportedError: the endpoint cannot do this, or does not know one of the ids.
        """
        ...


@runtime_checkable
class IdScores(Protocol):
    """A provider with contexts by ids that can report the probabilities of given ids. Optional."""

    async def score_ids(
        self, context: Context, first: int, *, alternatives: int = 0, end: bool = False, usage: Usage
    ) -> list[Token]:
        """Return a token for each id of a context from index `first` on, with its id and its conditional probability.

        The tokens need no bytes, because the caller knows the bytes of its ids. `alternatives` and `end` are as in
        `Provider.score`, but alternatives may be parts of characters.

        Raises:
            UnsupportedError: the endpoint cannot do this.
        """
        ...


@runtime_checkable
class TokenCounts(Protocol):
    """A provider that counts the tokens of a long text without listing them. Optional."""

    async def count_tokens(self, text: str) -> int:
        """Return the number of pieces that `Provider.tokenize` would return.

        Raises:
            UnsupportedError: the endpoint cannot do this.
        """
        ...


async def token_count(provider: Provider, text: str) -> int:
    """The number of tokens in a text. A provider with `TokenCounts` counts them itself."""
    if isinstance(provider, TokenCounts):
        return await provider.count_tokens(text)
    return len(await provider.tokenize(text))


WordEnds: TypeAlias = Callable[[str], Sequence[int]]
"""A function that returns the ends of the words of a text.

The ends are ascending offsets in characters. White space usually belongs to the word after it.
"""


@runtime_checkable
class WordSplitter(Protocol):
    """A provider that knows how its model splits a text into words before it encodes them. Optional."""

    async def word_splitter(self) -> WordEnds | None:
        """The splitter, which sends no requests; None if the words are unknown."""
        ...
