"""The protocol between a fusion and its servers: the extension point.

A provider has three main methods. `generate` continues a text and streams tokens with their probabilities. `propose`
gives the model's own choice at several places of a text. `score` gives the probabilities of a given text. All
probabilities are raw: the values of the model's full distribution at temperature 1. The adapter decides how to get them
from its server.

All offsets are in bytes. For a `Context` by ids, answers hold the model's own tokens, with their ids. For a text all
tokens hold whole characters: neighbouring raw tokens that share a character become one token, with the lowest of their
probabilities, in every adapter alike (`text.Merger`).
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
"""A model's last hidden state at one place: the numbers from which it computes its next token's probabilities."""


@dataclass(frozen=True, slots=True)
class Context:
    """The place at which a model continues, or judges: a prompt and the response so far.

    With `ids` it is the model's own path: the encoding of the prompt by itself, then these ids, exactly as the model
    wrote them. Prompt and response never merge into one token, and no part of the response is encoded again. Without
    `ids` the server encodes prompt and text as one text, perhaps into other tokens than the model would write.

    Attributes:
        prompt: the rendered prompt; special tokens are parsed, as in any prompt.
        text: the response so far, as all models share it.
        ids: the model's ids of `text`; empty at the start of a response. None if the model takes text only.
    """

    prompt: str
    text: bytes = b""
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a model: in whole characters, or after a context by ids exactly as the model wrote it.

    Attributes:
        data: its bytes; empty for the end of sequence.
        prob: the model's probability of the token, in [0, 1]; None if the endpoint does not report it.
        end: whether this is the end of sequence (or of turn): one symbol beside the 256 bytes.
        name: the end token in the model's own spelling, e.g. `"</s>"`, if known.
        alternatives: other tokens in its place, in whole characters, or the end of sequence; the most probable first.
            Empty unless requested and known, and if several raw tokens were joined. Parts of characters and tokens with
            the same bytes as another are left out: the unlisted probability bounds each of them.
        state: the model's state in its place, before the first of its raw tokens; None unless it was drafted by
            `HiddenStates.generate_with_states`.
        id: its id in the model's vocabulary, after a context by ids; then `data` may be part of a character, and
            `alternatives` are tokens of any kind, also parts of characters.
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
        reason: `"end"` (the end token was the last one), `"limit"` (after `max_tokens` tokens, or if the server only
            `draws`, after as many of its own), `"context"` (the model's context is full) or `"filter"` (a content
            filter intervened).
        continuation: opaque; a later `generate` continues from its token ids. None if the endpoint takes text only.
    """

    reason: Literal["end", "limit", "context", "filter"]
    continuation: Any = None


