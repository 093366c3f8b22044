"""Drafts that are started ahead of a verdict, from what might come to stand there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from cosd_api.decoding.commands import CancelDraft, Command, StartDraft
from cosd_api.decoding.pending import Ahead, Pending
from cosd_api.decoding.response import Response
from cosd_providers.contract import DraftEnd, Token

LONGEST_HEDGE = 128
"""Tokens of a hedge at most, before its verdict; one that is longer is given up."""

_SEEN = 32  # units that are looked at, of those that wait: what stands further behind is thrown away most often
_BROKEN = 2  # in a row; then the endpoint most likely takes no more drafts at a time


@dataclass(slots=True)
class Hedge:
    """A draft from a text that a replacement may bring about.

    Attributes:
        started: the command that started it.
        unit: whose verdict it is ahead of.
        ahead: the text, as the unit knows it.
        tokens: what it wrote so far.
        end: its last item, once it is there.
    """

    started: StartDraft
    unit: Pending
    ahead: Ahead
    tokens: list[Token] = field(default_factory=list[Token])
    end: DraftEnd | None = None


class Hedges:
    """Up to `most` hedges at a time.

    A replacement is the assistant's word, and often one that the draft found nearly as probable: an alternative of the
    token that it replaces. So a draft from there is started while the verdict is out. It is the same one that would be
    started after the verdict, from the same text: when its tokens come is all that changes.

    Args:
        most: how many are under way at a time; 0 for none.
        longest: tokens of one of them at most, if that is less than the answer has room for.
        contestable: whether an assistant's answer about a token could change the text.
        number: gives each draft its number.

    Attributes:
        count: how many were started.
        hits: how many went on as the draft.
        written: tokens that they wrote before their verdict.
    """

    def __init__(
        self, most: int, longest: int | None, contestable: Callable[[Token], bool], number: Callable[[], int]
    ) -> None:
        self.most = most
        self.count = self.hits = self.written = 0
        self._longest = longest
        self._contestable = contestable
        self._number = number
        self._under_way: dict[int, Hedge] = {}
        self._broken = 0

    def start(self, pending: Iterable[Pending], response: Response) -> list[Command]:
        """Starts as many as there may be: first what each unit is likeliest to become, then what comes second there.

        What is under way and less likely than that makes room.
        """
        if not self.most or self._broken >= _BROKEN:
            return []
        wanted = self._wanted(pending, response)
        commands: list[Command] = []
        for draft, hedge in [*self._under_way.items()]:
            if wanted.pop(hedge.ahead.text, None) is None:
                hedge.ahead.tried = False
                commands.extend(self._drop(draft))
        for unit, ahead in wanted.values():
            ahead.tried = True
            # A replacement has one token at least; where it has more, the draft is cut when there is no more room.
            left = response.max_tokens - unit.first - _judged(unit) - 1
            most = left if self._longest is None else min(left, self._longest)
            started = StartDraft(self._number(), ahead.text, most, None, (), ahead=True)
            self._under_way[started.draft] = Hedge(started, unit, ahead)
            self.count += 1
            commands.append(started)
        return commands

    def _wanted(self, pending: Iterable[Pending], response: Response) -> dict[bytes, tuple[Pending, Ahead]]:
        """What is to be under way, by its text."""
        texts = {hedge.ahead.text for hedge in self._under_way.values()}
        ranked: list[tuple[int, Pending, Ahead]] = []
        units = 0
        for unit in islice(pending, _SEEN):
            if unit.resolved:
                continue
            found = [ahead for ahead in self._ahead(unit, response) if not ahead.tried or ahead.text in texts]
            ranked.extend((rank, unit, ahead) for rank, ahead in enumerate(found))
            units += bool(found)
            if units == self.most:
                break  # the first of each are as many as there may be
        ranked.sort(key=lambda one: one[0])  # of equals the earlier unit's comes first
        return {ahead.text: (unit, ahead) for _, unit, ahead in ranked[: self.most]}

    def _ahead(self, unit: Pending, response: Response) -> list[Ahead]:
        """What the answer may go on from once the unit is judged, the likeliest first."""
        if unit.ahead is None:
            at, words = self._words(unit)
            if at < 0:
                return []  # so far: it may get more tokens
            before = bytes(response.text[: response.end_of(unit.first + at)])
            own = unit.tokens[at].data
            room = unit.first + _judged(unit) + 1 < response.max_tokens
            # Nothing is drafted behind the end, nor from where the draft is.
            unit.ahead = [Ahead(before + word) for word in words if word not in (b"", own) and room]
        return unit.ahead

    def _words(self, unit: Pending) -> tuple[int, Sequence[bytes]]:
        """What may come to stand in the place of the unit's tokens from some index on; -1 where nothing may."""
        winner = unit.winner
        if winner is not None:  # of those that were heard so far
            ends = winner.replacement[-1].end
            return winner.decisions[-1].first, [] if ends else [b"".join(token.data for token in winner.replacement)]
        for at in range(_judged(unit), len(unit.tokens)):
            if self._contestable(unit.tokens[at]):
                return at, [token.data for token in unit.tokens[at].alternatives[: self.most]]
        return -1, []

    def drafted(self, draft: int, token: Token) -> list[CancelDraft]:
        """One of them wrote a token."""
        hedge = self._under_way.get(draft)
        if hedge is None:
            return []
        self.written += 1
        self._broken = 0
        hedge.tokens.append(token)
        return [] if len(hedge.tokens) <= LONGEST_HEDGE else self._drop(draft)

    def ended(self, draft: int, end: DraftEnd) -> None:
        """One of them gave its last token."""
        if draft in self._under_way:
            self._under_way[draft].end = end

    def failed(self, draft: int) -> None:
        """One of them broke: if its text comes to stand, a draft of its own finds out whether that matters."""
        self._broken += self._under_way.pop(draft, None) is not None

    def take(self, wanted: StartDraft) -> Hedge | None:
        """The one that goes on from the same text as a draft that is to be started, if there is one."""
        for draft, hedge in self._under_way.items():
            if hedge.started.text == wanted.text and wanted.continuation is None and not wanted.own:
                self.hits += 1
                return self._under_way.pop(draft)
        return None

    def tidy(self) -> list[CancelDraft]:
        """Cancels those whose unit was judged otherwise, or was thrown away."""
        gone = [draft for draft, hedge in self._under_way.items() if hedge.unit.resolved or hedge.unit.void]
        return [cancel for draft in gone for cancel in self._drop(draft)]

    def _drop(self, draft: int) -> list[CancelDraft]:
        return [CancelDraft(draft)] if self._under_way.pop(draft).end is None else []


def _judged(unit: Pending) -> int:
    """How many of the unit's tokens every assistant has left as they are."""
    return min((verdict.at for verdict in unit.verdicts if not verdict.done), default=0)
