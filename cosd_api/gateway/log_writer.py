"""Lines of the log on their way out, in a thread of their own: a reader that stands still delays no answer."""

from __future__ import annotations

import logging
import os
import queue
import threading
from contextlib import suppress

__all__ = ["LogWriter"]

_LAST_SECONDS = 1.0


class LogWriter(logging.Handler):
    """A handler of log records that never waits.

    Lines that come while too many wait are dropped; their number follows as a line of JSON.

    Args:
        descriptor: file descriptor to write to.
        most: lines that may wait.
    """

    def __init__(self, descriptor: int, most: int = 10_000) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(most)
        self._dropped = 0
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._write_all, name="cosd-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record, or drop it."""
        line = f"{self.format(record)}\n".encode(errors="backslashreplace")
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            with self._counting:
                self._dropped += 1

    def close(self) -> None:
        """Write what waits, as far as it is taken within a second or two."""
        if self._thread.is_alive():
            with suppress(queue.Full):
                self._lines.put(None, timeout=_LAST_SECONDS)
            self._thread.join(_LAST_SECONDS)
        super().close()

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            self._write(line)
            with self._counting:
                dropped, self._dropped = self._dropped, 0
            if dropped:
                self._write(b'{"log_lines_dropped": %d}\n' % dropped)

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        with suppress(OSError):  # nobody reads any more
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
