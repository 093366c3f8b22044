"""Lateness of this process: how long one turn of its event loop takes, compared with the time that a verdict takes.

Measurements show that lateness matters on machines that are short of CPU time. A server writes at its own pace, and a
socket's buffers hold thousands of tokens. If the client does not read these tokens, the server nevertheless continues
to write, and the tokens are wasted when the client closes the stream. A verdict needs seven to twelve turns of the loop
(for the connection, the headers, the body and each layer above), and each turn first reads everything that has arrived.
Therefore, if a turn takes long, a verdict takes about ten times as long. During this time the whole draft arrives, and
most of it is thrown away. Reading the draft's tokens makes the turns even longer. Handling the tokens faster or later
does not help; only requesting fewer tokens does.

A slow verdict alone does not prove lateness. The assistant may be slow, and then a draft that streams far ahead saves
time.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Lateness"]

TURNS = 32
"""Number of turns of the loop that should fit into a verdict's time. If fewer fit, this process causes much of the
delay.
"""

QUICK = 0.1
"""Verdicts that take less time count as this number of seconds, because models that answer faster are cheap anyway."""

PRECISION = 0.001
"""Number of seconds by which a timer may be late even in an idle event loop."""

LATELY = 30.0
"""Number of seconds after which the last verdict no longer proves that verdicts arrive in time."""

_RECENT = 8


class Lateness:
    """The durations of recent verdicts and of recent turns of the event loop, in all answers of a fusion.

    This class has no clock; the drivers report their measurements.

    Attributes:
        late: whether fewer than `TURNS` turns of the loop fit into the time of a verdict.
        answers: number of answers in progress.
    """

    def __init__(self) -> None:
        self.late = False
        self.answers = 0
        self._turns: deque[float] = deque(maxlen=_RECENT)
        self._verdicts: deque[float] = deque(maxlen=_RECENT)
        self._loads: deque[int] = deque(maxlen=_RECENT)  # number of answers in progress at each verdict
        self._heard = 0.0  # time of the last verdict

    def woken(self, late: float) -> None:
        """Record the number of seconds by which a timer was late because a turn had not ended."""
        self._turns.append(max(0.0, late - PRECISION))
        self._compare()

    def heard(self, verdict: float, now: float = 0.0) -> None:
        """Record the duration, in seconds, of a verdict that arrived at the time `now`."""
        self._verdicts.append(verdict)
        self._loads.append(self.answers)
        self._heard = now
        self._compare()

    def in_time(self, now: float) -> bool:
        """Test whether recent verdicts arrived in time while at least half as many answers as now were in progress."""
        known = self._turns and self._verdicts and now - self._heard <= LATELY
        return bool(known) and not self.late and self.answers <= 2 * min(self._loads)

    def _compare(self) -> None:
        if self._turns and self._verdicts:
            turn, verdict = (sum(one) / len(one) for one in (self._turns, self._verdicts))
            self.late = TURNS * turn > max(verdict, QUICK)
