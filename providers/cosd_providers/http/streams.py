"""Bodies of answers, of limited length, and the events of a stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import httpx
from httpx_sse import EventSource
from pydantic_core import from_json

from cosd_providers.errors import ProviderError, ResponseError
from cosd_providers.http.errors import Errors
from cosd_providers.http.limits import Slot
from cosd_providers.usage import Usage

__all__ = ["events", "read"]

_LONGEST = 64 << 20  # bytes of an answer, or characters of one event
_LONGEST_ERROR = 64 << 10  # bytes read of an answer without success
_LINES = "application/x-ndjson"  # a stream with one JSON object on each line


async def read(response: httpx.Response, errors: Errors) -> str:
    """The whole body of an answer, or the beginning of one without success.

    Raises:
        ResponseError: an answer with success is too long.
    """
    parts, left = list[bytes](), _LONGEST if response.is_success else _LONGEST_ERROR
    chunks = cast("AsyncGenerator[bytes]", response.aiter_bytes())  # it is a generator
    with errors.reading():
        async with aclosing(chunks):
            async for part in chunks:
                parts.append(part[:left])
                left -= len(part)
                if left < 0:
                    break
    if response.is_success and left < 0:
        raise _too_long(errors, response)
    return b"".join(parts).decode(errors="replace")


async def events(
    response: httpx.Response, errors: Errors, usage: Usage, slot: Slot
) -> AsyncGenerator[dict[str, Any], None]:
    """The JSON objects of a stream, server-sent or one on each line, up to its end or to `[DONE]`.

    Args:
        response: the answer.
        errors: makes the errors.
        usage: notes when the first event comes.
        slot: paused while nobody asks for the next event.

    Raises:
        StatusError: an event is an error.
        ResponseError: the answer is not a stream, or an event is too long or not JSON.
    """
    kind = response.headers.get("content-type", "")
    if not kind.startswith(("text/event-stream", _LINES)):
        raise errors.no_stream(response, await read(response, errors))
    response.encoding = "utf-8"  # as events always are
    text = _Text(response)
    first = True
    try:
        with errors.reading():
            async with aclosing(_lines(text) if kind.startswith(_LINES) else _sent(text)) as source:
                async for data in source:
                    text.size = 0
                    if not data:  # a sign of life
                        continue
                    if data == "[DONE]":
                        return
                    event: dict[str, Any] | None = from_json(data)
                    if type(event) is not dict:  # some servers greet with null
                        continue
                    if (error := errors.event_error(event, response)) is not None:
                        raise error
                    if first:
                        first = False
                        usage.answered(time.monotonic())
                    slot.pause()
                    try:
                        yield event
                    finally:
                        slot.resume()
    except _TooLongError:
        raise _too_long(errors, response) from None
    except ValueError as error:
        if isinstance(error, ProviderError):
            raise
        raise errors.make(ResponseError, "an event of the stream is not JSON", response) from error


class _TooLongError(Exception):
    """An event is too long."""


class _Text:
    """The text of a stream, like an `httpx.Response`. Limits each event: set `size` to 0 after it."""

    def __init__(self, response: httpx.Response) -> None:
        self.headers = response.headers
        self.size = 0
        self._response = response

    async def aiter_text(self) -> AsyncGenerator[str]:
        """The text in the pieces in which it arrives."""
        async for text in self._response.aiter_text():
            self.size += len(text)
            if self.size > _LONGEST:
                raise _TooLongError
            yield text


async def _sent(text: _Text) -> AsyncGenerator[str]:
    """The data of server-sent events."""
    found = EventSource(cast("httpx.Response", text)).aiter_sse()  # which uses headers and text alone
    async with aclosing(found):
        async for event in found:
            yield event.data


async def _lines(text: _Text) -> AsyncGenerator[str]:
    """The lines of a stream. Only a newline ends one: the rest behind the last newline was cut off."""
    parts: list[str] = []
    async with aclosing(text.aiter_text()) as texts:
        async for piece in texts:
            first, *more = piece.split("\n")
            parts.append(first)
            for begun in more:
                yield "".join(parts)
                parts = [begun]


def _too_long(errors: Errors, response: httpx.Response) -> ResponseError:
    return errors.make(ResponseError, f"the answer is longer than {_LONGEST >> 20} MB", response)
