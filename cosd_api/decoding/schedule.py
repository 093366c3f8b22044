"""The schedule of an answer: when to draft, ask and wait, and which drafts to start in advance.

The schedule cannot change the text. A verdict depends only on its unit and the text before the unit, and a draft
depends only on the text that it continues, no matter when the verdict and the draft are requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from cosd_api.alignment import same
from cosd_api.decoding.commands import DRAFT, Ask, CancelAsk, CancelDraft, Command, StartDraft
from cosd_api.decoding.pace import Pace
from cosd_api.decoding.response import Response
from cosd_api.decoding.units import Ahead, Contestable, DraftUnit, Hearing, State, Verdict
from cosd_api.decoding.watches import Watches
from cosd_providers.contract import DraftEnd, Proposal, Question, Token

LONGEST_HEDGE = 128
"""Maximum number of tokens in a hedge before its verdict. A longer hedge is cancelled."""

LEAST = 4
"""Minimum number of tokens to request from a draft if verdicts arrive late."""

FIRST = 16
"""Number of tokens in an answer's first request, if it is not known whether verdicts arrive late."""

_SEEN = 32  # maximum number of units to consider for hedges, because most units after these are thrown away
# If verdicts arrive late, a request is for a fraction (_SHARE) of the average number of tokens between two
# replacements. As a starting value, the average includes _RESTARTS imaginary replacements that are _BETWEEN tokens
# apart.
_SHARE, _RESTARTS, _BETWEEN = 0.7, 2, 10
_LISTED = 4  # number of other tokens to list if the draft is asked for the probability of its own token
_FAILURES = 2  # number of failed hedges in a row after which the endpoint is assumed to serve one draft at a time


@dataclass(slots=True)
class Hedge:
    """A draft that starts from the text that the answer will have if a certain replacement is made.

    Attributes:
        started: the command that started the hedge.
        unit: the unit whose verdict is awaited.
        ahead: the text from which the hedge starts, which is an item of the unit's `ahead`.
        tokens: the tokens drafted so far.
        end: the end of the draft, as soon as it is known.
    """

    started: StartDraft
    unit: DraftUnit
    ahead: Ahead
    tokens: list[Token] = field(default_factory=list[Token])
    end: DraftEnd | None = None


class Schedule:
    """The drafts, questions, waits and hedges of one answer.

    Args:
        pace: the settings.
        assistants: number of assistants.
        could_change: returns whether an assistant's answer about a token could change the text.

    Attributes:
        drafts: the draft in progress, and the state from which the next draft continues.
        questions: the requests to assistants.
        watches: the streams of assistants that answer each place that they pass.
        hedges: the drafts that are started in advance, while a verdict is pending.
    """

    def __init__(self, pace: Pace, assistants: int, could_change: Contestable) -> None:
        self.drafts = Drafts(pace)
        self.questions = Questions(pace, assistants)
        self.watches = Watches(pace.watched if pace.ids else (), pace.alternatives, self.questions.number)
        self.hedges = Hedges(pace, could_change, self.drafts.number)
        self._in_rounds = pace.draft_length is not None
        self._hedges = pace.hedge > 0

    def next(
        self, units: Sequence[DraftUnit], response: Response, commands: list[Command], *, late: bool
    ) -> Hedge | None:
        """Add the commands that are due now. If a hedge becomes the draft, return the hedge instead.

        Args:
            units: the units of the answer that are not settled.
            response: the response so far.
            commands: the list to which commands are added.
            late: whether events arrive late; see `lateness`.
        """
        self.drafts.late = late
        draft = self.drafts.start(units, response)
        hedge = self.hedges.take(draft) if draft else None
        if hedge is not None:
            self.drafts.take_over(hedge)
            return hedge
        commands.extend(self.hedges.tidy())  # cancellations come first to free the servers
        if draft:
            commands.append(draft)
        drafting = self.drafts.under_way is not None
        commands.extend(self.watches.next(units, response, self.questions.busy))
        self.questions.more = self.questions.more or self.watches.released
        self.watches.released = False
        if self.questions.more and not (self._in_rounds and drafting):  # wait until the round is complete
            drafting = drafting and response.over is None
            commands.extend(self.questions.ask(units, response, drafting=drafting))
        if self._hedges:
            commands.extend(self.hedges.start(units, response, self.drafts.bound(response)))
        return None


