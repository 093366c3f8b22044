"""Log writing in a separate thread, so that answers do not have to wait if the reader of the log stalls."""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
import traceback
from contextlib import suppress
from datetime import UTC, datetime

from cosd_api.apps.gateway.exchange import ACCESS_LOG

__all__ = ["LogLineFormatter", "LogWriter"]

_LAST_SECONDS = 1.0
_AGAIN_SECONDS = 0.01


class LogLineFormatter(logging.Formatter):
    """Formatter that writes each record as a line of JSON.

    Records of the access log are already lines of JSON. For other logs, the line has the time, the level and the
    message.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a record.

        Exceptions are logged with their class and frames, but without their message, which may quote a prompt.
        """
        message = record.getMessage()
        if record.name == ACCESS_LOG:
            return message
        time_of = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time_of, "level": record.levelname.lower(), "message": message}
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["frames"] = "".join(traceback.format_tb(record.exc_info[2]))
        return json.dumps(line)


class LogWriter(logging.Handler):
    """A log handler whose caller never waits for the log to be written.

    If too many lines are waiting, further lines are dropped. Their number is written later, as a line of JSON.

    Args:
        descriptor: file descriptor to write to.
        most: maximum number of waiting lines.
    """

    def __init__(self, descriptor: int, most: int = 10_000) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(most)
        self._dropped = 0
        self._cut = False  # whether the last line was written only in part
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._write_all, name="cosd-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record for writing, or drop it if too many lines are waiting."""
        try:
            self._lines.put_nowait(f"{self.format(record)}\n".encode(errors="backslashreplace"))
        except queue.Full:
            self._drop()
        except Exception:  # noqa: BLE001 - other handlers treat records that cannot be formatted in the same way
            self.handleError(record)

    def _drop(self, count: int = 1) -> None:
        with self._counting:
            self._dropped += count

    def close(self) -> None:
        """Write the waiting lines. Lines that the reader of the log does not accept within two seconds are lost."""
        if self._thread.is_alive():
            with suppress(queue.Full):
                self._lines.put(None, timeout=_LAST_SECONDS)
            self._thread.join(_LAST_SECONDS)
        super().close()

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            if not self._write(line):
                self._drop()
            with self._counting:
                dropped, self._dropped = self._dropped, 0
            if dropped and not self._write(b'{"log_lines_dropped": %d}\n' % dropped):
                self._drop(dropped)

    def _write(self, line: bytes) -> bool:
        """Write a line, on a new line if an earlier one is incomplete; return False if that failed."""
        rest = memoryview(b"\n" + line if self._cut else line)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another program has made the descriptor non-blocking
                time.sleep(_AGAIN_SECONDS)
            except OSError:  # the disk is full, or the reader has closed its end
                self._cut = self._cut or len(rest) < len(line)
                return False
        self._cut = False
        return True
