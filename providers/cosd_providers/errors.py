"""Errors of endpoints, as one tree.

::

    ProviderError                    anything below; carries endpoint, status, request_id, retryable, hint
    ├── ConnectError                 no connection: refused, no such host, TLS
    ├── ProviderTimeoutError         connected, but no answer in time (also a TimeoutError)
    ├── StatusError                  the server answered with an HTTP error
    │   ├── AuthenticationError      401, 403: the key is missing or wrong
    │   ├── InvalidRequestError      400, 404, 422 and other refusals (also a ValueError)
    │   ├── ContextLengthError       the text does not fit into the model's context
    │   ├── RateLimitError           429
    │   └── ServerError              5xx, 408, 424: loading, overloaded or broken
    ├── ResponseError                the answer violates the protocol: HTML, cut JSON, a broken stream
    ├── ModelChoiceError             several models, none named; or the named one is not there (also a ValueError)
    ├── UnsupportedError             the endpoint lacks an ability that the fusion needs
    └── BudgetError                  a limit of the caller's own is reached: requests or billed tokens
        └── BudgetTimeoutError       ... or time (also a TimeoutError)

No error holds a key or a prompt: of a server's answer only its own error message is quoted.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AuthenticationError",
    "BudgetError",
    "BudgetTimeoutError",
    "ConnectError",
    "ContextLengthError",
    "InvalidRequestError",
    "ModelChoiceError",
    "ProviderError",
    "ProviderTimeoutError",
    "RateLimitError",
    "ResponseError",
    "ServerError",
    "StatusError",
    "UnsupportedError",
]


class ProviderError(Exception):
    """A request to an endpoint failed.

    Attributes:
        endpoint: the server's URL, without credentials.
        status: the HTTP status, if there was one.
        request_id: the server's id of the request, if it sent one.
        retryable: whether the same request may succeed later.
        retry_after: seconds to wait before the next attempt, if the server requested a wait.
        lasting: whether the cause most likely persists; such an error is retried once at most.
        stale: whether an idle connection turned out to be useless; the first retry is immediate.
        hint: a remedy, in words.
        partial: the `cosd_api.FusionResult` so far, if the error ended a fusion.
    """

    retryable: bool = False
    retry_after: float | None = None
    lasting: bool = False
    stale: bool = False
    partial: Any = None  # this package knows no fusion

    def __init__(
        self,
        message: str,
        *,
        endpoint: str = "",
        status: int | None = None,
        request_id: str | None = None,
        retryable: bool | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.endpoint = endpoint
        self.status = status
        self.request_id = request_id
        self.hint = hint
        if retryable is not None:
            self.retryable = retryable

    def __str__(self) -> str:
        where = f"{self.endpoint}: " if self.endpoint else ""
        request = f" (request {self.request_id})" if self.request_id else ""
        message = f"{where}{self.args[0]}{request}"
        if not self.hint:
            return message
        return f"{message}{'' if message.endswith(('.', '!', '?')) else '.'} {self.hint}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args[0], self.__dict__))


def _rebuild(kind: type[ProviderError], message: str, state: dict[str, object]) -> ProviderError:
    error = kind(message)
    error.__dict__.update(state)
    return error


class ConnectError(ProviderError):
    """No connection to the endpoint: refused, unknown host, TLS."""

    retryable = True


class ProviderTimeoutError(ProviderError, TimeoutError):
    """The endpoint did not answer in time."""

    retryable = True


class StatusError(ProviderError):
    """The endpoint answered with an HTTP error."""


class AuthenticationError(StatusError):
    """401 or 403: the key is missing, wrong, or not allowed to use the model."""


class InvalidRequestError(StatusError, ValueError):
    """The endpoint refused the request in its present form (400, 404, 422, ...)."""


class ContextLengthError(StatusError):
    """The text does not fit into the model's context."""


class RateLimitError(StatusError):
    """429: too many requests or tokens."""

    retryable = True


class ServerError(StatusError):
    """5xx, 408, and 424 of TGI: the server is loading, overloaded or broken."""

    retryable = True


class ResponseError(ProviderError):
    """The answer violates the protocol."""


class ModelChoiceError(ProviderError, ValueError):
    """The endpoint serves several models and the user named none, or the named model is not among them."""


class UnsupportedError(ProviderError):
    """The endpoint lacks an ability that the fusion needs."""


class BudgetError(ProviderError):
    """A limit set by the caller is reached; no request was sent beyond it.

    Attributes:
        limit: `"max_requests"`, `"max_billed_tokens"` or `"timeout"`.
        partial: the result so far, as with every error that ends a fusion. None if time ran out before the discovery of
            the servers.
    """

    limit: str = ""


class BudgetTimeoutError(BudgetError, TimeoutError):
    """The caller's time limit for an answer is reached."""
