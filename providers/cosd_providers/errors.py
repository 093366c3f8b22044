"""The errors that endpoints cause, in one hierarchy.

::

    ProviderError                    base class of all errors; has endpoint, status, request_id, retryable, hint
    ├── ConnectError                 no connection: refused, no such host, TLS
    ├── ProviderTimeoutError         connected, but no answer in time (also a TimeoutError)
    ├── StatusError                  the server answered with an HTTP error
    │   ├── AuthenticationError      401, 403: the key is missing or wrong
    │   ├── InvalidRequestError      400, 404, 422 and other refusals (also a ValueError)
    │   ├── ContextLengthError       the text does not fit into the model's context
    │   ├── RateLimitError           429
    │   └── ServerError              5xx, 408, 424: loading, overloaded or broken
    ├── ResponseError                the answer violates the protocol: HTML, cut JSON, a broken stream
    ├── ModelChoiceError             no model chosen of several, or the chosen one is missing (also a ValueError)
    ├── UnsupportedError             the endpoint lacks an ability that the fusion needs
    └── BudgetError                  the caller's limit on requests or billed tokens is reached
        └── BudgetTimeoutError       the caller's time limit is reached (also a TimeoutError)

No error contains a key or a prompt. The only part of a server's answer that an error quotes is its error message.
"""

from __future__ import annotations

from typing import Any


class ProviderError(Exception):
    """A request to an endpoint failed.

    Attributes:
        endpoint: the server's URL, without credentials.
        status: the HTTP status of the answer, if there was an answer.
        request_id: the server's id of the request, if it sent one.
        retryable: whether the same request may succeed later.
        retry_after: seconds to wait before the next attempt, if the server asked for a wait.
        lasting: whether the cause will probably persist; the request is then retried at most once.
        stale: whether the cause may be that an idle connection was closed; the first retry is then immediate.
        hint: a suggested remedy; empty if there is no suggestion.
        partial: the unfinished `cosd_api.FusionResult`, if the error ended a fusion.
    """

    retryable: bool = False
    retry_after: float | None = None
    lasting: bool = False
    stale: bool = False
    partial: Any = None  # its type belongs to `cosd_api`, which this package does not import

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
    """No connection to the endpoint was made: it was refused, the host is unknown, or TLS failed."""

    retryable = True


class ProviderTimeoutError(ProviderError, TimeoutError):
    """The endpoint did not answer in time."""

    retryable = True


class StatusError(ProviderError):
    """The endpoint answered with an HTTP error."""


class AuthenticationError(StatusError):
    """The endpoint answered 401 or 403: the key is missing or wrong, or may not use the model."""


class InvalidRequestError(StatusError, ValueError):
    """The endpoint refused the request as invalid (400, 404, 422, ...)."""


class ContextLengthError(StatusError):
    """The text does not fit into the model's context."""


class RateLimitError(StatusError):
    """The endpoint answered 429: too many requests or tokens."""

    retryable = True


class ServerError(StatusError):
    """The endpoint answered 5xx, 408, or TGI's 424: the server is loading, overloaded or broken."""

    retryable = True


class ResponseError(ProviderError):
    """The answer violates the protocol."""


class ModelChoiceError(ProviderError, ValueError):
    """The endpoint serves several models and the user named none, or the named model is not among them."""


class UnsupportedError(ProviderError):
    """The endpoint lacks an ability that the fusion needs."""


class BudgetError(ProviderError):
    """A limit set by the caller is reached; no further request was sent.

    Attributes:
        limit: `"max_requests"`, `"max_billed_tokens"` or `"timeout"`.
        partial: the unfinished result, as with every error that ends a fusion. None if the time limit was reached
            before all servers were discovered.
    """

    limit: str = ""


class BudgetTimeoutError(BudgetError, TimeoutError):
    """The caller's time limit for an answer is reached."""
