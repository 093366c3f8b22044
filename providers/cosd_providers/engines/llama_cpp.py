"""llama.cpp's own server, by its native `/completion`.

Observed on running servers, b4798 to 2026.10:

- Probabilities are those of the raw softmax, before samplers, penalties and `logit_bias`.
- A prompt may mix text and ids: `["text", 17, 4]` encodes the text as if it stood alone (with a beginning-of-sequence
  token where the model has one) and appends the ids. A generation continues from its own ids without `/tokenize`.
- A prompt list is answered in one array; a list of one by a bare object.
- A raw token that leaves a character unfinished is **hidden**: no event, no entry. The token that completes the
  character shows the bytes of both, but its own probability alone. `tokens_predicted` and `tokens` count the hidden
  one, which gives it away. `LlamaCppClient.peek` finds it by forcing a visible token beside it.
- The list beside a token (`n_probs`) may be as long as the vocabulary: the most probable tokens, whatever was drawn.
- At temperature 1, with no other sampler, it draws from the raw softmax; a seed draws the same tokens again.
- Tokens that end a generation are known to it by their names (`ENDS`); `/props` names one of them.
- With `--embeddings`, and no pooling, `/embedding` gives the last hidden state behind each token of a prompt, as it is
  before the output layer, and `/completion` works as before. All of it has to fit into one physical batch (512 tokens,
  `--ubatch-size`), and nothing is kept for a later request.
- With `--context-shift` the server forgets the start of a full context and continues.
- After a stream the server closes the connection, sometimes a moment late: the client does not keep it.
- It puts a request into the free slot that has read most of its prompt. A request that names its slot (`id_slot`) while
  others are under way, made answers go on with another one's text: of 100 short answers, up to eight at a time, about
  five (2026.10, with `--cache-ram`, which is the default; none with `--cache-ram 0`). So no slot is named here.
  The cache is known to restore the state of another conversation into a slot while several requests are in progress,
  also where no slot is named (its issue 27148); a pinned empty slot does not look into it at all (28139).
- Before December 2024 the probabilities had another shape, without logarithms: such builds are refused.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from itertools import accumulate
from typing import Annotated, Any, Literal, NotRequired, TypeVar, Unpack, cast
from urllib.parse import quote

from pydantic import AliasChoices, AliasPath, BaseModel, Field, RootModel
from typing_extensions import TypedDict  # pydantic takes that of typing from Python 3.12 on

from cosd_providers.chat.templates import TemplateRefusal
from cosd_providers.concurrency import Lazy, concurrently
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
from cosd_providers.drafting import IdsDraft, Next, streamed
from cosd_providers.engine import (
    Engine,
    EngineOptions,
    ServerFacts,
    ask_only,
    broken_off,
    miscounted,
    no_model,
    no_probs,
    nothing_to_continue,
    own_stop,
    silent,
    unknown_bytes,
)
from cosd_providers.engines.openai.probe_client import CompletionsProbeClient
from cosd_providers.engines.tokenizing import Head
from cosd_providers.errors import (
    AuthenticationError,
    ContextLengthError,
    InvalidRequestError,
    ResponseError,
    ServerError,
    StatusError,
    UnsupportedError,
)
from cosd_providers.greedy import (
    TIES,
    Choice,
    Continuation,
    Position,
    answer,
    boundaries,
    check_greedy,
    check_own,
    prob,
    with_alternatives,
    with_listed,
    within,
)
from cosd_providers.hidden_states import no_states, with_states
from cosd_providers.http.transport import FEW_IDLE, Transport
from cosd_providers.parsing import checked, parse, shape
from cosd_providers.probe_client import ProbeClient, RawReply, RawRequest, RawScores, grammar
from cosd_providers.sampling import DraftOptions
from cosd_providers.strategies import Strategy, counted, marked
from cosd_providers.text import sendable, whole
from cosd_providers.usage import Usage
from cosd_providers.vocabulary import ENDS

__all__ = ["LlamaCpp"]

_CHATML = "<|im_start|>"
_LIST = 64  # prompts in one request
_LIKELY = 50  # alternatives to ask for where the probability of a given token is wanted
_ALL = 2**31 - 1  # the whole vocabulary
_MANY = 1000  # alternatives that are offered where the size of the vocabulary is unknown
_FORCE = 1e4  # added to a logit, this decides
_LINE = "\n"
_STRIPPED = (
    "llama.cpp's own server gives them: is there a proxy before it that removes completion_probabilities? With"
    ' connect(url, engine="openai") it can be an assistant without them, for verifier=AgreementVerifier(alpha=0.5).'
)

_LARGER = (
    "Start the server with --ubatch-size, and --batch-size, at least as large as its context; or give shorter prompts."
)
_NO_STATES = "Start it with --embeddings --pooling none; builds that then refuse completions are too old."

_SHORT = 800
"""Bytes of a prompt up to which one list is faster than single requests (docs/benchmark.md: 35 tokens, not 450)."""

_GREEDY: dict[str, object] = {
    "temperature": 0,
    "samplers": ["temperature"],
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "xtc_probability": 0.0,
    "mirostat": 0,
    "dynatemp_range": 0.0,
    "logit_bias": [],
    "ignore_eos": False,
    "post_sampling_probs": False,
    "stop": ["\0 no text ends like this \0"],
    "grammar": "",
}
"""Greedy decoding, which no sampler changes and nothing stops early. Fields left out fall back to the server's own
settings, and an empty list of stops to its reverse prompts."""

FIELDS = [
    "index",
    "stop",
    "stop_type",
    "tokens",
    "tokens_evaluated",
    "tokens_predicted",
    "truncated",
    "timings/cache_n",
    "completion_probabilities",
]
"""The fields of an answer that are needed; without this list it repeats the prompt and all settings."""

_OWNED = {
    *_GREEDY,
    "json_schema",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "model",
    "n",
    "n_cmpl",
    "n_predict",
    "n_probs",
    "prompt",
    "response_fields",
    "return_tokens",
    "seed",
    "stream",
}
"""Fields that a user's `extra_body` may not set."""

_Prefix = list[str | int]
"""A prompt: a text and the ids that follow it; ids may stand before the text, too."""

