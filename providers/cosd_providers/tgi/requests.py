"""What TGI is asked: streams, the probabilities of a prompt, and how it encodes a text."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from cosd_providers.chat.templates import TemplateRefusal
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Piece
from cosd_providers.engine import NO_TEMPLATE
from cosd_providers.errors import InvalidRequestError, ProviderError, ResponseError, StatusError, UnsupportedError
from cosd_providers.greedy import TIES
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.tgi.reading import Around, Encoded, Scored, Server, encoded
from cosd_providers.tgi.wire import Encoding, Event, Generated, Rendered, Word, allowed_top, parameters, prob_of
from cosd_providers.token_counts import Counts
from cosd_providers.tokenizers import Tokenizer, count
from cosd_providers.usage import Usage

__all__ = ["Requests"]

_REMEMBERED = 4  # encodings that are kept: they are long
_LONG = 2000  # characters: a text that is not longer is encoded at little cost
_BYTES = 4  # of a token, about
_MARK = "4711"  # stands for a user's message in a chat template

_M = TypeVar("_M", bound=BaseModel)


@dataclass(slots=True)
class _Bill:
    """What the prompt of one stream is billed.

    Attributes:
        usage: is billed.
        reckoned: its tokens, as far as they are known before the end.
        told: its tokens, as the end tells.
    """

    usage: Usage
    reckoned: int | None = None
    told: int | None = None

    def settle(self, guessed: int) -> None:
        """Bills what is known best."""
        self.usage.bill(next(n for n in (self.told, self.reckoned, guessed) if n is not None), 0)


class Requests:
    """Requests to one server.

    Args:
        transport: the server.
        extra: merged into the `parameters` of every generation.
        tokenizer: encodes and counts where the server does not.

    Attributes:
        counts: how many tokens texts have, special ones too.
    """

    def __init__(self, transport: Transport, extra: Mapping[str, object], tokenizer: Tokenizer | None) -> None:
        self._transport = transport
        self._extra = extra
        self._tokenizer = tokenizer
        self._encodings: OrderedDict[str, Encoded] = OrderedDict()
        self.counts = Counts()

    def _body(self, text: str, limit: int, top: int, *, prefill: bool = False) -> dict[str, object]:
        return {"inputs": text, "parameters": {**self._extra, **parameters(limit, top, prefill=prefill)}}

    async def letter(self) -> Encoding | None:
        """The encoding of one letter; None where the server does not encode text for others."""
        try:
            return await self._tokenize("a")
        except InvalidRequestError:
            return None

    async def abilities(self) -> tuple[Generated, int]:
        """An answer with the probabilities of its prompt, if given; and how many most probable tokens are listed.

        Raises:
            UnsupportedError: none are.
        """
        top = TIES
        while top:
            try:
                answer = await self._transport.post("/generate", self._body("a", 1, top, prefill=True))
            except InvalidRequestError as error:
                allowed = allowed_top(str(error))
                if allowed is None or allowed >= top:
                    raise
                top = allowed
            else:
                return self._read(Generated, answer), top
        words = "the server lists no most probable tokens, so nothing shows that its own token is the most probable one"
        hint = (
            "Start it without --max-top-n-tokens 0. TGI's llama.cpp backend always samples: use llama.cpp's own server."
        )
        raise UnsupportedError(words, endpoint=self._transport.endpoint, hint=hint)

    def encodes(self, around: Around | None) -> bool:
        """Whether a text can be encoded, here or there."""
        return around is not None or self._tokenizer is not None

    async def encode(self, server: Server, text: str) -> Encoded:
        """The server's encoding of `text`; asked once for each of the last texts."""
        if server.around is None:
            raise self._encodes_nothing(server)
        if text not in self._encodings:
            own = self._encodings[text] = encoded(await self._tokenize(text), text, server.around)
            self.counts.add(text, len(own.all))
            if len(self._encodings) > _REMEMBERED:
                self._encodings.popitem(last=False)
        return self._encodings[text]

    async def pieces(self, server: Server, text: str) -> list[Piece]:
        """The tokens of `text`, none added."""
        if server.around is None and self._tokenizer is not None:
            return self._tokenizer.encode(text)
        own = await self.encode(server, text)
        return [Piece(token_id, data) for token_id, data in zip(own.ids, own.data, strict=True)]

    async def count(self, server: Server, text: str) -> int:
        """How many tokens the model reads of `text`, the special ones around it too."""
        known = self.counts.exact(text)
        if known is None:
            if server.around is not None:
                known = len((await self._tokenize(text)).root)
            elif self._tokenizer is not None:
                known = count(self._tokenizer, text)
            else:
                raise self._encodes_nothing(server)
            self.counts.add(text, known)
        return known

    def _encodes_nothing(self, server: Server) -> UnsupportedError:
        words = "the server does not encode text for others (/tokenize), and this needs the tokens of a text"
        hint = "Give a `tokenizer`, or serve a model that has a fast one."
        return UnsupportedError(words, endpoint=server.info.endpoint, hint=hint)

    async def rendered(self, messages: Sequence[Mapping[str, str]]) -> str:
        """A conversation as the model's chat template writes it, up to the answer.

        Raises:
            TemplateRefusal: the template does not take it.
            UnsupportedError: there is none.
        """
        try:
            return await self._templated(messages)
        except InvalidRequestError as error:
            said = str(error.args[0])
            if "template not found" in said or "no chat template" in said:
                words, endpoint = "the model has no chat template", self._transport.endpoint
                raise UnsupportedError(words, endpoint=endpoint, hint=NO_TEMPLATE) from None
            raise TemplateRefusal(said) from None

    async def unbegun(self, server: Server, text: str) -> str:
        """A text without the special tokens that the server puts before every text, if it begins with them."""
        if server.around is None or not server.around.before:
            return text
        own, count = await self.encode(server, text), len(server.around.before)
        if tuple(own.ids[:count]) != server.around.before:
            return text
        return text.encode()[sum(map(len, own.data[:count])) :].decode()

    async def answer_cue(self) -> str | None:
        """What the chat template writes after a user's message."""
        try:
            text = await self._templated([{"role": "user", "content": _MARK}])
        except (StatusError, ResponseError):
            return None
        _, found, after = text.rpartition(_MARK)
        return after if found else None

    async def _templated(self, messages: Sequence[Mapping[str, str]]) -> str:
        data = await self._transport.post("/chat_tokenize", {"messages": list(messages)})
        return self._read(Rendered, data).templated_text

    async def _tokenize(self, text: str) -> Encoding:
        return self._read(Encoding, await self._transport.post("/tokenize", {"inputs": text}))

    async def room(self, server: Server, text: str, wanted: int) -> int:
        """How many tokens may be asked for after `text`: `wanted`, or what still fits; not above 0 where none does."""
        context = server.info.context or 0
        if self.counts.fits(text, min(server.longest, context - wanted)):
            return wanted
        read = await self.count(server, text)
        return min(wanted, context - read) if read <= server.longest else 0

    async def too_long(self, server: Server, text: str) -> ProviderError:
        """The error for a text that leaves no room."""
        return server.too_long(await self.count(server, text))

    @asynccontextmanager
    async def stream(
        self, server: Server, text: str, limit: int, usage: Usage, *, attempt: int, top: int = 0, whole: bool = True
    ) -> AsyncGenerator[AsyncIterator[Event]]:
        """The events of a generation. Leaving the block closes the request.

        Only the end of a stream tells what the prompt has in tokens. A stream that may be left before, one that is
        not read `whole`, has them reckoned beside it. Which `attempt` it is, counts the caller.
        """
        first: list[Any] = []
        bill = _Bill(usage)
        async with AsyncExitStack() as stack:

            async def begin() -> None:
                body = self._body(text, limit, top)
                stream = self._transport.stream("/generate_stream", body, usage=usage, attempt=attempt, draft=not whole)
                events = await stack.enter_async_context(stream)
                first[:] = await anext(events, None), events

            async def reckon() -> None:
                if not whole:
                    bill.reckoned = await self._reckoned(server, text)

            try:
                await concurrently([begin, reckon])
                events: AsyncIterator[dict[str, Any]] = first[1]
                async with aclosing(self._events(server, first[0], events, text, limit, bill)) as steps:
                    yield steps
            finally:
                if first:
                    bill.settle(self._guessed(text))

    async def _reckoned(self, server: Server, text: str) -> int | None:
        """What the text has in tokens: counted, unless it is long and mostly one that was; None if it cannot be."""
        known = self.counts.about(text) if len(text) > _LONG else self.counts.exact(text)
        if known is not None or not self.encodes(server.around):
            return known
        return await self.count(server, text)

    def _guessed(self, text: str) -> int:
        """What the text has in tokens, about, without asking."""
        known = self.counts.about(text)
        return len(text.encode()) // _BYTES if known is None else known

    async def _events(
        self, server: Server, data: Any, events: AsyncIterator[dict[str, Any]], text: str, limit: int, bill: _Bill
    ) -> AsyncGenerator[Event]:
        last = 0
        while data is not None:
            event = self._read(Event, data)
            if event.index and event.index == last:  # it was sent twice
                data = await anext(events, None)
                continue
            last = event.index
            bill.usage.bill(0, 1)
            if event.details is None:
                yield event
                data = await anext(events, None)
                continue
            with suppress(ProviderError):  # the answer is whole, whatever becomes of the connection
                async for _ in events:  # there is nothing more: the connection can be used again
                    pass
            bill.told = await self._told(server, text, event.details.input_length)
            yield await self._finished(server, text, limit, event, bill.usage)
            return
        raise server.broken("the stream ended before the answer did")

    async def _finished(self, server: Server, text: str, limit: int, event: Event, usage: Usage) -> Event:
        """The last event of an answer of at most `limit` tokens, with the true reason why it is the last one.

        Where the last token that was asked for ends the sequence, the server says "length" all the same. Once for each
        special token, one token more is asked for to see whether anything follows it. Where the context has no room for
        that, it counts as the end.
        """
        word, details = event.token, event.details
        if details is None or details.finish_reason != "length" or word.id in server.others:
            return event
        if word.id not in server.ends:
            if not word.marks:
                return event
            if await self.room(server, text, limit + 1) > limit and await self._goes_on(
                server, text, limit, word, usage
            ):
                server.others.add(word.id)
                return event
        return event.model_copy(update={"details": details.model_copy(update={"finish_reason": "eos_token"})})

    async def _goes_on(self, server: Server, text: str, limit: int, word: Word, usage: Usage) -> bool:
        """Whether `word`, the last of `limit` tokens after `text`, is followed by another one."""
        body = self._body(text, limit + 1, server.top)
        found = self._read(Generated, await self._transport.post("/generate", body, usage=usage)).details
        usage.bill(await self._reckoned(server, text) or self._guessed(text), found.generated_tokens)
        return [token.id for token in found.tokens[limit - 1 : limit]] != [word.id] or len(found.tokens) > limit

    async def _told(self, server: Server, text: str, read: int | None) -> int | None:
        """What the text has in tokens, by the end of a stream; None where nobody knows.

        A server that does not encode text for others does not count either: it tells what is allowed at most.

        Raises:
            ContextLengthError: the server has read less than there is.
        """
        if server.around is None and self._tokenizer is not None:
            return await self.count(server, text)
        if server.around is None:
            return read
        if read is None:
            return await self._reckoned(server, text)
        known = self.counts.exact(text)
        if known is not None and read < known:
            raise server.truncated(read, known)
        self.counts.seen(text, read)
        return read

    async def prefill(self, server: Server, text: str, own: Encoded, usage: Usage) -> Scored:
        """The probability of each token of `text`, whose encoding is `own`, and what the model says after it."""
        body = self._body(text, 1, server.top, prefill=True)
        answer = self._read(Generated, await self._transport.post("/generate", body, usage=usage))
        read = answer.details.prefill
        usage.bill(len(own.all), answer.details.generated_tokens)
        if not read:
            raise server.unscored()
        if len(read) < len(own.all):
            raise server.truncated(len(read), len(own.all))
        if [word.id for word in read] != own.all:
            raise server.broken("the tokens of the prompt are not those of /tokenize")
        event = answer.last()
        probs = [prob_of(word) for word in read[own.before :][: len(own.ids)]]
        if event is not None:
            event = await self._finished(server, text, 1, event, usage)
        return Scored(own, probs, server.position(event) if event else None)

    def _read(self, kind: type[_M], data: object) -> _M:
        return parse(kind, data, self._transport.endpoint)
