"""Lateness of this process: the duration of a turn of its event loop, compared with the duration of a verdict.

Lateness matters on machines that are short of CPU time, as measurements show. A server writes at its own pace, and
thousands of tokens fit into the buffers of a socket. If the client does not read them, the server does not stop, and by
the time the client closes the stream, they have been written in vain. A verdict needs seven to twelve turns of the loop
(for the connection, the headers, the body and each layer above), and each turn first reads everything that has arrived.
So if a turn takes long, a verdict takes about ten times as long. Meanwhile the whole draft arrives, and most of it is
thrown away. Reading those tokens makes the turns even longer. Handling them faster or later does not help; only
requesting fewer tokens does.

A slow verdict alone does not show lateness. It may be due to a slow assistant, for which a draft that streams far ahead
saves time.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Lateness"]

TURNS = 32
"""Turns of the loop that should fit into a verdict. If fewer do, much of the verdict's time is spent in this process.
"""

QUICK = 0.1
"""Shortest duration of a verdict that counts, in seconds, since models that answer faster are cheap."""

PRECISION = 0.001
"""Seconds by which a timer may be late in an idle event loop."""

LATELY = 30.0
"""Seconds after which the last verdict no longer shows that verdicts arrive in time."""

_RECENT = 8


class Lateness:
    """The durations of recent verdicts, and of turns of the event loop, in all answers of a fusion.

    This class has no clock; the drivers report their measurements.

    Attributes:
        late: whether fewer turns of the loop fit into a verdict than should (`TURNS`).
        answers: number of answers in progress.
    """

    def __init__(self) -> None:
        self.late = False
        self.answers = 0
        self._turns: deque[float] = deque(maxlen=_RECENT)
        self._verdicts: deque[float] = deque(maxlen=_RECENT)
        self._loads: deque[int] = deque(maxlen=_RECENT)  # number of answers in progress at each of these verdicts
        self._heard = 0.0  # the time of the last verdict

    def woken(self, late: float) -> None:
        """Record the seconds by which a timer was late, which is the rest of a turn."""
        self._turns.append(max(0.0, late - PRECISION))
        self._compare()

    def heard(self, verdict: float, now: float = 0.0) -> None:
        """Record the duration in seconds of a verdict that has arrived at the time `now`."""
        self._verdicts.append(verdict)
        self._loads.append(self.answers)
        self._heard = now
        self._compare()

    def in_time(self, now: float) -> bool:
        """Test whether recent verdicts arrived in time, with at least half as many answers in progress as now."""
        known = self._turns and self._verdicts and now - self._heard <= LATELY
        return bool(known) and not self.late and self.answers <= 2 * min(self._loads)

    def _compare(self) -> None:
        if self._turns and self._verdicts:
            turn, verdict = (sum(one) / len(one) for one in (self._turns, self._verdicts))
            self.late = TURNS * turn > max(verdict, QUICK)
