"""An answer on standard output, as it becomes final."""

from __future__ import annotations

import sys

from rich.console import Console

from cosd_api.records import FusedToken
from cosd_api.report.terminal import ASSISTANT, has_colour, visible

__all__ = ["Writer"]


class Writer:
    """Writes tokens to standard output as they come.

    On a terminal the assistants' words are green (unless `NO_COLOR` is set) and nothing in the answer can steer the
    terminal. Anything else gets the text as it is.
    """

    def __init__(self, *, silent: bool = False) -> None:
        self._silent = silent
        self._last = ""
        self._terminal = Console(highlight=False) if sys.stdout.isatty() else None

    def write(self, token: FusedToken) -> None:
        """Writes one token."""
        if self._silent or not token.text:
            return
        self._last = token.text
        if self._terminal is None:
            print(token.text, end="", flush=True)
        else:
            style = ASSISTANT if token.source != "draft" and has_colour(self._terminal) else None
            self._terminal.out(visible(token.text), style=style, end="")

    def end(self) -> None:
        """The next line, unless the answer has ended one itself or there is none."""
        if self._last and not self._last.endswith("\n"):
            print(flush=True)
