"""What TGI is asked: streams, the probabilities of a prompt, and how it encodes a text."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, TypeVar

import anyio
from pydantic import BaseModel

from cosd_providers.contract import Piece, Usage
from cosd_providers.errors import InvalidRequestError, ProviderError, UnsupportedError
from cosd_providers.http.retries import until_answered
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.scoring import TIES
from cosd_providers.tgi.reading import Around, Encoded, Scored, Server, encoded
from cosd_providers.tgi.wire import Encoding, Event, Generated, allowed_top, parameters, prob_of
from cosd_providers.tokenization import Tokenizer, count

__all__ = ["Requests", "at_once"]

_SLACK = 8  # tokens that may stand around a text; else a token has at least one byte
_REMEMBERED = 64  # encodings that are kept
_MOST = 8  # requests at a time

_T = TypeVar("_T")
_M = TypeVar("_M", bound=BaseModel)


async def at_once(jobs: Sequence[Callable[[], Awaitable[_T]]]) -> list[_T]:
    """The results of all jobs, in order, some of them under way at a time; or the first one's error."""
    results: dict[int, _T] = {}
    failed: list[ProviderError] = []
    limiter = anyio.CapacityLimiter(_MOST)

    async def work(at: int, job: Callable[[], Awaitable[_T]]) -> None:
        async with limiter:
            try:
                results[at] = await job()
            except ProviderError as error:
                failed.append(error)
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for at, job in enumerate(jobs):
            group.start_soon(work, at, job)
    if failed:
        raise failed[0]
    return [results[at] for at in range(len(jobs))]


