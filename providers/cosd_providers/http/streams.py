"""Reading of answers: whole bodies, up to a maximum length, and the events of streams.

The splitters work on bytes, because only ASCII characters end a line in both formats. In contrast, `str.splitlines`
would also split at U+2028, for example.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, cast

import anyio
import httpx
from pydantic_core import from_json

from cosd_providers.errors import ResponseError
from cosd_providers.http.answers import HttpAnswer
from cosd_providers.http.failures import BROKEN, Errors
from cosd_providers.http.limits import Slot
from cosd_providers.usage import Usage

_LONGEST = 64 << 20  # maximum number of bytes in an answer, or in one event
_LONGEST_ERROR = 64 << 10  # maximum number of bytes that are read from an error answer
_LAST_SECONDS = 0.05  # time within which a stream must end after `[DONE]`, so that its connection can be kept
_LINES = "application/x-ndjson"  # content type of a stream with one JSON object per line
_BOM = b"\xef\xbb\xbf"


async def read(response: HttpAnswer, errors: Errors) -> str:
    """Read the whole body of an answer, or the beginning of an error answer.

    Raises:
        ResponseError: a successful answer is too long, or the connection broke.
        ProviderTimeoutError: no further bytes arrived in time.
    """
    parts, left = list[bytes](), _LONGEST if response.is_success else _LONGEST_ERROR
    chunks = _chunks(response)
    try:
        async for part in chunks:
            parts.append(part[:left])
            left -= len(part)
            if left < 0:
                break
    except BROKEN as error:
        raise errors.connection(error, answered=True) from error
    finally:
        await chunks.aclose()
    if response.is_success and left < 0:
        raise _too_long(errors, response)
    return b"".join(parts).decode(errors="replace")


async def events(
    response: HttpAnswer, errors: Errors, usage: Usage, slot: Slot | None
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the JSON objects of a stream, up to its end or `[DONE]`.

    The stream consists of server-sent events, or has one object per line.

    Args:
        response: the answer.
        errors: factory for the errors.
        usage: record that notes when the first event arrives.
        slot: the request's slot, which is paused while the caller is not waiting for the next event; None if there are
            no limits.

    Raises:
        StatusError: an event is an error.
        ResponseError: the server broke the answer off, the answer is not a stream, an event is too long or not JSON, or
            the connection broke.
        ProviderTimeoutError: no further bytes arrived in time.
    """
    kind = response.headers.get("content-type", "").lower()
    if not kind.startswith(("text/event-stream", _LINES)):
        raise errors.no_stream(response, await read(response, errors))
    splitter = LineSplitter() if kind.startswith(_LINES) else EventSplitter()
    chunks = _chunks(response)
    first = True
    try:
        async for chunk in chunks:
            for data in splitter.feed(chunk):
                if data == b"[DONE]":
                    await _read_on(chunks)
                    return
                event = _parsed(data, errors, response)
                if (error := errors.failure(event, response)) is not None:
                    raise error
                if type(event) is not dict:  # as in a keep-alive, or a server's initial null
                    continue
                if first:
                    first = False
                    usage.answered(time.monotonic())
                if slot is None:
                    yield event
                    continue
                with slot.paused():
                    yield event
            if splitter.size > _LONGEST:
                raise _too_long(errors, response)
    except BROKEN as error:
        raise errors.connection(error, answered=True) from error
    finally:
        await chunks.aclose()


def _chunks(response: HttpAnswer) -> AsyncGenerator[bytes]:
    """Return the body as it arrives. If the body needs no decoding, httpx's decoder is not used."""
    if isinstance(response, httpx.Response) and not (
        response.is_stream_consumed or "content-encoding" in response.headers
    ):
        return cast("AsyncGenerator[bytes]", response.aiter_raw())
    return cast("AsyncGenerator[bytes]", response.aiter_bytes())


async def _read_on(chunks: AsyncGenerator[bytes]) -> None:
    """Read the rest of a stream after its last event, so that the connection can be used again."""
    with anyio.move_on_after(_LAST_SECONDS), suppress(httpx.HTTPError):
        async for _ in chunks:
            pass


def _parsed(data: bytes, errors: Errors, response: HttpAnswer) -> Any:
    """Parse the JSON of an event; return None if it has none."""
    if not data or data.isspace():
        return None
    try:
        try:
            return from_json(data)
        except ValueError:  # the event may contain invalid bytes, which are replaced with U+FFFD
            return from_json(data.decode(errors="replace"))
    except ValueError as error:
        raise errors.make(ResponseError, "an event of the stream is not JSON", response) from error


def _too_long(errors: Errors, response: HttpAnswer) -> ResponseError:
    return errors.make(ResponseError, f"the answer is longer than {_LONGEST >> 20} MB", response)


class EventSplitter:
    """A splitter for server-sent events, as in the HTML standard (section 9.2.6, Interpreting an event stream).

    Only the field `data` is used. An event that has no data, or no empty line at its end, is ignored.
    """

    __slots__ = ("_after_cr", "_data", "_first", "_parts", "size")

    def __init__(self) -> None:
        self.size = 0  # number of bytes in the chunks that arrived after the last empty line
        self._parts: list[bytes] = []  # the parts of an incomplete line
        self._data: list[bytes] = []  # the lines of an incomplete event
        self._first = True  # whether the next line is the first line of the stream
        self._after_cr = False  # whether a line feed at the start of the next chunk is the second half of a CRLF

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add the next bytes of the stream, and return the data of the events that they complete."""
        found: list[bytes] = []
        if self._after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return found
        self.size += len(chunk)
        lines = chunk.splitlines()  # bytes are split only at CR, LF and CRLF
        last = chunk[-1:]
        self._after_cr = last == b"\r"
        rest = b"" if self._after_cr or last == b"\n" else lines.pop()
        if lines and self._parts:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts.clear()
        if rest:
            self._parts.append(rest)
        for line in lines:
            if self._first:
                self._first = False
                line = line.removeprefix(_BOM)  # noqa: PLW2901
            if line[:5] == b"data:":
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line:
                if self._data:
                    found.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                    self._data.clear()
                self.size = 0
            elif line == b"data":
                self._data.append(b"")
        return found


class LineSplitter:
    """A splitter for a stream with one JSON object per line. A last line without a line feed is ignored."""

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self.size = 0  # number of bytes in the incomplete line
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add the next bytes of the stream, and return the lines that they complete."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts.clear()
            self.size = 0
        self._parts.append(rest)
        self.size += len(rest)
        return lines
