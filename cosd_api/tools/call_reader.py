"""The reading of calls from the text of an answer, while it is written or afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import uuid4

from cosd_api.tools.call_formats import CallFormat
from cosd_providers.messages import ToolCall


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The beginning of a call.

    Attributes:
        index: index of the call in the answer.
        id: a new id.
        name: name of the tool.
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    """A piece of the arguments of the call with this index."""

    index: int
    text: str


Part: TypeAlias = str | CallBegun | ArgumentsPiece
"""A part of an answer; a string is text before any call."""


class CallReader:
    """A reader of one answer in a call format.

    Args:
        form: the format of the calls.

    Attributes:
        form: the format of the calls.
        complete: whether the text so far ends with a complete call.
    """

    def __init__(self, form: CallFormat) -> None:
        self.form = form
        self._begun = form.opening + form.start
        self._held = ""  # text that was received, but is not read yet
        self._state: Callable[[list[Part]], Any] = self._text
        self._index = -1  # index of the current call
        self._depth = 0  # number of open braces and brackets of the arguments
        self._quoted = self._escaped = False
        self.complete = False

    def read(self, text: str) -> list[Part]:
        """Read the next piece of the answer. A piece that may be the beginning of a call is held back."""
        self._held += text
        parts: list[Part] = []
        while (following := self._state(parts)) is not None:
            self._state = following
        return parts

    def rest(self) -> str:
        """Return the text that was held back, if the answer has ended and no call begins there."""
        return self._held if self._state == self._text else ""

    # Each state reads as much as it can. It returns the next state, or None if it needs more text.

    def _text(self, parts: list[Part]) -> Any:
        """Read free text. A marker begins a call anywhere; without a marker, only the start of the answer does."""
        mark, held = self.form.marker or self._begun, self._held
        at = held.find(mark)
        if at == 0 or (at > 0 and self.form.marker):
            self._take(parts, at)
            return self._beginning
        if self.form.marker:
            longest = min(len(held), len(mark) - 1)
            kept = next((n for n in range(longest, 0, -1) if held.endswith(mark[:n])), 0)
            self._take(parts, len(held) - kept)
            return None
        return None if mark.startswith(held) else self._plain

    def _plain(self, parts: list[Part]) -> None:
        """Read text that contains no call."""
        self._take(parts, len(self._held))

    def _beginning(self, parts: list[Part]) -> Any:  # noqa: ARG002 - a state
        if self._held.startswith(self._begun):
            self._held = self._held[len(self._begun) :]
            return self._name
        return None if self._begun.startswith(self._held) else self._plain

    def _name(self, parts: list[Part]) -> Any:
        name, middle, rest = self._held.partition(self.form.middle)
        if not middle:
            return None
        self._held = rest
        self._index += 1
        parts.append(CallBegun(self._index, f"call_{uuid4().hex[:24]}", name))
        return self._arguments

    def _arguments(self, parts: list[Part]) -> Any:
        """Read the arguments, up to the brace that closes their object."""
        end = next((at for at, char in enumerate(self._held, 1) if self._closes(char)), 0)
        piece = self._held[: end or None]
        self._held = self._held[len(piece) :]
        if piece:
            parts.append(ArgumentsPiece(self._index, piece))
        return self._after if end else None

    def _closes(self, char: str) -> bool:
        """Read one character of the arguments; True if it closes their object."""
        if self._quoted:
            self._quoted = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
            return False
        self._quoted = char == '"'
        self._depth += (char in "{[") - (char in "}]")
        return char in "}]" and self._depth == 0

    def _after(self, parts: list[Part]) -> Any:  # noqa: ARG002 - a state
        form = self.form
        following = f"{form.end}{form.separator}{form.start}"
        if form.separator is not None and self._held.startswith(following):
            self._held, self.complete = self._held[len(following) :], False
            return self._name
        self.complete = self._held.startswith(form.end + form.closing)
        return None

    def _take(self, parts: list[Part], length: int) -> None:
        """Read this many characters as text."""
        if length:
            parts.append(self._held[:length])
        self._held = self._held[length:]


def read_answer(text: str, form: CallFormat) -> tuple[str, list[ToolCall], bool]:
    """Read a finished answer; return its text, its calls, and whether they are complete."""
    reader = CallReader(form)
    parts = reader.read(text)
    content = "".join(part for part in parts if isinstance(part, str)) + reader.rest()
    calls: list[ToolCall] = []
    for one in parts:
        if isinstance(one, CallBegun):
            pieces = [part.text for part in parts if isinstance(part, ArgumentsPiece) and part.index == one.index]
            calls.append(ToolCall(one.id, one.name, "".join(pieces)))
    return content, calls, reader.complete
