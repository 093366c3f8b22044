"""What a user types: messages and commands, from a terminal or a pipe."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module

import typer

__all__ = ["Lines"]


class Lines:
    r"""The messages of standard input: one a line; a `\` at its end goes on in the next.

    On a terminal lines can be edited, and earlier ones called back, where Python has readline; nothing of them is kept
    on disk. Where it is not a terminal that is read from and written to, prompts go to standard error.

    Attributes:
        interactive: whether somebody sits there who can react.
    """

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty()
        self._edited = self.interactive and sys.stdout.isatty()
        if self._edited:
            with suppress(ImportError):  # not on Windows
                import_module("readline")  # input() then uses it

    def message(self) -> str | None:
        """The next message; None at the end.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            typer.BadParameter: it is not UTF-8.
        """
        lines: list[str] = []
        while True:
            try:
                line = self._line("... " if lines else "> ")
            except UnicodeDecodeError as error:
                raise typer.BadParameter(f"standard input is not UTF-8 text at byte {error.start} of a line") from None
            except KeyboardInterrupt:
                print(file=sys.stderr)
                raise
            if line is None:
                return "\n".join(lines) if lines else None
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line.removesuffix("\\"))

    def _line(self, prompt: str) -> str | None:
        """A line without its end; None where there are no more."""
        if self._edited:
            with suppress(EOFError):
                return input(prompt)
            print()
            return None
        print(prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.buffer.readline()
        if not line:
            print(file=sys.stderr)
            return None
        return line.decode().removesuffix("\n").removesuffix("\r")
