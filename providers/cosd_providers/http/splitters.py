"""Splitters that turn the bytes of a stream into the data of its events, without any I/O.

They work on bytes, because only ASCII characters end a line in both formats. In contrast, `str.splitlines` would also
split at U+2028, for example.
"""

from __future__ import annotations

__all__ = ["EventSplitter", "LineSplitter"]

_BOM = b"\xef\xbb\xbf"


class EventSplitter:
    """A splitter for server-sent events, as in the HTML standard (section 9.2.6, Interpreting an event stream).

    Only the field `data` is used. An event that has no data, or no empty line at its end, is ignored.

    Attributes:
        size: number of bytes in the chunks that arrived after the last empty line.
    """

    __slots__ = ("_after_cr", "_data", "_first", "_parts", "size")

    def __init__(self) -> None:
        self.size = 0
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
    """A splitter for a stream with one JSON object per line. A last line without a line feed is ignored.

    Attributes:
        size: number of bytes in the incomplete line.
    """

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self.size = 0
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