_M = TypeVar("_M", bound=BaseModel)


# What comes back.


_Byte = Annotated[int, Field(ge=0, le=255)]


class _Entry(TypedDict):
    """A token with its probability."""

    id: int
    bytes: list[_Byte]
    logprob: float | None
    top_logprobs: NotRequired[list[_Entry]]


class LlamaCppAnswer(TypedDict):
    """An answer of `/completion`, or one event of its stream; a dictionary, as there is one for each token."""

    index: Annotated[int, Field(default=0)]
    stop: Annotated[bool, Field(default=False)]
    stop_type: Annotated[str | None, Field(default=None)]
    tokens: NotRequired[list[int]]
    tokens_evaluated: int
    tokens_predicted: int
    truncated: Annotated[bool, Field(default=False)]
    cached: Annotated[
        int, Field(default=0, validation_alias=AliasChoices("timings/cache_n", AliasPath("timings", "cache_n")))
    ]
    completion_probabilities: Annotated[list[_Entry] | None, Field(default=None)]
    content: NotRequired[str]  # only the probe asks for it


_answer = shape(LlamaCppAnswer)


class _OldEntry(BaseModel):
    """A token with its probability, as builds before December 2024 show it."""

    probs: list[object]


class _OldAnswer(BaseModel):
    """An answer of such a build."""

    completion_probabilities: Annotated[list[_OldEntry], Field(min_length=1)]


class _RawPiece(BaseModel):
    """A token of `/tokenize`; its bytes where they are not valid text."""

    id: int
    piece: str | list[_Byte]


class _Pieces(BaseModel):
    """The answer of `/tokenize`."""

    tokens: list[_RawPiece]

    def pieces(self) -> list[Piece]:
        """In bytes."""
        return [
            Piece(one.id, one.piece.encode() if isinstance(one.piece, str) else bytes(one.piece)) for one in self.tokens
        ]


class _Text(BaseModel):
    """The answer of `/detokenize`."""

    content: str


class _Ids(BaseModel):
    """The answer of `/tokenize` without the pieces."""

    tokens: list[int]


class _Slot(BaseModel):
    """A slot of `/slots`."""

    speculative: bool = False


class _Slots(RootModel[list[_Slot]]):
    """The answer of `/slots`."""


class _Settings(BaseModel):
    """The settings of a slot."""

    n_ctx: int | None = None


class _Props(BaseModel):
    """The answer of `/props`."""

    default_generation_settings: _Settings
    bos_token: str = ""
    eos_token: str = ""
    total_slots: int | None = None
    build_info: str | None = None


class _Rendered(BaseModel):
    """The answer of `/apply-template`."""

    prompt: str


class _Listed(BaseModel):
    """A model of `/v1/models`."""

    id: str
    aliases: list[str] = []
    trained: int | None = Field(None, validation_alias=AliasPath("meta", "n_ctx_train"))
    vocabulary: int | None = Field(None, validation_alias=AliasPath("meta", "n_vocab"))


class _Embedded(BaseModel):
    """An entry of `/embedding`: a row for each token, or one vector where they are pooled."""

    embedding: list[Any]


class _Embeddings(RootModel[Annotated[list[_Embedded], Field(min_length=1, max_length=1)]]):
    """The answer of `/embedding` to one prompt."""


class LlamaCppModels(BaseModel):
    """The answer of `/v1/models`."""

    data: list[_Listed]


def bill(usage: Usage, answer: LlamaCppAnswer) -> None:
    """Count what an answer, or a stream so far, has cost."""
    usage.bill(answer["tokens_evaluated"], answer["tokens_predicted"], answer["cached"])


# What is known, sent and read.


@dataclass(frozen=True, slots=True)
class LlamaCppFacts(ServerFacts):
    """Facts of a llama.cpp server.

    Attributes:
        ends: ids that end a sequence, with their names; one is added when it is first seen.
        visible: an id whose text is whole: its event is never held back.
    """

    ends: dict[int, str | None]
    visible: int


