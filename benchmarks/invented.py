"""An invented draft model and assistant, whose next words are a function of the preceding text.

Each text is hashed, and the hash determines what happens at its end: whether the paper's rule (alpha = beta = 0.5)
replaces the draft's word, both probabilities, and both words. A text after a replaced word therefore has the same
statistics as any other text, the same text always gets the same answer, and nothing depends on the timing, order or
batching of the requests. Hashes of different texts are independent of each other, so replacements do not cluster as
they do with real models.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from struct import unpack
from typing import Literal, NamedTuple

__all__ = ["END", "WORDS", "LabelledPlace", "Role", "Said", "Speech", "encode", "prompt_of"]

Role = Literal["draft", "assistant", "alone"]
"""The role of a model. The model `"alone"` writes the fused text by itself, to measure the draft's speed without
fusing."""

END = 0
"""The id of the end of sequence. It is never written, because answers end at the token limit."""

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_SYLLABLES = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]


def _vocabulary() -> list[bytes]:
    """The end of sequence, and 4,000 words with a leading space; frequent words come first and are short."""
    longer = [first + second for first in _SYLLABLES for second in _SYLLABLES[::2]]
    random.Random(0).shuffle(longer)
    words = [*_SYLLABLES, *longer, *(word + syllable for word, syllable in zip(longer, _SYLLABLES * 40, strict=False))]
    return [b"</s>", *(b" " + word.encode() for word in words[:4000])]


WORDS = _vocabulary()
_IDS = {word: id for id, word in enumerate(WORDS)}
_SIZE = len(WORDS) - 1  # without the end of sequence


class Said(NamedTuple):
    """A candidate word: its id and its probability."""

    id: int
    prob: float


class LabelledPlace(NamedTuple):
    """Both models' candidates after a text, the most probable first, and whether the rule replaces the draft's word."""

    draft: list[Said]
    assistant: list[Said]
    replaced: bool


@dataclass(frozen=True, slots=True)
class Speech:
    """A pair of invented models.

    Attributes:
        acceptance: share of the draft's tokens that the rule keeps, in [0, 1].
        hit: share of the replaced tokens at which the draft's second choice is the assistant's word. At a third of the
            remaining replaced tokens, the draft's third choice is the assistant's word.
        unsure: share of the kept tokens with a probability below 0.5. At half of these tokens the assistant agrees; at
            the other half it prefers a different word, but is too unsure to replace the draft's.
        seed: seed of the pair; each seed gives a different pair with the same statistics.
    """

    acceptance: float = 0.9
    hit: float = 0.7
    unsure: float = 0.15
    seed: int = 0

    def after(self, text: bytes) -> LabelledPlace:
        """The candidates of both models after `text`."""
        return self._drawn(self._hash(text))

    def said(self, role: Role, text: bytes) -> Iterator[list[Said]]:
        """A model's greedy continuation: the candidates at each place."""
        state = self._hash(text)
        while True:
            place = self._drawn(state)
            if role == "alone":
                said = place.assistant if place.replaced else place.draft
            else:
                said = place.draft if role == "draft" else place.assistant
            yield said
            state.update(WORDS[said[0].id])

    def replaced(self, text: bytes, length: int) -> tuple[int, int]:
        """The numbers of replacements, and of hits among them, in the `length` fused tokens after `text`."""
        found, state = list[LabelledPlace](), self._hash(text)
        for _ in range(length):
            found.append(self._drawn(state))
            state.update(WORDS[(found[-1].assistant if found[-1].replaced else found[-1].draft)[0].id])
        replaced = [place for place in found if place.replaced]
        return len(replaced), sum(place.draft[1].id == place.assistant[0].id for place in replaced)

    def _hash(self, text: bytes) -> blake2b:
        return blake2b(text, digest_size=32, key=f"{self.seed}/{self.acceptance}".encode())

    def _drawn(self, state: blake2b) -> LabelledPlace:
        kind, unsure, p, q, word, other, hit, agrees = (number / 2**32 for number in unpack("<8I", state.digest()))
        mine = 1 + int(_SIZE * word**3)  # the first words of the vocabulary are chosen most often
        theirs = 1 + (mine + int((_SIZE - 1) * other)) % _SIZE  # never the same word
        if kind >= self.acceptance:
            p = 0.2 + 0.299 * p
            second, third = hit < self.hit, (hit - self.hit) * 3 < 1 - self.hit
            draft = _ranked(mine, p, theirs, at=1 if second else 2 if third else None)
            return LabelledPlace(draft, _ranked(theirs, 0.55 + 0.44 * q, mine, at=1), replaced=True)
        if unsure < self.unsure:
            p = 0.3 + 0.199 * p
            draft = _ranked(mine, p, theirs, at=None)
            if agrees < 0.5:
                return LabelledPlace(draft, _ranked(mine, 0.4 + 0.59 * q, theirs, at=None), replaced=False)
            return LabelledPlace(draft, _ranked(theirs, p * (0.3 + 0.19 * q), mine, at=1), replaced=False)
        draft = _ranked(mine, 0.5 + 0.499 * p, theirs, at=None)
        if agrees < 0.95:
            return LabelledPlace(draft, _ranked(mine, 0.4 + 0.59 * q, theirs, at=None), replaced=False)
        return LabelledPlace(draft, _ranked(theirs, 0.4 + 0.59 * q, mine, at=1), replaced=False)


def _ranked(word: int, prob: float, other: int, *, at: int | None) -> list[Said]:
    """Eight words with decreasing probabilities, `word` first; `other` has rank `at`, or is absent if `at` is None."""
    said, share = [Said(word, prob)], min(0.9 * prob, 0.5 * (1 - prob))
    fill = word
    for place in range(1, 8):
        if place == at:
            said.append(Said(other, share))
        else:
            fill = 1 + fill % _SIZE
            fill = 1 + fill % _SIZE if fill == other else fill
            said.append(Said(fill, share))
        share /= 2
    return said


def encode(text: str) -> list[int]:
    """The ids of a text: a word with its leading space is one token. Unknown words get arbitrary ids."""
    if text == "</s>":
        return [END]
    pieces = text.encode().replace(b" ", b"\0 ").split(b"\0")
    return [_IDS.get(piece, 1 + len(piece) % _SIZE) for piece in pieces if piece]


def prompt_of(tokens: int, seed: int) -> str:
    """A prompt of `tokens` tokens."""
    words = random.Random(f"{seed}/{tokens}")
    return b"".join(WORDS[1 + int(_SIZE * words.random() ** 3)] for _ in range(tokens)).decode()


def logprob(prob: float) -> float:
    """The log probability, in the form that servers write."""
    return math.log(prob)
