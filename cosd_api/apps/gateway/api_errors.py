"""Errors in the format of OpenAI's API."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cosd_api import FusionClosedError, SettingError
from cosd_providers import (
    AuthenticationError,
    BudgetError,
    BudgetTimeoutError,
    ConnectError,
    ContextLengthError,
    InvalidRequestError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    ServerError,
    UnsupportedError,
)

__all__ = ["ABOUT_REQUESTS", "ApiError", "api_error", "cause_of"]

_REFUSED = "invalid_request_error"
_UPSTREAM = "upstream_error"


class ApiError(Exception):
    """An error in the format of OpenAI's API.

    Attributes:
        status: the HTTP status.
        kind: the `type` of the error.
        code: the error code, for programs; None if it has none.
        param: the field of the request that caused the error, if any.
        retry_after: seconds to wait before sending the same request again.
        retryable: whether the same request may succeed later.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = _REFUSED,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.retryable = retryable

    @property
    def body(self) -> dict[str, Any]:
        """The error as JSON."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the error response that control retries; OpenAI's client obeys them."""
        found = {"x-should-retry": "true" if self.retryable else "false"}
        if self.retry_after is not None:
            found["retry-after"] = str(max(1, math.ceil(self.retry_after)))
        return found


def cause_of(error: Exception) -> Exception:
    """Return the failure of a server that was being retried when a time limit was reached, or else the error itself."""
    cause = error.__cause__
    return cause if isinstance(error, BudgetTimeoutError) and isinstance(cause, ProviderError) else error


def api_error(error: Exception) -> ApiError:
    """Convert an error of the library to the error that is sent to a client, which names no server, key or text."""
    error = cause_of(error)
    if isinstance(error, ApiError):
        return error
    if isinstance(error, SettingError):
        return ApiError(str(error))
    if isinstance(error, FusionClosedError):
        return ApiError("the gateway is stopping", status=503, kind="server_error", code="stopping", retryable=True)
    if not isinstance(error, ProviderError):
        return ApiError("an unexpected error in the gateway", status=500, kind="server_error", code="internal")
    if isinstance(error, BudgetTimeoutError):
        words = "the answer was not complete within the time that is allowed"
        return ApiError(words, status=504, kind="timeout_error", code="timeout")
    for kind, status, code, name in _OF_REQUESTS:
        if isinstance(error, kind):  # the message is kept, but not the server's name or the hint for the operator
            return ApiError(str(error.args[0]), status=status, kind=name, code=code)
    _, status, code, words = next(found for found in _OF_SERVERS if isinstance(error, found[0]))
    wait = error.retry_after
    return ApiError(words, status=status, kind=_UPSTREAM, code=code, retry_after=wait, retryable=error.retryable)


_OF_REQUESTS: Sequence[tuple[type[ProviderError], int, str, str]] = (
    (ContextLengthError, 400, "context_length_exceeded", _REFUSED),
    (BudgetError, 400, "limit_of_answer", _REFUSED),
    (UnsupportedError, 400, "unsupported", _REFUSED),
)
"""Errors that a request causes: class, status, code and type."""

ABOUT_REQUESTS = tuple([kind for kind, *_ in _OF_REQUESTS])
"""Classes of errors that a request causes; they do not mean that a model's server has failed."""

_OF_SERVERS: Sequence[tuple[type[ProviderError], int, str, str]] = (
    (RateLimitError, 429, "rate_limit_exceeded", "a model's server limits its rate"),
    (AuthenticationError, 502, "upstream_authentication", "a model's server refuses the gateway's key"),
    (ProviderTimeoutError, 504, "upstream_timeout", "a model's server did not answer in time"),
    (ConnectError, 502, "upstream_unreachable", "a model's server cannot be reached"),
    (ServerError, 503, "upstream_failed", "a model's server failed"),
    (InvalidRequestError, 502, "upstream_refused", "a model's server refused the request"),
    (ProviderError, 502, "upstream_invalid", "a model's server gave no valid answer"),
)
"""Errors of the models' servers: class, status, code and message. The message names no server."""
