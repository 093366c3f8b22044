"""Language models as plain functions, for `testing`: a table of probabilities, or scripts of what to say."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

__all__ = ["Model", "ScriptToken", "TableModel", "TextModel"]

ScriptToken: TypeAlias = str | bytes | tuple[str | bytes, float]
"""A token of a script: its text, or text and probability (else 1). An empty text is the end of sequence."""


class Model(Protocol):
    """A language model as plain functions."""

    @property
    def tokens(self) -> Sequence[bytes]:
        """The bytes of every id."""
        ...

    @property
    def end_ids(self) -> Collection[int]:
        """The ids that end a sequence."""
        ...

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text."""
        ...

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        """The probability of every id after `ids`. The greedy choice is the first of the largest."""
        ...


@dataclass
class TableModel:
    """A model made of a vocabulary and a function; encodes by the longest token that fits.

    Attributes:
        tokens: the bytes of every id.
        next: the probability of every id after some ids.
        end_ids: the ids that end a sequence.
    """

    tokens: Sequence[bytes]
    next: Any
    end_ids: Collection[int] = ()

    def __post_init__(self) -> None:
        usable = [at for at, data in enumerate(self.tokens) if data and at not in self.end_ids]
        self._ids = {self.tokens[at]: at for at in reversed(usable)}
        self._longest = max(map(len, self._ids), default=0)

    def encode(self, text: bytes) -> list[int]:
        """The ids of `text`: the longest token that fits, again and again."""
        ids: list[int] = []
        at = 0
        while at < len(text):
            sizes = range(min(self._longest, len(text) - at), 0, -1)
            size = next((n for n in sizes if text[at : at + n] in self._ids), None)
            if size is None:
                raise ValueError(f"no token of the model fits {text[at : at + 8]!r}")
            ids.append(self._ids[text[at : at + size]])
            at += size
        return ids


class TextModel(TableModel):
    """A model that follows scripts: what it says depends on the text alone, however that is cut."""

    def __init__(self, scripts: Mapping[str, Sequence[ScriptToken]]) -> None:
        self._scripts = [
            (key.encode(), [_script_token(item) for item in script])
            for key, script in sorted(scripts.items(), key=lambda item: -len(item[0].encode()))
        ]
        texts = {data for _, script in self._scripts for data, _ in script}
        tails = {data[at:] for data in texts for at in range(1, len(data))}
        single = {bytes([byte]) for byte in range(256)}
        super().__init__([b"", *sorted((texts | tails | single) - {b""})], self._next, end_ids=(0,))

    def _next(self, ids: Sequence[int]) -> list[float]:
        probs = [0.0] * len(self.tokens)
        data, prob = self._look_up(b"".join(self.tokens[at] for at in ids))
        probs[self._ids.get(data, 0)] = prob
        return probs

    def _look_up(self, text: bytes) -> tuple[bytes, float]:
        """The script's token that follows `text`, or what is left of the one that `text` ends in."""
        for key, script in self._scripts:
            if not text.startswith(key):
                continue
            at = len(key)
            for data, prob in script:
                rest = text[at : at + len(data)]
                if not data or (len(rest) < len(data) and data.startswith(rest)):
                    return (data[len(rest) :], prob) if at + len(rest) == len(text) else (b"", 1.0)
                if rest != data:
                    break
                at += len(data)
            else:
                if at == len(text):
                    return b"", 1.0
        return b"", 1.0


def _script_token(item: ScriptToken) -> tuple[bytes, float]:
    data, prob = item if isinstance(item, tuple) else (item, 1.0)
    return data.encode() if isinstance(data, str) else data, prob
