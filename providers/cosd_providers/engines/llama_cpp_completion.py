"""Requests to llama.cpp's `/completion` route, and the tokens of its answers, including hidden tokens.

- A raw token that leaves a character unfinished is **hidden**: it has no event and no entry. The token that completes
  the character shows the bytes of both tokens, but only its own probability. A hidden token is noticed because it is
  counted in `tokens_predicted` and `tokens`. `LlamaCppClient.peek` identifies it by forcing a visible token in its
  place.
- The list that is returned with a token (`n_probs`) may be as long as the vocabulary. It contains the most probable
  tokens, even if a less probable token was drawn.
- After a stream, the server closes the connection, sometimes with a short delay. So the client does not reuse the
  connection.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, NotRequired, cast

from pydantic import AliasChoices, AliasPath, BaseModel, Field
from typing_extensions import TypedDict  # before Python 3.12, pydantic refuses `typing.TypedDict`

from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Piece, Token
from cosd_providers.drafting import Next, billed
from cosd_providers.engine import ServerFacts, broken_off, miscounted, no_probs, nothing_to_continue, own_stop, silent
from cosd_providers.errors import ResponseError, UnsupportedError
from cosd_providers.greedy import TIES, Choice, Position, check_greedy, check_own, prob, with_alternatives, with_listed
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import LogProb, checked, parse, shape
from cosd_providers.sampling import DraftOptions
from cosd_providers.text import sendable, whole
from cosd_providers.token_counts import Counts
from cosd_providers.usage import Usage

LIST = 64
"""The largest number of prompts in one request."""

_LIKELY = 50  # number of tokens to list, in the hope that a given token is among them
_ALL = 2**31 - 1  # lists the whole vocabulary
_FORCE = 1e4  # a bias that makes its token the most probable one, whatever its logit
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
"""Fields for greedy decoding without samplers or early stops.

A missing field falls back to the server's own settings, and an empty list of stops falls back to its reverse prompts.
"""

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
"""The fields to return in an answer. Without this list, the answer repeats the prompt and all settings."""

_READ, _KEPT = 12, 6  # number of tokens in a text, and of those that remain before a change
_CACHED = ["timings/cache_n"]
_BANNED = ["generation_settings/logit_bias"]  # the field of an answer with the tokens whose logits were changed

OWNED = {
    *_GREEDY,
    *("json_schema", "logit_bias", "logprobs", "max_tokens", "model", "n", "n_cmpl", "n_predict"),
    *("n_probs", "prompt", "response_fields", "return_tokens", "seed", "stream"),
}
"""Fields that a user's `extra_body` may not set."""

PromptParts = list[str | int]
"""A prompt, which consists of a text and ids. The ids may come after the text, before it, or both."""


OneByte = Annotated[int, Field(ge=0, le=255)]
"""A byte as a number."""


class _Entry(TypedDict):
    """A token of an answer, with its log probability."""

    id: int
    bytes: list[OneByte]
    logprob: LogProb | None
    top_logprobs: NotRequired[list[_Entry]]


class LlamaCppAnswer(TypedDict):
    """An answer of `/completion`, or an event of its stream. It is a dictionary, which saves time for each token."""

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


class _Bias(BaseModel):
    """A token whose logit a request changes; the bias of a banned token is None."""

    token: int
    bias: float | None = None


class _Ignoring(BaseModel):
    """The settings of a request that ignores the end of sequence."""

    biases: list[_Bias] = Field([], validation_alias=AliasChoices(_BANNED[0], AliasPath(*_BANNED[0].split("/"))))


class _Cached(BaseModel):
    """The number of tokens of a prompt that came from the cache."""

    count: int = Field(0, validation_alias=AliasChoices(_CACHED[0], AliasPath(*_CACHED[0].split("/"))))


@dataclass(frozen=True, slots=True)
class LlamaCppFacts(ServerFacts):
    """Facts about a llama.cpp server."""

    # the ids that end a sequence, with their names; an end that was not found in advance is added when it is first seen
    ends: dict[int, str | None]
    visible: int  # the id of a token that consists of whole characters, so that the server never hides it


