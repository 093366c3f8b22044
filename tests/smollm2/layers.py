"""A language model without one of its layers: another model with the same vocabulary, for a genuine pair.

GGUF (version 3) is a header, key-value pairs, a table of tensors, and their data, each tensor at a multiple of the
alignment. Standard library only.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of each type of a value
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32


@dataclass
class _Tensor:
    name: bytes
    shape: bytes  # the number of dimensions, and each
    kind: int
    data: bytes


def without_layer(model: bytes, layer: int) -> bytes:
    """The same GGUF file without a layer; the later ones move up by one.

    Raises:
        ValueError: the file is no GGUF of version 3, or has no such layer.
    """
    magic, version, tensors, pairs = struct.unpack_from("<4sIQQ", model)
    if (magic, version) != (b"GGUF", 3):
        raise ValueError("this is no GGUF file of version 3")
    at, kept = 24, list[bytes]()
    for _ in range(pairs):
        start, key, at = at, *_string(model, at)
        kind = struct.unpack_from("<I", model, at)[0]
        value, at = at + 4, _behind(model, at + 4, kind)
        pair = model[start:at]
        if key.endswith(b".block_count"):
            count = struct.unpack_from("<I", model, value)[0]
            pair = model[start:value] + struct.pack("<I", count - 1)
        kept.append(pair)
    table, found = list[tuple[bytes, bytes, int, int]](), list[_Tensor]()
    for _ in range(tensors):
        name, at = _string(model, at)
        dimensions = struct.unpack_from("<I", model, at)[0]
        shape, at = model[at : at + 4 + 8 * dimensions], at + 4 + 8 * dimensions
        kind, offset = struct.unpack_from("<IQ", model, at)
        table.append((name, shape, kind, offset))
        at += 12
    data = _aligned(at)
    ends = sorted([*(offset for *_, offset in table), len(model) - data])
    for name, shape, kind, offset in table:
        end = ends[ends.index(offset) + 1]
        found.append(_Tensor(name, shape, kind, model[data + offset : data + end]))
    left = [one for one in found if not one.name.startswith(b"blk.%d." % layer)]
    if len(left) == len(found):
        raise ValueError(f"the model has no layer {layer}")
    for one in left:
        one.name = re.sub(rb"^blk\.(\d+)\.", lambda match: b"blk.%d." % _moved(int(match[1]), layer), one.name)
    return _written(kept, left)


def _moved(number: int, removed: int) -> int:
    return number - (number > removed)


def _written(pairs: list[bytes], tensors: list[_Tensor]) -> bytes:
    """A GGUF file."""
    head = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs)), *pairs]
    offset = 0
    for one in tensors:
        head += [struct.pack("<Q", len(one.name)), one.name, one.shape, struct.pack("<IQ", one.kind, offset)]
        offset = _aligned(offset + len(one.data))
    whole = b"".join(head)
    whole += bytes(_aligned(len(whole)) - len(whole))
    return whole + b"".join(one.data + bytes(_aligned(len(one.data)) - len(one.data)) for one in tensors)


def _string(model: bytes, at: int) -> tuple[bytes, int]:
    """A string, and where it ends."""
    size = struct.unpack_from("<Q", model, at)[0]
    return model[at + 8 : at + 8 + size], at + 8 + size


def _behind(model: bytes, at: int, kind: int) -> int:
    """The end of a value of some type."""
    if kind == _STRING:
        return _string(model, at)[1]
    if kind != _ARRAY:
        return at + _SIZES[kind]
    inner: int
    count: int
    inner, count = struct.unpack_from("<IQ", model, at)
    at += 12
    if inner in _SIZES:
        return at + _SIZES[inner] * count
    for _ in range(count):
        at = _behind(model, at, inner)
    return at


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
