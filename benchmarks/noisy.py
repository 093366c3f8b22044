"""A dominated model: a copy of a GGUF file with noise in its weights, which knows what the original knows, but less."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["write_noisy"]

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_KINDS: dict[int, type[np.floating[Any]]] = {0: np.float32, 1: np.float16}
_VERSION = 3


class _Matrix(NamedTuple):
    """Place of a matrix in a file: its first byte, its number of values, and their type."""

    start: int
    size: int
    kind: type[np.floating[Any]]


class _Header:
    """The header of a GGUF file, read from behind its magic on."""

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


def _matrices(data: bytes) -> Iterator[_Matrix]:
    """The matrices; vectors are norms, and are left out."""
    header = _Header(data)
    assert header.number("I") == _VERSION
    tensors, fields = header.number("Q"), header.number("Q")
    known = {header.text(): header.value(header.number("I")) for _ in range(fields)}
    found: list[tuple[list[int], int, int]] = []
    for _ in range(tensors):
        header.text()
        shape = [header.number("Q") for _ in range(header.number("I"))]
        found.append((shape, header.number("I"), header.number("Q")))
    step = known.get("general.alignment", 32)
    begin = -(-header.at // step) * step
    for shape, kind, offset in found:
        if len(shape) > 1:
            yield _Matrix(begin + offset, math.prod(shape), _KINDS[kind])


def write_noisy(model: Path, path: Path, noise: float, seed: int = 5) -> None:
    """Write a copy of a model with noise.

    Args:
        model: a GGUF file with weights of 16 or 32 bits.
        path: of the copy.
        noise: standard deviation, as a part of that of each matrix.
        seed: of the noise.
    """
    data = bytearray(model.read_bytes())
    rng = np.random.default_rng(seed)
    for one in _matrices(bytes(data)):
        values = np.frombuffer(data, dtype=one.kind, count=one.size, offset=one.start).astype(np.float32)
        noisy: Any = (values + rng.normal(0, noise * values.std(), one.size)).astype(one.kind)
        data[one.start : one.start + noisy.nbytes] = noisy.tobytes()
    path.write_bytes(data)