class Drafts:
    """The drafts of one answer, one after another.

    Attributes:
        under_way: number of the draft in progress, if any.
        left: number of tokens that the draft in progress may still write.
        error: error of the last draft; raised only when nothing else is pending.
        late: whether events arrive late; if so, each request should be for only a few tokens.
    """

    def __init__(self, pace: Pace) -> None:
        self.under_way: int | None = None
        self.left = 0
        self.error: Exception | None = None
        self.late = False
        self._pace = pace
        self._count = 0
        self._continuation: Any = None
        self._restarts = 0
        self._own = 0  # index of the first token since the start or the last restart

    def start(self, units: Sequence[DraftUnit], response: Response) -> StartDraft | None:
        """The next draft; None if a draft is in progress, or if nothing more should be drafted now."""
        if self.under_way is not None or response.over or self.error is not None:
            return None
        if units and units[-1].waiting and (units[-1].contested or units[-1].lacks_p):
            return None
        most = response.max_tokens - len(response.tokens)
        waiting = any(unit.waiting for unit in units)
        if self._pace.draft_length is not None:
            if waiting:
                return None
            most = min(most, self._pace.draft_length)
        bound = self.bound(response)
        if bound is not None:
            ahead = len(response.tokens) - response.settled
            # The window is refilled when it is half empty, not token by token. A unit that has begun must be completed.
            if waiting and ahead > bound // 2:
                return None
            most = min(most, max(1, bound - ahead))
        self.under_way, self.left = self.number(), most
        own = tuple(placed.token.data for placed in response.tokens[self._own :])
        also: Any = {"alternatives": self._pace.listed, "states": self._pace.states}
        if self._pace.ids:
            also["ids"] = response.ids_before(len(response.tokens))
        return StartDraft(self.under_way, bytes(response.text), most, self._continuation, own, **also)

    def bound(self, response: Response) -> int | None:
        """The number of tokens that may be drafted beyond the settled text; None means no limit.

        If verdicts arrive late, the limit is a little less than the average distance between two replacements, because
        most tokens of a longer request would be thrown away. The first draft gets `FIRST` tokens, because at that time
        it is not known yet whether verdicts arrive late.
        """
        explicit = self._pace.max_ahead is not None or self._pace.draft_length is not None
        if explicit or not self.late:
            return self._pace.max_ahead
        if not self._count:
            return FIRST
        between = (response.settled + _RESTARTS * _BETWEEN) / (self._restarts + _RESTARTS)
        return max(LEAST, int(_SHARE * between))

    def number(self) -> int:
        """Return the number of the next draft."""
        self._count += 1
        return self._count

    def take_over(self, hedge: Hedge) -> None:
        """Make a hedge the draft in progress."""
        self.under_way, self.left = hedge.started.draft, hedge.started.max_tokens
        if hedge.end is not None:
            self.ended(hedge.end.continuation)

    def ended(self, continuation: Any) -> None:
        """Record that the draft in progress is over. The next draft starts from `continuation`."""
        self.under_way, self._continuation = None, continuation

    def failed(self, error: Exception) -> None:
        """Record that the draft in progress failed."""
        self.under_way, self.error = None, error

    def cancel(self) -> list[CancelDraft]:
        """Cancel the draft in progress, if any."""
        cancelled = [] if self.under_way is None else [CancelDraft(self.under_way)]
        self.under_way = None
        return cancelled

    def discard(self) -> list[CancelDraft]:
        """Cancel the draft in progress, if any, and do not let the next draft continue from it."""
        self._continuation = self.error = None
        return self.cancel()

    def restart(self, response: Response) -> None:
        """Let the next draft start from the current text, none of which counts as the draft's own tokens."""
        self._own = len(response.tokens)
        self._restarts += 1


