"""What an adapter finds out about its server, in words that the probe understands: one way to ask any wire.

An adapter asks for what a fusion needs and checks what comes. A `Wire` asks freely, without those checks, so that the
probe can ask questions whose answers are known and see what a server makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cosd_providers.errors import UnsupportedError
from cosd_providers.greedy import TIES, Position
from cosd_providers.usage import Usage

__all__ = [
    "REPLY_WAYS",
    "Prompt",
    "Said",
    "Scoring",
    "Wire",
    "agree",
    "listed",
    "near",
    "powered",
    "unseen",
]

# A logit of 16 bits above 16 is one of every eighth. Of two answers each may round another way: 28 % at most.
_RELATIVE, _ABSOLUTE = 0.3, 2e-2
_POWER = 0.1  # by which that of ratios of probabilities may be another than 1
_RATIO = 0.3  # of the logarithm of such a ratio: twice the noise
_COMPARED = 3  # tokens of each distribution

REPLY_WAYS = ("", "continue_final_message", "prefix")
"""How a reply is said to be started: by the last message alone, or with the field of this name."""

Prompt = str | list[int]
"""A text, or the ids of one: behind ids an adapter puts what the server puts before a text."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a server answered.

    Attributes:
        text: the answer's text.
        positions: its tokens with the most probable ones at each place, as far as they were told.
        read: tokens of the prompt; None where that is not told.
        cached: of them, those from the server's cache; None where that is not told.
        written: tokens of the answer; None where that is not told.
        ended: whether the model ended, by what the server says.
    """

    text: str
    positions: Sequence[Position] = ()
    read: int | None = None
    cached: int | None = None
    written: int | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Scoring:
    """What a server says of the tokens of a given text, unchecked.

    Attributes:
        way: how it was asked, e.g. `"echo"`.
        own: a position for each token of the text; `prob` None where nothing was told of it.
        specials: tokens before the text that were told, too.
        after: what follows the text, where that came with it.
    """

    way: str
    own: Sequence[Position]
    specials: int = 0
    after: Position | None = None


class Wire(Protocol):
    """A server, asked freely. What it cannot be asked raises `UnsupportedError`, in words; other errors go through."""

    async def settings(self) -> dict[str, int]:
        """What the server tells of how it was started, such as its `"slots"`."""
        ...

    async def models(self) -> list[str]:
        """The names of the models that are served."""
        ...

    async def ask(
        self, prompts: Sequence[Prompt], usage: Usage, *, limit: int = 1, top: int = TIES, temperature: float = 0.0
    ) -> list[Said]:
        """Several prompts in one request, each gone on from by `limit` tokens; as many answers as came."""
        ...

    async def score(self, text: str, usage: Usage) -> Scoring:
        """The distributions at the tokens of a text."""
        ...

    async def recite(self, text: str, prompt: str, usage: Usage) -> Said:
        """An answer that the server is made to write, and to end then."""
        ...

    async def reply(self, message: str, limit: int, usage: Usage, *, started: str | None = None, way: str = "") -> Said:
        """The reply to a user's message; where it is `started`, asked by one of `REPLY_WAYS`, and perhaps repeated."""
        ...


def near(one: float, other: float) -> bool:
    """Whether two probabilities are the same but for a server's noise."""
    return abs(one - other) <= max(_RELATIVE * other, _ABSOLUTE)


def agree(one: Position, other: Position) -> bool:
    """Whether two positions show the same distribution, as far as both tell it, but for a server's noise.

    Args:
        one: a position; where its own token alone is told, that is compared.
        other: as generated.
    """
    here = listed(one)
    there = sorted(listed(other).items(), key=lambda item: -item[1])
    if not here or not there:
        return False
    narrow = not one.top  # its own token alone is told
    if narrow:
        [(key, prob)] = here.items()
        return key in dict(there) and near(dict(there)[key], prob)
    for key, prob in there[:_COMPARED]:
        if key not in here:
            if prob > _ABSOLUTE and len(here) >= _COMPARED:
                return False
        elif not near(here[key], prob):
            return False
    return there[0][0] in here


def powered(pairs: Iterable[tuple[Position, Position]]) -> float | None:
    """The power that some positions' ratios of probabilities are of, as with another temperature; None where of none.

    Noise is too large to see that at one place, but it moves each ratio in its own way.

    Args:
        pairs: positions, each with the one of the same place as generated.
    """
    apart = along = 0.0
    for one, other in pairs:
        here, there = listed(one), listed(other)
        told = [key for key, prob in there.items() if prob > 0 and here.get(key, 0) > 0]
        for key in told:
            best = max(told, key=there.__getitem__)
            ratio = math.log(there[best] / there[key])
            apart += ratio**2
            along += ratio * math.log(here[best] / here[key])
    if abs(along - apart) <= max(_POWER * apart, _RATIO * math.sqrt(apart)):
        return None
    return along / apart


def listed(position: Position) -> dict[tuple[bytes, bool], float]:
    """The probabilities that are told, by what the tokens say."""
    return {
        (choice.token.data, choice.token.end): choice.token.prob
        for choice in (position.pick, *position.top)
        if choice.token.prob is not None and not choice.open
    }


def unseen(endpoint: str, words: str) -> UnsupportedError:
    """What a server cannot be asked."""
    return UnsupportedError(words, endpoint=endpoint)
