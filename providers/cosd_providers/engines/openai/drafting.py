"""A draft over a server that takes text only: as few requests as it can be had in."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from math import ceil

from cosd_providers.contract import DraftEnd, Token
from cosd_providers.engines.openai.chains import no_beginning
from cosd_providers.engines.openai.client import OpenAIClient, Prefix, is_too_long
from cosd_providers.engines.openai.logprobs import TokenAligner, check_finish, check_position, check_probs
from cosd_providers.engines.openai.wire import Answer, Billed, bill
from cosd_providers.errors import ContextLengthError, InvalidRequestError, ResponseError
from cosd_providers.greedy import Draft, Position, is_plain, with_alternatives
from cosd_providers.http.retries import resumed
from cosd_providers.text import readable, sendable
from cosd_providers.usage import Usage

__all__ = ["Drafting"]

_AGAIN = 2  # attempts at one more token, all but the last ones, in which a server writes again what it wrote
_MARGIN = 8  # special tokens that a prompt may get
_MORE = 3  # raw tokens that may be needed to finish a character
_PARTS = 4  # raw tokens of a character, at most


class Drafting:
    """One draft.

    Args:
        client: requests to the server.
        prompt: the prompt.
        text: the response so far.
        usage: where requests are counted.
        context: tokens that fit, prompt and answer together, where that is known.
        alternatives: how many each token comes with, as far as the server lists them.
    """

    def __init__(
        self,
        client: OpenAIClient,
        prompt: str,
        text: bytes,
        usage: Usage,
        context: int | None,
        alternatives: int = 0,
    ) -> None:
        self._client = client
        self._prompt = prompt
        self._text = text
        self._usage = usage
        self._context = context
        self._alternatives = alternatives
        self._draft = Draft(0)
        self._known: list[bytes] = []  # raw tokens that were seen after this text
        self._given: list[bytes] = []  # whole tokens that were given out after it
        self._wanted = 0  # raw tokens to ask for
        self._refused = False  # whether more of them were refused
        self._over: DraftEnd | None = None

    async def draft(self, max_tokens: int) -> AsyncGenerator[Token | DraftEnd, None]:
        """At most `max_tokens` tokens, then why there are no more."""
        self._start(max_tokens)
        while not self._draft.over:
            async with aclosing(resumed(self._answer)) as tokens:
                async for token in tokens:
                    yield token
            if self._over is not None:
                yield self._over
                return
        yield DraftEnd("end" if self._draft.ended else "limit")

    async def _answer(self, attempt: int) -> AsyncGenerator[Token, None]:
        """The new tokens of one answer.

        An answer that broke off is asked for once more; where that breaks off before there is anything new, it goes on
        from the text: the server may have a limit of its own.
        """
        if self._draft.over:
            return  # what broke off was what the server tells behind it
        if attempt > _AGAIN and self._given:
            self._grow(self._draft.left)
        prefix = Prefix(self._prompt, sendable(self._text))
        limit = self._limit(prefix)
        run = Run(self._client.endpoint, self._client.facts.ends, self._draft, self._known, self._alternatives)
        try:
            async with aclosing(self._stream(prefix, limit, run, attempt)) as tokens:
                async for token in tokens:
                    self._given.append(token.data)
                    yield token
        except (ContextLengthError, InvalidRequestError) as error:
            if not is_too_long(error) or run.written or (limit <= 1 and not self._text):
                raise
            if limit <= 1:
                self._over = DraftEnd("context")
            self._wanted, self._refused = limit // 2, True
            return
        if not self._draft.over and run.finish == "content_filter":
            self._over = DraftEnd("filter")
        elif not self._draft.over and not self._go_on(run, prefix, limit):
            self._over = DraftEnd("context")

    def _start(self, left: int) -> None:
        """A text that was not asked yet."""
        self._draft, self._known, self._given = Draft(left), [], []
        self._wanted, self._refused = left, False

    def _go_on(self, run: Run, prefix: Prefix, limit: int) -> bool:
        """Makes ready to ask again, because an answer had too few tokens; whether there is anything left to ask.

        Where it was as long as asked, a character is not finished, or was several tokens: the same text is asked again,
        so that the model goes on from its own tokens, with as many as its whole tokens had so far. Where it was
        shorter, or not the same as before, the text that has grown is asked.
        """
        left = self._draft.left
        if run.differs:  # asked for more than is left, it gives at least one token that is whole
            self._grow(max(self._wanted, left + _MORE))
            return True
        if run.written >= limit == self._wanted and not self._refused:
            parts = min(run.written / len(self._given), _PARTS) if self._given else 1
            self._wanted += ceil(left * parts) + _MORE
            return True
        billed = run.billed
        if self._context is not None and billed is not None and billed.prompt_tokens + run.written >= self._context:
            return False
        if not (self._given or prefix.text or run.written):
            if not prefix.whole:
                raise no_beginning(self._client.endpoint)
            words = "the server stopped without a token and without a reason"
            raise ResponseError(words, endpoint=self._client.endpoint, retryable=True)
        goes_on = bool(self._given)
        self._grow(left)
        return goes_on

    def _grow(self, wanted: int) -> None:
        """The text with what was given out: to be asked for so many raw tokens."""
        self._text += b"".join(self._given)
        self._start(self._draft.left)
        self._wanted = wanted

    async def _stream(self, prefix: Prefix, limit: int, run: Run, attempt: int) -> AsyncGenerator[Token, None]:
        """The whole tokens of one answer. What comes after its last one tells the usage."""
        if limit < 1:
            words = f"the text does not fit into the model's context of {self._context} tokens"
            raise ContextLengthError(words, endpoint=self._client.endpoint)
        answered, read = False, 0
        try:
            async with self._client.stream(prefix, limit, self._usage, attempt, self._alternatives) as events:
                answered = True
                async for event in events:
                    for token in run.feed(event):
                        yield token
                    if run.billed and run.billed.prompt_tokens != read:  # some servers tell it with every event
                        read = run.billed.prompt_tokens
                        self._client.check_read(prefix, run.billed)
                    if run.differs or (self._draft.over and run.finish is None and run.written < limit):
                        return
            if run.finish is None:
                words = "the stream ended before the answer did"
                raise ResponseError(words, endpoint=self._client.endpoint, retryable=True)
        finally:
            if answered:
                run.bill(self._usage, 0 if run.billed else self._client.count(prefix) or 0)

    def _limit(self, prefix: Prefix) -> int:
        """How many tokens of an answer may be asked for; less than 1 where none fits."""
        if self._context is None or len(prefix.whole.encode()) + self._wanted + _MARGIN <= self._context:
            return self._wanted
        read = self._client.count(prefix)
        return min(self._wanted, max(self._context - 1, 1) if read is None else self._context - read)


class Run:
    """Reads one stream into a draft.

    Args:
        endpoint: of the server.
        ends: strings and ids of ends of sequence.
        draft: takes what is new.
        known: the bytes of the raw tokens that an earlier run from the same text gave; grows.
        alternatives: how many each token comes with, as far as they are listed and their strings can be trusted.

    Attributes:
        finish: why the answer ended; None before it did.
        billed: what it has cost, as far as it was told.
        differs: whether the server has written another token than in an earlier run: nothing after it counts.
    """

    def __init__(
        self, endpoint: str, ends: set[str | int], draft: Draft, known: list[bytes], alternatives: int = 0
    ) -> None:
        self.finish: str | None = None
        self.billed: Billed | None = None
        self.differs = False
        self._endpoint = endpoint
        self._aligner = TokenAligner(endpoint, ends)
        self._draft = draft
        self._known = known
        self._alternatives = alternatives
        self._at = 0

    @property
    def written(self) -> int:
        """How many raw tokens the model has written, hidden ones included where they are told."""
        told = self.billed.completion_tokens if self.billed else None
        return max(told or 0, self._aligner.count)

    def feed(self, event: Answer) -> list[Token]:
        """Takes one event; gives the whole tokens that it completes."""
        self.billed = event.usage or self.billed
        tokens: list[Token] = []
        for choice in event.choices:
            if self.finish is not None:
                break
            check_probs(choice, self._aligner, self._endpoint, streamed=choice.message is None)
            for position in self._aligner.feed(choice):
                tokens += self._take(position)
                if self.differs:
                    return tokens
            check_finish(choice, self._endpoint)
            self.finish = choice.finish_reason
        return tokens

    def bill(self, usage: Usage, read: int) -> None:
        """Counts what it has cost; of a stream that was left early, what is known: `read` tokens and those seen."""
        told = self.billed or Billed(prompt_tokens=read, completion_tokens=self._aligner.count)
        bill(usage, told)

    def _take(self, position: Position) -> list[Token]:
        at, token = self._at, position.pick.token
        self._at += 1
        check_position(position, at, self._aligner, self._endpoint)
        if at < len(self._known):
            before, self._known[at] = self._known[at], token.data
            if before == token.data:
                return []
            if before:  # a server that is busy may round in another way, and two tokens be about as probable
                self.differs = True
                return []
        else:
            self._known.append(token.data)
        return self._draft.feed(position.pick.id, self._told(position))

    def _told(self, position: Position) -> Token:
        """The server's own token with its alternatives: none where a string may have lost a space, or be no text."""
        if not self._alternatives or not self._aligner.spaced:
            return position.pick.token
        plain = [one for one in position.top if one.token.end or is_plain(readable(one.token.data))]
        return with_alternatives(Position(position.pick, plain), self._alternatives)