class Requests:
    """Requests to one server.

    Args:
        transport: the server.
        extra: merged into the `parameters` of every generation.
        tokenizer: encodes and counts where the server does not.
    """

    def __init__(self, transport: Transport, extra: Mapping[str, object], tokenizer: Tokenizer | None) -> None:
        self._transport = transport
        self._extra = extra
        self._tokenizer = tokenizer
        self._encodings: OrderedDict[str, Encoded] = OrderedDict()

    def _body(self, text: str, limit: int, top: int, *, prefill: bool = False) -> dict[str, object]:
        return {"inputs": text, "parameters": {**self._extra, **parameters(limit, top, prefill=prefill)}}

    async def around(self) -> Around | None:
        """The special tokens around every text; None where the server does not encode text for others."""
        try:
            return Around.seen(await self._tokenize("a"))
        except InvalidRequestError:
            return None

    async def abilities(self) -> tuple[bool, int]:
        """Whether the tokens of a prompt come with probabilities, and how many most probable tokens are listed."""
        top = TIES
        while True:
            try:
                answer = await self._transport.post("/generate", self._body("a", 1, top, prefill=True))
            except InvalidRequestError as error:
                allowed = allowed_top(str(error))
                if allowed is None or allowed >= top:
                    raise
                top = allowed
            else:
                return bool(self._read(Generated, answer).details.prefill), top

    def encodes(self, around: Around | None) -> bool:
        """Whether a text can be encoded, here or there."""
        return around is not None or self._tokenizer is not None

    async def encode(self, server: Server, text: str) -> Encoded:
        """The server's encoding of `text`; asked once for each of the last texts."""
        if server.around is None:
            words = "the server does not encode text for others (/tokenize), and this needs the tokens of a text"
            hint = "Give a `tokenizer`, or serve a model that has a fast one."
            raise UnsupportedError(words, endpoint=server.info.endpoint, hint=hint)
        if text not in self._encodings:
            self._encodings[text] = encoded(await self._tokenize(text), text, server.around)
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
        if server.around is None and self._tokenizer is not None:
            return count(self._tokenizer, text)
        return len((await self.encode(server, text)).all)

    async def _tokenize(self, text: str) -> Encoding:
        return self._read(Encoding, await self._transport.post("/tokenize", {"inputs": text}))

    async def room(self, server: Server, text: str, wanted: int) -> int:
        """How many tokens may be asked for after `text`: `wanted`, or what still fits; not above 0 where none does."""
        size, context = len(text.encode()) + _SLACK, server.info.context or 0
        if size <= server.longest and size + wanted <= context:
            return wanted
        read = await self.count(server, text)
        return min(wanted, context - read) if read <= server.longest else 0

    async def too_long(self, server: Server, text: str) -> ProviderError:
        """The error for a text that leaves no room."""
        return server.too_long(await self.count(server, text))

    @asynccontextmanager
    async def stream(
        self, server: Server, text: str, limit: int, usage: Usage, *, top: int = 0
    ) -> AsyncGenerator[AsyncIterator[Event]]:
        """The events of a generation. Leaving the block closes the request.

        What the prompt has in tokens is asked for beside it: the stream tells only at its end, which may not be
        waited for.
        """
        read: list[int] = []
        first: list[Any] = []
        async with AsyncExitStack() as stack:

            async def begin() -> None:
                first[:] = await self._begun(stack, self._body(text, limit, top), usage)

            async def measure() -> None:
                if self.encodes(server.around):
                    read.append(await self.count(server, text))

            await at_once([begin, measure])
            usage.prompt_tokens += sum(read)
            events: AsyncIterator[dict[str, Any]] = first[1]
            async with aclosing(self._events(server, first[0], events, read, usage)) as steps:
                yield steps

    async def _begun(self, stack: AsyncExitStack, body: object, usage: Usage) -> tuple[Any, Any]:
        """The first event of a stream, and the others.

        A server that is overloaded says so in the first event, after a status of success: then it is asked again,
        as it is after a status of 429.
        """

        async def send() -> tuple[Any, Any] | ProviderError:
            await stack.aclose()
            try:
                events = await stack.enter_async_context(self._transport.stream("/generate_stream", body, usage=usage))
            except ProviderError as error:  # it was tried again already, where that may help
                return error
            return await anext(events, None), events

        def again(_: BaseException | None) -> None:
            usage.requests -= 1  # the same request is counted once, and then as sent again
            usage.retries += 1

        found = await until_answered(send, stale=lambda _: False, lasting=lambda _: False, again=again)
        if isinstance(found, ProviderError):
            raise found
        return found

    async def _events(
        self, server: Server, data: Any, events: AsyncIterator[dict[str, Any]], tokens: list[int], usage: Usage
    ) -> AsyncGenerator[Event]:
        while data is not None:
            event = self._read(Event, data)
            usage.completion_tokens += 1
            if event.details is None:
                yield event
                data = await anext(events, None)
                continue
            async for _ in events:  # there is nothing more: the connection can be used again
                pass
            read = event.details.input_length
            if not tokens:
                usage.prompt_tokens += read or 0
            elif server.around is not None and read is not None and read < tokens[0]:
                raise server.truncated(read, tokens[0])
            yield event
            return
        raise server.broken("the stream ended before the answer did")

    async def prefill(self, server: Server, text: str, usage: Usage) -> Scored:
        """The probability of each token of `text`, and what the model says after it."""
        own = await self.encode(server, text)
        body = self._body(text, 1, server.top, prefill=True)
        answer = self._read(Generated, await self._transport.post("/generate", body, usage=usage))
        read = answer.details.prefill
        usage.prompt_tokens += len(own.all)
        usage.completion_tokens += answer.details.generated_tokens
        if not read:
            raise server.unscored()
        if len(read) < len(own.all):
            raise server.truncated(len(read), len(own.all))
        if [word.id for word in read] != own.all:
            raise server.broken("the tokens of the prompt are not those of /tokenize")
        event = answer.first()
        probs = [prob_of(word) for word in read[own.before :][: len(own.ids)]]
        return Scored(own, probs, server.position(event) if event else None)

    def _read(self, kind: type[_M], data: object) -> _M:
        return parse(kind, data, self._transport.endpoint)