@dataclass(frozen=True, slots=True)
class Question:
    """A place in the response at which an assistant gives its own continuation.

    Attributes:
        start: byte offset in the response: the text before it is given, the text after it is judged.
        tokens: the draft's tokens from there; an empty token is the draft's end of sequence. They decide ties, and when
            the answer is complete.
        word: whether the answer continues until it covers the tokens, or differs from them and has ended its word
            (`unit="word"`). Otherwise it is one token (`unit="token"`, Algorithm 1).
    """

    start: int
    tokens: tuple[bytes, ...]
    word: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """A model's choice at one place: its greedy continuation of its own encoding of the text before the place.

    Attributes:
        start: byte offset in the response.
        tokens: at least one. The end of sequence, if it comes, is explicit and the last.
        strategy: the kind of request that gave it (`strategies.Strategy`), as counted in the ledger; None if not
            reported.
    """

    start: int
    tokens: tuple[Token, ...]
    strategy: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of an encoded text: its id and its raw bytes (which may be part of a character)."""

    id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of an endpoint.

    Attributes:
        token_ids: a draft continues from its own token ids after a pause.
        end_prob: the probability of the end of sequence is reported.
        tokenize: the endpoint encodes text.
        score: the endpoint reports the probabilities of a given text.
        scores_by_token: it takes a prompt for each token of that text, reads each prompt whole, and bills all of them;
            without it the server reads the text once.
        probs: the endpoint reports the probabilities of the tokens that it generates; without them an assistant can
            only agree or disagree.
        top_k: the most alternatives that `generate` and `propose` can give with a token; 0 if none are listed.
        score_top_k: the same for `score`.
        sampling: `generate(temperature=1, seed=...)` draws from the model's own distribution, with raw probabilities.
        draws: `generate(temperature=1, seed=...)` draws in the server's own way, perhaps not from the model's own
            distribution, and perhaps other tokens for the same seed. Drawn tokens then need no probability.
        continues: the endpoint continues a text or a partial answer. Without it, it answers conversations
            (`messages.ChatProvider`), and takes no `text` in `generate`.
        hidden_states: the width of the model's last hidden state, if the endpoint reports it (`HiddenStates`); else 0.
        ids: it takes a `Context` by ids, and shows the ids of its tokens (`IdContexts`).
        places: the best number of contexts in one request of `IdContexts.next_tokens`. 1 means one request for each
            context, in quick succession, so that the server reads no token twice.
        watch: whether an assistant answers by a stream that is left open (`strategies.Strategy`), if its contexts have
            ids; None leaves this to the fusion.
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
        engine: the server's kind, e.g. `"llama.cpp"`.
        model: the model's id.
        build: the server's version, if it reports one.
        context: tokens that fit into one request, prompt and answer together; None if unknown.
        capabilities: its abilities.
        longest_prompt: tokens that a prompt and the answer so far may have, if that is less than `context`.
        answer_cue: the chat template's text between a user's message and the answer; None if none is known.
        ends: ids that end a generation, as far as they are known beforehand.
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

    It can be entered several times and serve any number of fusions at once. A `Context` is the prompt and the response
    so far. Every method raises `ProviderError`.
    """

    @property
    def name(self) -> str:
        """A short name for people, distinct within a fusion."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def describe(self) -> ServerInfo:
        """Find out the server's kind, model and abilities; later calls send nothing."""
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
        """Continue a context, always with the most probable token, or at random.

        After a context by ids (`Capabilities.ids`) the tokens are the model's own, with their ids: they may be parts of
        characters, and `max_tokens` counts ids. After a text they are joined into whole characters.

        Yields at most `max_tokens` tokens, fewer only if the model ended or cannot continue, and then one `DraftEnd`.
        With the `continuation` of an earlier draft of whole characters, continues from that draft's own token ids,
        which decode to `context.text`. Closing the iterator closes the request and frees the server.

        With `alternatives` each token carries up to this number of the other most probable tokens in its place, as far
        as the endpoint reports them. Leave out uncertain tokens; methods that decide by alternatives need all of them.

        With `temperature=1` each token is drawn from the model's full distribution; its probability is its own in that
        distribution, and the most probable token is the drawn token or its first alternative. A `seed` makes the server
        draw the same tokens again, as far as it can. Give each draft a seed of its own: equal seeds draw by equal
        random numbers. Without `Capabilities.sampling` only `draws` holds.

        If the response has grown too long for the model's context the draft ends at once, with reason `"context"`; a
        prompt that is too long by itself raises `ContextLengthError`.

        Raises:
            ValueError: `temperature` is neither 0 nor 1.
            UnsupportedError: it is 1, and the endpoint cannot draw (`describe().capabilities`).
        """
        ...

    async def propose(
        self, context: Context, questions: Sequence[Question] | None, *, alternatives: int = 0, usage: Usage
    ) -> list[Proposal | None]:
        """The model's choice at each question, in order; None if it cannot be known.

        Offsets are in `context.text`, without ids. `questions=None` means every boundary of the model's own encoding of
        that text, one token each, in as few requests as the endpoint allows: a single request if it scores text, or
        takes several texts at once. `alternatives` is as in `generate`.
        """
        ...

    async def score(self, context: Context, *, alternatives: int = 0, end: bool = False, usage: Usage) -> list[Token]:
        """The tokens of the model's own encoding of `context.text`, each with its probability given all before it.

        With `alternatives` each token carries up to this number of the other most probable tokens in its place: the
        first of them is the most probable token, unless the token itself is. A token that begins in `prompt` has none.

        With `end` a last token is added: the end of sequence after the text, with its probability there (if there are
        several ends, the most probable), or None if the endpoint does not report it.

        Raises:
            UnsupportedError: the endpoint cannot do this (`describe().capabilities`).
        """
        ...

    async def tokenize(self, text: str) -> list[Piece]:
        """The model's encoding of `text`, without any special token added.

        Raises:
            UnsupportedError: the endpoint cannot do this (`describe().capabilities`).
        """
        ...