Asked = list[tuple[DraftUnit, Verdict]]
"""The units about which one request asks, each with the verdict of the assistant that is asked."""


class Questions:
    """Requests to assistants, each about one or more places.

    Attributes:
        under_way: the assistant and the places of each request in progress, by the number of the request.
        more: whether a free assistant may have to be asked about a place.
    """

    def __init__(self, pace: Pace, assistants: int) -> None:
        self.under_way: dict[int, tuple[int, Asked]] = {}
        self.more = False
        self._pace = pace
        self._assistants = assistants
        self._count = 0
        self._first: dict[int, Proposal | None] = {}  # early answers that came before the draft's token
        self._early: dict[int, int] = {}  # number of the early request, by assistant

    def number(self) -> int:
        """Return the number of the next question."""
        self._count += 1
        return self._count

    @property
    def busy(self) -> set[int]:
        """The assistants with a request in progress."""
        return {assistant for assistant, _ in self.under_way.values()}

    def ask_early(self, assistants: Iterable[int]) -> list[Ask]:
        """Ask about the start of the answer before the draft writes, so that all models read the prompt in parallel."""
        asks: list[Ask] = []
        for assistant in assistants:
            ask = self._early[assistant] = self.number()
            self.under_way[ask] = (assistant, [])
            asks.append(Ask(ask, assistant, b"", (Question(0, ()),), self._pace.alternatives, ((),)))
        return asks

    def ask_draft(self, unit: DraftUnit, verdict: Verdict, response: Response) -> Ask:
        """Ask the draft model for the probability of its own token."""
        ask = self.number()
        self.under_way[ask] = (DRAFT, [(unit, verdict)])
        text, path = bytes(response.text[: unit.start]), response.ids_before(unit.first)
        return Ask(ask, DRAFT, text, (Question(unit.start, ()),), _LISTED, (path,))

    def join_early(self, unit: DraftUnit) -> None:
        """Assign the early requests to the first unit of the answer."""
        for assistant, ask in self._early.items():
            verdict = unit.verdicts[assistant]
            if ask in self.under_way and verdict.hearing is Hearing.OPEN:
                verdict.hearing = Hearing.ASKED
                self.under_way[ask][1].append((unit, verdict))

    def first(self, assistant: int) -> tuple[int, Proposal | None] | None:
        """An assistant's early answer, with the number of its request; None if the assistant has no early answer."""
        if assistant not in self._first:
            return None
        return self._early[assistant], self._first[assistant]

    def is_early(self, ask: int) -> bool:
        """Test whether a request was sent before the draft had written anything."""
        return ask in self._early.values()

    def early(self, ask: int, proposals: Sequence[Proposal | None]) -> bool:
        """Keep the answer to an early request if its unit does not exist yet. Return True if it was kept."""
        if not self.is_early(ask) or ask not in self.under_way or self.under_way[ask][1]:
            return False
        assistant, _ = self.under_way.pop(ask)
        self._first[assistant], self.more = proposals[0], True
        return True

    def ask(self, units: Iterable[DraftUnit], response: Response, *, drafting: bool) -> list[Ask]:
        """Ask each free assistant, in one request, about the places that wait for its answer."""
        asks: list[Ask] = []
        free = self._free()
        if not free:
            self.more = False  # until an assistant is free
            return asks
        waiting = [unit for unit in units if unit.waiting]
        if drafting and self._pace.needs.window > 1:
            open_ = sum(any(verdict.hearing is Hearing.OPEN for verdict in unit.verdicts) for unit in waiting)
            if open_ < self._pace.needs.window:
                return asks
        self.more = False
        for assistant in free:
            asked = [(unit, unit.verdicts[assistant]) for unit in waiting]
            asked = [(unit, verdict) for unit, verdict in asked if verdict.hearing is Hearing.OPEN]
            most = 1 if any(verdict.alone for _, verdict in asked) else self._most(assistant)
            if most is not None and len(asked) > most:
                asked, self.more = asked[:most], True
            if not asked:
                continue
            for _, verdict in asked:
                verdict.hearing = Hearing.ASKED
            ask = self.number()
            self.under_way[ask] = (assistant, asked)
            last = asked[-1][0]
            text = bytes(response.text[: response.end_of(last.first + 1)])
            questions = tuple(unit.question for unit, _ in asked)
            paths = tuple(response.ids_before(unit.first) for unit, _ in asked) if self._pace.ids else None
            asks.append(Ask(ask, assistant, text, questions, self._pace.alternatives, paths))
        return asks

    def _most(self, assistant: int) -> int | None:
        """Maximum number of places in one request to an assistant; None means no limit."""
        return self._pace.places[assistant] if self._pace.ids and self._pace.places else None

    def _free(self) -> Sequence[int]:
        """The assistants that may be asked now."""
        if not self.under_way:
            return range(self._assistants)
        busy = [assistant for assistant, _ in self.under_way.values()]
        return [one for one in range(self._assistants) if busy.count(one) < self._pace.in_flight]

    def take(self, ask: int) -> tuple[int, Asked]:
        """Remove a request that is over, and return its assistant and its places (no places if it was cancelled)."""
        assistant, asked = self.under_way.pop(ask, (0, []))
        self.more = True
        for _, verdict in asked:
            if verdict.hearing is Hearing.ASKED:
                verdict.hearing = Hearing.OPEN
        return assistant, asked

    def leave(self) -> list[CancelAsk]:
        """Cancel the requests that are still open when the answer is complete. They were sent early and not needed."""
        gone = [CancelAsk(ask) for ask in self.under_way]
        self.under_way.clear()
        return gone

    def void(self) -> list[CancelAsk]:
        """Cancel the requests whose answers can no longer matter."""
        self.more = True
        void = [
            ask
            for ask, (_, asked) in self.under_way.items()
            if asked and not any(unit.waiting and not verdict.done for unit, verdict in asked)
        ]
        for ask in void:
            del self.under_way[ask]
        return [CancelAsk(ask) for ask in void]


