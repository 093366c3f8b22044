"""What failed before or in an answer, in the system's words, and what would help. Knows no HTTP library.

Some are marked for `retries`: as `lasting`, when they will most likely be there again, or as `stale`, when they most
likely come from a kept connection that the server had closed meanwhile.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterator
from typing import cast

from cosd_providers.errors import ConnectError, ProviderError, ProviderTimeoutError, ResponseError
from cosd_providers.http.bodies import LONGEST
from cosd_providers.http.refusals import Errors, Response

__all__ = ["broken", "hung_up", "no_connection", "timed_out", "too_long", "unusable"]

_HINT = "Is the server running, and is the URL right?"


def no_connection(errors: Errors, error: Exception, *, lasting: bool = False) -> ConnectError:
    """No connection, and why. With `lasting` there never will be one."""
    system = _system_error(error)
    default = (str(error) or type(error).__name__, "Is the URL right?" if lasting else _HINT)
    reason, hint = default if system is None else _words(system)
    failure = errors.make(ConnectError, f"no connection: {reason}", hint=hint)
    failure.retryable = not (lasting or isinstance(system, (ssl.SSLError, FileNotFoundError)))
    failure.lasting = isinstance(system, socket.gaierror)
    return failure


def hung_up(errors: Errors) -> ConnectError:
    """The connection was lost before an answer."""
    failure = errors.make(ConnectError, "the server closed the connection without an answer")
    failure.stale = True
    return failure


def timed_out(errors: Errors, what: str, limit: float | None, *, answered: bool, ours: bool) -> ProviderError:
    """A limit of time was reached.

    Args:
        errors: makes the error.
        what: was to be done: "connect", "read", "write", or wait for a connection of the "pool".
        limit: seconds, where there is a limit.
        answered: whether some of the answer had come.
        ours: whether no setting changes the limit.
    """
    within = f"within {limit:g} s" if limit else "in time"
    kind: type[ProviderError] = ProviderTimeoutError
    hint = "" if ours else "A longer wait may help: connect(..., timeout=...), or --read-timeout."
    words = f"the answer stopped: nothing more {within}" if answered else f"no answer {within}"
    if what == "connect":
        kind, words, hint = ConnectError, f"no connection: nothing {within}", _HINT
    elif what == "pool":
        words = f"no free connection {within}"
        hint = "Allow the `http_client` more connections, or lower the concurrency."
    elif what == "write":
        words = f"the server took nothing more of the request {within}"
    failure = errors.make(kind, words, hint=hint)
    failure.lasting = True
    return failure


def broken(errors: Errors) -> ResponseError:
    """The connection was lost after an answer had begun."""
    failure = errors.make(ResponseError, "the connection broke in the middle of the answer")
    failure.retryable = True
    return failure


def too_long(errors: Errors, response: Response) -> ResponseError:
    """There is more of the answer, or of one event, than can be taken."""
    return errors.make(ResponseError, f"the answer is longer than {LONGEST >> 20} MB", response)


def unusable(errors: Errors, error: RuntimeError) -> ConnectError:
    """The user's client is closed, or belongs to another event loop."""
    hint = "Give an `http_client` that is open and belongs to this event loop."
    failure = errors.make(ConnectError, f"the HTTP client cannot be used: {error}", hint=hint)
    failure.retryable = False
    return failure


def _system_error(error: BaseException) -> OSError | None:
    """The innermost error of the operating system behind `error`."""
    return next((found for found in reversed([*_chain(error)]) if isinstance(found, OSError)), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes; of several attempts to connect the last one's.

    The cause may stand in the arguments instead. A mere context is none: it may be what the caller was handling.
    """
    while error is not None:
        yield error
        several = cast("tuple[BaseException, ...]", getattr(error, "exceptions", ()))
        inside = next((found for found in error.args if isinstance(found, Exception)), None)
        error = several[-1] if several else error.__cause__ or inside


def _words(error: OSError) -> tuple[str, str]:
    """What happened, and what would help."""
    said = error.strerror or str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        return said, "For a private certificate set SSL_CERT_FILE or give an `http_client`."
    if isinstance(error, ssl.SSLError):
        return said, "Does the server speak https, and not http?"
    if isinstance(error, socket.gaierror):
        return said, "Is the host's name right?"
    if isinstance(error, FileNotFoundError):
        return said, "Is the file there that SSL_CERT_FILE names?"
    if error.errno:  # asyncio puts words of its own into `strerror`
        system = os.strerror(error.errno)
        said = said if system.startswith("Unknown error") else system
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return said, "Raise the limit of open files (`ulimit -n`), or lower the concurrency."
    return said, _HINT
