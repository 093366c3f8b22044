"""What a server says when it does not do what it was asked, in the words of `errors`. Knows no HTTP library."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import urljoin, urlsplit

from pydantic_core import from_json

from cosd_providers.errors import (
    AuthenticationError,
    ContextLengthError,
    InvalidRequestError,
    ProviderError,
    RateLimitError,
    ResponseError,
    ServerError,
    StatusError,
)
from cosd_providers.http.keys import Strike, only_keys

__all__ = ["Errors", "Response", "asked_wait", "event_status"]

_QUOTED = 300  # characters of a server's own message that an error quotes
_NO_KEY = "No key was given: give api_key, or set COSD_API_KEY_<HOST>."
_TOO_LONG = (
    *("context size", "context length", "maximum context", "context window", "too many tokens"),
    *("max_model_len", "maximum model length", "`inputs` must have less than", "`max_new_tokens` must be <="),
    "maximum allowed length",
)
"""How servers say that a text is too long: llama.cpp and OpenAI, then vLLM and TGI, then SGLang."""

_TYPES = {"validation": 422, "generation": 424, "overloaded": 429}
"""How TGI names the errors of a stream, whose status it does not repeat there."""

_E = TypeVar("_E", bound=ProviderError)


class Response(Protocol):
    """What is looked at of an HTTP response, beside its text."""

    @property
    def status_code(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; names in any case."""
        ...


class Errors:
    """Makes the errors of one server; no secret survives in their words.

    Args:
        endpoint: the server's URL.
        headers: what is sent to it; each value is struck out wherever it stands.
    """

    def __init__(self, endpoint: str, headers: Mapping[str, str] | None = None) -> None:
        self._endpoint = endpoint
        self._strike = Strike((headers or {}).values())
        self._with_key = bool(only_keys(headers or {}))

    def make(self, kind: type[_E], words: str, response: Response | None = None, hint: str = "") -> _E:
        """An error of this endpoint."""
        error = kind(self._strike(words), endpoint=self._endpoint, hint=hint)
        if response is not None:
            error.status = response.status_code
            request_id = response.headers.get("x-request-id") or response.headers.get("request-id")
            error.request_id = self._strike(request_id) if request_id else None
        return error

    def refusal(self, response: Response, text: str) -> StatusError:
        """The server answered with `text`, but not with success."""
        try:
            answer = from_json(text)
        except ValueError:
            answer = None
        return self.status_error(response.status_code, answer, response)

    def status_error(self, status: int, answer: object, response: Response) -> StatusError:
        """An HTTP status, or an error within a stream, with the server's own message."""
        message = self._strike(_message(answer))  # before it is cut: half a key is no longer found
        quoted = message if len(message) <= _QUOTED else message[: _QUOTED - 1] + "…"
        words = f"{status}: {quoted}" if quoted else f"HTTP status {status}"
        kind, hint = _kind(status, message)
        if kind is AuthenticationError:
            hint = "The key was refused." if self._with_key else _NO_KEY
        error = self.make(kind, words, response, hint)
        error.status = status
        error.retry_after = asked_wait(response.headers, time.time())
        if response.headers.get("x-should-retry") == "false":
            error.retryable = False
        return error

    def redirected(self, response: Response | None = None) -> StatusError:
        """The server says that what is asked for is elsewhere: no key follows there."""
        words, hint = "the server redirects to what is no URL", ""
        with suppress(ValueError):
            target = urlsplit("" if response is None else urljoin(self._endpoint, response.headers.get("location", "")))
            origin = f"{target.scheme}://{target.netloc.rpartition('@')[2]}"
            if origin == "{0.scheme}://{0.netloc}".format(urlsplit(self._endpoint)):
                words = "the server redirects to another page of its own"
                hint = "Is this the URL of the API, and does it want a login?"
            elif target.scheme in ("http", "https") and target.hostname:
                words = f"the server redirects to {origin}; give that URL"
        return self.make(StatusError, words, response, hint)

    def parsed(self, response: Response, text: str, *, generated: bool) -> Any:
        """The JSON of an answer, or the error of what is none.

        What has to be `generated` may tell an error after a status of success. (Some servers say in this way that they
        do not have a route: that is looked at where it is asked for.)
        """
        try:
            answer: dict[str, Any] | None = from_json(text)  # or anything else
        except ValueError:
            raise self.unreadable(response, text, "JSON") from None
        if generated and type(answer) is dict and answer.get("error") is not None:
            raise self.status_error(event_status(answer), answer, response)
        return answer

    def no_stream(self, response: Response, text: str) -> ProviderError:
        """Success, but no stream of events; perhaps an error instead of it."""
        with suppress(ValueError):
            answer: dict[str, Any] | None = from_json(text)  # or anything else
            if type(answer) is dict and answer.get("error") is not None:
                return self.status_error(event_status(answer), answer, response)
        return self.unreadable(response, text, "a stream of events")

    def unreadable(self, response: Response, text: str, expected: str) -> ResponseError:
        """Success, but not in the form that was asked for."""
        kind = response.headers.get("content-type", "").partition(";")[0] or "no content type"
        if kind == "text/html" or text.lstrip()[:1] == "<":
            words, hint = f"answered with a web page instead of {expected}", "Is this the URL of the API?"
        elif expected == "JSON":
            words, hint = f"the answer is not whole JSON ({len(text)} characters of {kind})", ""
        else:
            words, hint = f"answered with {kind} instead of {expected}", ""
        return self.make(ResponseError, words, response, hint)


