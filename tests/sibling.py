"""A model with another one's tokenizer and other probabilities: a copy of its GGUF file with noise in the weights.

No two bundled models have one tokenizer, and a model beside itself never differs.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

NOISE = 0.15
"""Standard deviation, as a part of that of each matrix: it still writes answers, but often other ones."""

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_TYPES = {0: np.float32, 1: np.float16}


class GgufHeader:
    """The header of a GGUF file, read from its beginning on."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 4  # behind the magic

    def number(self, form: str) -> Any:
        """The next number."""
        (value,) = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return value

    def text(self) -> str:
        """The next text."""
        size = self.number("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def skip(self, kind: int) -> Any:
        """The next value, of a kind of GGUF's."""
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            kind, count = self.number("I"), self.number("Q")
            return [self.skip(kind) for _ in range(count)]
        return self.number(_NUMBERS[kind])


def matrices(data: bytes) -> Iterator[tuple[int, int, type]]:
    """Start, number of values and type of each matrix; vectors are norms, and are left out."""
    reader = GgufHeader(data)
    assert reader.number("I") == 3
    tensors, fields = reader.number("Q"), reader.number("Q")
    known = {reader.text(): reader.skip(reader.number("I")) for _ in range(fields)}
    found = []
    for _ in range(tensors):
        reader.text()
        shape = [reader.number("Q") for _ in range(reader.number("I"))]
        found.append((shape, reader.number("I"), reader.number("Q")))
    step = known.get("general.alignment", 32)
    begin = -(-reader.at // step) * step
    for shape, kind, offset in found:
        if len(shape) > 1:
            yield begin + offset, math.prod(shape), _TYPES[kind]


def write(model: Path, path: Path, seed: int = 5) -> None:
    """Write a copy of a model with noise."""
    data = bytearray(model.read_bytes())
    rng = np.random.default_rng(seed)
    for start, count, kind in matrices(bytes(data)):
        values = np.frombuffer(data, dtype=kind, count=count, offset=start).astype(np.float32)
        noisy: Any = (values + rng.normal(0, NOISE * values.std(), count)).astype(kind)
        data[start : start + noisy.nbytes] = noisy.tobytes()
    path.write_bytes(data)
