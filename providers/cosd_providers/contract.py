"""What a fusion asks of a server: the extension point.

A provider answers two questions. `generate`: go on from this text, greedily, and stream your tokens with their
probabilities. `propose`: at these places of this text, what would you have said next? A third one, `score`, gives
the probabilities of a given text. How a server is brought to answer is invisible above.

All offsets are in bytes. All tokens hold whole characters: neighbouring raw tokens that share a character are one
token, as sure as the least sure of them, in every adapter alike (`text.Merger`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, runtime_checkable

from cosd_providers.usage import Usage

__all__ = [
    "Capabilities",
    "DraftEnd",
    "Piece",
    "Proposal",
    "Provider",
    "Question",
    "Ready",
    "ServerInfo",
    "Token",
]


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a model, in whole characters.

    Attributes:
        data: its bytes; empty for the end of sequence.
        prob: the model's probability of it, in [0, 1]; None where the endpoint does not tell.
        end: whether this is the end of sequence (or of turn): one symbol beside the 256 bytes.
        name: the end token as the model writes it, e.g. `"</s>"`, where known.
        alternatives: what else the model might have said in its place, the most probable first: other tokens in whole
            characters, or the end of sequence. Empty unless asked for (`Provider.generate`), and where unknown.
    """

    data: bytes
    prob: float | None
    end: bool = False
    name: str | None = None
    alternatives: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftEnd:
    """The last item of a draft: why it ended.

    Attributes:
        reason: `"end"` (the end token was the last one), `"limit"` (`max_tokens` tokens were given), `"context"`
            (the model's context is full) or `"filter"` (a content filter stepped in).
        continuation: opaque; a later `generate` goes on from its token ids. None where the endpoint takes text only.
    """

    reason: Literal["end", "limit", "context", "filter"]
    continuation: Any = None


@dataclass(frozen=True, slots=True)
class Question:
    """A place in the response where an assistant is asked what it would say.

    Attributes:
        start: byte offset in the response: what stands before is given, what follows is judged.
        tokens: the draft's tokens that are judged from there; an empty one is the draft's end of sequence. They
            matter for ties, and for when to stop.
        word: whether the answer goes on until it covers the tokens, or differs from them and has ended its word
            (`unit="word"`). Otherwise it is one token (`unit="token"`, Algorithm 1).
    """

    start: int
    tokens: tuple[bytes, ...]
    word: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a model would say at one place: its greedy continuation of its own encoding of the text before.

    Attributes:
        start: byte offset in the response.
        tokens: at least one. The end of sequence is explicit and the last, if it comes.
        strategy: in which way it was asked for (`strategies.Strategy`), as the ledger counts it; None where untold.
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
    """What an endpoint can do.

    Attributes:
        token_ids: a draft goes on from its own token ids after a pause.
        end_prob: the probability of the end of sequence is told.
        tokenize: the endpoint encodes text.
        score: the endpoint gives the probabilities of a given text.
        probs: it tells the probabilities of what it writes; where not, it can only be asked whether it agrees.
    """

    token_ids: bool
    end_prob: bool
    tokenize: bool
    score: bool
    probs: bool = True


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What an endpoint is: for results, messages and checks.

    Attributes:
        endpoint: its URL, without credentials.
        engine: the server's kind, e.g. `"llama.cpp"`.
        model: the model's id.
        build: the server's version, where it tells.
        context: tokens that fit into one request, prompt and answer together; None where unknown.
        capabilities: what it can do.
        longest_prompt: tokens that a prompt may have, with the answer so far, where that is less than fits.
        answer_cue: what the chat template writes between a user's message and the answer; None where none is seen.
    """

    endpoint: str
    engine: str
    model: str
    build: str | None
    context: int | None
    capabilities: Capabilities
    answer_cue: str | None = None
    longest_prompt: int | None = None


@runtime_checkable
class Provider(Protocol):
    """A model behind an API. Constructing one does no I/O; leaving it as a context manager closes its connections.

    It can be entered several times and serve any number of fusions at once. `text` is always the response so far,
    as bytes; a model reads `prompt` and response as one text. Every method raises `ProviderError`.
    """

    @property
    def name(self) -> str:
        """A short name for people, unique enough within one fusion."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def describe(self) -> ServerInfo:
        """Asks the server what it is, once; later calls are free."""
        ...

    def generate(
        self,
        prompt: str,
        text: bytes,
        *,
        max_tokens: int,
        continuation: Any = None,
        alternatives: int = 0,
        usage: Usage,
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Goes on from `prompt` and `text`, always with the most probable token.

        Yields at most `max_tokens` tokens, fewer only where the model ended or cannot go on, and then one
        `DraftEnd`. With the `continuation` of an earlier draft, goes on from that draft's own token ids; `text` is
        then what they decode to. Closing the iterator closes the request and frees the server.

        With `alternatives` each token comes with up to so many of those that the model found next most probable, as far
        as the endpoint tells them. They cost and save time, and change no text: leave out what is not known for sure.

        Where `text` has grown too long for the model's context the draft ends at once, with reason `"context"`; a
        `prompt` that alone is too long raises `ContextLengthError`.
        """
        ...

    async def propose(
        self, prompt: str, text: bytes, questions: Sequence[Question] | None, *, usage: Usage
    ) -> list[Proposal | None]:
        """What the model would say at each question, in order; None means that it cannot be known there.

        `questions=None` asks at every boundary of the model's own encoding of `text`, one token each, in as few
        requests as the endpoint can: one where it scores text, or takes several texts at once.
        """
        ...

    async def score(self, prompt: str, text: bytes, *, usage: Usage) -> list[Token]:
        """The tokens of the model's own encoding of `text`, each with its probability given all before it.

        Raises:
            UnsupportedError: the endpoint cannot do this; `describe` tells beforehand.
        """
        ...

    async def tokenize(self, text: str) -> list[Piece]:
        """The model's encoding of `text`, without any special token added.

        Raises:
            UnsupportedError: the endpoint cannot do this; `describe` tells beforehand.
        """
        ...


@runtime_checkable
class Ready(Protocol):
    """A provider that can have a connection made before it is needed; not every one can."""

    async def keep_ready(self) -> None:
        """Leaves a connection for the next request, where making one takes time worth saving. Never raises."""
        ...