class LlamaCppClient:
    """Requests to the `/completion` route of one server, and its answers."""

    def __init__(
        self,
        transport: Transport,
        facts: LlamaCppFacts,
        extra: Mapping[str, object],
        counts: Counts,
        parts: Callable[[bytes], Awaitable[list[Piece]]] | None = None,
    ) -> None:
        self.transport = transport
        self.facts = facts
        self._extra = extra
        self._counts = counts
        self._parts = parts  # a function that returns the raw tokens of some characters, for drafts of raw tokens

    def body(self, prompt: object, **fields: object) -> dict[str, object]:
        """Build the body of a greedy request."""
        return {**self._extra, **_GREEDY, "prompt": prompt, "response_fields": FIELDS, **fields}

    async def batch(
        self, prefixes: Sequence[PromptParts], usage: Usage, *, singly: bool = False, **fields: object
    ) -> list[LlamaCppAnswer]:
        """Request answers to several prompts, in order, with lists of prompts or (`singly`) a few at a time."""
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
        sent = [*map(sent_prompt, prefixes)]
        listed = await self.unchecked(sent, usage, partial(self._sizes, prefixes), **fields)
        if [one["index"] for one in listed] != [*range(len(prefixes))]:
            raise miscounted(len(prefixes), len(listed), self.transport.endpoint)
        for one, prefix in zip(listed, prefixes, strict=True):
            if not one["tokens_evaluated"]:
                raise nothing_to_continue(self.transport.endpoint)
            self._count(prefix, one)
        return listed

    async def unchecked(
        self, prompt: object, usage: Usage, size: Callable[[], tuple[int, bool]] = lambda: (0, True), **fields: object
    ) -> list[LlamaCppAnswer]:
        """Send one request, and return the answers unchecked, in the order of the prompts.

        Arguments are as in `body`; `size` is as in `drafting.billed`.
        """
        with billed(usage, size) as bill:
            data = await self.transport.post("/completion", self.body(prompt, **fields), usage=usage)
            listed = [self.read(one) for one in (cast("list[object]", data) if isinstance(data, list) else [data])]
            for one in listed:
                bill.read += one["tokens_evaluated"]
                bill.written += one["tokens_predicted"]
                bill.cached += one["cached"]
        return sorted(listed, key=lambda one: one["index"])

    async def next(
        self, prefixes: Sequence[PromptParts], wanted: int, usage: Usage, *, singly: bool, alternatives: int
    ) -> list[list[Position]]:
        """Request about `wanted` positions after each prefix; an empty list means that the context is full."""
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
        """Request the most probable raw token after each prefix, with `count - 1` alternatives; None if none fits.

        The request forces a token that the server always shows. The distribution that is returned with this token is
        raw, and includes hidden tokens.
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
        listed = self.entries(answer)[0].get("top_logprobs", ())
        check_own(listed[0]["logprob"] if listed else None, self.transport.endpoint)
        top = [self.choice(one) for one in listed]
        return with_listed(Position(top[0], top), count - 1)

    async def peek(self, prefixes: Sequence[PromptParts], usage: Usage, *, count: int = TIES) -> list[Position]:
        """Request the `count` most probable tokens after each prefix, if the server has hidden its own token.

        The request forces a token that the server always shows. The list that is returned with this token is the raw
        distribution.
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
        """Score each piece after its prefix; None means the end of sequence. With `raw`, the tokens have ids."""
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
        """Request the probability of a token after each prefix, by forcing the token."""
        answers = await self.batch(prefixes, usage, n_predict=1, n_probs=1, logit_bias=[[token_id, _FORCE]])
        shown = [one["completion_probabilities"] or [] for one in answers]
        if all(shown):
            return [prob(entries[0]["logprob"]) for entries in shown]
        # The server hides the forced token, so it has to be found in a list.
        return [_listed(one, token_id) for one in await self.peek(prefixes, usage, count=_ALL)]

    async def ignored_ends(self) -> set[int]:
        """Request the ids that the server bans if it ignores the end of sequence; the request is not billed."""
        body = self.body([self.facts.visible], n_predict=1, ignore_eos=True, response_fields=_BANNED)
        data = await self.transport.post("/completion", body)
        biases = parse(_Ignoring, data, self.transport.endpoint).biases
        return {one.token for one in biases if one.bias is None}

    async def reread(self) -> int | None:
        """Request a text, then its first half with another token after it; see `contract.Capabilities.reread`.

        The requests are not billed. The result is None if the cache is off, or another client may have changed it.
        """
        if (self.facts.info.context or _READ) <= _READ:
            return None
        visible = self.facts.visible
        changed = [visible] * _KEPT + [int(not visible)]
        await self._cached([visible] * _READ)
        kept = await self._cached(changed)
        if kept >= _KEPT:
            return 0
        return _KEPT - kept if await self._cached(changed) else None

    async def _cached(self, ids: list[int]) -> int:
        """Request one token after some ids; return the number of ids that came from the cache."""
        body = self.body(ids, n_predict=1, ignore_eos=True, response_fields=_CACHED)
        return parse(_Cached, await self.transport.post("/completion", body), self.transport.endpoint).count

    async def stream(
        self, usage: Usage, options: DraftOptions, start: int, ids: Sequence[str | int], left: int, attempt: int
    ) -> AsyncGenerator[Next, None]:
        """Send one request for a draft. The first `start` parts precede the draft; see `drafting.IdsStream`."""
        reader = _Reader(self, options)
        body = self.body(
            sent_prompt([*ids]), n_predict=left, n_probs=1 + options.alternatives, stream=True, timings_per_token=True
        )
        if options.sampled:
            seed = options.seed_after(len(ids) - start)
            body |= {"temperature": 1, "seed": -1 if seed is None else seed}
        with billed(usage, partial(self._size, ids)) as bill:
            stream = self.transport.stream("/completion", body, usage=usage, keep_alive=False, attempt=attempt)
            async with stream as events:
                async for data in events:
                    event = self.read(data)
                    if not bill.read:
                        self._count(ids, event)
                    bill.read, bill.cached = event["tokens_evaluated"], event["cached"]
                    bill.written = event["tokens_predicted"]
                    found = reader.feed(event)
                    if reader.joined is not None:
                        found = [*found, *reader.split(await self._split(reader.joined))]
                    for choice in found:
                        yield choice
                    if reader.done:
                        break
            if not reader.done:
                raise broken_off(self.transport.endpoint)
        if reader.full:
            yield "full"
        elif reader.hidden:
            so_far = [*ids, *reader.ids]

            async def hidden() -> Choice:
                if not options.sampled:
                    return (await self.peek([so_far], usage))[0].pick
                [position] = await self.peek([so_far], usage, count=_ALL)
                return _drawn(position.top, options.seed_after(len(so_far) - start))

            yield hidden

    def _count(self, prefix: Sequence[str | int], answer: LlamaCppAnswer) -> None:
        """Remember how many tokens the text of a prompt has; its ids are one token each."""
        texts = [part for part in prefix if isinstance(part, str)]
        if len(texts) == 1:
            self._counts.add(texts[0], answer["tokens_evaluated"] - len(prefix) + 1)

    def _size(self, prefix: Sequence[str | int]) -> tuple[int, bool]:
        """The number of tokens in a prompt, and whether it is an estimate."""
        texts = [self._counts.upward(part) for part in prefix if isinstance(part, str)]
        return len(prefix) - len(texts) + sum(count for count, _ in texts), any(estimated for _, estimated in texts)

    def _sizes(self, prefixes: Sequence[PromptParts]) -> tuple[int, bool]:
        sizes = [self._size(prefix) for prefix in prefixes]
        return sum(tokens for tokens, _ in sizes), any(estimated for _, estimated in sizes)

    async def _split(self, joined: Choice) -> list[Piece]:
        """Find the raw tokens of the characters that one event shows together; an empty list if this is impossible."""
        data = joined.token.data
        if self._parts is None or whole(data) != len(data) or sendable(data).encode() != data:
            return []
        return await self._parts(data)

    def read(self, data: object) -> LlamaCppAnswer:
        """Validate an answer, or an event of a stream."""
        return checked(_answer, data, self.transport.endpoint)

    def entries(self, answer: LlamaCppAnswer, *, first: bool = True) -> Sequence[_Entry]:
        """Return the tokens of an answer or event, with their probabilities.

        Raises:
            UnsupportedError: the tokens or their probabilities are missing.
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
        """Return the server's own token at an entry, after a check that it has a usable probability."""
        check_own(entry["logprob"], self.transport.endpoint)
        return self.choice(entry)

    def choice(self, entry: _Entry) -> Choice:
        """Create a choice from any token of an answer."""
        token_id, ends = entry["id"], self.facts.ends
        if token_id in ends:
            return Choice(token_id, Token(b"", prob(entry["logprob"]), end=True, name=ends[token_id]))
        token = Token(bytes(entry["bytes"]), prob(entry["logprob"]))
        return Choice(token_id, token, sure=not _unsure(token))

    def positions(self, answer: LlamaCppAnswer, *, ties: bool = False) -> list[Position]:
        """Convert an answer to positions, up to the first hidden token or the end of the context.

        With `ties`, tokens that are less probable than the server's own token are left out.
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
        """True if the model wrote at least one token within its context, whether shown or hidden."""
        return self._room(answer) != 0 and (bool(answer.get("tokens")) or not answer["truncated"])

    def _room(self, answer: LlamaCppAnswer) -> int | None:
        """The number of tokens that fit after the prompt of an answer; None if the size of the context is unknown."""
        context = self.facts.info.context
        return max(context - answer["tokens_evaluated"], 0) if context else None

    def _hidden(self, answer: LlamaCppAnswer) -> Position:
        """The position at which a token was forced. Among equally probable tokens, a hidden one is the pick."""
        top = [self.choice(one) for one in self.entries(answer)[0].get("top_logprobs", ())]
        best = [choice for choice in top if choice.token.prob == top[0].token.prob]
        hidden = [choice for choice in best if whole(choice.token.data) < len(choice.token.data)]
        return Position(min(hidden or best, key=lambda choice: choice.id), top)


class _Reader:
    """Reader of the raw tokens of one stream, each with its alternatives."""

    def __init__(self, client: LlamaCppClient, options: DraftOptions) -> None:
        self.ids: list[int] = []  # the ids of the tokens read so far
        self.last: LlamaCppAnswer | None = None  # the last event so far
        self.done = False  # whether the rest of the stream is not needed
        self.hidden = False  # whether the server hides the next raw token
        self.full = False  # whether the context is full
        self._client = client
        self._endpoint = client.transport.endpoint
        self._context = client.facts.info.context
        self._greedy = not options.sampled
        self._alternatives = options.alternatives
        self._raw = options.raw
        # in a draft of raw tokens, a token that came with the bytes of hidden tokens; it must be split with `split`
        self.joined: Choice | None = None
        self._seen = 0
        self._held: Choice | None = None  # a token that may be an unknown end of sequence; the next event decides
        self._ended = False

    def feed(self, event: LlamaCppAnswer) -> list[Choice]:
        """Read one event, and return the tokens that are now certain."""
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
        """Split `joined` into the hidden tokens and its own token; end the stream before it if the pieces do not match.

        The last id, the number of pieces and their bytes must match the model's tokens. The probabilities of hidden
        tokens are unknown.
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
        """Return the token that was held back, if any; it has turned out to be an ordinary token."""
        held, self._held = self._held, None
        return [] if held is None else [held]

    def _finish(self, event: LlamaCppAnswer) -> list[Choice]:
        """Read the last event, and return the token that was held back, if any."""
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
        if not (self._seen or self.full):  # without an error, the draft would repeat this request forever
            raise silent(self._endpoint)
        if ended and not self._ended and not any(choice.token.end for choice in found):
            words = "the end of sequence is shown as text; start the server without --special"
            raise ResponseError(words, endpoint=self._endpoint)  # not retryable: the next answer would be the same
        return found

    def _beyond(self, event: LlamaCppAnswer) -> bool:
        """True if the server has continued beyond its context, by discarding the start of the text."""
        if self._context and event["tokens_evaluated"] + event["tokens_predicted"] > self._context:
            self.done = self.full = True
        return self.full


