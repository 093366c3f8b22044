"""llama.cpp's `/completion`: its requests, and the tokens of its answers, including hidden tokens.

- A raw token that leaves a character unfinished is **hidden**: no event, no entry. The token that completes the
  character shows the bytes of both, but its own probability alone. `tokens_predicted` and `tokens` count the hidden
  token and so reveal it. `LlamaCppClient.peek` finds it by forcing a visible token in its place.
- The list beside a token (`n_probs`) may be as long as the vocabulary: the most probable tokens, even if another was
  drawn.
- After a stream the server closes the connection, sometimes a moment late: the client does not keep it.
- Before December 2024 the probabilities had another shape, without logarithms: such builds are refused.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, NotRequired, cast

from pydantic import AliasChoices, AliasPath, BaseModel, Field
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 on

from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Piece, Token
from cosd_providers.drafting import Next
from cosd_providers.engine import (
    ServerFacts,
    broken_off,
    miscounted,
    no_probs,
    nothing_to_continue,
    own_stop,
    silent,
)
from cosd_providers.errors import ResponseError, UnsupportedError
from cosd_providers.greedy import (
    TIES,
    Choice,
    Position,
    check_greedy,
    check_own,
    prob,
    with_alternatives,
    with_listed,
)
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import checked, parse, shape
from cosd_providers.sampling import DraftOptions
from cosd_providers.text import sendable, whole
from cosd_providers.usage import Usage

__all__ = [
    "FIELDS",
    "LIST",
    "OWNED",
    "LlamaCppAnswer",
    "LlamaCppClient",
    "LlamaCppFacts",
    "OneByte",
    "PromptParts",
    "sent_prompt",
    "speculative",
]

LIST = 64
"""Prompts in one request."""

_LIKELY = 50  # alternatives to request for the probability of a given token
_ALL = 2**31 - 1  # the whole vocabulary
_FORCE = 1e4  # added to a logit, this decides
_STRIPPED = (
    "llama.cpp's own server gives them: is there a proxy before it that removes completion_probabilities? With"
    ' connect(url, engine="openai") it can be an assistant without them, for verifier=AgreementVerifier(alpha=0.5).'
)

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
"""Greedy decoding without samplers or early stops. A field left out falls back to the server's own settings; an empty
list of stops falls back to its reverse prompts."""

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
"""The fields of an answer that are needed; without this list the answer repeats the prompt and all settings."""

OWNED = {
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

PromptParts = list[str | int]
"""A prompt: a text and the ids that follow it; ids may precede the text, too."""


# Answers.


OneByte = Annotated[int, Field(ge=0, le=255)]
"""A byte as a number."""


class _Entry(TypedDict):
    """A token with its probability."""

    id: int
    bytes: list[OneByte]
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
    content: NotRequired[str]  # only the probe requests it


_answer = shape(LlamaCppAnswer)


class _OldEntry(BaseModel):
    """A token with its probability, in the format of builds before December 2024."""

    probs: list[object]


class _OldAnswer(BaseModel):
    """An answer of such a build."""

    completion_probabilities: Annotated[list[_OldEntry], Field(min_length=1)]


def _bill(usage: Usage, answer: LlamaCppAnswer) -> None:
    """Bill the cost of an answer, or of a stream so far."""
    usage.bill(answer["tokens_evaluated"], answer["tokens_predicted"], answer["cached"])


# Facts, requests and answers.


@dataclass(frozen=True, slots=True)
class LlamaCppFacts(ServerFacts):
    """Facts of a llama.cpp server.

    Attributes:
        ends: ids that end a sequence, with their names; a new end is added when it is first seen.
        visible: an id whose text is whole: its event is never held back.
    """

    ends: dict[int, str | None]
    visible: int


class LlamaCppClient:
    """Requests to `/completion` of one server, and its answers.

    Args:
        transport: the server.
        facts: known facts about the server.
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
        self, prefixes: Sequence[PromptParts], usage: Usage, *, singly: bool = False, **fields: object
    ) -> list[LlamaCppAnswer]:
        """The answers to several prompts, in order: as lists, or with `singly` by single requests, a few at a time."""
        size = 1 if singly else LIST
        parts = [prefixes[at : at + size] for at in range(0, len(prefixes), size)]
        if singly:
            found = await concurrently([partial(self._list, part, usage, fields) for part in parts])
        else:
            found = [await self._list(part, usage, fields) for part in parts]
        return [answer for part in found for answer in part]

    async def _list(
        self, prefixes: Sequence[PromptParts], usage: Usage, fields: Mapping[str, object]
    ) -> list[LlamaCppAnswer]:
        listed = await self.unchecked([*map(sent_prompt, prefixes)], usage, **fields)
        if [one["index"] for one in listed] != [*range(len(prefixes))]:
            raise miscounted(len(prefixes), len(listed), self.transport.endpoint)
        for one in listed:
            self._check_read(one)
        return listed

    async def unchecked(self, prompt: object, usage: Usage, **fields: object) -> list[LlamaCppAnswer]:
        """The answers to one request in the order of their prompts, as many as came; arguments as in `body`."""
        data = await self.transport.post("/completion", self.body(prompt, **fields), usage=usage)
        listed = [self.read(one) for one in (cast("list[object]", data) if isinstance(data, list) else [data])]
        for one in listed:
            _bill(usage, one)
        return sorted(listed, key=lambda one: one["index"])

    async def next(
        self, prefixes: Sequence[PromptParts], wanted: int, usage: Usage, *, singly: bool, alternatives: int
    ) -> list[list[Position]]:
        """About `wanted` positions after each prefix; none if the context is full."""
        top = max(TIES, 1 + alternatives)
        answers = await self.batch(prefixes, usage, singly=singly, n_predict=wanted, n_probs=top, return_tokens=True)
        positions = [self.positions(one, ties=not alternatives) for one in answers]
        hidden = [at for at, one in enumerate(answers) if not positions[at] and self._continues(one)]
        if hidden:
            peeked = await self.peek([prefixes[at] for at in hidden], usage, count=top)
            for at, position in zip(hidden, peeked, strict=True):
                positions[at] = [position]
        return positions

    async def after(
        self, prefixes: Sequence[PromptParts], count: int, usage: Usage, *, singly: bool
    ) -> list[Token | None]:
        """The most probable raw token after each prefix, and the next `count - 1`; None if the context is full.

        A token that the server always shows is forced; the raw distribution beside it includes hidden tokens.
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

    async def peek(self, prefixes: Sequence[PromptParts], usage: Usage, *, count: int = TIES) -> list[Position]:
        """The `count` most probable tokens after each prefix, if the server hides its own pick.

        A token that the server always shows is forced; the list beside it is the raw distribution.
        """
        force = [[self.facts.visible, _FORCE]]
        answers = await self.batch(prefixes, usage, n_predict=1, n_probs=count, logit_bias=force)
        return [self._hidden(one) for one in answers]

    async def scored(
        self,
        prefixes: Sequence[PromptParts],
        pieces: Sequence[Piece | None],
        usage: Usage,
        alternatives: int,
        *,
        raw: bool = False,
    ) -> list[Token]:
        """The token of each piece after its prefix, with `raw` also its id; None means the end of sequence."""
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

    async def _probs(self, prefixes: Sequence[PromptParts], token_id: int, usage: Usage) -> list[float | None]:
        """The probability of a token after each prefix."""
        answers = await self.batch(prefixes, usage, n_predict=1, n_probs=1, logit_bias=[[token_id, _FORCE]])
        shown = [one["completion_probabilities"] or [] for one in answers]
        if all(shown):
            return [prob(entries[0]["logprob"]) for entries in shown]
        # A hidden token.
        return [_listed(one, token_id) for one in await self.peek(prefixes, usage, count=_ALL)]

    async def ends(self, token_id: int) -> bool:
        """True if the server ends a generation with this token; not billed."""
        bias = [[token_id, _FORCE]]
        [found] = await self.batch([[self.facts.visible]], Usage(), n_predict=1, n_probs=1, logit_bias=bias)
        return found["stop_type"] == "eos"

    async def stream(
        self, usage: Usage, options: DraftOptions, start: int, ids: Sequence[str | int], left: int, attempt: int
    ) -> AsyncGenerator[Next, None]:
        """One request for a draft, whose first `start` ids are the prompt; see `drafting.IdsStream`."""
        reader = _Reader(self, options)
        body = self.body(
            sent_prompt([*ids]), n_predict=left, n_probs=1 + options.alternatives, stream=True, timings_per_token=True
        )
        if options.sampled:
            seed = options.seed_after(len(ids) - start)
            body |= {"temperature": 1, "seed": -1 if seed is None else seed}
        try:
            stream = self.transport.stream("/completion", body, usage=usage, keep_alive=False, attempt=attempt)
            async with stream as events:
                async for event in events:
                    found = reader.feed(self.read(event))
                    if reader.joined is not None:
                        found = [*found, *reader.split(await self._split(reader.joined))]
                    for choice in found:
                        yield choice
                    if reader.done:
                        break
        finally:
            if reader.last is not None:
                _bill(usage, reader.last)
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
        """The raw tokens of the characters that one event shows together; empty if they cannot be known."""
        data = joined.token.data
        if self._parts is None or whole(data) != len(data) or sendable(data).encode() != data:
            return []
        return await self._parts(data)

    def read(self, data: object) -> LlamaCppAnswer:
        """An answer, or an event of a stream.

        Raises:
            UnsupportedError: the build is too old.
            ResponseError: the answer has another shape.
        """
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
        """The server's own token of an entry.

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
        """The positions of an answer, up to the first hidden token, or to the end of the context.

        With `ties`, tokens less probable than the server's own are left out.
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
        """True if the answer has a first token of the model's own, shown or hidden."""
        return self._room(answer) != 0 and (bool(answer.get("tokens")) or not answer["truncated"])

    def _room(self, answer: LlamaCppAnswer) -> int | None:
        """Tokens that fit after the prompt of an answer; None if the context is unknown."""
        context = self.facts.info.context
        return max(context - answer["tokens_evaluated"], 0) if context else None

    def _hidden(self, answer: LlamaCppAnswer) -> Position:
        """The position of a forced token. Among equally probable tokens, the hidden token was the server's pick."""
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
        hidden: the server does not show the next raw token.
        full: the context is full.
        joined: in a draft of raw tokens, a token that came with the bytes of hidden tokens; it waits for `split`.
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
        self._held: Choice | None = None  # perhaps an unknown end: the next event decides
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
        """The hidden tokens and the token that showed them, if these are their pieces; else the stream is over here.

        The probability of a hidden token is unknown. The last id and the number of pieces prove that they are the
        model's.
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
        """The token that was held back, as an ordinary token."""
        held, self._held = self._held, None
        return [] if held is None else [held]

    def _finish(self, event: LlamaCppAnswer) -> list[Choice]:
        """Take the last event."""
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
        if not (self._seen or self.full):  # the draft would repeat this request for ever
            raise silent(self._endpoint)
        if ended and not self._ended and not any(choice.token.end for choice in found):
            words = "the end of sequence is shown as text; start the server without --special"
            raise ResponseError(words, endpoint=self._endpoint)  # not retryable: the next answer would be the same
        return found

    def _beyond(self, event: LlamaCppAnswer) -> bool:
        """True if the server continued by forgetting the start of its context."""
        if self._context and event["tokens_evaluated"] + event["tokens_predicted"] > self._context:
            self.done = self.full = True
        return self.full


def speculative(endpoint: str) -> UnsupportedError:
    """The error of a server that hides the probabilities of speculated tokens."""
    words = "the server decodes speculatively and then does not show the probabilities of its tokens"
    hint = "Start it without a draft model (--model-draft, --spec-type)."
    return UnsupportedError(words, endpoint=endpoint, hint=hint)


def _unsure(token: Token) -> bool:
    """True if the token is perhaps an end that is not known yet."""
    data = token.data
    return not token.end and (not data or (data[:1] == b"<" and data[-1:] == b">"))


def _listed(position: Position, token_id: int) -> float | None:
    """The probability of a token, if it is listed."""
    return next((choice.token.prob for choice in position.top if choice.id == token_id), None)


def _drawn(choices: Sequence[Choice], seed: int | None) -> Choice:
    """Draw one of the tokens that the server hides, by their probabilities: one of them was surely drawn."""
    hidden = [choice for choice in choices if whole(choice.token.data) < len(choice.token.data)] or choices
    weights = [choice.token.prob or 0 for choice in hidden]
    return random.Random(seed).choices(hidden, weights)[0]  # noqa: S311 - no secret


def sent_prompt(prefix: PromptParts) -> object:
    """The request's form of a prompt: the server takes a list only if it holds both text and ids."""
    return prefix if len(prefix) > 1 else prefix[0]
