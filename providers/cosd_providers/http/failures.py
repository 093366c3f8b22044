"""The errors of a server: failed connections, HTTP statuses and bad answers, as errors of `cosd_providers.errors`."""

from __future__ import annotations

import errno
import html
import os
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar, cast
from urllib.parse import urljoin, urlsplit

import httpx
from pydantic_core import from_json

from cosd_providers.errors import (
    AuthenticationError,
    ConnectError,
    ContextLengthError,
    InvalidRequestError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    ResponseError,
    ServerError,
    StatusError,
)
from cosd_providers.http.answers import HttpAnswer
from cosd_providers.http.keys import Strike, only_keys

FIXED_WAIT = "cosd_fixed_wait"
"""Name of an httpx extension that marks a request with a fixed read timeout, which no setting can change."""

BROKEN = (httpx.HTTPError, ssl.SSLError)
"""Errors that can occur while an answer is read."""

_QUOTED = 300  # maximum number of characters of a server's own message that an error quotes
_IS_IT_RUNNING = "Is the server running, and is the URL right?"
_NO_HTTP = "Is the URL right, and is the answer as long as its Content-Length?"
_NO_KEY = "No key was given: give api_key, or set COSD_API_KEY_<HOST>."

_TOO_LONG = (
    *("context size", "context length", "maximum context", "context window", "too many tokens"),
    *("max_model_len", "maximum model length", "`inputs` must have less than", "`max_new_tokens` must be <="),
    "maximum allowed length",
)
"""Words with which servers report that a text is too long: llama.cpp and OpenAI, then vLLM and TGI, then SGLang."""

_TOO_LARGE = "too large to process"
"""Words with which llama.cpp reports that a text does not fit into one physical batch."""

_FAILURES = ("abort", "aborted", "error")
"""Finish reasons that mean a failure, which may be temporary."""

_TYPES = {"validation": 422, "generation": 424, "overloaded": 429}
"""HTTP statuses for TGI's error types, because an error within a stream does not contain its status."""

_LIMITED = re.compile("rate_?limit|too_?many_?requests|resource_exhausted|quota", re.IGNORECASE)
"""Types and codes of errors that mean status 429."""

_CODES = ("code", "status", "statusCode")
"""Fields that contain the status of an error."""

_REASONS = ("error", "message", "msg", "detail", "errors")
"""Fields that contain the reason of an error, in the order in which they are shown."""

_TITLE = re.compile("<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)

_PARSERS = ("h11.", "aiohttp.http_exceptions")
"""Modules that define the HTTP parser errors of httpx and aiohttp."""

_HUNG_UP = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, httpx.CloseError)

_E = TypeVar("_E", bound=ProviderError)


