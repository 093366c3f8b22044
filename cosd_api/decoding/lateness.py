"""Lateness of this process: the time that a turn of its event loop takes, against that of a verdict.

Why it matters, as measured on machines short of processors: a server writes on at its own pace, and what it has written
lies in the buffers of a socket, thousands of tokens deep. Not to read them stops nobody, and by the time a stream is
closed it has been written in vain. A verdict passes through seven to twelve turns of the loop (a connection, the
headers, the body, each layer above), and in each of them everything that has come meanwhile is read first. So where a
turn takes long a verdict takes ten times as long; all that the draft may write is there before it, and most of that is
thrown away. What is read in vain makes the turns longer still. Nothing that is done with a token once it is there
helps: only a request that asks for fewer does.

The time of verdicts alone does not tell. It is as long where the assistant is slow, and there a draft that runs on is
what saves time.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Lateness"]

TURNS = 32
"""Turns of the loop that may pass during a verdict. With fewer, a good part of its time is this process's own."""

QUICK = 0.1
"""Seconds of a verdict; of quicker ones more turns may be missed, since models that answer so soon are cheap."""

PRECISION = 0.001
"""Seconds by which a timer of an idle event loop may be late."""

LATELY = 30.0
"""Seconds for which it is believed that verdicts come in time."""

_RECENT = 8


class Lateness:
    """The recent verdicts of a fusion, and how late the event loop was meanwhile, for all of its answers.

    It has no clock: a driver, which has one, tells what it measured.

    Attributes:
        late: whether fewer turns of the loop pass during a verdict than should.
        answers: how many are in progress.
    """

    def __init__(self) -> None:
        self.late = False
        self.answers = 0
        self._turns: deque[float] = deque(maxlen=_RECENT)
        self._verdicts: deque[float] = deque(maxlen=_RECENT)
        self._loads: deque[int] = deque(maxlen=_RECENT)  # answers in progress, at each of those
        self._heard = 0.0  # when the last came

    def woken(self, late: float) -> None:
        """Take in how many seconds late a timer was, which is what was left of a turn."""
        self._turns.append(max(0.0, late - PRECISION))
        self._compare()

    def heard(self, verdict: float, now: float = 0.0) -> None:
        """Take in how many seconds a verdict took that has come now."""
        self._verdicts.append(verdict)
        self._loads.append(self.answers)
        self._heard = now
        self._compare()

    def in_time(self, now: float) -> bool:
        """True if verdicts lately came in time, beside half as many answers as are in progress now at least."""
        known = self._turns and self._verdicts and now - self._heard <= LATELY
        return bool(known) and not self.late and self.answers <= 2 * min(self._loads)

    def _compare(self) -> None:
        if self._turns and self._verdicts:
            turn, verdict = (sum(one) / len(one) for one in (self._turns, self._verdicts))
            self.late = TURNS * turn > max(verdict, QUICK)