class LlamaCppClient:
    """Requests to `/completion` of one server, and how their answers are read.

    Args:
        transport: the server.
        facts: what is known of it.
        extra: merged into every request.
        parts: encodes a character, for drafts of raw tokens.
    """

    def __init__(
        self,
        transport: Transport,
        facts: LlamaCppFacts,
        extra: Mapping[str, object],
        parts: Callable[[bytes], Awaitable[list[Piece]]] | None = None,
    ) -> None:
        self.transport = transport
        self.facts = facts
        self._extra = extra
        self._parts = parts

    def body(self, prompt: object, **fields: object) -> dict[str, object]:
        """A greedy request."""
        return {**self._extra, **_GREEDY, "prompt": prompt, "response_fields": FIELDS, **fields}

    async def batch(
        self, prefixes: Sequence[_Prefix], usage: Usage, *, singly: bool = False, **fields: object
    ) -> list[LlamaCppAnswer]:
        """The answers to several prompts, in order: as lists, or with `singly` one request for each, a few at once."""
        size = 1 if singly else _LIST
        parts = [prefixes[at : at + size] for at in range(0, len(prefixes), size)]
        if singly:
            found = await concurrently([partial(self._list, part, usage, fields) for part in parts])
        else:
            found = [await self._list(part, usage, fields) for part in parts]
        return [answer for part in found for answer in part]

    async def _list(
        self, prefixes: Sequence[_Prefix], usage: Usage, fields: Mapping[str, object]
    ) -> list[LlamaCppAnswer]:
        body = self.body([*map(_sent, prefixes)], **fields)
        data = await self.transport.post("/completion", body, usage=usage)
        listed = [self._read(one) for one in (cast("list[object]", data) if isinstance(data, list) else [data])]
        listed.sort(key=lambda one: one["index"])
        if [one["index"] for one in listed] != [*range(len(prefixes))]:
            raise miscounted(len(prefixes), len(listed), self.transport.endpoint)
        for one in listed:
            bill(usage, one)
            self._check_read(one)
        return listed

    async def next(
        self, prefixes: Sequence[_Prefix], wanted: int, usage: Usage, *, singly: bool, alternatives: int
    ) -> list[list[Position]]:
        """About `wanted` positions after each prefix; none where the context is full."""
        top = max(TIES, 1 + alternatives)
        answers = await self.batch(prefixes, usage, singly=singly, n_predict=wanted, n_probs=top, return_tokens=True)
        positions = [self.positions(one, ties=not alternatives) for one in answers]
        hidden = [at for at, one in enumerate(answers) if not positions[at] and self._continues(one)]
        if hidden:
            peeked = await self.peek([prefixes[at] for at in hidden], usage, count=top)
            for at, position in zip(hidden, peeked, strict=True):
                positions[at] = [position]
        return positions

    async def after(self, prefixes: Sequence[_Prefix], count: int, usage: Usage, *, singly: bool) -> list[Token | None]:
        """The most probable raw token after each prefix, and the next `count - 1`; None where the context is full.

        A token that always shows is forced, so that the raw distribution beside it shows those that the server hides.
        """
        force: dict[str, Any] = {"logit_bias": [[self.facts.visible, _FORCE]], "n_predict": 1, "n_probs": max(count, 2)}
        if singly:
            answers = [one for prefix in prefixes for one in await self._list([prefix], usage, force)]
        else:
            answers = await self.batch(prefixes, usage, **force)
        return [self._first(one, count) for one in answers]

    def _first(self, answer: LlamaCppAnswer, count: int) -> Token | None:
        if not self._room(answer) and self._room(answer) is not None:
            return None
        top = [self.choice(one) for one in self.entries(answer)[0].get("top_logprobs", ())]
        check_own(top[0].token.prob if top else None, self.transport.endpoint)
        return with_listed(Position(top[0], top), count - 1)

    async def peek(self, prefixes: Sequence[_Prefix], usage: Usage, *, count: int = TIES) -> list[Position]:
        """The `count` most probable tokens after each prefix, where the server hides its own pick.

        A token that always shows is forced; the list beside it is the raw distribution.
        """
        force = [[self.facts.visible, _FORCE]]
        answers = await self.batch(prefixes, usage, n_predict=1, n_probs=count, logit_bias=force)
        return [self._hidden(one) for one in answers]

    async def scored(
        self,
        prefixes: Sequence[_Prefix],
        pieces: Sequence[Piece | None],
        usage: Usage,
        alternatives: int,
        *,
        raw: bool = False,
    ) -> list[Token]:
        """The token of each piece after its prefix, with its id where it is `raw`; None is the end of sequence."""
        likely = await self.peek(prefixes, usage, count=max(_LIKELY, 1 + alternatives))
        wanted = [[*self.facts.ends] if piece is None else [piece.id] for piece in pieces]
        found = [{choice.id: choice.token.prob for choice in position.top} for position in likely]
        missing = [(at, one) for at, ids in enumerate(wanted) if not found[at].keys() & ids for one in ids]
        for token_id in sorted({one for _, one in missing}):
            places = [at for at, one in missing if one == token_id]
            values = await self._probs([prefixes[at] for at in places], token_id, usage)
            for at, value in zip(places, values, strict=True):
                found[at][token_id] = value
        tokens: list[Token] = []
        for piece, ids, probs, position in zip(pieces, wanted, found, likely, strict=True):
            best = max((one for one in ids if one in probs), key=lambda one: probs[one] or 0, default=None)
            value = None if best is None else probs[best]
            name = None if best is None else self.facts.ends.get(best)
            token = Token(b"", value, end=True, name=name) if piece is None else Token(piece.data, value)
            own = Position(Choice(best or 0, token), position.top)
            tokens.append((with_listed if raw else with_alternatives)(own, alternatives))
        return tokens

    async def _probs(self, prefixes: Sequence[_Prefix], token_id: int, usage: Usage) -> list[float | None]:
        """The probability of a token after each prefix."""
        answers = await self.batch(prefixes, usage, n_predict=1, n_probs=1, logit_bias=[[token_id, _FORCE]])
        shown = [one["completion_probabilities"] or [] for one in answers]
        if all(shown):
            return [prob(entries[0]["logprob"]) for entries in shown]
        # A hidden token.
        return [_listed(one, token_id) for one in await self.peek(prefixes, usage, count=_ALL)]

    async def ends(self, token_id: int) -> bool:
        """The server ends a generation with this token. Billed to nobody."""
        bias = [[token_id, _FORCE]]
        [found] = await self.batch([[self.facts.visible]], Usage(), n_predict=1, n_probs=1, logit_bias=bias)
        return found["stop_type"] == "eos"

    async def states(self, prefix: _Prefix, count: int, usage: Usage) -> list[State]:
        """The last `count` hidden states of a prompt, the very last behind all of it, in one pass.

        Raises:
            ContextLengthError: the server does not take so many tokens in one pass.
            ResponseError: there are fewer states, or they are no numbers.
        """
        endpoint = self.transport.endpoint
        body = {"content": _sent(prefix)}
        model = self._extra.get("model")
        try:
            data = await self.transport.post("/embedding", body | ({"model": model} if model else {}), usage=usage)
        except ContextLengthError as error:
            words = f"the hidden states of a text are computed in one pass, and this one is too long: {error.args[0]}"
            raise ContextLengthError(words, endpoint=endpoint, status=error.status, hint=_LARGER) from error
        rows = parse(_Embeddings, data, endpoint).root[0].embedding
        usage.bill(len(rows), 0)
        if len(rows) < count or not all(isinstance(row, list) for row in rows[-count:]):
            raise ResponseError(f"/embedding gave {len(rows)} states, and {count} were asked for", endpoint=endpoint)
        try:
            return [array("f", cast("list[float]", row)) for row in rows[-count:]]
        except (TypeError, OverflowError):
            raise ResponseError("/embedding gave states that are no numbers", endpoint=endpoint) from None

    async def stream(
        self, usage: Usage, options: DraftOptions, start: int, ids: Sequence[str | int], left: int, attempt: int
    ) -> AsyncGenerator[Next, None]:
        """One request for a draft of which the first `start` ids are the prompt; see `drafting.IdsStream`."""
        reader = _Reader(self, options)
        body = self.body(
            _sent([*ids]), n_predict=left, n_probs=1 + options.alternatives, stream=True, timings_per_token=True
        )
        if options.sampled:
            seed = options.seed_after(len(ids) - start)
            body |= {"temperature": 1, "seed": -1 if seed is None else seed}
        try:
            stream = self.transport.stream("/completion", body, usage=usage, keep_alive=False, attempt=attempt)
            async with stream as events:
                async for event in events:
                    found = reader.feed(self._read(event))
                    if reader.joined is not None:
                        found = [*found, *reader.split(await self._split(reader.joined))]
                    for choice in found:
                        yield choice
                    if reader.done:
                        break
        finally:
            if reader.last is not None:
                bill(usage, reader.last)
        if not reader.done:
            raise broken_off(self.transport.endpoint)
        if reader.full:
            yield "full"
        elif reader.hidden:
            behind = [*ids, *reader.ids]

            async def hidden() -> Choice:
                if not options.sampled:
                    return (await self.peek([behind], usage))[0].pick
                [position] = await self.peek([behind], usage, count=_ALL)
                return _drawn(position.top, options.seed_after(len(behind) - start))

            yield hidden

    async def _split(self, joined: Choice) -> list[Piece]:
        """The raw tokens of the characters that one event shows together; none where they cannot be known."""
        data = joined.token.data
        if self._parts is None or whole(data) != len(data) or sendable(data).encode() != data:
            return []
        return await self._parts(data)

    def _read(self, data: object) -> LlamaCppAnswer:
        try:
            return checked(_answer, data, self.transport.endpoint)
        except ResponseError:
            with suppress(ResponseError):
                parse(_OldAnswer, data, self.transport.endpoint)
                words = "this build of llama.cpp gives probabilities in a shape of before December 2024"
                raise UnsupportedError(words, endpoint=self.transport.endpoint, hint="Update the server.") from None
            raise

    def entries(self, answer: LlamaCppAnswer, *, first: bool = True) -> Sequence[_Entry]:
        """The tokens of an answer or event with their probabilities.

        Raises:
            UnsupportedError: they are missing.
        """
        entries = answer["completion_probabilities"]
        if not entries and first:
            raise no_probs("n_probs", self.transport.endpoint, hint=_STRIPPED)
        if not entries:
            raise speculative(self.transport.endpoint)
        for entry in entries:
            if not entry.get("top_logprobs") and not entry["logprob"]:
                raise speculative(self.transport.endpoint)
        return entries

    def own(self, entry: _Entry) -> Choice:
        """The token that the server took.

        Raises:
            ResponseError: it has no usable probability.
        """
        own = self.choice(entry)
        check_own(own.token.prob, self.transport.endpoint)
        return own

    def choice(self, entry: _Entry) -> Choice:
        """Any token of an answer."""
        token_id, ends = entry["id"], self.facts.ends
        if token_id in ends:
            return Choice(token_id, Token(b"", prob(entry["logprob"]), end=True, name=ends[token_id]))
        token = Token(bytes(entry["bytes"]), prob(entry["logprob"]))
        return Choice(token_id, token, sure=not _unsure(token))

    def positions(self, answer: LlamaCppAnswer, *, ties: bool = False) -> list[Position]:
        """The positions of an answer, up to the first token that the server hides, or to the end of the context.

        With `ties`, the tokens that are less probable than the server's own are left out.
        """
        entries = self.entries(answer) if answer["completion_probabilities"] else ()
        tokens = answer.get("tokens", [])
        if answer["stop_type"] == "eos" and tokens:
            self.facts.ends.setdefault(tokens[-1], None)
        positions: list[Position] = []
        for token_id, entry in zip(tokens[: self._room(answer)], entries, strict=False):
            if entry["id"] != token_id:
                break
            own = self.own(entry)
            least = own.token.prob or 0.0 if ties else 0.0
            top = [self.choice(one) for one in entry.get("top_logprobs", ()) if (prob(one["logprob"]) or 0.0) >= least]
            positions.append(Position(own, top))
        return positions

    def _continues(self, answer: LlamaCppAnswer) -> bool:
        """The answer has a first token of the model's own, shown or hidden."""
        return self._room(answer) != 0 and (bool(answer.get("tokens")) or not answer["truncated"])

    def _room(self, answer: LlamaCppAnswer) -> int | None:
        """Tokens that fit behind the prompt of an answer; None where the context is unknown."""
        context = self.facts.info.context
        return max(context - answer["tokens_evaluated"], 0) if context else None

    def _hidden(self, answer: LlamaCppAnswer) -> Position:
        """The position of a forced token. Of equally probable ones the hidden one was the server's pick."""
        top = [self.choice(one) for one in self.entries(answer)[0].get("top_logprobs", ())]
        best = [choice for choice in top if choice.token.prob == top[0].token.prob]
        hidden = [choice for choice in best if whole(choice.token.data) < len(choice.token.data)]
        return Position(min(hidden or best, key=lambda choice: choice.id), top)

    def _check_read(self, answer: LlamaCppAnswer) -> None:
        if not answer["tokens_evaluated"]:
            raise nothing_to_continue(self.transport.endpoint)


