"""Lateness of this process: the time of a turn of its event loop, compared with the time of a verdict.

It matters, as measured on machines short of processors. A server writes at its own pace, and its text lies in the
buffers of a socket, thousands of tokens deep. Not to read them does not stop the server, and by the time a stream is
closed it has been written in vain. A verdict passes through seven to twelve turns of the loop (a connection, the
headers, the body, each layer above), and each turn first reads everything that has come meanwhile. So if a turn takes
long a verdict takes ten times as long; the whole draft has come before it, and most of the draft is thrown away. Tokens
that are read in vain make the turns longer still. No handling of tokens that have come helps: only a request for fewer
tokens does.

The time of verdicts alone is no sign. A slow assistant makes it as long, and there a draft that runs on saves time.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Lateness"]

TURNS = 32
"""Turns of the loop that should pass during a verdict. With fewer, a good part of its time is this process's own."""

QUICK = 0.1
"""Seconds of a verdict; quicker verdicts count as this long, since models that answer so soon are cheap."""

PRECISION = 0.001
"""Seconds by which a timer of an idle event loop may be late."""

LATELY = 30.0
"""Seconds for which the last verdict shows that verdicts come in time."""

_RECENT = 8


class Lateness:
    """The recent verdicts of a fusion, and the lateness of the event loop meanwhile, for all of its answers.

    It has no clock: a driver, which has one, reports its measurements.

    Attributes:
        late: whether fewer turns of the loop pass during a verdict than should.
        answers: number of answers in progress.
    """

    def __init__(self) -> None:
        self.late = False
        self.answers = 0
        self._turns: deque[float] = deque(maxlen=_RECENT)
        self._verdicts: deque[float] = deque(maxlen=_RECENT)
        self._loads: deque[int] = deque(maxlen=_RECENT)  # answers in progress, at each of these verdicts
        self._heard = 0.0  # the time of the last verdict

    def woken(self, late: float) -> None:
        """Record the seconds by which a timer was late: the rest of a turn."""
        self._turns.append(max(0.0, late - PRECISION))
        self._compare()

    def heard(self, verdict: float, now: float = 0.0) -> None:
        """Record the seconds of a verdict that has come now."""
        self._verdicts.append(verdict)
        self._loads.append(self.answers)
        self._heard = now
        self._compare()

    def in_time(self, now: float) -> bool:
        """True if verdicts lately came in time, beside at least half as many answers as are in progress now."""
        known = self._turns and self._verdicts and now - self._heard <= LATELY
        return bool(known) and not self.late and self.answers <= 2 * min(self._loads)

    def _compare(self) -> None:
        if self._turns and self._verdicts:
            turn, verdict = (sum(one) / len(one) for one in (self._turns, self._verdicts))
            self.late = TURNS * turn > max(verdict, QUICK)
