"""Models that know a text by the ids of its own encoding alone: asked after any others, they say nonsense.

Their tokenizer looks ahead, as GPT-2's: white space before a word is another token than at the end of a text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

_WORD = re.compile(r"'[st]| ?\w+| ?[^\s\w]+|\s+(?!\S)|\s+")

PARAGRAPHS = "It rained all day.\n\nThe hens stayed in, and so did we.\n\n\nAt last the sun came out!\n"
LIST = "Three things:\n\n1. Bread.\n2. Salt:\n   - fine\n   - coarse\n3. It's tea.\n\nThat's all."
CODE = "def f(x):\n    if x:\n        return [x,\n                -x]\n\n    # nothing\n    return None\n\n\nf(1234)\n"
OTHERS = "Ein Café – naïve?\n\nさようなら、世界。\n\n😀 and 🎉🎉\tend\n"
TEXTS = (PARAGRAPHS, LIST, CODE, OTHERS)
PROMPT = "Say it: "
NONSENSE = b"#"


@dataclass(frozen=True)
class Reciter:
    """A model that recites a text, as `testing.LanguageModel` has it.

    Attributes:
        text: the text; the tokens of its encoding and of `also` are the vocabulary, and every byte.
        prob: the probability of each token of it.
        shuffled: seed of another order of the vocabulary.
        also: other texts whose tokens the model has.
        sliced: bytes up to which a token is left whole; longer ones are made of parts of this length.
    """

    text: str
    prob: float = 0.7
    shuffled: int | None = None
    also: Sequence[str] = ()
    sliced: int = 99

    @cached_property
    def tokens(self) -> Sequence[bytes]:
        """The bytes of every id."""
        found = {part: None for text in (self.text, *self.also, PROMPT) for part in self._parts(text)}
        tokens = [b"", *dict.fromkeys([*(bytes([byte]) for byte in range(256)), *found])]
        if self.shuffled is not None:
            random.Random(self.shuffled).shuffle(tokens)
        return tokens

    @property
    def end_ids(self) -> frozenset[int]:
        """The end of sequence."""
        return frozenset({self.tokens.index(b"")})

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {data: at for at, data in enumerate(self.tokens)}

    def _parts(self, text: str) -> list[bytes]:
        words = [word.encode() for word in _WORD.findall(text)]
        return [word[at : at + self.sliced] for word in words for at in range(0, len(word), self.sliced)]

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text: of its words, or of their bytes."""
        ids: list[int] = []
        for part in self._parts(text.decode()):
            ids += [self._ids[part]] if part in self._ids else [self._ids[bytes([byte])] for byte in part]
        return ids

    @cached_property
    def path(self) -> list[int]:
        """The ids that it writes."""
        return [*self.encode(PROMPT.encode()), *self.encode(self.text.encode()), *self.end_ids]

    def next(self, ids: Sequence[int]) -> list[float]:
        """The probability of every id: of the next one after the beginning of its path, and of nonsense anywhere."""
        probs = [0.0] * len(self.tokens)
        probs[self._ids[NONSENSE]] = 1 - self.prob
        own = self.path
        if [*ids] == own[: len(ids)] and len(ids) < len(own):
            probs[own[len(ids)]] += self.prob
        else:
            probs[self._ids[NONSENSE]] = 1.0
        return probs
