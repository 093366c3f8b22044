"""The random numbers of one answer, which depend only on the seed, the prompt and the place in the answer."""

from __future__ import annotations

from hashlib import blake2b


class Chance:
    """The random numbers of one answer.

    Each number has a name that consists of the purpose of the draw and the place in the answer, such as `("keep", 12)`.
    Therefore the number depends neither on timing nor on earlier draws::

        prompt digest = BLAKE2b(prompt, 16 bytes)
        hash          = BLAKE2b("{seed} {name ...} " + prompt digest, 8 bytes)

    Args:
        seed: seed of the answer.
        prompt: prompt of the first model. Different prompts lead to different numbers.
    """

    def __init__(self, seed: int, prompt: str) -> None:
        self._seed = seed
        self._prompt = blake2b(prompt.encode(), digest_size=16).digest()

    def number(self, *name: str | int) -> float:
        """A number in [0, 1): the first 53 bits of the hash / 2^53."""
        return (self._hash(name) >> 11) / 2**53

    def seed(self, *name: str | int) -> int:
        """A seed for a request: the first 31 bits of the hash, because some servers accept no larger seeds."""
        return self._hash(name) >> 33

    def _hash(self, name: tuple[str | int, ...]) -> int:
        words = " ".join(map(str, (self._seed, *name))) + " "
        return int.from_bytes(blake2b(words.encode() + self._prompt, digest_size=8).digest())