class _Reader:
    """The raw tokens of one stream, each with its alternatives.

    Attributes:
        ids: the tokens that came.
        last: the last event.
        done: the rest of the stream is not needed.
        hidden: the next raw token is one that the server does not show.
        full: the context is full.
        joined: of a draft of raw tokens, one that came with the bytes of tokens that the server has hidden; it waits
            for `split`.
    """

    def __init__(self, client: LlamaCppClient, options: DraftOptions) -> None:
        self.ids: list[int] = []
        self.last: LlamaCppAnswer | None = None
        self.done = self.hidden = self.full = False
        self._client = client
        self._endpoint = client.transport.endpoint
        self._context = client.facts.info.context
        self._greedy = not options.sampled
        self._alternatives = options.alternatives
        self._raw = options.raw
        self.joined: Choice | None = None
        self._seen = 0
        self._held: Choice | None = None  # perhaps an end that is not known yet: the next event shows it
        self._ended = False

    def feed(self, event: LlamaCppAnswer) -> list[Choice]:
        """Take one event; return the tokens that are certain now."""
        self.last = event
        found: list[Choice] = []
        written = event["tokens_predicted"]
        if event["completion_probabilities"] or not event["stop"]:
            entries = self._client.entries(event, first=not self._seen)
            self._seen += len(entries)
            if self._raw and written > self._seen and len(entries) == 1 and not self._beyond(event):
                self.joined = self._choice(entries[0])
                return self._noted(self._release())
            if written == self._seen and not self._beyond(event):
                for entry in entries:
                    choice = self._choice(entry)
                    if self._held is not None:
                        found += self._release()
                    if choice.sure:
                        found.append(choice)
                    else:
                        self._held = choice
        if written != self._seen:
            found += self._release()
            self.done = self.hidden = True
        elif event["stop"]:
            found += self._finish(event)
        return self._noted(found)

    def split(self, pieces: Sequence[Piece]) -> list[Choice]:
        """The hidden tokens and the one that showed them, if these are their pieces; else the stream is over here.

        Of a hidden token the probability is not known. The last id and their number show that they are the model's.
        """
        joined, self.joined = self.joined, None
        assert joined is not None and self.last is not None
        hidden = self.last["tokens_predicted"] - self._seen
        spelled = b"".join(piece.data for piece in pieces)
        if len(pieces) != hidden + 1 or pieces[-1].id != joined.id or spelled != joined.token.data:
            self._seen -= 1
            self.done = self.hidden = True
            return []
        self._seen += hidden
        found = [Choice(piece.id, Token(piece.data, None)) for piece in pieces[:-1]]
        found.append(Choice(joined.id, replace(joined.token, data=pieces[-1].data)))
        if self.last["stop"]:
            found += self._finish(self.last)
        return self._noted(found)

    def _noted(self, found: list[Choice]) -> list[Choice]:
        for choice in found:
            self.ids.append(choice.id)
            self._ended = self._ended or choice.token.end
        return found

    def _choice(self, entry: _Entry) -> Choice:
        own, listed = self._client.own(entry), entry.get("top_logprobs", ())
        if self._greedy:
            mine = entry["logprob"] or 0.0
            for one in listed:
                if one["logprob"] is not None and one["logprob"] > mine:
                    check_greedy(own.token.prob, (prob(one["logprob"]),), self._endpoint)
        if self._alternatives:
            others = [self._client.choice(one) for one in listed if one["id"] != own.id]
            choose = with_listed if self._raw else with_alternatives
            own.token = choose(Position(own, others), self._alternatives)
        return own

    def _release(self) -> list[Choice]:
        """The token that was held back, as an ordinary one."""
        held, self._held = self._held, None
        return [] if held is None else [held]

    def _finish(self, event: LlamaCppAnswer) -> list[Choice]:
        """The last event."""
        self.done = True
        if not event["tokens_evaluated"]:
            raise nothing_to_continue(self._endpoint)
        if event["stop_type"] == "word":
            raise own_stop(self._endpoint, hint="Start it without --reverse-prompt.")
        ended = event["stop_type"] == "eos"
        if ended and self._held is not None:
            self._client.facts.ends[self._held.id] = None
            self._held = Choice(self._held.id, Token(b"", self._held.token.prob, end=True))
        found = self._release()
        read = event["tokens_evaluated"]
        self.full = event["truncated"] or bool(self._context and read + self._seen >= self._context)
        if not (self._seen or self.full):  # it would be asked for ever
            raise silent(self._endpoint)
        if ended and not self._ended and not any(choice.token.end for choice in found):
            words = "the end of sequence is shown as text; start the server without --special"
            raise ResponseError(words, endpoint=self._endpoint)  # not retryable: it would be so once more
        return found

    def _beyond(self, event: LlamaCppAnswer) -> bool:
        """The server continued by forgetting the start of its context."""
        if self._context and event["tokens_evaluated"] + event["tokens_predicted"] > self._context:
            self.done = self.full = True
        return self.full


