"""The questions that are under way to the assistants."""

from __future__ import annotations

from collections.abc import Iterable

from cosd_api.alignment import Unit
from cosd_api.decoding.commands import Ask, CancelAsk, Wait
from cosd_api.decoding.pending import Pending, Verdict
from cosd_api.decoding.response import Response

Asked = list[tuple[Pending, Verdict]]
"""What one request is about."""


class Questions:
    """Requests to assistants, each about one or many places.

    Args:
        assistants: how many there are.
        unit: what is judged together.
        in_flight: requests to one assistant at a time, at most.
        patient: while drafting goes on, a first question waits (`Wait`) for more to be asked with it.

    Attributes:
        under_way: by number: the assistant, and what it was asked about.
    """

    def __init__(self, assistants: int, unit: Unit, in_flight: int, *, patient: bool = False) -> None:
        self.assistants = assistants
        self.unit: Unit = unit
        self.in_flight = in_flight
        self.patient = patient
        self.under_way: dict[int, tuple[int, Asked]] = {}
        self._count = 0
        self._waits = 0
        self._waited_for: Pending | None = None  # the first unit that is to be asked about
        self._due = True

    def ask(self, pending: Iterable[Pending], response: Response, *, drafting: bool) -> list[Ask] | list[Wait]:
        """Asks each assistant everything that could matter, in one request, if not too many are under way."""
        asks: list[Ask] = []
        waiting = [unit for unit in pending if unit.waiting]
        if not waiting:
            return asks
        if self.patient and drafting:
            first = next((unit for unit in waiting if any(verdict.open for verdict in unit.verdicts)), None)
            if first is not None and first is not self._waited_for:
                self._waits += 1
                self._waited_for, self._due = first, False
                return [Wait(self._waits)]
            if not self._due:
                return []
        for assistant in range(self.assistants):
            if sum(of == assistant for of, _ in self.under_way.values()) >= self.in_flight:
                continue
            asked = [(unit, unit.verdicts[assistant]) for unit in waiting]
            asked = [(unit, verdict) for unit, verdict in asked if verdict.open]
            if any(verdict.alone for _, verdict in asked):
                asked = asked[:1]
            if not asked:
                continue
            for _, verdict in asked:
                verdict.asked = True
            self._count += 1
            self.under_way[self._count] = (assistant, asked)
            last = asked[-1][0]
            text = bytes(response.text[: response.end_of(last.first + len(last.tokens))])
            questions = tuple(unit.question(assistant, self.unit) for unit, _ in asked)
            asks.append(Ask(self._count, assistant, text, questions))
        return asks

    def waited(self, wait: int) -> None:
        """It is time to ask."""
        self._due = self._due or wait == self._waits

    def take(self, ask: int) -> tuple[int, Asked] | None:
        """The assistant and what it was asked about, whose request is over; None where nobody waits for it."""
        taken = self.under_way.pop(ask, None)
        for _, verdict in taken[1] if taken else ():
            verdict.asked = False
        return taken

    def void(self, pending: Iterable[Pending]) -> list[CancelAsk]:
        """Cancels the requests of which no answer can matter any more to what is still pending."""
        waiting = {id(unit) for unit in pending if unit.waiting}
        void = [
            ask
            for ask, (_, asked) in self.under_way.items()
            if not any(id(unit) in waiting and not verdict.done for unit, verdict in asked)
        ]
        for ask in void:
            del self.under_way[ask]
        return [CancelAsk(ask) for ask in void]