def speculative(endpoint: str) -> UnsupportedError:
    """Create the error for a server that hides the probabilities of speculated tokens."""
    words = "the server decodes speculatively and then does not show the probabilities of its tokens"
    hint = "Start it without a draft model (--model-draft, --spec-type)."
    return UnsupportedError(words, endpoint=endpoint, hint=hint)


def _unsure(token: Token) -> bool:
    """True if the token may be an end of sequence that is not known yet."""
    data = token.data
    return not token.end and (not data or (data[:1] == b"<" and data[-1:] == b">"))


def _listed(position: Position, token_id: int) -> float | None:
    """The listed probability of a token; None if the token is not listed."""
    return next((choice.token.prob for choice in position.top if choice.id == token_id), None)


def _drawn(choices: Sequence[Choice], seed: int | None) -> Choice:
    """Draw one of the hidden tokens by probability, because the hidden token that the server drew is unknown."""
    hidden = [choice for choice in choices if whole(choice.token.data) < len(choice.token.data)] or choices
    weights = [choice.token.prob or 0 for choice in hidden]
    return random.Random(seed).choices(hidden, weights)[0]  # noqa: S311 - no secret


def sent_prompt(prefix: PromptParts) -> object:
    """Convert a prompt to the form in a request: the server accepts a list only if it contains both text and ids."""
    return prefix if len(prefix) > 1 else prefix[0]