def speculative(endpoint: str) -> UnsupportedError:
    """The server hides the probabilities of speculated tokens."""
    words = "the server decodes speculatively and then does not show the probabilities of its tokens"
    hint = "Start it without a draft model (--model-draft, --spec-type)."
    return UnsupportedError(words, endpoint=endpoint, hint=hint)


def _unsure(token: Token) -> bool:
    """The token is perhaps an end that is not known yet."""
    data = token.data
    return not token.end and (not data or (data[:1] == b"<" and data[-1:] == b">"))


def _spells(pieces: Sequence[Piece], text: str) -> bool:
    """The pieces are this text."""
    return b"".join(piece.data for piece in pieces) == text.encode()


def _listed(position: Position, token_id: int) -> float | None:
    """The probability of a token, if it is among the most probable ones."""
    return next((choice.token.prob for choice in position.top if choice.id == token_id), None)


def _drawn(choices: Sequence[Choice], seed: int | None) -> Choice:
    """One of the tokens that a server hides, drawn by their probabilities: that it drew one of them is known."""
    hidden = [choice for choice in choices if whole(choice.token.data) < len(choice.token.data)] or choices
    weights = [choice.token.prob or 0 for choice in hidden]
    return random.Random(seed).choices(hidden, weights)[0]  # noqa: S311 - no secret


def _sent(prefix: _Prefix) -> object:
    """A prompt as it is sent: the server takes a list only where it holds both text and ids."""
    return prefix if len(prefix) > 1 else prefix[0]


# The provider.