class Errors:
    """A factory for the errors of one server. The error messages contain no secrets.

    Args:
        headers: the headers sent to the server. Their values are removed from every message.
    """

    def __init__(self, endpoint: str, headers: Mapping[str, str] | None = None) -> None:
        self._endpoint = endpoint
        self._strike = Strike((headers or {}).values())
        self._has_key = bool(only_keys(headers or {}))

    def make(self, kind: type[_E], words: str, response: HttpAnswer | None = None, hint: str = "") -> _E:
        """Create an error for this endpoint, with `words` as its message."""
        error = kind(self._strike(words), endpoint=self._endpoint, hint=hint)
        if response is not None:
            error.status = response.status_code
            request_id = response.headers.get("x-request-id") or response.headers.get("request-id")
            error.request_id = self._strike(request_id) if request_id else None
        return error

    # Connections.

    def connection(self, error: Exception, *, answered: bool = False) -> ProviderError:
        """Create the error for a failed connection; `answered` says whether a part of the answer had arrived."""
        if isinstance(error, httpx.TimeoutException):
            return self._timeout(error, answered)
        if answered:
            broken = self.make(ResponseError, "the connection broke in the middle of the answer")
            broken.retryable = True
            return broken
        if isinstance(error, _HUNG_UP):
            words, hint = "the server closed the connection without an answer", ""
            if is_no_http(error):
                words, hint = "the answer is not valid HTTP", _NO_HTTP
            stale = self.make(ConnectError, words, hint=hint)
            stale.stale = True
            return stale
        never = isinstance(error, httpx.UnsupportedProtocol)
        system = _system_error(error)
        default = (str(error) or type(error).__name__, "Is the URL right?" if never else _IS_IT_RUNNING)
        reason, hint = default if system is None else _words(system)
        failure = self.make(ConnectError, f"no connection: {reason}", hint=hint)
        failure.retryable = not (never or isinstance(system, (ssl.SSLError, FileNotFoundError)))
        failure.lasting = isinstance(system, socket.gaierror)
        return failure

    def _timeout(self, error: httpx.TimeoutException, answered: bool) -> ProviderError:
        limits = error.request.extensions.get("timeout", {})
        kind: type[ProviderError] = ProviderTimeoutError
        hint = "A longer wait may help: connect(..., timeout=...), or --read-timeout."
        if isinstance(error, httpx.ConnectTimeout):
            kind, limit, words, hint = ConnectError, limits.get("connect"), "no connection: nothing", _IS_IT_RUNNING
        elif isinstance(error, httpx.PoolTimeout):
            limit, words = limits.get("pool"), "no free connection"
            hint = "Allow the `http_client` more connections, or lower the concurrency."
        elif isinstance(error, httpx.WriteTimeout):
            limit, words = limits.get("write"), "the server accepted no more of the request"
        else:
            limit, words = limits.get("read"), "the answer stopped: nothing more" if answered else "no answer"
            hint = "" if FIXED_WAIT in error.request.extensions else hint
        failure = self.make(kind, f"{words} within {limit:g} s" if limit else f"{words} in time", hint=hint)
        failure.lasting = True
        return failure

    def unusable_client(self, error: RuntimeError) -> ConnectError:
        """Create the error for a user's client that is closed or belongs to another event loop."""
        hint = "Give an `http_client` that is open and belongs to this event loop."
        failure = self.make(ConnectError, f"the HTTP client cannot be used: {error}", hint=hint)
        failure.retryable = False
        return failure

    # Refusals.

    def refusal(self, response: HttpAnswer, text: str) -> StatusError:
        """Create the error for an HTTP error status or a redirect."""
        if response.has_redirect_location:
            return self.redirected(response)
        return self._status_error(response.status_code, _body(text), response)

    def event_error(self, event: object, response: HttpAnswer) -> StatusError | None:
        """Create the error that an event, or an answer with a 2xx status, reports; None if it reports no error."""
        first = next(iter(_each(event)), None)  # Gemini puts its errors into lists
        if not isinstance(first, dict):
            return None
        fields = cast("dict[str, Any]", first)
        error = fields.get("error")
        marked = error is not None or fields.get("errors") or "error" in (fields.get("object"), fields.get("type"))
        if not (marked or ("choices" not in fields and max(_codes(fields), default=0) >= 400 and _message(fields))):
            return None
        return self._status_error(_status_of(fields), fields, response)

    def failure(self, event: object, response: HttpAnswer) -> ProviderError | None:
        """Create the error for an event, or an answer with a 2xx status, that reports an error or was broken off.

        A server may break an answer off without an error object, and give only a finish reason such as `"abort"`.
        """
        if (error := self.event_error(event, response)) is not None:
            return error
        reason, told = _broken_off(cast("dict[str, Any]", event)) if isinstance(event, dict) else ("", None)
        if not reason:
            return None
        reported: dict[str, object] = {"error": told}
        if isinstance(told, dict) and isinstance(cast("dict[str, Any]", told).get("code"), int):
            return self.event_error(reported, response)
        said = self._strike(_message(reported))[:_QUOTED]
        words = f"the server broke the answer off (finish reason {reason!r}){': ' if said else ''}{said}"
        broken = self.make(ResponseError, words, response, "Its log may say why.")
        broken.retryable = True
        return broken

    def _status_error(self, status: int, answer: object, response: HttpAnswer) -> StatusError:
        message = self._strike(_message(answer))  # before the message is shortened, since half a key would be missed
        quoted = _shortened(message)
        words = f"{status}: {quoted}" if quoted else f"HTTP status {status}"
        words = quoted if quoted.startswith(f"{status} ") else words
        kind, hint = _kind(status, message)
        if kind is AuthenticationError:
            hint = "The key was refused." if self._has_key else _NO_KEY
        error = self.make(kind, words, response, hint)
        error.status = status
        error.retry_after = _retry_after(response.headers)
        if response.headers.get("x-should-retry") == "false":
            error.retryable = False
        return error

    def redirected(self, response: HttpAnswer | None = None) -> StatusError:
        """Create the error for a redirect. Redirects are not followed, so that no key is sent to another host."""
        words, hint = "the server redirects to an invalid URL", ""
        with suppress(ValueError):
            target = urlsplit("" if response is None else urljoin(self._endpoint, response.headers.get("location", "")))
            origin = f"{target.scheme}://{target.netloc.rpartition('@')[2]}"
            if origin == "{0.scheme}://{0.netloc}".format(urlsplit(self._endpoint)):
                words = "the server redirects to another page of its own"
                hint = "Is this the URL of the API, and does it require a login?"
            elif target.scheme in ("http", "https") and target.hostname:
                words = f"the server redirects to {origin}; give that URL"
        return self.make(StatusError, words, response, hint)

    # Answers.

    def parsed(self, response: HttpAnswer, text: str, *, generated: bool) -> Any:
        """Parse the JSON of an answer. Some servers report a failed generation with a 2xx status.

        Args:
            response: the answer.
            text: the body of the answer.
            generated: whether the model generated the answer. If not, the caller handles an `error` in the answer,
                because some servers report a missing route in this way.

        Raises:
            StatusError: the answer contains an error.
            ResponseError: the answer is not JSON, or the server broke it off.
        """
        try:
            answer: object = from_json(text)
        except ValueError:
            raise self._unreadable(response, text, "JSON") from None
        for one in _each(answer) if generated else ():
            if (error := self.failure(one, response)) is not None:
                raise error
        return answer

    def no_stream(self, response: HttpAnswer, text: str) -> ProviderError:
        """Create the error for a 2xx answer that is not a stream of events. The answer may itself report an error."""
        with suppress(ValueError):
            if (error := self.event_error(from_json(text), response)) is not None:
                return error
        return self._unreadable(response, text, "a stream of events")

    def _unreadable(self, response: HttpAnswer, text: str, expected: str) -> ResponseError:
        kind = response.headers.get("content-type", "").partition(";")[0] or "no content type"
        if kind == "text/html" or text.lstrip()[:1] == "<":
            title = _shortened(self._strike(_title(text)))
            words = f"answered with a web page{title and f' ({title})'} instead of {expected}"
            hint = "Is this the URL of the API?"
        elif expected == "JSON":
            words, hint = f"the answer is not whole JSON ({len(text)} characters of {kind})", ""
        else:
            words, hint = f"answered with {kind} instead of {expected}", ""
        return self.make(ResponseError, words, response, hint)


