"""The weights in a GGUF file: their positions, so that a copy can be changed, and a copy in full precision."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Weights", "in_full", "weights_in"]

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_BYTES = {0: 4, 1: 2}
_VERSION = 3


class Weights(NamedTuple):
    """The position of one tensor.

    Attributes:
        start: offset of the tensor's first byte in the file.
        shape: the tensor's dimensions, beginning with the length of a row.
        width: bytes per value: 4 for single precision, 2 for half precision.
    """

    start: int
    shape: tuple[int, ...]
    width: int


class _Header:
    """A reader of a GGUF file's header, which starts after the magic number."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 4

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return value

    def text(self) -> str:
        size = self.number("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            kind, count = self.number("I"), self.number("Q")
            return [self.value(kind) for _ in range(count)]
        return self.number(_NUMBERS[kind])


def weights_in(data: bytes) -> tuple[dict[str, Any], dict[str, Weights]]:
    """The fields of a GGUF file and its tensors by name. All tensors must be 32-bit or 16-bit floats."""
    header = _Header(data)
    assert header.number("I") == _VERSION
    tensors, fields = header.number("Q"), header.number("Q")
    known = {header.text(): header.value(header.number("I")) for _ in range(fields)}
    found: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(tensors):
        name = header.text()
        shape = tuple(header.number("Q") for _ in range(header.number("I")))
        found[name] = shape, _BYTES[header.number("I")], header.number("Q")
    step = known.get("general.alignment", 32)
    begin = -(-header.at // step) * step
    return known, {name: Weights(begin + offset, shape, width) for name, (shape, width, offset) in found.items()}


def in_full(data: bytes) -> bytes:
    """The same model with every weight as a 32-bit float."""
    header = _Header(data)
    assert header.number("I") == _VERSION
    tensors, fields = header.number("Q"), header.number("Q")
    for _ in range(fields):
        header.text()
        header.value(header.number("I"))
    known, places = weights_in(data)
    step = known.get("general.alignment", 32)
    head, body = [data[: header.at]], bytearray()
    for _ in range(tensors):
        begin = header.at
        name = header.text()
        extents = header.number("I")
        header.at += 8 * extents
        head.append(data[begin : header.at] + struct.pack("<IQ", 0, len(body)))
        header.at += 12
        place = places[name]
        kind = np.float32 if place.width == _BYTES[0] else np.float16
        count = int(np.prod(place.shape))
        body += np.frombuffer(data, kind, count, place.start).astype(np.float32).tobytes()
        body += bytes(-len(body) % step)
    first = b"".join(head)
    return first + bytes(-len(first) % step) + bytes(body)