class LlamaCppProbeClient(ProbeClient):
    """The probe's client of a llama.cpp server."""

    forcing = (lambda text: {"grammar": grammar(text)},)

    def __init__(self, client: LlamaCppClient) -> None:
        super().__init__(client.transport, client.facts.info.model)
        self._client = client

    async def settings(self) -> dict[str, int]:
        """The number of slots, and the context that the model was trained for."""
        endpoint = self._transport.endpoint
        slots = parse(_Props, await self._transport.get("/props"), endpoint).total_slots
        listed = parse(LlamaCppModels, await self._transport.get("/v1/models"), endpoint).data
        return {"slots": slots or 0, "trained": next((one.trained for one in listed if one.id == self._model), 0) or 0}

    async def send(self, request: RawRequest, usage: Usage) -> list[RawReply]:
        """One request; an empty text before ids stands for the beginning of sequence, where the model has one."""
        sent: list[object] = [prompt if isinstance(prompt, str) else ["", *prompt] for prompt in request.prompts]
        more = {"return_tokens": True, "response_fields": [*FIELDS, "content"], "temperature": request.temperature}
        counts = {"n_predict": request.limit, "n_probs": request.top}
        body = self._client.body(sent[0] if len(sent) == 1 else sent, **more, **counts, **request.fields)
        data = await self._transport.post("/completion", body, usage=usage)
        listed = cast("list[object]", data) if isinstance(data, list) else [cast("object", data)]
        answers = [checked(_answer, one, self._transport.endpoint) for one in listed]
        for one in answers:
            bill(usage, one)
        return [self._reply(one) for one in sorted(answers, key=lambda one: one["index"])]

    async def score(self, text: str, usage: Usage) -> RawScores:
        """By the other route, if at all: `/completion` has no field for it."""

        def body(prompt: object, limit: int, top: int) -> Mapping[str, object]:
            return {"model": self._model, "prompt": prompt, "max_tokens": limit, "logprobs": top, "temperature": 0}

        other = CompletionsProbeClient(self._transport, "/v1/completions", body, set(), self._model)
        return await other.score(text, usage)

    def _reply(self, one: LlamaCppAnswer) -> RawReply:
        # Hidden tokens show with the one that completes their character: here the bytes count, not the tokens.
        positions = self._client.positions(one)
        if len(positions) < len(one.get("tokens", ())):
            positions = [
                Position(self._client.choice(entry), [*map(self._client.choice, entry.get("top_logprobs", ()))])
                for entry in one["completion_probabilities"] or ()
            ]
        read, written, ended = one["tokens_evaluated"], one["tokens_predicted"], one["stop_type"] == "eos"
        return RawReply(one.get("content", ""), positions, read, one["cached"], written, ended)