def is_no_http(error: Exception) -> bool:
    """Test whether an error means that an answer is not valid HTTP.

    The causes of such an error must not be shown, because they quote the answer.
    """
    return any(type(cause).__module__.startswith(_PARSERS) for cause in _causes(error))


def _system_error(error: BaseException) -> OSError | None:
    """Return the innermost operating system error among the causes of `error`; None if there is none."""
    return next((found for found in reversed([*_causes(error)]) if isinstance(found, OSError)), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its chain of causes. If a connection was tried several times, follow the last attempt.

    A cause may also be an argument of an error. An error's `__context__` does not count, because it may be an unrelated
    exception that the caller was handling when it sent the request.
    """
    while error is not None:
        yield error
        several = cast("tuple[BaseException, ...]", getattr(error, "exceptions", ()))
        inside = next((found for found in error.args if isinstance(found, Exception)), None)
        error = several[-1] if several else error.__cause__ or inside


def _words(error: OSError) -> tuple[str, str]:
    """Return the message and the hint for an operating system error."""
    said = error.strerror or str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        return said, "For a private certificate set SSL_CERT_FILE or give an `http_client`."
    if isinstance(error, ssl.SSLError):
        return said, "Does the server speak https, and not http?"
    if isinstance(error, socket.gaierror):
        return said, "Is the host's name right?"
    if isinstance(error, FileNotFoundError):
        return said, "Does the file that SSL_CERT_FILE names exist?"
    if error.errno:  # asyncio replaces `strerror` with a message of its own
        system = os.strerror(error.errno)
        said = said if system.startswith("Unknown error") else system
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return said, "Raise the limit of open files (`ulimit -n`), or lower the concurrency."
    return said, _IS_IT_RUNNING


def _each(answer: object) -> Sequence[object]:
    """Return the answers in a list, or the only answer."""
    return cast("list[object]", answer) if isinstance(answer, list) else [answer]


def _broken_off(event: dict[str, Any]) -> tuple[str, object]:
    """Return the finish reason of an answer that the server broke off, and its words on that; `("", None)` otherwise.

    The reason has the place and form of OpenAI's protocol, SGLang's, TGI's or Ollama's.
    """
    for part in _each(event.get("choices") or event.get("meta_info") or event.get("details") or event):
        if not isinstance(part, dict):
            continue
        found = cast("dict[str, Any]", part)
        reason, error = found.get("finish_reason") or found.get("done_reason"), found.get("error")
        if type(reason) is dict:
            told = cast("dict[str, Any]", reason)
            reason, error = told.get("type"), {"code": told.get("status_code"), "message": told.get("message")}
        if reason in _FAILURES:
            return reason, error
    return "", None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the number of seconds for which the server asks the client to wait; None if it does not ask."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "")
        if value.isascii() and value.replace(".", "", 1).isdigit():
            return float(value) * unit
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
        date = date if date.tzinfo else date.replace(tzinfo=UTC)  # HTTP dates are in UTC
        return max(date.timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError):
        return None


def _status_of(fields: Mapping[str, Any]) -> int:
    """Return the HTTP status that corresponds to an error within an answer."""
    error = fields.get("error")
    inner = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
    status = next((code for code in (*_codes(inner), *_codes(fields)) if 400 <= code < 600), None)
    if status is not None:
        return status
    kinds = (inner.get("type"), *map(inner.get, _CODES), fields.get("type"), *map(fields.get, _CODES))
    limited = any(isinstance(kind, str) and _LIMITED.search(kind) for kind in kinds)
    return 429 if limited else _TYPES.get(str(fields.get("error_type")), 500)


def _codes(fields: Mapping[str, Any]) -> list[int]:
    """Return the numbers among the codes of an error."""
    codes = [fields[name] for name in _CODES if name in fields]
    codes = [int(code) if isinstance(code, str) and re.fullmatch("[0-9]{3}", code) else code for code in codes]
    return [code for code in codes if type(code) is int]


def _body(text: str) -> object:
    """Parse the body of an error: JSON, or the first line of a plain text, or the title of a web page."""
    with suppress(ValueError):
        return from_json(text, allow_partial=text.lstrip()[:1] in ("{", "["))  # long errors are read in part
    line = (text.strip().splitlines() or [""])[0].strip()
    return _title(text) if line[:1] == "<" else line if line.isprintable() and line[:1] not in ("{", "[") else ""


def _title(page: str) -> str:
    """Return the title of a web page; empty if it has none."""
    found = _TITLE.search(page)
    return " ".join(html.unescape(found[1]).split()) if found else ""


def _shortened(words: str) -> str:
    return words if len(words) <= _QUOTED else words[: _QUOTED - 1] + "…"


def _message(answer: object) -> str:
    """Return the server's reason from the body of an error, in any common format, without data that was sent to it."""
    if isinstance(answer, str):
        return answer.strip()
    if isinstance(answer, list):
        entries = cast("list[object]", answer)
        return "; ".join(filter(None, (_message(one) for one in entries if not isinstance(one, list))))
    if not isinstance(answer, dict):
        return ""
    fields = cast("dict[str, object]", answer)
    if {"loc", "msg"} <= {*fields}:  # pydantic's errors, which also quote the input
        return f"{fields['loc']}: {fields['msg']}"
    metadata = fields.get("metadata")  # OpenRouter's, which has the answer of the provider that it asked
    raw = cast("dict[str, object]", metadata).get("raw") if isinstance(metadata, dict) else None
    found: list[object] = [*map(fields.get, _REASONS), _body(raw) if isinstance(raw, str) else raw]
    return ": ".join(dict.fromkeys(words for one in found if (words := _message(one))))


def _kind(status: int, message: str) -> tuple[type[StatusError], str]:
    """Return the class of the error for an HTTP status, and a hint."""
    if status in (400, 413, 422) and any(words in message.lower() for words in _TOO_LONG):
        return ContextLengthError, "Shorten the prompt, or lower max_tokens."
    if status == 500 and _TOO_LARGE in message:  # not a server error, because a retry would not fit either
        return ContextLengthError, "Start the server with a larger --ubatch-size."
    if status in (401, 403) or (status == 400 and "no connected db" in message.lower()):  # LiteLLM, if a key is wrong
        return AuthenticationError, ""
    if status == 429:
        return RateLimitError, ""
    if status in (502, 504):
        return ServerError, "A proxy answered: is the server behind it running?"
    if status in (408, 424) or (status >= 500 and status != 501):  # TGI sends 424 if a generation failed
        return ServerError, ""
    if status == 404:
        return InvalidRequestError, "Is this the URL of the API, and the model's name right?"
    return (InvalidRequestError if status >= 400 else StatusError), ""