@runtime_checkable
class Ready(Protocol):
    """A provider that can open a connection before it is needed. Optional."""

    async def keep_ready(self) -> bool | None:
        """Open a connection for the next request, if that saves noticeable time. Never raises.

        Returns:
            False if it never will, so that an answer need not call again.
        """
        ...


@runtime_checkable
class Alive(Protocol):
    """A provider that can find out if its server answers now, at no cost. Optional."""

    async def check_alive(self) -> None:
        """Send the server a request that needs no model.

        Raises:
            ProviderError: it does not answer, or reports that it is not ready.
        """
        ...


@runtime_checkable
class HiddenStates(Protocol):
    """A provider that can report its model's last hidden states. Optional.

    `Capabilities.hidden_states` says if its server does. If not, both methods raise `UnsupportedError`; they raise
    `ContextLengthError` if a text is longer than the server allows for states.
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
        """Continue as a greedy `generate` does: the same tokens, each with its `state`.

        The states belong to the ids that the draft itself was written with, even if the text encodes to other ids. They
        may come from further requests, for several tokens at a time, which `usage` counts.
        """
        ...

    async def hidden_states(self, context: Context, *, usage: Usage) -> dict[int, State]:
        """The state at each boundary of the model's own encoding of `context.text`, its end included, by byte offset.

        Boundaries are between characters. The first state is missing if no token precedes it.
        """
        ...


@runtime_checkable
class IdContexts(Protocol):
    """A provider that takes contexts by ids and shows ids. Optional; `Capabilities.ids` says if its server does."""

    async def next_tokens(
        self, contexts: Sequence[Context], *, alternatives: int = 1, usage: Usage
    ) -> list[Token | None]:
        """The model's most probable token after each context by ids, in order; None if its context is full.

        The server decides between equally probable tokens. Each token has its id, and up to `alternatives` of the next
        most probable tokens, the most probable first, unchanged: parts of characters and ends included.
        """
        ...

    async def encode(self, text: str) -> list[Piece]:
        """The encoding of a response that begins with `text`: nothing is added, and special tokens are not parsed.

        Raises:
            UnsupportedError: the endpoint cannot do this.
        """
        ...

    async def decode(self, ids: Sequence[int]) -> str:
        """The text of ids as the server shows it, special tokens included.

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
        """A token for each id of a context from index `first` on, with its id and its probability given all before it.

        The tokens need no bytes, as the caller knows the bytes of its ids. `alternatives` and `end` are as in
        `Provider.score`, and alternatives may be parts of characters.

        Raises:
            UnsupportedError: the endpoint cannot do this.
        """
        ...


@runtime_checkable
class TokenCounts(Protocol):
    """A provider that counts the tokens of a long text without listing them. Optional."""

    async def count_tokens(self, text: str) -> int:
        """The number of pieces that `Provider.tokenize` would list.

        Raises:
            UnsupportedError: the endpoint cannot do this.
        """
        ...


async def token_count(provider: Provider, text: str) -> int:
    """The number of tokens of a text, counted by the provider itself if it can."""
    if isinstance(provider, TokenCounts):
        return await provider.count_tokens(text)
    return len(await provider.tokenize(text))


WordEnds: TypeAlias = Callable[[str], Sequence[int]]
"""Ends of the words of a text: offsets in characters, ascending. White space mostly belongs to the word after it."""


@runtime_checkable
class WordSplitter(Protocol):
    """A provider that knows into which words its model splits a text before it encodes them. Optional."""

    async def word_splitter(self) -> WordEnds | None:
        """The splitter, which sends nothing; None if it is not known."""
        ...
