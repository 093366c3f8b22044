"""Input and output on terminals and pipes: messages, errors, streamed answers and progress bars."""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cosd_api import SettingError
from cosd_api.apps.demo.servers import LocalServerError
from cosd_api.apps.report.phrases import visible
from cosd_api.apps.report.terminal import ASSISTANT, has_colour
from cosd_api.types import FusedToken
from cosd_providers import ProviderError

__all__ = [
    "MessageReader",
    "Writer",
    "files_of",
    "guarded",
    "progress",
    "say",
]

_NO_READER = errno.EINVAL if os.name == "nt" else errno.EPIPE

_log = logging.getLogger("cosd_api.apps.cli")


def say(message: str) -> None:
    """Print one line to standard error."""
    print(visible(f"cosd: {message}"), file=sys.stderr, flush=True)


@contextmanager
def guarded() -> Iterator[None]:
    """Convert errors inside the block to a one-line message and an exit code.

    Raises:
        typer.Exit: the exit code is 1 after a failure, or if the reader of standard output has closed the pipe, and 130
            after an interrupt.
        typer.BadParameter: a setting is invalid (exit code 2).
    """
    try:
        yield
    except (ProviderError, LocalServerError) as error:
        _log_frames(error)
        say(str(error))
        raise typer.Exit(1) from error
    except SettingError as error:
        raise typer.BadParameter(str(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == _NO_READER:
            _discard_stdout()
        else:  # users should not see a traceback
            _log_frames(error)
            say(f"unexpected {type(error).__name__}: {error} (COSD_LOG=debug shows where)")
        raise typer.Exit(1) from error


@contextmanager
def files_of(option: str) -> Iterator[None]:
    """Report a file that cannot be read or written as a wrong value of the option that names it.

    Raises:
        typer.BadParameter: the block raised an `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise typer.BadParameter(f"{error.filename}: {error.strerror}", param_hint=option) from error


def _log_frames(error: Exception) -> None:
    """Log where an error was raised, but not the messages of its causes, because these may quote a prompt."""
    _log.debug("%s raised at\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))


def _discard_stdout() -> None:
    """Redirect standard output to the null device, because without a reader, Python's flush at exit would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar if standard error is a terminal.

    Call the yielded function with the number of finished items and the total number. The first call shows the bar.
    """
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not _on_terminal())
    task = bar.add_task(label, total=None)

    def show(done: int, total: int) -> None:
        bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        bar.stop()


def _on_terminal() -> bool:
    return sys.stderr.isatty()


class Writer:
    """Writes tokens to standard output as they become final.

    On a terminal, the assistants' words are green (unless `NO_COLOR` is set), and control characters are made visible.
    In a pipe or a file, the text is unchanged.
    """

    def __init__(self, *, silent: bool = False) -> None:
        self._silent = silent
        self._last = ""
        self._terminal = Console(highlight=False) if sys.stdout.isatty() else None

    def write(self, token: FusedToken) -> None:
        """Write one token."""
        if self._silent or not token.text:
            return
        self._last = token.text
        if self._terminal is None:
            print(token.text, end="", flush=True)
        else:
            style = ASSISTANT if token.source != "draft" and has_colour(self._terminal) else None
            self._terminal.out(visible(token.text), style=style, end="")

    def end(self) -> None:
        """Print a line feed, unless the answer is empty or already ends with one."""
        if self._last and not self._last.endswith("\n"):
            print(flush=True)


class MessageReader:
    r"""Reads messages from standard input, one per line; after a `\` at the end of a line, the message continues.

    On a terminal, the user can edit and recall lines if Python has readline; no history is saved. If standard input or
    output is a pipe, prompts go to standard error.

    Attributes:
        interactive: whether standard input is a terminal.
    """

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty()
        self._edited = self.interactive and sys.stdout.isatty()
        if self._edited:
            with suppress(ImportError):  # Windows has no readline
                import_module("readline")  # after this import, input() uses readline

    def message(self) -> str | None:
        """Read the next message; return None at the end of the input.

        Raises:
            KeyboardInterrupt: the user pressed Ctrl-C.
            typer.BadParameter: the input is not UTF-8.
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
        """Read the next line without its line feed; return None at the end of the input."""
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
