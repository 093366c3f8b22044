"""What every command does with errors and with logging."""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from cosd_api.demo.servers import LocalServerError
from cosd_api.errors import SettingError
from cosd_api.report.terminal import visible
from cosd_providers.errors import ProviderError

__all__ = ["guarded", "say", "start_logging"]

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_LOGGERS = ("cosd_api", "cosd_providers")

_NO_READER = errno.EINVAL if os.name == "nt" else errno.EPIPE

_log = logging.getLogger("cosd_api.cli")


def say(message: str) -> None:
    """One line to standard error."""
    print(visible(f"cosd: {message}"), file=sys.stderr, flush=True)


def start_logging() -> None:
    """Logs to standard error what `COSD_LOG` asks for; nothing without it.

    Only our own loggers speak: at this level other libraries would write keys and prompts.

    Raises:
        typer.BadParameter: there is no such level.
    """
    wanted = os.environ.get("COSD_LOG", "")
    if not wanted:
        return
    if wanted.lower() not in _LEVELS:
        raise typer.BadParameter(f"COSD_LOG is {wanted!r}; it can be {', '.join(_LEVELS)}")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(_LEVELS[wanted.lower()])


@contextmanager
def guarded() -> Iterator[None]:
    """Turns what goes wrong inside into one line and an exit code.

    Raises:
        typer.Exit: 1 for failures, or where nobody reads standard output any more; 130 when interrupted.
        typer.BadParameter: a setting that a fusion cannot take (exit code 2).
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
            _forget_stdout()
        else:  # a traceback is not for users
            _log_frames(error)
            say(f"unexpected {type(error).__name__}: {error} (COSD_LOG=debug shows where)")
        raise typer.Exit(1) from error


def _log_frames(error: Exception) -> None:
    """Where an error came from, without the words of whatever caused it: those may quote a prompt."""
    _log.debug("%s raised at\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))


def _forget_stdout() -> None:
    """The reader has gone: at the end Python would try to flush, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
