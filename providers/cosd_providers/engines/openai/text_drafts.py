"""Drafts from a server that accepts text only, in as few requests as possible."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from math import ceil
from secrets import randbelow

from cosd_providers.contract import Context, DraftEnd, Token
from cosd_providers.drafting import RequestBill, billed
from cosd_providers.engine import broken_off, nothing_to_continue, silent
from cosd_providers.engines.openai.client import OpenAIClient, Prefix, is_too_long
from cosd_providers.engines.openai.logprobs import CheckedAligner
from cosd_providers.engines.openai.no_logprobs import EventReader
from cosd_providers.engines.openai.stream_checks import RestOfAnswer
from cosd_providers.engines.openai.wire import Billed, Completion, WireAnswer, steps
from cosd_providers.errors import ContextLengthError, InvalidRequestError, ResponseError
from cosd_providers.greedy import Draft, Position, with_alternatives
from cosd_providers.sampling import DraftOptions
from cosd_providers.text import sendable
from cosd_providers.usage import Usage

_AGAIN = 2  # attempts that resume from the same text; later attempts resume from the text received so far
_MARGIN = 8  # number of special tokens that the server may add to a prompt
_MORE = 3  # number of further raw tokens that may be needed to finish a character
_PARTS = 4  # a character has at most this many raw tokens
_OWN_WAY = {"temperature": 1}  # for servers that are not known to draw from the model's own distribution
_SEEDS = 2**32 - 1  # on some servers, the largest 32-bit number means a random seed


class Drafting:
    """One draft.

    The limit of an answer counts raw tokens; the limit of a draft counts tokens of whole characters. If an answer was
    too short, the same text is sent again with a higher limit, so that the model repeats its own tokens and continues
    after them. If tokens are drawn with `Dialect.sampling`, the same seed draws the same tokens again; a request with a
    longer text gets a new seed. A server that draws in its own way may draw different tokens. Such a server is asked to
    continue the longer text; if it cannot, the draft ends after the requested number of the server's own tokens.

    Args:
        options: how tokens are chosen, and the number of alternatives to list for each, as far as the server can.
        max_tokens: the largest number of whole-character tokens to return.
    """

    def __init__(
        self, client: OpenAIClient, context: Context, usage: Usage, options: DraftOptions, max_tokens: int
    ) -> None:
        self._client = client
        self._prompt = context.prompt
        self._text = context.text
        self._usage = usage
        if options.sampled and options.seed is None:
            options = replace(options, seed=randbelow(_SEEDS))
        self._options = options
        self._own_way = options.sampled and not client.samples
        self._draft = Draft(max_tokens)
        self._known: list[bytes] = []  # raw tokens received after the current text
        self._given: list[bytes] = []  # whole tokens returned after the current text
        self._before = 0  # number of whole tokens returned before the current text was sent
        self._wanted = max_tokens  # number of raw tokens to request
        self._shown = -1  # number of raw tokens in the last answer to the current text
        self._refused = False  # whether the server has refused a higher limit
        self._over: DraftEnd | None = None

    async def after(self) -> Sequence[DraftEnd]:
        """Return the end of the draft if the draft is over; see `drafting.DraftRequests`."""
        if self._over is None and self._draft.over:
            self._over = DraftEnd("end" if self._draft.ended else "limit")
        return [] if self._over is None else [self._over]

    async def answer(self, attempt: int) -> AsyncGenerator[Token, None]:
        """Stream the new tokens of one answer; see `drafting.DraftRequests`.

        If the answer breaks off, it is requested again from the same text. If the second answer also breaks off without
        a new token, the next attempt starts from the text received so far, because the server may have a limit of its
        own.
        """
        if self._draft.over:
            return  # the stream broke off after the last token, so that only the usage was lost
        if attempt > _AGAIN and self._given and self._client.partial:
            self._grow(self._draft.left)
        prefix = Prefix(self._prompt, sendable(self._text))
        limit = await self._limit(prefix)
        repeated = self._client.conversation.answer(prefix.text) if self._client.facts.repeats else ""
        stream = _Stream(self._client, self._draft, self._known, self._options, repeated)
        try:
            async with aclosing(self._stream(prefix, limit, stream, attempt)) as tokens:
                async for token in tokens:
                    self._given.append(token.data)
                    yield token
        except (ContextLengthError, InvalidRequestError) as error:
            if not is_too_long(error) or stream.written or (limit <= 1 and not self._text):
                raise
            if limit <= 1:
                self._over = DraftEnd("context")
            self._wanted, self._refused = limit // 2, True
            return
        if not self._draft.over and stream.finish == "content_filter":
            self._over = DraftEnd("filter")
        elif not self._draft.over and not self._continues(stream, prefix, limit):
            self._over = self._over or DraftEnd("context")

    def _start(self, left: int) -> None:
        """Reset the state that belongs to the current text, with `left` tokens still to be written."""
        self._draft, self._known, self._given = Draft(left), [], []
        self._wanted, self._shown, self._refused = left, -1, False

    def _grow(self, wanted: int) -> None:
        """Append the tokens returned so far to the text; the next request asks for `wanted` more raw tokens."""
        self._text += b"".join(self._given)
        self._before += len(self._given)
        self._start(self._draft.left)
        self._wanted = wanted

    def _continues(self, stream: _Stream, prefix: Prefix, limit: int) -> bool:
        """Prepare the next request after an answer with too few whole tokens; return False at the end of the context.

        If the answer reached its limit, some characters needed several tokens, or the last character is unfinished. In
        that case, the same text is sent with a higher limit, which allows for as many tokens per character as were
        needed so far. If the answer was shorter than its limit, or differs from an earlier answer, the longer text is
        sent.
        """
        left, continues = self._draft.left, self._client.partial
        # Without a bill, tokens that the server hides are not counted: a higher limit shows whether there are any.
        hides = stream.billed is None and stream.finish == "length" and stream.shown > self._shown
        self._shown = stream.shown
        full = (hides or stream.written >= limit) and limit == self._wanted and not self._refused
        if self._own_way and not continues and stream.differs:
            words = "the stream broke off, and the server drew another answer to the repeated request"
            raise ResponseError(words, endpoint=self._client.endpoint, retryable=True)
        if self._own_way and full and self._given:
            if continues:
                self._grow(left)
            else:
                self._over = DraftEnd("limit")
            return continues
        if stream.differs and continues:  # the higher limit ensures at least one whole token
            self._grow(max(self._wanted, left + _MORE))
            return True
        if full:
            parts = min(stream.written / len(self._given), _PARTS) if self._given else 1
            self._wanted += ceil(left * parts) + _MORE
            return True
        if stream.differs or not continues:
            return False
        billed, context = stream.billed, self._client.facts.context
        if context is not None and billed is not None and billed.prompt_tokens + stream.written >= context:
            return False
        if not (self._given or prefix.text or stream.written):
            raise silent(self._client.endpoint) if prefix.whole else nothing_to_continue(self._client.endpoint)
        continues = bool(self._given)
        self._grow(left)
        return continues

    async def _stream(self, prefix: Prefix, limit: int, stream: _Stream, attempt: int) -> AsyncGenerator[Token, None]:
        """Stream the whole tokens of one answer. The server may report the usage only after the last token."""
        if limit < 1:
            words = f"the text does not fit into the model's context of {self._client.facts.context} tokens"
            raise ContextLengthError(words, endpoint=self._client.endpoint)
        read = 0
        with billed(self._usage, partial(self._client.size, prefix)) as bill:
            asked: dict[str, int] = {"attempt": attempt, "alternatives": self._options.alternatives}
            async with self._client.stream(prefix, limit, self._usage, self._drawn(), **asked) as events:
                async for event in events:
                    bill.final = not self._client.asks_usage
                    tokens = stream.feed(event)
                    stream.report(bill)
                    for token in tokens:
                        yield token
                    if stream.billed and stream.billed.prompt_tokens != read:  # some servers repeat the usage
                        read = stream.billed.prompt_tokens
                        self._client.note_size(prefix, stream.billed)
                        await self._client.check_read(prefix, stream.billed)
                    if stream.differs or (self._draft.over and stream.finish is None and stream.written < limit):
                        return
            for token in stream.close():
                yield token
            if stream.finish is None:
                raise broken_off(self._client.endpoint)
            if stream.repeats:
                self._usage.warn(
                    f"{self._client.endpoint}: parts of a stream came twice, and more tokens came than the server has "
                    "billed: the answer may repeat what the model wrote once. Is there a proxy that repeats events?"
                )
            bill.final = True

    def _drawn(self) -> Mapping[str, object]:
        """The fields for drawing tokens; empty for greedy decoding."""
        seed, dialect = self._options.seed_after(self._before), self._client.dialect
        if not self._options.sampled or seed is None:
            return {}
        seeded = {} if dialect.seed is None else {dialect.seed: seed % _SEEDS}
        return {**(dialect.sampling or _OWN_WAY), **seeded}

    async def _limit(self, prefix: Prefix) -> int:
        """Return the number of raw tokens to request; less than 1 if the context has no room for a token."""
        context = self._client.facts.context
        if context is None or len(prefix.whole.encode()) + self._wanted + _MARGIN <= context:
            return self._wanted
        await self._client.count_first([prefix])
        read = self._client.count(prefix)
        return min(self._wanted, max(context - 1, 1) if read is None else context - read)


class _Stream:
    """Reader of one stream, which adds its tokens to a draft."""

    def __init__(
        self, client: OpenAIClient, draft: Draft, known: list[bytes], options: DraftOptions, repeated: str
    ) -> None:
        self.finish: str | None = None  # the reason for the answer's end; None before the end
        self.billed: Billed | None = None  # the usage of the answer; None until the server reports it
        self.differs = False  # whether a token differs from an earlier answer; this and all later tokens are ignored
        self._client = client
        self._options = options  # how tokens are chosen, and the number of alternatives to list for each
        self._draft = draft  # the draft that receives the new tokens
        self._known = known  # the bytes of each raw token in earlier answers to the same text; new tokens are appended
        self._at = 0
        self._written = 0  # number of tokens with text, and an end that is shown
        self._again = 0  # how many of them came in events that repeat the text of the event before
        self._last = ""
        self._streamed: int | None = None  # number of raw tokens of a stream that was closed for another request
        self._repeated = repeated  # the answer so far, if the server repeats it; otherwise empty
        self._begun: CheckedAligner | EventReader | None = None
        self._ended: str | None = None  # the end of an answer whose probabilities may still follow

    @property
    def _aligner(self) -> CheckedAligner | EventReader:
        """The reader, created at the first event, when it is known how many tokens the server lists."""
        if self._begun is None and not self._client.facts.probs:
            self._begun = EventReader(self._client.endpoint, self._repeated)
        elif self._begun is None:
            client, alternatives = self._client, self._options.alternatives
            proxied = client.dialect.unknown and client.path == "/v1/completions"
            self._begun = client.aligner(
                alternatives, ranked=alternatives > 0, proxied=proxied, drawn=self._options.sampled
            )
        return self._begun

    @property
    def written(self) -> int:
        """The number of raw tokens that the model has written, including hidden tokens if they are billed."""
        billed = self.billed.completion_tokens if self.billed else None
        return max(billed or 0, self._aligner.count)

    @property
    def shown(self) -> int:
        """The number of raw tokens received; -1 if the server shows no tokens, only text."""
        return self._aligner.count if isinstance(self._aligner, CheckedAligner) else -1

    @property
    def repeats(self) -> bool:
        """True if more tokens came than were billed, and events that repeat the one before explain the difference."""
        billed = (self.billed.completion_tokens if self.billed else None) or self._written
        return self._written - self._again <= billed < self._written

    def feed(self, event: WireAnswer) -> list[Token]:
        """Read one event, and return the whole tokens that it completes."""
        self.billed = event.usage or self.billed
        if isinstance(event, RestOfAnswer):
            self._streamed = self._aligner.count
        tokens: list[Token] = []
        for choice in event.choices:
            if self.finish is not None or self.differs:
                break
            if choice.finish_reason is not None and not (self._aligner.count or steps(choice)):
                self._ended = choice.finish_reason
            tokens += self._read(choice if self._ended is None else choice.model_copy(update={"finish_reason": None}))
        return tokens

    def close(self) -> list[Token]:
        """Return the last tokens at the end of the stream, if the end of the answer was held back until then."""
        return [] if self._ended is None else self._read(Completion(message=None, finish_reason=self._ended))

    def _read(self, choice: Completion) -> list[Token]:
        tokens: list[Token] = []
        before = self._written
        for position in self._aligner.feed(choice):
            token = position.pick.token
            self._written += bool(token.data) or (token.end and token.prob is not None)
            self._client.facts.spaced = self._client.facts.spaced or self._aligner.spaced
            tokens += self._take(position)
            if self.differs:
                return tokens
        self._again += self._written - before if choice.written == self._last else 0
        self._last = choice.written or self._last
        self.finish = choice.finish_reason
        return tokens

    def report(self, bill: RequestBill) -> None:
        """Write the usage into the bill of the request; without a usage, only the number of tokens received."""
        bill.written = self._aligner.count if self._streamed is None else self._streamed
        if self.billed is not None:
            bill.read, bill.cached = self.billed.prompt_tokens, self.billed.cached
            if self.billed.completion_tokens is not None and self._streamed is None:
                bill.written = self.billed.completion_tokens

    def _take(self, position: Position) -> list[Token]:
        at, token = self._at, position.pick.token
        self._at += 1
        if at < len(self._known):
            before, self._known[at] = self._known[at], token.data
            # A busy server may round differently, and thus choose the other of two nearly equally probable tokens.
            self.differs = bool(before) and before != token.data
            if before or not token.data:
                return []
        else:
            self._known.append(token.data)
        return self._draft.feed(position.pick.id, with_alternatives(position, self._options.alternatives))