class LlamaCpp(Engine[LlamaCppFacts]):
    """A model behind llama.cpp's server. See `contract.Provider`.

    Args:
        url: the server's URL, without `/v1`.
        strategy: how proposals are asked (`strategies.Strategy`); by default a list, but single requests for one
            place or after a long prompt. All give the same answers.
        options: as in `engine.Adapter`: `model`, `api_key`, `headers`, `extra_body` (e.g. `{"cache_prompt": False}` or
            `{"id_slot": 0}`), `timeout`, `http_client`, `limits`.

    Raises:
        ValueError: `extra_body` sets what the fusion itself decides; or there is no such strategy.
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
        strategy: Literal["list", "singles", "watch"] | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        super().__init__(url, owned=_OWNED, strategy=strategy, **options)
        self._beginning: Lazy[str] = Lazy()
        self._ends: Lazy[bool] = Lazy()
        self._characters: dict[bytes, list[Piece]] = {}

    def _client(self, facts: LlamaCppFacts) -> LlamaCppClient:
        extra = {"cache_prompt": True, **self._extra, **self._named()}
        return LlamaCppClient(self._transport, facts, extra, self._parts)

    async def _parts(self, data: bytes) -> list[Piece]:
        """The raw tokens of one character or a few: the model's own encoding, remembered."""
        found = self._characters.get(data)
        if found is None:
            if len(self._characters) >= _MANY:
                self._characters.clear()
            found = self._characters[data] = await self._encode(data.decode(), special=False)
        return found

    async def _draft(
        self,
        facts: LlamaCppFacts,
        context: Context,
        continuation: Any,
        max_tokens: int,
        options: DraftOptions,
        usage: Usage,
    ) -> IdsDraft:
        start = self._path(context) if continuation is None else [*continuation]
        stream = partial(self._client(facts).stream, usage, options, len(start))
        return IdsDraft(stream, start, max_tokens, alone=not context.text, raw=options.raw)

    async def generate_with_states(
        self,
        context: Context,
        *,
        max_tokens: int,
        continuation: Any = None,
        alternatives: int = 0,
        usage: Usage,
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Stream a draft, and ask for the states of a stretch at a time; see `contract.HiddenStates`."""
        facts, options = await self._stated(), DraftOptions(alternatives, raw=context.ids is not None)
        draft = await self._draft(facts, context, continuation, max_tokens, options, usage)
        client = self._client(facts)

        async def begin() -> IdsDraft:
            return draft

        async def states(ids: Sequence[int], count: int) -> list[State]:
            return await client.states([*draft.start, *ids], count, usage)

        async with aclosing(with_states(streamed(begin), draft.draft, states)) as items:
            async for item in items:
                yield item

    async def hidden_states(self, context: Context, *, usage: Usage) -> dict[int, State]:
        """The states at all boundaries, in one pass; see `contract.HiddenStates`."""
        prompt, text = context.prompt, context.text
        client = self._client(await self._stated())
        before, pieces, start = await self._behind(prompt, text)
        ends = [0, *accumulate(len(piece.data) for piece in pieces)]
        asked = {question.start for question in boundaries((piece.data for piece in pieces), start)}
        first = next((at for at, end in enumerate(ends) if end - start in asked), len(ends))
        if not first and not self._head.ids and not await self._beginning.get(self._find_beginning):
            first = 1
        count = len(ends) - first
        if count <= 0:
            return {}
        found = await client.states([*before, *(piece.id for piece in pieces)], count, usage)
        behind = zip(ends[first:], found, strict=True)  # of tokens without bytes the last state counts
        return {end - start: state for end, state in behind if end - start in asked}

    async def _stated(self) -> LlamaCppFacts:
        """The facts of a server that reports hidden states."""
        facts = await self.facts()
        if not facts.info.capabilities.hidden_states:
            raise no_states(self._transport.endpoint, _NO_STATES)
        return facts

    async def propose(
        self, context: Context, questions: Sequence[Question] | None, *, alternatives: int = 0, usage: Usage
    ) -> list[Proposal | None]:
        """All questions at once, and those again that need more tokens; see `contract.Provider`."""
        prompt, text = context.prompt, context.text
        client, everywhere = self._client(await self.facts()), questions is None
        if questions is None:
            _, pieces, start = await self._behind(prompt, text)
            questions = boundaries((piece.data for piece in pieces), start)
        short = len(questions) > 1 and len(prompt.encode()) <= _SHORT
        way: Strategy = self._strategy or ("list" if everywhere or short else "singles")
        alone: set[int] = set()  # places that were asked singly after all

        async def written(open_: list[Continuation]) -> list[list[Position]]:
            prefixes = [[*self._prefix(prompt, text[: one.question.start]), *one.ids] for one in open_]
            wanted = max(one.wanted for one in open_)
            return await client.next(prefixes, wanted, usage, singly=way == "singles", alternatives=alternatives)

        async def single(one: Continuation) -> list[Position]:
            try:
                return (await written([one]))[0]
            except ContextLengthError:
                if not one.ids:  # the text itself is too long for this model
                    raise
                return []  # its answer has reached the end of the context

        async def ask(open_: list[Continuation]) -> list[list[Position]]:
            if len(open_) > 1:
                try:
                    return await written(open_)
                except ContextLengthError:
                    alone.update(one.question.start for one in open_)
            return [await single(one) for one in open_]

        found = await answer(questions, ask, alternatives)
        listed = {question.start for question in questions} - alone
        return counted(marked(found, "singles", but=listed), way, usage)

    async def next_tokens(
        self, contexts: Sequence[Context], *, alternatives: int = 1, usage: Usage
    ) -> list[Token | None]:
        """One after the other: each finds in its slot what the last one has read; see `contract.IdContexts`."""
        client = self._client(await self.facts())
        way: Strategy = "list" if self._strategy == "list" and len(contexts) > 1 else "singles"
        found = await client.after([*map(self._path, contexts)], 1 + alternatives, usage, singly=way == "singles")
        usage.answered_by(way, len(found))
        return found

    async def encode(self, text: str) -> list[Piece]:
        """The encoding of a response, by `/tokenize`; see `contract.IdContexts`."""
        pieces = await self._encode(text, special=False)
        if not _spells(pieces, text):
            # The tokenizer puts a space before every text, but not after the end of a line, which it never merges.
            line = await self._encode(_LINE, special=False)
            pieces = (await self._encode(_LINE + text, special=False))[len(line) :]
        if not _spells(pieces, text):
            raise unknown_bytes(self._transport.endpoint)
        return pieces

    async def decode(self, ids: Sequence[int]) -> str:
        """By `/detokenize`; see `contract.IdContexts`."""
        found = await self._transport.post("/detokenize", self._named(tokens=[*ids]))
        return self._read(_Text, found).content

    async def score(self, context: Context, *, alternatives: int = 0, end: bool = False, usage: Usage) -> list[Token]:
        """One request for all tokens, and one more for each improbable token; see `contract.Provider`.

        The end is the most probable of the tokens that end a generation. Their names are looked up once. The first
        token of a model without a beginning of sequence has no probability where the prompt is empty.
        """
        prompt, text = context.prompt, context.text
        client = self._client(await self.facts())
        if end:
            await self._ends.get(partial(self._find_ends, client))
        before, pieces, start = await self._behind(prompt, text)
        first = sum(at <= start for at in accumulate(len(piece.data) for piece in pieces))
        known = [Token(piece.data, 1.0) for piece in pieces[:first]]
        if pieces and not prompt and not await self._beginning.get(self._find_beginning):
            known, first = [Token(pieces[0].data, None)], 1
        prefixes: list[_Prefix] = [[*before, *(piece.id for piece in pieces[:at])] for at in range(len(pieces) + 1)]
        asked = [*pieces[first:], None] if end else pieces[first:]
        found = await client.scored(prefixes[first : first + len(asked)], asked, usage, alternatives)
        scored = within([*known, *found[: len(pieces) - first]], start)
        return [*scored, found[-1]] if end else scored

    async def score_ids(
        self, context: Context, first: int, *, alternatives: int = 0, end: bool = False, usage: Usage
    ) -> list[Token]:
        """One request for all ids, and one more for each improbable one; see `contract.IdScores`.

        The first of all has no probability where nothing is before it.
        """
        client = self._client(await self.facts())
        if end:
            await self._ends.get(partial(self._find_ends, client))
        path, ids = self._path(context), [*(context.ids or ())]
        known: list[Token] = []
        if ids and not (first or context.prompt or await self._beginning.get(self._find_beginning)):
            known, first = [Token(b"", None, id=ids[0])], 1
        asked: list[Piece | None] = [Piece(one, b"") for one in ids[first:]]
        places = range(len(path) - len(asked), len(path) + end)
        asked += [None] if end else []
        return [*known, *await client.scored([path[:at] for at in places], asked, usage, alternatives, raw=True)]

    async def _behind(self, prompt: str, text: bytes) -> tuple[_Prefix, list[Piece], int]:
        """The encoding of prompt and text behind what was encoded before: that, the pieces, and where the text begins.

        An empty text stands for the beginning-of-sequence token, where the model has one.
        """
        rest = prompt.removeprefix(self._head.text)
        before: _Prefix = [*self._head.ids] if self._head.ids else [""]
        return before, await self.tokenize(rest + sendable(text)), len(rest.encode())

    async def _find_ends(self, client: LlamaCppClient) -> bool:
        """Note all tokens that end a generation; true."""
        for piece in await self._encode("".join(ENDS)):
            name = piece.data.decode(errors="replace")
            if name in ENDS and piece.id not in client.facts.ends and await client.ends(piece.id):
                client.facts.ends[piece.id] = name
        return True

    async def tokenize(self, text: str) -> list[Piece]:
        """The server's own encoding, special tokens parsed as in a prompt, none added."""
        pieces = await self._encode(text)
        surplus = sum(len(piece.data) for piece in pieces) - len(text.encode())
        if surplus == 1 and pieces[0].data[:1] == b" ":  # some tokenizers put a space before every text
            pieces[0] = Piece(pieces[0].id, pieces[0].data[1:])
        return pieces

    def _prefix(self, prompt: str, text: bytes) -> _Prefix:
        return [*self._head.ids, prompt.removeprefix(self._head.text) + sendable(text)]

    def _path(self, context: Context) -> _Prefix:
        """A context as it is sent: the prompt as text, which the server encodes by itself, and then the ids."""
        if context.ids is None:
            return self._prefix(context.prompt, context.text)
        return [*self._prefix(context.prompt, b""), *context.ids]

    async def _ids(self, text: str) -> list[int]:
        """The ids of a text behind a beginning of sequence, where the model has one."""
        body = self._named(content=text, add_special=True, parse_special=True)
        return self._read(_Ids, await self._transport.post("/tokenize", body)).tokens

    async def _encode(self, text: str, *, special: bool = True) -> list[Piece]:
        body = self._named(content=text, add_special=False, parse_special=special, with_pieces=True)
        return self._read(_Pieces, await self._transport.post("/tokenize", body)).pieces()

    def _named(self, **fields: object) -> dict[str, object]:
        return {**fields, "model": self._model} if self._model else fields

    def _read(self, kind: type[_M], data: object) -> _M:
        return parse(kind, data, self._transport.endpoint)

    async def _discover(self) -> LlamaCppFacts:
        ask = partial(ask_only, self._transport, looks="a llama.cpp server", url="`llama-server`")
        chosen = self._choose(await ask(LlamaCppModels, "/v1/models"))
        props = await ask(_Props, self._props_route())
        # It has more threads than slots, and one waits at each idle connection: half of them are left to others.
        self._transport.idle = max(FEW_IDLE, (props.total_slots or 0) // 2)
        end = await self._encode(props.eos_token)
        visible = await self._encode("a")
        if not visible:
            raise ResponseError("/tokenize gave no token for a letter", endpoint=self._transport.endpoint)
        others = (chosen.vocabulary or 1 + _MANY) - 1
        ends: dict[int, str | None] = {end[0].id: props.eos_token} if len(end) == 1 else {}
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
                places=_LIST if self._strategy == "list" else 1,
            ),
            answer_cue=await self._answer_cue(),
            ends=(*ends,),
        )
        if await self._speculates():
            raise speculative(self._transport.endpoint)
        return LlamaCppFacts(info, ends, visible[-1].id)

    async def _width(self, visible: int) -> int:
        """The width of a hidden state; 0 where the server does not report one for each token.

        Raises:
            ProviderError: it could not be asked: no answer, or one that says nothing about it.
        """
        try:
            body = self._named(content=[visible, visible])
            [found] = self._read(_Embeddings, await self._transport.post("/embedding", body)).root
        except (InvalidRequestError, ContextLengthError, AuthenticationError):  # a proxy may forbid this path alone
            return 0
        except ServerError as error:
            if error.status != HTTPStatus.INTERNAL_SERVER_ERROR:  # loading, or a proxy's: it says nothing either
                raise
            return 0
        except ResponseError as error:
            if error.retryable:  # it says nothing about the server
                raise
            return 0
        widths = {len(cast("list[object]", row)) if isinstance(row, list) else 0 for row in found.embedding}
        return widths.pop() if len(found.embedding) == 2 and len(widths) == 1 else 0

    def _choose(self, models: LlamaCppModels) -> _Listed:
        """The model to use."""
        for model in models.data:
            if self._model in (model.id, *model.aliases) or (self._model is None and len(models.data) == 1):
                return model
        raise no_model(self._model, (model.id for model in models.data), self._transport.endpoint)

    def _props_route(self) -> str:
        return f"/props?model={quote(self._model)}" if self._model else "/props"

    async def _speculates(self) -> bool:
        """The server reports speculative decoding; it need not show its slots."""
        try:
            return any(slot.speculative for slot in self._read(_Slots, await self._transport.get("/slots")).root)
        except (StatusError, ResponseError):
            return False

    async def _answer_cue(self) -> str | None:
        """The text that the chat template puts before an answer; None where the model has no template of its own."""
        mark = "\U000f0000"
        try:
            rendered = await self._render([{"role": "user", "content": mark}])
        except (StatusError, ResponseError, UnsupportedError, TemplateRefusal):
            return None
        cue = rendered.rpartition(mark)[2]
        # A model without a template is given ChatML by the server: then its marks are not tokens of the model.
        own = _CHATML not in cue or len(await self._encode(_CHATML)) == 1
        return cue if own and mark in rendered else None

    async def _render(self, messages: list[dict[str, str]]) -> str:
        """By `/apply-template`, which leaves out the beginning-of-sequence token that `/completion` adds."""
        try:
            found = await self._transport.post("/apply-template", self._named(messages=messages))
            return self._read(_Rendered, found).prompt
        except InvalidRequestError as error:  # errors of the template come so
            if error.status == 404:  # an older server
                return await super()._render(messages)
            raise TemplateRefusal(error.args[0]) from None

    async def begun(self, prompt: str) -> str:
        """The prompt without the beginning-of-sequence token that the server puts before a text."""
        if self._template is None:
            return prompt  # the server has left it out
        return prompt.removeprefix(await self._beginning.get(self._find_beginning))

    async def _find_beginning(self) -> str:
        """The beginning-of-sequence token that the server puts before a text; empty where it puts none."""
        if not await self._ids(""):
            return ""
        return self._read(_Props, await self._transport.get(self._props_route())).bos_token

    async def literal(self, pieces: Sequence[str]) -> Provider | None:
        """The model, given ids for all of a prompt but its last piece; None where its tokenizer adds spaces to them."""
        ids, more = await self._ids(pieces[0]), [await self._encode(piece) for piece in pieces[1:]]
        if b"".join(one.data for found in more for one in found) != "".join(pieces[1:]).encode():
            return None
        view = copy(self)
        view._head = Head("".join(pieces[:-1]), [*ids, *(one.id for found in more[:-1] for one in found)])
        return view

    async def probe_client(self) -> LlamaCppProbeClient:
        """The server without checks, for a probe."""
        return LlamaCppProbeClient(self._client(await self.facts()))
