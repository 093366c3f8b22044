"""A dominated model, which knows less than the original: a copy of a GGUF file with noise in its weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.weights import weights_in

__all__ = ["write_noisy"]

_KINDS: dict[int, type[np.floating[Any]]] = {4: np.float32, 2: np.float16}


def write_noisy(model: Path, path: Path, noise: float, seed: int = 5) -> None:
    """Write a copy of a model with noise in its matrices. The vectors, which belong to norms, stay unchanged.

    Args:
        model: a GGUF file with weights of 16 or 32 bits.
        path: path of the copy.
        noise: standard deviation of the noise, relative to that of each matrix.
        seed: seed of the noise.
    """
    data = bytearray(model.read_bytes())
    rng = np.random.default_rng(seed)
    for one in weights_in(bytes(data))[1].values():
        if len(one.shape) > 1:
            kind, size = _KINDS[one.width], math.prod(one.shape)
            values = np.frombuffer(data, dtype=kind, count=size, offset=one.start).astype(np.float32)
            noisy: Any = (values + rng.normal(0, noise * values.std(), size)).astype(kind)
            data[one.start : one.start + noisy.nbytes] = noisy.tobytes()
    path.write_bytes(data)
