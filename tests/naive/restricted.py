"""The naive reference of a model that is restricted to a finite language, written from the definition alone.

The language is a list of texts. A restricted model is again a function from the ids of an answer to its next ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from naive.reference_ids import Next
from naive.reference_paths import Model


def is_whole(data: bytes) -> bool:
    """Test whether bytes are whole characters."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True)
class Texts:
    """A language of some texts."""

    texts: tuple[bytes, ...]

    def rest(self, text: bytes) -> list[bytes]:
        """The continuations of a text, each up to an end."""
        return [one[len(text) :] for one in self.texts if one.startswith(text)]

    def forced(self, text: bytes) -> bytes:
        """The whole characters that follow a text in any case."""
        rest = self.rest(text)
        common = rest[0][: next((at for at in range(len(rest[0])) if len({one[: at + 1] for one in rest}) > 1), None)]
        while not is_whole(text + common) and common:
            common = common[:-1]
        return common

    def may_end(self, text: bytes) -> bool:
        """Test whether an answer may end after a text."""
        return b"" in self.rest(text)

    def must_end(self, text: bytes) -> bool:
        """Test whether nothing may follow a text."""
        return set(self.rest(text)) == {b""}

    def allows(self, text: bytes, data: bytes) -> bool:
        """Test whether bytes may follow a text."""
        return any(one.startswith(data) for one in self.rest(text))


def restricted(
    following: Next,
    language: Texts,
    *,
    spell: Callable[[int], bytes],
    ends: Collection[int],
    end: int,
    encode: Callable[[bytes], Sequence[int]],
    listed: int,
    forces: bool = True,
) -> Next:
    """A model, restricted.

    `end` is the id with which it ends where it must; `encode` is its tokenizer; `listed` is the number of tokens that
    its server lists before it is asked for more.
    """

    def after(path: tuple[int, ...]) -> list[tuple[int, float]]:
        text = b"".join(spell(one) for one in path)
        if language.must_end(text):
            return [(end, 1.0)]
        forced = language.forced(text) if forces else b""
        tokens = behind(encode, spell, text, forced) if forced else []
        if tokens and (len(tokens) > 1 or language.must_end(text + forced)):
            return [(tokens[0], 1.0)]
        everything = sorted(following(path), key=lambda one: (-one[1], one[0]))
        for some in (everything[:listed], everything):  # the usual list, and a longer one
            if found := accepted(some, language, spell, ends, text, spell(tokens[0]) if tokens else b""):
                return found
            if tokens:
                return [(tokens[0], 1.0)]
        raise AssertionError("the vocabulary has no token that may follow")

    return after


def accepted(
    some: Sequence[tuple[int, float]],
    language: Texts,
    spell: Callable[[int], bytes],
    ends: Collection[int],
    text: bytes,
    open_: bytes,
) -> list[tuple[int, float]]:
    """The tokens of a list that may follow and cover the open token, renormalised."""
    found = list[tuple[int, float]]()
    for one, prob in some:
        data = spell(one)
        if language.may_end(text) if one in ends else len(data) >= max(1, len(open_)) and language.allows(text, data):
            found.append((one, prob))
    known = sum(prob for one, prob in some if one in ends or spell(one))  # a token without bytes is as one not listed
    mass = sum(prob for _, prob in found) + 1 - known
    return [(one, prob / mass) for one, prob in found]


def behind(
    encode: Callable[[bytes], Sequence[int]], spell: Callable[[int], bytes], text: bytes, forced: bytes
) -> list[int]:
    """The tokens of forced bytes: of the whole text's encoding if it has a boundary there, or of theirs alone."""
    ids, at = encode(text + forced), 0
    for count, one in enumerate([*ids, -1]):
        if at == len(text):
            return list(ids[count:])
        at += 0 if one < 0 else len(spell(one))
    return list(encode(forced)) if is_whole(forced) else []


@dataclass(frozen=True)
class RestrictedModel:
    """A restricted model behind its prompt, as `reference_paths.Model` has it."""

    model: Model
    language: Texts
    prompt: bytes
    listed: int

    @property
    def tokens(self) -> Sequence[bytes]:
        """The bytes of every id."""
        return self.model.tokens

    @property
    def end_ids(self) -> Collection[int]:
        """The ends of sequence."""
        return self.model.end_ids

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text."""
        return self.model.encode(text)

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        """The probability of every id after the prompt and others."""
        start, probs = self.model.encode(self.prompt), [0.0] * len(self.tokens)
        assert [*ids[: len(start)]] == start
        after = restricted(
            lambda path: [*enumerate(self.model.next([*start, *path]))],
            self.language,
            spell=self.tokens.__getitem__,
            ends=self.end_ids,
            end=next(iter(self.end_ids)),
            encode=self.encode,
            listed=self.listed,
        )
        for one, prob in after(tuple(ids[len(start) :])):
            probs[one] = prob
        return probs
