"""How vLLM's answers are read where their strings are in doubt: the positions of an answer, and of a scored text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cosd_providers.contract import Piece, Token
from cosd_providers.engines.openai.logprobs import TokenAligner
from cosd_providers.engines.openai.wire import Completion, Ranked, steps
from cosd_providers.greedy import TIES, Choice, Position, prob
from cosd_providers.text import whole
from cosd_providers.vllm.wire import Server, special

__all__ = ["Scored", "closed", "doubtful", "equals", "scored_positions"]


@dataclass(frozen=True, slots=True)
class Scored:
    """A text that was scored by its own model.

    Attributes:
        beginning: how many special tokens stand before it.
        pieces: its own tokens.
        positions: what the model would have said at each of them, and after them; None where that is in doubt.
    """

    beginning: int
    pieces: list[Piece]
    positions: list[Position | None]


def equals(position: Position) -> list[Choice]:
    """The alternatives that are at least as probable as the server's own token."""
    own = position.pick.token.prob
    return [] if own is None else [choice for choice in position.top if (choice.token.prob or 0.0) >= own]


def doubtful(position: Position) -> bool:
    """Whether two tokens are equally probable, or one may hide behind another of the same string."""
    strings = {choice.token.data for choice in position.top}
    return bool(equals(position)) or (0 < len(position.top) < TIES - 1 and b"" not in strings)


def closed(positions: list[Position], answer: Completion) -> list[Position]:
    """The same positions; a special token has no text, and leaves no character open."""
    strings = [step.pick.text for step in steps(answer)]
    if len(strings) != len(positions):
        return positions
    return [
        replace(position, pick=replace(position.pick, open=position.pick.open and not special(string)))
        for position, string in zip(positions, strings, strict=True)
    ]


def scored_positions(
    server: Server, pieces: Sequence[Piece], ranked: Sequence[dict[int, Ranked] | None], answer: Completion
) -> list[Position | None]:
    """What the model would have said at each token of a text, and after it; None where its bytes are in doubt."""
    found: list[Position | None] = []
    held = b""  # of a character that is not whole yet
    for piece, entry in zip(pieces, ranked, strict=True):
        inside, held = bool(held), held + piece.data
        finished = bool(held) and whole(held) == len(held)
        found.append(_scored(server, piece.id, held if finished else b"", entry or {}, inside=inside))
        held = b"" if finished else held
    spelling = TokenAligner(server.info.endpoint, server.ends, bare=server.bare)
    last = next(iter(list(spelling.feed(answer))), None)
    found.append(None if last is None or held or doubtful(last) else replace(last, top=()))
    return found


def _scored(server: Server, own: int, data: bytes, entry: dict[int, Ranked], *, inside: bool) -> Position | None:
    """One position: the text's own token, or another one whose string is beyond doubt."""
    best = max((one.logprob for one in entry.values() if one.logprob is not None), default=None)
    first = [token_id for token_id, one in entry.items() if one.logprob == best]
    if best is None or len(first) != 1:
        return None
    [token_id] = first
    string = entry[token_id].decoded_token or ""
    if token_id in server.ends:
        return Position(Choice(token_id, Token(b"", prob(best), end=True, name=string or None)))
    if special(string.strip()):
        return None
    if token_id == own:
        return Position(Choice(own, Token(data, prob(best)), not data))
    if inside or not server.exact or not string or "\ufffd" in string:
        return None
    return Position(Choice(token_id, Token(string.encode(), prob(best))))
