"""Splitters of a stream's bytes into the data of its events. Pure, without I/O.

They work on bytes, as both formats are defined on ASCII characters: a line of text may hold U+2028, which ends no line.
"""

from __future__ import annotations

__all__ = ["EventSplitter", "LineSplitter"]

_BOM = b"\xef\xbb\xbf"


class EventSplitter:
    """Splitter of server-sent events, as the HTML standard defines them (section 9.2.6, Interpreting an event stream).

    Only the field `data` counts. An event without data is ignored, and so is an event without its final empty line.

    Attributes:
        size: bytes taken since the last empty line, without the rest of that line's chunk.
    """

    __slots__ = ("_after_cr", "_data", "_first", "_parts", "size")

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[bytes] = []  # of an incomplete line
        self._data: list[bytes] = []  # lines of an incomplete event
        self._first = True  # the next line is the first one
        self._after_cr = False  # a line feed at the front of the next chunk belongs to the end of the last line

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes of the stream; return the data of the events that are complete now."""
        found: list[bytes] = []
        if self._after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return found
        self.size += len(chunk)
        lines = chunk.splitlines()  # of bytes: at CR, LF and CRLF alone
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
    """Splitter of a stream with one object on each line. Only a line feed ends a line: a rest after it was cut off.

    Attributes:
        size: bytes of the incomplete line.
    """

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes of the stream; return the lines that are complete now."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts.clear()
            self.size = 0
        self._parts.append(rest)
        self.size += len(rest)
        return lines