def event_status(event: dict[str, Any]) -> int:
    """The status of an error within a stream, or an answer."""
    error: Any = event["error"]
    code: Any = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
    code = int(code) if isinstance(code, str) and code.isdecimal() and len(code) == 3 else code
    if isinstance(code, int) and code >= 400:
        return code
    return _TYPES.get(str(event.get("error_type")), 500)


def asked_wait(headers: Mapping[str, str], now: float) -> float | None:
    """How many seconds the server wants to be left alone, where it says so; `now` is that since 1970."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "")
        if value.isascii() and value.replace(".", "", 1).isdigit():
            return float(value) * unit
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
        date = date if date.tzinfo else date.replace(tzinfo=UTC)  # as dates of HTTP are
        return max(date.timestamp() - now, 0.0)
    except (ValueError, OverflowError):
        return None


def _message(answer: object) -> str:
    """The server's own words in an error's body: the common shapes; never what was sent to it."""
    if not isinstance(answer, dict):
        return ""
    fields = cast("dict[str, object]", answer)
    for value in (fields.get("error"), fields.get("message"), fields.get("detail")):
        if isinstance(value, str):
            return value
        if isinstance(value, dict):
            return _message({"message": cast("dict[str, object]", value).get("message")})
        if isinstance(value, list):
            return "; ".join(filter(None, map(_entry, cast("list[object]", value))))
    return ""


def _entry(entry: object) -> str:
    """One of several complaints; never the input that it repeats."""
    if isinstance(entry, str):
        return entry
    fields = cast("dict[str, object]", entry) if isinstance(entry, dict) else {}
    return f"{fields['loc']}: {fields['msg']}" if {"loc", "msg"} <= {*fields} else ""


def _kind(status: int, message: str) -> tuple[type[StatusError], str]:
    """The class of an HTTP error, and what would help."""
    if status in (400, 413, 422) and any(words in message.lower() for words in _TOO_LONG):
        return ContextLengthError, "Shorten the prompt, or lower max_tokens."
    if status in (401, 403):
        return AuthenticationError, ""
    if status == 429:
        return RateLimitError, ""
    if status in (502, 504):
        return ServerError, "That is what a proxy says: is the server behind it running?"
    if status in (408, 424) or (status >= 500 and status != 501):  # 424: TGI's generation has failed
        return ServerError, ""
    if status == 404:
        return InvalidRequestError, "Is this the URL of the API, and the model's name right?"
    return (InvalidRequestError if status >= 400 else StatusError), ""
