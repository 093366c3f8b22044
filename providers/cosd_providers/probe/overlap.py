"""The overlap check: what scoring says at a place of a text, against what is generated after the same text before it.

A neighbour's distribution looks like a right one, and so does one that a temperature has changed. Only where both ways
to one distribution give the same numbers, and other numbers than at the neighbouring places, is scoring believed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cosd_providers.distributions import agree, listed, power_of
from cosd_providers.greedy import Position
from cosd_providers.probe_client import RawReply, RawScores
from cosd_providers.text import whole

__all__ = ["Overlap", "overlap"]

_PLACES = 3  # that have to agree
_TRIED = 6  # places, at most
_SHIFTS: tuple[int, ...] = (0, 1, -1)


@dataclass(frozen=True, slots=True)
class Overlap:
    """What came of the check.

    Attributes:
        shift: by how many places the scores are moved: 0 where they are right, 1 where entry i has what belongs to
            place i + 1; None where they agree with nothing.
        places: how many places were compared.
        words: what was seen.
    """

    shift: int | None
    places: int
    words: str


async def overlap(scoring: RawScores, generated: Callable[[str], Awaitable[RawReply]]) -> Overlap:
    """Compares at several places.

    Args:
        scoring: what is said of a text.
        generated: one token after a text, as the server generates it.
    """
    agreeing: dict[int, list[tuple[Position, Position]]] = {shift: [] for shift in _SHIFTS}
    compared = added = 0
    for at, before in _cuts(scoring)[:_TRIED]:
        said = await generated(before)
        if said.read is not None and said.read != at + scoring.specials:
            added += 1  # it is encoded in another way there, or something is put before one of the two
            continue
        if not said.positions:
            return Overlap(None, compared, "what is generated comes without probabilities")
        if _silent(scoring.own[at], said.positions[0]):
            continue
        entries = {shift: _entry(scoring, at - shift) for shift in _SHIFTS}
        fitting = [(shift, one) for shift, one in entries.items() if one and agree(one, said.positions[0])]
        if len(fitting) > 1:
            continue  # it tells nothing of a shift
        compared += 1
        for shift, one in fitting:
            agreeing[shift].append((one, said.positions[0]))
        if compared == _PLACES:
            break
    return _concluded(agreeing, compared, added)


def _concluded(agreeing: dict[int, list[tuple[Position, Position]]], compared: int, added: int) -> Overlap:
    if compared < _PLACES - 1:
        words = "too few places could be compared"
        if added:
            words += f": at {added} the prompt was read as another number of tokens than was scored"
        return Overlap(None, compared, words)
    for shift, pairs in agreeing.items():
        if len(pairs) == compared:
            if power := power_of(pairs):
                words = f"ratios of its probabilities are those of what is generated to the power of {power:.2g}"
                return Overlap(None, compared, words)
            moved = "" if not shift else f", moved by {shift:+d}: entry i has what belongs to place i{shift:+d}"
            return Overlap(shift, compared, f"equal to what is generated at {compared} of {compared} places{moved}")
    best = max(map(len, agreeing.values()))
    return Overlap(None, compared, f"equal to what is generated at no more than {best} of {compared} places")


def _cuts(scoring: RawScores) -> list[tuple[int, str]]:
    """Places between whole characters with the text before them, spread over the text, its first two left out."""
    cuts: list[tuple[int, str]] = []
    before = b""
    for at, position in enumerate(scoring.own):
        if at > 1 and before and whole(before) == len(before) and position.pick.token.data:
            cuts.append((at, before.decode("utf-8", "ignore")))
        before += position.pick.token.data
    step = max(1, len(cuts) // _TRIED)
    return cuts[::step]


def _entry(scoring: RawScores, at: int) -> Position | None:
    """What is said at a place; the last is what follows the text."""
    if 0 <= at < len(scoring.own):
        return scoring.own[at]
    return scoring.after if at == len(scoring.own) else None


def _silent(scored: Position, generated: Position) -> bool:
    """Whether the own token alone is told, and it is none of the probable ones."""
    key = (scored.pick.token.data, scored.pick.token.end)
    return not scored.top and key not in listed(generated)