class Hedges:
    """Hedges, which are drafts that are started in advance, while a verdict is pending.

    A replacement is often a token that the draft model found nearly as probable as its own choice. Therefore a draft
    that continues with such a token is started while the verdict is pending. If the verdict chooses that token, the
    same draft would have been started after the verdict.

    Attributes:
        count: number of hedges started.
        hits: number of hedges that became the draft.
        written: number of tokens that hedges wrote before their verdict.
        under_way: the hedges in progress or waiting for their verdict, by the number of the draft.
    """

    def __init__(self, pace: Pace, could_change: Contestable, number: Callable[[], int]) -> None:
        self.count = self.hits = self.written = 0
        self.under_way: dict[int, Hedge] = {}
        self._pace = pace
        self._could_change = could_change
        self._number = number
        self._failures = 0

    def start(self, units: Iterable[DraftUnit], response: Response, bound: int | None) -> list[Command]:
        """Start the likeliest hedges: each unit's most likely replacement first, then each unit's second most likely.

        Less likely hedges in progress are cancelled. Each hedge may have up to `bound` tokens; None means no limit.
        """
        if self._failures >= _FAILURES:
            return []
        wanted = self._wanted(units, response)
        commands: list[Command] = []
        for draft, hedge in [*self.under_way.items()]:
            if wanted.pop(hedge.ahead.key, None) is None:
                hedge.ahead.tried = False
                commands.extend(self._drop(draft))
        for unit, ahead in wanted.values():
            ahead.tried = True
            most = response.max_tokens - unit.first - 1
            if bound is not None:
                most = min(most, bound)
            also: Any = {
                "alternatives": self._pace.listed,
                "states": self._pace.states,
                "ids": ahead.ids,
            }
            started = StartDraft(self._number(), ahead.text, most, None, (), ahead=True, **also)
            self.under_way[started.draft] = Hedge(started, unit, ahead)
            self.count += 1
            commands.append(started)
        return commands

    def _wanted(self, units: Iterable[DraftUnit], response: Response) -> dict[object, tuple[DraftUnit, Ahead]]:
        """The likeliest hedges, by the text from which they start."""
        started = {hedge.ahead.key for hedge in self.under_way.values()}
        ranked: list[tuple[int, DraftUnit, Ahead]] = []
        found = 0
        for unit in islice(units, _SEEN):
            if unit.state is State.JUDGED:
                continue
            likely = [ahead for ahead in self._ahead(unit, response) if not ahead.tried or ahead.key in started]
            ranked.extend((rank, unit, ahead) for rank, ahead in enumerate(likely))
            found += bool(likely)
            if found == self._pace.hedge:
                break  # these units have enough likely hedges
        ranked.sort(key=lambda one: one[0])  # the sort is stable, so earlier units come first within a rank
        return {ahead.key: (unit, ahead) for _, unit, ahead in ranked[: self._pace.hedge]}

    def _ahead(self, unit: DraftUnit, response: Response) -> list[Ahead]:
        """The texts from which the answer may continue after the unit is judged, the likeliest first."""
        if unit.ahead is None:
            before = bytes(response.text[: unit.start])
            room = unit.first + 1 < response.max_tokens
            path = response.ids_before(unit.first) if self._pace.ids else None
            # No hedge starts after an end of sequence or after the draft's own token.
            unit.ahead = [
                Ahead(before + token.data, None if path is None else (*path, token.id or 0))
                for token in self._likely(unit)
                if room and token.data and not token.end and not same(token, unit.token)
            ]
        return unit.ahead

    def _likely(self, unit: DraftUnit) -> Sequence[Token]:
        """The possible replacements of a unit's token, the likeliest first."""
        winner = unit.winner
        if winner is not None and winner.replacement is not None:  # the winner among the answers so far
            return (winner.replacement,)
        if not self._could_change(unit.token, unit.start):
            return ()
        return unit.token.alternatives[: self._pace.hedge]

    def drafted(self, draft: int, token: Token) -> list[CancelDraft]:
        """Store a token that a hedge wrote, and cancel the hedge if it is too long."""
        hedge = self.under_way.get(draft)
        if hedge is None:
            return []
        self.written += 1
        self._failures = 0
        hedge.tokens.append(token)
        return [] if len(hedge.tokens) <= LONGEST_HEDGE else self._drop(draft)

    def ended(self, draft: int, end: DraftEnd) -> None:
        """Record that a hedge has ended."""
        if draft in self.under_way:
            self.under_way[draft].end = end

    def failed(self, draft: int) -> None:
        """Record that a hedge failed. If the answer needs a draft of the same text, a new draft is started."""
        self._failures += self.under_way.pop(draft, None) is not None

    def take(self, wanted: StartDraft) -> Hedge | None:
        """Remove and return the hedge that starts from the same text as the draft `wanted`; None if no hedge does."""
        for draft, hedge in self.under_way.items():
            own = wanted.continuation is not None or (wanted.own and wanted.ids is None)
            if (hedge.started.text, hedge.started.ids) == (wanted.text, wanted.ids) and not own:
                self.hits += 1
                return self.under_way.pop(draft)
        return None

    def tidy(self) -> list[CancelDraft]:
        """Cancel the hedges whose unit was thrown away or judged with a different result."""
        if not self.under_way:
            return []
        over = (State.JUDGED, State.VOID)
        gone = [draft for draft, hedge in self.under_way.items() if hedge.unit.state in over]
        return [cancel for draft in gone for cancel in self._drop(draft)]

    def _drop(self, draft: int) -> list[CancelDraft]:
        return [CancelDraft(draft)] if self.under_way.pop(draft).end is None else []
