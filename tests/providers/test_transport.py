"""HTTP: error messages, retries, keys, timeouts, sizes and clients."""

from __future__ import annotations

import copy
import errno
import gzip
import json
import logging
import os
import pickle
import socket
import ssl
import sys
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import SocketStream
from anyio.lowlevel import checkpoint

from cosd_providers import (
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
    Usage,
)
from cosd_providers.http.retries import longest_wait
from cosd_providers.http.transport import Transport

URL = "http://gpu:8080"
KEY = "sk-very-secret"
JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}


def transport(*answers: httpx.Response | Exception, **options: Any) -> tuple[Transport, list[httpx.Request]]:
    """A transport whose server gives these answers in turn, and then the last one always."""
    headers = options.pop("client_headers", None)
    requests: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        found = answers[min(len(requests), len(answers)) - 1]
        if isinstance(found, Exception):
            raise found
        return httpx.Response(found.status_code, headers=found.headers, content=found.content)

    client = httpx.AsyncClient(transport=httpx.MockTransport(handle), headers=headers)
    return Transport(URL, http_client=client, **options), requests


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses made; none takes time."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(anyio, "sleep", sleep)
    return pauses


async def events(found: Transport, usage: Usage | None = None) -> list[dict[str, Any]]:
    async with found.stream("/go", {"prompt": "hello"}, usage=usage or Usage()) as stream:
        return [event async for event in stream]


def error(message: str, code: int = 400) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "type": "some_error"}}


SHORTEN = "Shorten the prompt, or lower max_tokens."
NO_KEY = "No key was given: give api_key, or set COSD_API_KEY_<HOST>."
TOO_LONG = [  # as llama.cpp, vLLM (two) and TGI (two) say it
    (400, "request (920 tokens) exceeds the available context size (256 tokens)"),
    (400, "This model's maximum context length is 512 tokens"),
    (400, "max_tokens=600 cannot be greater than max_model_len=512."),
    (422, "Input validation error: `inputs` must have less than 512 tokens. Given: 600"),
    (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 512. Given: 500 `inputs` tokens"),
]
FIELDS = [{"loc": ["body", "n"], "msg": "too small", "input": "hello"}]


@pytest.mark.parametrize(
    ("status", "body", "kind", "words", "hint"),
    [
        (400, error("no such field"), InvalidRequestError, "400: no such field", ""),
        *[(status, error(words), ContextLengthError, f"{status}: {words}", SHORTEN) for status, words in TOO_LONG],
        (401, error("Invalid API Key"), AuthenticationError, "401: Invalid API Key", NO_KEY),
        (403, {"detail": "no"}, AuthenticationError, "403: no", NO_KEY),
        (400, error("No connected db."), AuthenticationError, "400: No connected db.", NO_KEY),  # LiteLLM without one
        (
            404,
            {"detail": "none"},
            InvalidRequestError,
            "404: none",
            "Is this the URL of the API, and the model's name right?",
        ),
        (418, {}, InvalidRequestError, "HTTP status 418", ""),
        (422, {"error": "bad", "error_type": "validation"}, InvalidRequestError, "422: bad", ""),
        (422, {"detail": FIELDS}, InvalidRequestError, "422: ['body', 'n']: too small", ""),
        (422, {"detail": [1, None, "bad", {}, ["loc", "msg"]]}, InvalidRequestError, "422: bad", ""),
        (422, {"detail": [1]}, InvalidRequestError, "HTTP status 422", ""),
        (424, {"error": "Request failed", "error_type": "generation"}, ServerError, "424: Request failed", ""),
        (429, {"message": "slow down"}, RateLimitError, "429: slow down", ""),
        (500, error("oops", 500), ServerError, "500: oops", ""),
        (501, error("not here"), InvalidRequestError, "501: not here", ""),
        (503, error("busy", 503), ServerError, "503: busy", ""),
        (400, error("x" * 999), InvalidRequestError, f"400: {'x' * 299}…", ""),
    ],
)
async def test_statuses(
    status: int, body: Any, kind: type[StatusError], words: str, hint: str, slept: list[float]
) -> None:
    found, _ = transport(httpx.Response(status, json=body, headers={"x-request-id": "req-7"}))
    for ask in (lambda: found.get("/props"), lambda: found.post("/go", {}), lambda: events(found)):
        with pytest.raises(kind) as caught:
            await ask()
        assert type(caught.value) is kind
        assert (caught.value.args[0], caught.value.hint) == (words, hint)
        assert (caught.value.status, caught.value.request_id, caught.value.endpoint) == (status, "req-7", URL)
        assert caught.value.retryable == (status in (424, 429, 500, 503))


WHY = "the tiny tier allows 16 tokens"
RAW = json.dumps({"error": {"message": WHY, "details": "hello"}})
REASONS: dict[str, tuple[Any, str]] = {  # as many servers and gateways word their errors
    "OpenRouter": ({"error": {"message": "It failed", "code": 400, "metadata": {"raw": WHY}}}, f"It failed: {WHY}"),
    "OpenRouter, JSON": (
        {"error": {"message": "It failed", "code": 400, "metadata": {"raw": RAW}}},
        f"It failed: {WHY}",
    ),
    "Gemini": ([{"error": {"code": 400, "message": WHY, "status": "INVALID_ARGUMENT"}}], WHY),
    "Fastify": ({"statusCode": 400, "error": "Bad Request", "message": WHY}, f"Bad Request: {WHY}"),
    "Cloudflare": ({"success": False, "status": 400, "errors": [{"code": 2001, "message": WHY}]}, WHY),
    "SiliconFlow": ({"code": 400, "msg": WHY, "data": None}, WHY),
    "FastAPI": ({"detail": WHY, "code": 400}, WHY),
    "pydantic": ({"error": {"code": 400, "detail": [{"loc": ["n"], "msg": WHY, "input": "hello"}]}}, f"['n']: {WHY}"),
    "Mistral": ({"object": "error", "code": 400, "message": {"detail": [{"loc": ["n"], "msg": WHY}]}}, f"['n']: {WHY}"),
    "Hugging Face": ({"error": [WHY, "sorry"], "error_type": "validation", "code": 400}, f"{WHY}; sorry"),
    "Anthropic": ({"type": "error", "code": 400, "error": {"type": "invalid_request_error", "message": WHY}}, WHY),
    "said twice": ({"error": {"message": WHY, "code": 400}, "message": WHY}, WHY),
    "long": ({"error": {"message": "x" * 999, "code": 400}}, "x" * 299 + "…"),
    "a key": ({"error": {"code": 400, "message": "x" * 290, "metadata": {"raw": KEY}}}, "x" * 290 + ": ***"),
}


@pytest.mark.parametrize("name", REASONS)
async def test_the_servers_own_reason(name: str) -> None:
    """In an error status, in an answer with a 2xx status, and in an event of a stream."""
    body, why = REASONS[name]
    whole, refused = httpx.Response(200, json=body), httpx.Response(400, json=body)
    event = httpx.Response(200, text=f"data: {json.dumps(body)}\n\n", headers=EVENTS)
    asked = [transport(one, api_key=KEY)[0].post("/go", {}, usage=Usage()) for one in (refused, whole)]
    asked += [events(transport(one, api_key=KEY)[0]) for one in (refused, whole, event)]
    for one in asked:
        with pytest.raises(InvalidRequestError) as caught:
            await one
        assert (caught.value.args[0], caught.value.status) == (f"400: {why}", 400)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("text/plain", f"{WHY}\nat line 7\n", f"502: {WHY}"),
        ("", "404 page not found\n", "502: 404 page not found"),
        ("text/plain", "502 no upstream", "502 no upstream"),
        ("application/json", json.dumps(WHY), f"502: {WHY}"),
        ("text/html", "<html><head><title>502\n Bad Gateway &amp; more</title></head>hello", "502 Bad Gateway & more"),
        ("text/html", "<!DOCTYPE html>\n<TITLE lang='en'> Attention </TITLE>", "502: Attention"),
        ("text/html", "<h1>hello</h1>", "HTTP status 502"),
        ("text/plain", "", "HTTP status 502"),
        ("text/plain", "\x1b[31mred", "HTTP status 502"),
        ("text/plain", "y" * 999, f"502: {'y' * 299}…"),
        ("text/plain", f"{'y' * 290} {KEY}", f"502: {'y' * 290} ***"),
        ("application/json", '{"error": "hello', "HTTP status 502"),
        ("application/json", '{"detail": [{"loc": ["n"], "msg": "bad", "input": "hello', "502: ['n']: bad"),
    ],
)
async def test_a_reason_that_is_no_whole_json(kind: str, text: str, words: str) -> None:
    found, _ = transport(httpx.Response(502, content=text.encode(), headers={"content-type": kind}), api_key=KEY)
    with pytest.raises(ServerError) as caught:
        await found.get("/props", once=True)
    assert caught.value.args[0] == words


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"message": "m", "type": "rate_limit_error"}, 429),
        ({"message": "m", "code": "rate_limit_exceeded"}, 429),
        ({"message": "m", "status": "RESOURCE_EXHAUSTED"}, 429),
        ({"message": "m", "type": "insufficient_quota"}, 429),
        ({"message": "m", "type": "TooManyRequests"}, 429),
        ({"message": "m", "code": "429"}, 429),
        ({"message": "m", "status": 429, "code": 7}, 429),
        ({"message": "m", "code": 20015}, 500),
        ({"message": "m", "type": "server_error"}, 500),
    ],
)
async def test_an_error_without_a_status_has_that_of_its_kind(error: Any, status: int) -> None:
    found, _ = transport(httpx.Response(200, text=f"data: {json.dumps({'error': error})}\n\n", headers=EVENTS))
    with pytest.raises(StatusError, match=f"{status}: m") as caught:
        await events(found)
    assert (caught.value.status, type(caught.value)) == (status, RateLimitError if status == 429 else ServerError)


async def test_an_answer_with_a_code_is_no_error() -> None:
    answers: tuple[dict[str, Any], ...] = (
        {"code": 0, "msg": "ok"},
        {"choices": [], "code": 20000, "message": "OK"},
        {"code": 500},
        {"errors": []},
    )
    for answer in answers:
        found, _ = transport(httpx.Response(200, json=answer))
        assert await found.post("/go", {}, usage=Usage()) == answer


async def test_the_key_is_in_no_error() -> None:
    found, requests = transport(
        httpx.Response(401, json=error(f"bad key {KEY}, or hdr-secret")), api_key=KEY, headers={"X": "hdr-secret"}
    )
    with pytest.raises(AuthenticationError, match=r"bad key \*\*\*, or \*\*\*\. The key was refused"):
        await found.get("/props")
    assert requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert requests[0].headers["x"] == "hdr-secret"
    assert repr(found) == "Transport('http://gpu:8080')"
    restored = pickle.loads(pickle.dumps(found))
    assert "secret" not in repr(restored.__dict__.values())
    assert b"hdr-secret" not in pickle.dumps(found)
    assert KEY.encode() not in pickle.dumps(found)


async def test_a_key_at_the_cut_of_a_long_message() -> None:
    for length in range(250, 300):
        found, _ = transport(httpx.Response(400, json=error("x" * length + " " + KEY + " is wrong")), api_key=KEY)
        with pytest.raises(InvalidRequestError) as caught:
            await found.get("/props")
        assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["", "Bearer ", "Basic ", "token "])
@pytest.mark.parametrize("name", ["Authorization", "authorization", "X-API-Key"])
async def test_keys_in_headers(name: str, scheme: str) -> None:
    answer = httpx.Response(401, json=error(f"Bearer {KEY.upper()} is no token"), headers={"x-request-id": f"r-{KEY}"})
    for options in ({"headers": {name: scheme + KEY}}, {"client_headers": {name: scheme + KEY}}):
        found, _ = transport(answer, **options)
        with pytest.raises(AuthenticationError) as caught:
            await found.get("/props")
        assert caught.value.args[0] in ("401: Bearer *** is no token", "401: *** is no token")
        assert caught.value.request_id == "r-***"
        assert caught.value.hint == "The key was refused."


async def test_a_redirect_to_the_key() -> None:
    found, _ = transport(httpx.Response(307, headers={"location": f"http://{KEY}.example/"}), api_key=KEY.upper())
    with pytest.raises(StatusError, match=r"redirects to http://\*\*\*\.example; give"):
        await found.get("/props")


async def test_white_space_around_a_key_is_none_of_it() -> None:
    found, requests = transport(httpx.Response(200, json=1), api_key=f" {KEY}\r\n")
    await found.get("/props")
    assert requests[0].headers["authorization"] == f"Bearer {KEY}"
    found, requests = transport(httpx.Response(200, json=1), api_key=" ")
    await found.get("/props")
    assert "authorization" not in requests[0].headers


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"api_key": "secret\nsecret"}, "the api_key has characters that cannot be sent"),
        ({"api_key": "secrét"}, "the api_key has characters that cannot be sent"),
        ({"headers": {"X": "secret\n"}}, "the value of the header 'X' has characters that cannot be sent"),
        ({"headers": {"X": "secret "}}, "the value of the header 'X' begins or ends with white space"),
        ({"headers": {"X": " secret"}}, "the value of the header 'X' begins or ends with white space"),
        ({"headers": {"secret X": "a"}}, "the name of a header is empty or has characters that cannot be sent"),
        ({"headers": {"": "a"}}, "the name of a header is empty"),
        ({"headers": {"authorization": "secret"}, "api_key": "secret"}, "both an api_key and an Authorization header"),
        ({"base_url": "http://me:secret@gpu"}, "the URL holds credentials; give the key as api_key"),
        ({"base_url": "http://gpu?key=secret"}, "has no '.' and no '#'"),
        ({"base_url": "http://secret:99999"}, "the URL cannot be read"),
        ({"base_url": "http://gpu:secret"}, "the URL cannot be read"),
        ({"base_url": "http://secret\u2100"}, "the URL cannot be read"),
        ({"base_url": "http://xn--secret-"}, "the URL cannot be read"),
    ],
)
def test_what_cannot_be_sent_is_refused_and_not_shown(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        Transport(**{"base_url": URL, **options})
    assert "secret" not in "".join(traceback.format_exception(caught.value)).split("ValueError: ")[-1]


def test_an_empty_key_beside_a_header_is_none() -> None:
    assert Transport(URL, api_key="", headers={"Authorization": "Bearer x"})._headers == {"Authorization": "Bearer x"}


async def test_a_header_that_is_not_valid_is_not_shown() -> None:
    client = httpx.AsyncClient(headers={"X": "secret "})
    async with server(hold) as url, client:
        with pytest.raises(InvalidRequestError, match=r"not valid HTTP and was not sent. Check the headers") as caught:
            await Transport(url, http_client=client).get("/props")
    shown: BaseException | None = caught.value
    while shown is not None:
        assert "secret" not in str(shown)
        shown = shown.__cause__ or shown.__context__


def test_copies_have_no_keys() -> None:
    found = Transport(URL, api_key=KEY, headers={"X": KEY}, timeout=3)
    for twin in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert (twin._headers, twin._timeout.read, twin.endpoint) == ({}, 3, URL)
    assert "neither key" in (Transport.__doc__ or "")


async def test_a_redirect_is_not_followed() -> None:
    moved = httpx.Response(307, headers={"location": f"https://me:{KEY}@other.example/x?y=1"})
    found, requests = transport(moved, api_key=KEY)
    with pytest.raises(StatusError, match=r"the server redirects to https://other\.example; give that URL") as caught:
        await found.get("/props")
    assert len(requests) == 1
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("/login?next=%2Fprops", "redirects to another page of its own. .* does it require a login"),
        (f"{URL}/props/", "redirects to another page of its own"),
        ("http://[bad", "redirects to an invalid URL"),
        ("javascript:alert(1)", "redirects to an invalid URL"),
    ],
)
async def test_a_redirect_that_no_url_can_be_told_of(location: str, words: str) -> None:
    found, requests = transport(httpx.Response(302, headers={"location": location}))
    with pytest.raises(StatusError, match=words):
        await found.get("/props")
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx.Response(200, html="<html>hi</html>"), "a web page instead of .* Is this the URL of the API"),
        (httpx.Response(200, html="<title>Sign in</title>"), r"a web page \(Sign in\) instead of"),
        (httpx.Response(200, text="<!doctype html>"), "a web page instead of"),
        (httpx.Response(200, text='{"a": [1, 2', headers=JSON), "not whole JSON|application/json instead of"),
        (httpx.Response(200, text="", headers=JSON), "not whole JSON|application/json instead of"),
        (httpx.Response(204), "not whole JSON|no content type instead of a stream of events"),
    ],
)
async def test_answers_that_are_none(response: httpx.Response, words: str) -> None:
    found, _ = transport(response)
    for ask in (lambda: found.get("/props"), lambda: found.post("/go", {}), lambda: events(found)):
        with pytest.raises(ResponseError, match=words):
            await ask()


async def test_events() -> None:
    lines = 'data: null\n\n: comment\n\ndata: {"a":\ndata: "x\u2028y"}\n\ndata: {"b": 1}\r\n\r\n'
    lines += 'event: ping\n\nretry: 300\n\nid: 7\n\ndata:\n\ndata: {"error": null}\n\n'
    lines += 'data: [DONE]\n\ndata: {"c": 1}\n\n'
    found, _ = transport(httpx.Response(200, text=lines, headers=EVENTS))
    usage = Usage()
    assert await events(found, usage) == [{"a": "x\u2028y"}, {"b": 1}, {"error": None}]
    assert usage.requests == 1
    assert usage.first_token_seconds is not None
    assert usage.busy_seconds >= usage.first_token_seconds


@pytest.mark.parametrize(
    ("kind", "text"),
    [("Text/Event-Stream", 'data: \r\ndata: {"a": 1}\r\n\r\n'), ("Application/X-NDJSON", '\r\n{"a": 1}\r\n \n')],
)
async def test_kinds_of_streams_in_any_case_and_lines_of_white_space(kind: str, text: str) -> None:
    found, _ = transport(httpx.Response(200, text=text, headers={"content-type": kind}))
    assert await events(found) == [{"a": 1}]


@pytest.mark.parametrize(
    ("lines", "kind", "words"),
    [
        ("data: {oops\n\n", ResponseError, "an event of the stream is not JSON"),
        ('data: {"error": {"code": 500, "message": "boom"}}\n\n', ServerError, "500: boom"),
        ('data: {"error": {"code": 400, "message": "over the context size"}}\n\n', ContextLengthError, "context size"),
        ('data: {"error": "boom"}\n\n', ServerError, "500: boom"),
        *(
            (
                f"data: {json.dumps(event)}\n\n",
                ResponseError,
                r"^http://.*broke the answer off \(finish reason '.*'\)\. Its",
            )
            for event in (
                {"choices": [{"text": "a", "finish_reason": None}, {"text": "", "finish_reason": "abort"}]},  # OpenAI
                {"text": "a", "meta_info": {"finish_reason": {"type": "abort"}}},  # SGLang
                {"token": {"text": "a"}, "details": {"finish_reason": "error"}},  # TGI
                {"response": "a", "done": True, "done_reason": "error"},  # Ollama
            )
        ),
    ],
)
async def test_errors_within_a_stream(lines: str, kind: type[ProviderError], words: str) -> None:
    found, requests = transport(httpx.Response(200, text='data: {"a": 1}\n\n' + lines, headers=EVENTS))
    with pytest.raises(kind, match=words):
        await events(found)
    assert len(requests) == 1  # no retry once an answer has begun


# Attempts.


async def test_tries_again(slept: list[float]) -> None:
    answers: list[httpx.Response | Exception] = [
        httpx.Response(503),
        httpx.Response(429, headers={"retry-after": "7"}),
        httpx.ConnectError("no"),
        httpx.Response(200, json=1),
    ]
    found, requests = transport(*answers)
    usage = Usage()
    assert await found.post("/go", {}, usage=usage) == 1
    assert (len(requests), usage.requests, usage.retries) == (4, 1, 3)
    assert 0.25 <= slept[0] <= 0.5
    assert slept[1] == 7
    assert 1 <= slept[2] <= 1.25


def unreachable(cause: BaseException) -> httpx.ConnectError:
    """The error that httpx raises: its own, that of httpcore with the cause in its arguments, and the cause."""
    error = httpx.ConnectError("All connection attempts failed")
    error.__cause__ = Exception(OSError("All connection attempts failed"))
    error.__cause__.args[0].__cause__ = cause
    return error


REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 9)")
UNKNOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
UNTRUSTED = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed")
PLAIN = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]")
FILES = OSError(errno.EMFILE, "sockets")


@pytest.mark.parametrize(
    ("answer", "attempts"),
    [
        (httpx.Response(500), 4),
        (httpx.ConnectError("no"), 4),
        (unreachable(REFUSED), 4),
        (httpx.ConnectTimeout(""), 2),
        (unreachable(UNKNOWN), 2),
        (httpx.ReadTimeout(""), 2),
        (httpx.PoolTimeout(""), 2),
        *[(httpx.Response(status), 4) for status in (408, 424, 429, 502, 503, 504, 529)],
    ],
)
async def test_gives_up(answer: Any, attempts: int, slept: list[float]) -> None:
    found, requests = transport(answer)
    with pytest.raises((ServerError, ConnectError, RateLimitError, ProviderTimeoutError)) as caught:
        await found.get("/props")
    assert len(requests) == attempts
    assert sum(slept) <= 2.5
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("answer", "retryable"),
    [
        (httpx.Response(400), False),
        (httpx.Response(401), False),
        (httpx.Response(501), False),
        (httpx.Response(503, headers={"x-should-retry": "false"}), False),
        (httpx.LocalProtocolError("x"), False),
        (httpx.UnsupportedProtocol("x"), False),
        (RuntimeError("closed"), False),
        (unreachable(UNTRUSTED), False),
        (unreachable(PLAIN), False),
        (PLAIN, False),
        (FileNotFoundError(errno.ENOENT, "No such file"), False),
    ],
)
async def test_does_not_try_again(answer: Any, retryable: bool, slept: list[float]) -> None:
    found, requests = transport(answer)
    with pytest.raises(ProviderError) as caught:
        await found.get("/props")
    assert len(requests) == 1
    assert slept == []
    assert caught.value.retryable is retryable


async def test_waits_for_a_server_that_loads(slept: list[float]) -> None:
    loading = httpx.Response(503, json=error("Loading model", 503))
    found, requests = transport(*[loading] * 20, httpx.Response(200, json=1))
    assert await found.get("/props") == 1
    assert len(requests) == 21
    assert max(slept) <= 2


async def test_loading_is_what_the_server_says_not_what_it_is_called(slept: list[float]) -> None:
    busy = [httpx.Response(503, json=error("busy", 503))] * 4
    client = transport(*busy, httpx.Response(200, json=1))[0].http_client
    with pytest.raises(ServerError):
        await Transport("http://loading-dock:8080", http_client=client).get("/props")
    assert len(slept) == 3


@pytest.mark.parametrize("wait", ["²".encode("latin-1"), b"soon", b"-1", b"Wed, 99 Oct 2026 07:28:00 GMT"])
async def test_waits_that_are_no_number(wait: bytes) -> None:
    found, _ = transport(httpx.Response(400, headers=[(b"retry-after", wait)]))
    with pytest.raises(InvalidRequestError, match="HTTP status 400"):
        await found.get("/props")


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after-ms": "x", "retry-after": "7"}, 7.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:12 GMT"}, 12.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2026 09:28:12 +0200"}, 12.0),
        ({"retry-after": "Wed Oct 21 07:28:12 2026"}, 12.0),
    ],
)
async def test_the_wait_that_a_server_asks_for(
    headers: dict[str, str], wait: float, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosd_providers.http.failures.time.time", lambda: 1792567680.0)  # 21 October 2026, 07:28
    found, _ = transport(httpx.Response(429, headers=headers), httpx.Response(200, json=1))
    await found.get("/props")
    assert slept == [wait]


async def test_a_route_that_is_perhaps_not_there_is_asked_once(slept: list[float]) -> None:
    for answer in (httpx.Response(500), httpx.ReadTimeout("")):
        found, requests = transport(answer)
        with pytest.raises((ServerError, ProviderTimeoutError)):
            await found.get("/info", once=True)
        assert len(requests) == 1
    assert slept == []


async def test_who_only_asks_what_it_is_waits_ten_seconds(slept: list[float]) -> None:
    for timeout, limit in ((600, 10), (httpx.Timeout(None), 10), (3, 3)):
        found, requests = transport(httpx.ReadTimeout(""), timeout=timeout)
        with pytest.raises(ProviderTimeoutError, match=f"no answer within {limit} s") as caught:
            await found.get("/v1/models", quick=True)
        assert [request.extensions["timeout"]["read"] for request in requests] == [limit]
        assert ("A longer wait" in str(caught.value)) == (limit == 3)
    found, requests = transport(httpx.Response(500))
    with pytest.raises(ServerError):
        await found.get("/v1/models", quick=True)
    assert len(requests) == 4


async def test_an_error_says_how_long_the_server_wants_to_wait(slept: list[float]) -> None:
    for headers, wait in (({"retry-after": "7"}, 7), ({}, None)):
        found, _ = transport(httpx.Response(429, headers=headers))
        with pytest.raises(RateLimitError) as caught:
            await found.get("/props")
        assert caught.value.retry_after == wait
        assert pickle.loads(pickle.dumps(caught.value)).retry_after == wait


async def test_a_wait_that_is_too_long_fails_at_once(slept: list[float]) -> None:
    """A wait of up to a minute, for which limits per minute ask, is not too long."""
    limited = httpx.Response(429, json={"message": "quota used up"}, headers={"retry-after": "3600"})
    found, requests = transport(limited, httpx.Response(200, json=1))
    words = "429: quota used up; the server asks to wait 3600 s, which is more than the 60 s that a retry waits for"
    with pytest.raises(RateLimitError) as caught:
        await found.get("/props")
    error = caught.value
    assert (error.args[0], error.retry_after, error.retryable) == (words, 3600, True)
    assert (len(requests), slept) == (1, [])
    found, _ = transport(httpx.Response(429, headers={"retry-after": "60"}), httpx.Response(200, json=1))
    assert await found.get("/props") == 1
    assert slept == [60]


async def test_a_caller_may_want_to_wait_less(slept: list[float]) -> None:
    words = "HTTP status 429; the server asks to wait 7 s, which is more than the {} s that a retry waits for"
    for header, longest, message in (
        ({"retry-after": "7"}, 0, words.format(0)),
        ({"retry-after": "7"}, 5, words.format(5)),
        ({}, 0, "HTTP status 429"),
    ):
        found, requests = transport(httpx.Response(429, headers=header))
        with longest_wait(lambda error, longest=longest: longest), pytest.raises(RateLimitError) as caught:  # type: ignore[misc]
            await found.get("/props")
        assert (caught.value.args[0], len(requests), slept) == (message, 1, [])
    found, requests = transport(httpx.Response(500), httpx.Response(200, json=1))
    with longest_wait(lambda _: 0):
        assert await found.get("/props") == 1


async def test_a_wait_beyond_a_deadline_fails_at_once(slept: list[float]) -> None:
    for header, words in (("20", "the time that is left"), ("3600", "the 60 s that a retry waits for")):
        found, requests = transport(httpx.Response(503, headers={"retry-after": header}))
        with anyio.fail_after(10), pytest.raises(ServerError) as caught:
            await found.get("/props")
        wait = f"HTTP status 503; the server asks to wait {header} s, which is more than {words}"
        assert (caught.value.args[0], len(requests), slept) == (wait, 1, [])
    found, requests = transport(httpx.Response(503, headers={"retry-after": "20"}), httpx.Response(200, json=1))
    with anyio.fail_after(100):
        assert await found.get("/props") == 1
    assert slept == [20]


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (httpx.ConnectError("all failed"), "no connection: all failed. Is the server running"),
        (unreachable(REFUSED), "no connection: Connection refused. Is the server running"),
        (
            unreachable(ExceptionGroup("", [OSError(errno.ENETUNREACH, "x"), REFUSED])),
            "no connection: Connection refused. Is the server running",
        ),
        (unreachable(UNKNOWN), "no connection: Name or service not known. Is the host's name right"),
        (unreachable(FILES), "no connection: Too many open files. Raise the limit of open files .* lower the conc"),
        (FILES, "no connection: Too many open files. Raise"),
        (
            unreachable(FileNotFoundError(errno.ENOENT, "No such file")),
            "No such file. Does the file that SSL_CERT_FILE names exist",
        ),
        (unreachable(UNTRUSTED), "VERIFY_FAILED] self-signed. .* SSL_CERT_FILE or give an `http_client`"),
        (unreachable(PLAIN), "WRONG_VERSION_NUMBER]. Does the server speak https"),
        (httpx.UnsupportedProtocol("no 'ftp://'"), "no 'ftp://'. Is the URL right"),
        (httpx.ConnectTimeout(""), "no connection: nothing within 3 s. Is the server running"),
        (httpx.ReadTimeout(""), "no answer within 7 s. A longer wait may help"),
        (httpx.WriteTimeout(""), "the server accepted no more of the request within 9 s. A longer wait may help"),
        (httpx.PoolTimeout(""), "no free connection within 11 s. Allow the `http_client` more connections, or lower"),
        (httpx.RemoteProtocolError("Server disconnected"), "the server closed the connection without an answer"),
        (httpx.LocalProtocolError("Illegal value b'secret'"), "the request is not valid HTTP and was not sent"),
        (RuntimeError("bound to another loop"), "cannot be used: bound to another loop. Give an `http_client`"),
    ],
)
async def test_failures(failure: Exception, words: str, slept: list[float]) -> None:
    found, _ = transport(failure, timeout=httpx.Timeout(connect=3, read=7, write=9, pool=11))
    with pytest.raises(ProviderError, match=words) as caught:
        await found.get("/props")
    assert isinstance(caught.value, ProviderTimeoutError | ConnectError | InvalidRequestError)


async def test_what_the_caller_was_handling_is_no_cause(slept: list[float]) -> None:
    found, _ = transport(httpx.ConnectError("no"))
    try:
        raise UNKNOWN
    except OSError:
        with pytest.raises(ConnectError, match=r"no connection: no. Is the server running"):
            await found.get("/props")
    assert len(slept) == 3


async def test_a_timeout_without_a_limit(slept: list[float]) -> None:
    found, _ = transport(httpx.PoolTimeout(""), timeout=httpx.Timeout(None))
    with pytest.raises(ProviderTimeoutError, match="no free connection in time"):
        await found.get("/props")


@pytest.mark.usefixtures("no_waiting")
async def test_what_needs_no_generating_waits_no_longer_than_a_minute() -> None:
    for timeout, small in ((600, 60), (httpx.Timeout(None), 60), (3, 3)):
        found, requests = transport(httpx.Response(200, json=1), timeout=timeout)
        await found.get("/props")
        await found.post("/tokenize", {})
        await found.post("/completion", {}, usage=Usage())
        reads = [request.extensions["timeout"]["read"] for request in requests]
        assert reads == [small, small, found._timeout.read]
    found, _ = transport(httpx.ReadTimeout(""), timeout=600)
    with pytest.raises(ProviderTimeoutError, match=r"no answer within 60 s$"):
        await found.get("/props")
    with pytest.raises(ProviderTimeoutError, match=r"no answer within 600 s. A longer wait may help"):
        await found.post("/completion", {}, usage=Usage())


async def test_a_client_that_is_closed() -> None:
    found, _ = transport(httpx.Response(200, json=1))
    assert found.http_client is not None
    await found.http_client.aclose()
    with pytest.raises(ConnectError, match=r"has been closed. Give an `http_client` that is open") as caught:
        await found.get("/props")
    assert not caught.value.retryable


@pytest.mark.parametrize("own", [True, False], ids=["a user's client", "ours"])
async def test_half_a_surrogate_pair_cannot_be_sent(own: bool, each_stack: str) -> None:
    found, requests = transport(httpx.Response(200, json=1))
    if not own:
        found = Transport(URL)
    with pytest.raises(InvalidRequestError, match="half a surrogate pair") as caught:
        await found.post("/go", {"prompt": "hello \ud800"})
    assert requests == []
    assert caught.value.__context__ is None  # which would hold the whole body
    assert "hello" not in str(caught.value)


# Sizes.


def flood(status: int, kind: str, start: bytes = b"") -> tuple[Transport, list[int]]:
    """A server that answers with one megabyte after another, and the ones taken."""
    taken: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        yield start
        for number in range(200):
            taken.append(number)
            yield b" " * 2**20

    answer = httpx.MockTransport(lambda _: httpx.Response(status, headers={"content-type": kind}, content=body()))
    return Transport(URL, http_client=httpx.AsyncClient(transport=answer)), taken


async def test_answers_without_end() -> None:
    found, taken = flood(200, "application/json")
    with pytest.raises(ResponseError, match="the answer is longer than 64 MB"):
        await found.post("/go", {})
    assert len(taken) == 65
    found, taken = flood(200, "text/event-stream", b'data: {"a": 1}\n\ndata: ')
    with pytest.raises(ResponseError, match="the answer is longer than 64 MB"):
        await events(found)
    assert len(taken) in (64, 65)
    found, taken = flood(400, "application/json", b'{"error": "')
    with pytest.raises(InvalidRequestError, match="HTTP status 400"):
        await found.post("/go", {})
    assert len(taken) == 1


# Real sockets.


@asynccontextmanager
async def server(handle: Callable[[SocketStream, int], Awaitable[None]]) -> AsyncIterator[str]:
    """A server on loopback that runs `handle` for each connection."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    count = 0

    async def serve(stream: SocketStream) -> None:
        nonlocal count
        count += 1
        async with stream:
            await stream.receive()
            await handle(stream, count)

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield f"http://127.0.0.1:{port}"
        tasks.cancel_scope.cancel()


GOOD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n1"
CUT = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: 99\r\n\r\n%s"


@pytest.mark.usefixtures("each_stack")
async def test_a_server_that_hangs_up_is_asked_again_at_once(slept: list[float]) -> None:
    async def handle(stream: SocketStream, count: int) -> None:
        if count > 1:
            await stream.send(GOOD)

    async with server(handle) as url, Transport(url) as found:
        usage = Usage()
        assert await found.post("/go", {}, usage=usage) == 1
        assert (usage.retries, slept) == (1, [0])


@pytest.mark.usefixtures("each_stack")
async def test_an_answer_that_is_not_http(slept: list[float]) -> None:
    """It may be the rest of another answer: a fresh connection is tried at once."""

    async def handle(stream: SocketStream, count: int) -> None:
        await stream.send(GOOD if count == 2 else b"SSH-2.0-OpenSSH\r\n\r\n")

    async with server(handle) as url, Transport(url) as found:
        assert await found.get("/props") == 1
        assert slept == [0]
        with pytest.raises(ConnectError, match=r"the answer is not valid HTTP. Is the URL right, and is the answer as"):
            await found.get("/props")
        assert len(slept) == 1 + 3


@pytest.mark.usefixtures("each_stack")
async def test_connections_that_break(slept: list[float]) -> None:
    async def handle(stream: SocketStream, count: int) -> None:
        await stream.send(
            CUT % ((b"application/json", b"[1, 2") if count <= 5 else (b"text/event-stream", b'data: {"a": 1}\n\n'))
            if count != 2
            else GOOD
        )

    async with server(handle) as url, Transport(url) as found:
        usage = Usage()
        assert await found.post("/go", {}, usage=usage) == 1  # part of an answer does not count
        assert (usage.requests, usage.retries) == (1, 1)
        with pytest.raises(ResponseError, match="the connection broke in the middle of the answer") as caught:
            await found.get("/props")
        assert caught.value.retryable
        assert len(slept) == 1 + 3
        async with found.stream("/go", {}, usage=Usage()) as stream:
            assert await anext(stream) == {"a": 1}
            with pytest.raises(ResponseError, match="the connection broke in the middle of the answer"):
                await anext(stream)


@pytest.mark.usefixtures("each_stack")
async def test_a_server_that_never_answers(slept: list[float]) -> None:
    async def handle(stream: SocketStream, count: int) -> None:
        await anyio.sleep_forever()

    async with server(handle) as url, Transport(url, timeout=0.5) as found:  # connecting has to be faster
        with pytest.raises(ProviderTimeoutError, match=r"no answer within 0.5 s. A longer wait may help"):
            await found.get("/props")
        assert isinstance(ProviderTimeoutError(""), TimeoutError)


@pytest.mark.usefixtures("each_stack")
async def test_a_server_that_takes_nothing_more(slept: list[float]) -> None:
    async with server(hold) as url, Transport(url, timeout=0.2) as found:
        with pytest.raises(ProviderTimeoutError, match=r"accepted no more of the request within 0.2 s. A longer wait"):
            await found.post("/go", {"prompt": "x" * 2**24}, usage=Usage())


async def hold(stream: SocketStream, count: int) -> None:
    """Never answers."""
    await anyio.sleep_forever()


@pytest.mark.usefixtures("each_stack")
async def test_an_answer_that_stops() -> None:
    async def handle(stream: SocketStream, count: int) -> None:
        await stream.send(CUT % (b"text/event-stream", b'data: {"a": 1}\n\n'))
        await anyio.sleep_forever()

    async with server(handle) as url, Transport(url, timeout=0.4) as found:
        with pytest.raises(ProviderTimeoutError, match=r"the answer stopped: nothing more within 0.4 s. A longer"):
            await events(found)


@pytest.mark.usefixtures("each_stack")
async def test_refused(slept: list[float]) -> None:
    with pytest.raises(ConnectError, match=r"http://127.0.0.1:9: no connection: .*refused. Is the server running"):
        await Transport("http://127.0.0.1:9").get("/props")


@pytest.mark.usefixtures("each_stack")
async def test_leaving_a_stream_closes_its_connection() -> None:
    closed = anyio.Event()

    async def handle(stream: SocketStream, count: int) -> None:
        await stream.send(b'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {"a": 1}\n\n')
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()
        closed.set()

    async with server(handle) as url, Transport(url) as found:
        usage = Usage()
        async with found.stream("/go", {}, usage=usage) as stream:
            await anext(stream)
        with anyio.fail_after(1):
            await closed.wait()
        assert usage.busy_seconds > 0


@pytest.mark.usefixtures("each_stack")
@pytest.mark.parametrize("keep", [True, False])
async def test_a_stream_that_keeps_its_connection_or_not(keep: bool) -> None:
    connections = 0

    async def handle(stream: SocketStream, count: int) -> None:
        nonlocal connections
        connections = count
        with suppress(anyio.EndOfStream):
            while True:
                await stream.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9\r\n\r\n")
                await stream.send(b"data: 1\n\n")
                await stream.receive()

    async with server(handle) as url, Transport(url) as found:
        for _ in range(2):
            async with found.stream("/go", {}, usage=Usage(), keep_alive=keep) as stream:
                assert [event async for event in stream] == []
        assert connections == (1 if keep else 2)


DONE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n18\r\n"
DONE += b"data: {}\n\ndata: [DONE]\n\n\r\n"


@pytest.mark.usefixtures("each_stack")
@pytest.mark.parametrize("parts", [(DONE + b"0\r\n\r\n",), (DONE, b"0\r\n\r\n")], ids=["at once", "in two parts"])
async def test_a_stream_that_is_done_gives_its_connection_back(
    parts: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosd_providers.http.streams._LAST_SECONDS", 60)
    connections = 0

    async def handle(stream: SocketStream, count: int) -> None:
        nonlocal connections
        connections = count
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                for part in parts:
                    await stream.send(part)
                    await checkpoint()
                await stream.receive()

    async with server(handle) as url, Transport(url) as found:
        for _ in range(3):
            assert await events(found) == [{}]
    assert connections == 1


async def test_a_stream_that_is_done_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosd_providers.http.streams._LAST_SECONDS", 0.01)

    async def handle(stream: SocketStream, count: int) -> None:
        await stream.send(DONE)
        await anyio.sleep_forever()

    async with server(handle) as url, Transport(url) as found:
        assert await events(found) == [{}]


@pytest.mark.usefixtures("each_stack")
async def test_a_cancelled_request_closes_its_connection() -> None:
    asked, closed = anyio.Event(), anyio.Event()

    async def handle(stream: SocketStream, count: int) -> None:
        asked.set()
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()
        closed.set()

    async with server(handle) as url, Transport(url) as found:
        usage = Usage()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: found.post("/go", {}, usage=usage))
                await asked.wait()
                group.cancel_scope.cancel()
            await closed.wait()
        assert usage.busy_seconds > 0


@pytest.mark.usefixtures("each_stack")
async def test_a_redirect_is_not_followed_to_another_host() -> None:
    asked = list[bytes]()

    async def other(stream: SocketStream, count: int) -> None:
        asked.append(b"")

    async with server(other) as target:

        async def handle(stream: SocketStream, count: int) -> None:
            await stream.send(f"HTTP/1.1 307 Go\r\nlocation: {target}/x\r\ncontent-length: 0\r\n\r\n".encode())

        async with server(handle) as url, Transport(url, api_key=KEY) as found:
            with pytest.raises(StatusError, match=f"the server redirects to {target}; give that URL"):
                await found.post("/go", {})
    assert asked == []


async def receive_request(stream: SocketStream) -> bytes:
    """The next request, at least its headers."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
    return data


@pytest.mark.usefixtures("each_stack")
async def test_cookies_come_back() -> None:
    """A balancer knows by them which server has the prompt in its cache."""
    seen: list[bytes] = []

    async def handle(stream: SocketStream, count: int) -> None:
        await stream.send(GOOD.replace(b"\r\n\r\n", b"\r\nset-cookie: server=7; Path=/\r\n\r\n"))
        for _ in range(2):
            seen.append(await receive_request(stream))
            await stream.send(GOOD)

    async with server(handle) as url, Transport(url) as found:
        assert [await found.get("/props") for _ in range(3)] == [1, 1, 1]
    assert all(b"cookie: server=7\r\n" in request.lower() for request in seen)


@pytest.mark.usefixtures("each_stack")
async def test_answers_that_are_compressed() -> None:
    packed = gzip.compress(b'{"a": "' + b"x" * 999 + b'"}')
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n"

    async def handle(stream: SocketStream, count: int) -> None:
        await stream.send(head % len(packed) + packed)

    async with server(handle) as url, Transport(url) as found:
        assert await found.post("/go", {}) == {"a": "x" * 999}


@pytest.mark.usefixtures("each_stack")
async def test_the_same_is_sent() -> None:
    seen: list[bytes] = []

    async def handle(stream: SocketStream, count: int) -> None:
        await stream.send(GOOD)
        request = await receive_request(stream)
        while not request.endswith(b"}"):
            request += await stream.receive()
        seen.append(request)
        await stream.send(GOOD)

    async with server(handle) as url, Transport(url, api_key=KEY, headers={"User-Agent": "mine"}) as found:
        await found.get("/props")
        await found.post("/go", {"a": "ü", "b": [1, None]}, usage=Usage())
    head, body = seen[0].split(b"\r\n\r\n")
    first, *headers = head.decode().split("\r\n")
    sent = {name.lower(): value for name, value in (line.split(": ", 1) for line in headers)}
    compressed = sent.pop("accept-encoding")
    assert (first, body.decode()) == ("POST /go HTTP/1.1", '{"a":"ü","b":[1,null]}')
    assert compressed.startswith("gzip, deflate")
    assert sent == {
        "accept": "*/*",
        "authorization": f"Bearer {KEY}",
        "connection": "keep-alive",
        "content-length": str(len(body)),
        "content-type": "application/json",
        "host": url.removeprefix("http://"),
        "user-agent": "mine",
    }


#: A program that asks, forks within its event loop, where the child ends, and behind it, where both ask again.
FORKS = """
import asyncio, os, sys
from cosd_providers.http.transport import Transport

transport = Transport(sys.argv[1])

def say(answer):
    os.write(1, f"{answer}\\n".encode())

async def ask(times, fork=False):
    async with transport:
        for _ in range(times):
            say(await transport.get("/props"))
        if fork and os.fork() == 0:
            os._exit(0)
        say(await transport.get("/props"))

asyncio.run(ask(2, fork=True))
os.wait()
asyncio.run(transport.get("/props"))  # which nobody closes
child = os.fork()
asyncio.run(ask(1))
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes of POSIX")
@pytest.mark.extended
async def test_forks_have_connections_of_their_own(each_stack: str) -> None:
    """A child that ends closes none of its parent's connections, and sends nothing over them."""
    numbers = iter(range(10))

    async def handle(stream: SocketStream, count: int) -> None:
        number = next(numbers)
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                await stream.send(GOOD.replace(b"length: 1", b"length: 4").replace(b"\r\n1", b"\r\n%4d" % number))
                await receive_request(stream)

    async with server(handle) as url:
        done = await anyio.run_process([sys.executable, "-c", FORKS, url], check=False, stderr=None)
    assert done.returncode == 0
    assert sorted(Counter(done.stdout.split()).values()) == [2, 2, 3]  # answers by connection


MANY = 110  # more than the connections that aiohttp and httpx have by default


@pytest.mark.usefixtures("each_stack")
async def test_no_request_waits_for_a_connection_and_few_stay_open() -> None:
    """All are open at the same time; afterwards at most four are, as llama.cpp's server wants."""
    arrived, all_here, few = 0, anyio.Event(), anyio.Event()
    open_ = set[int]()

    async def handle(stream: SocketStream, count: int) -> None:
        nonlocal arrived
        arrived += 1
        open_.add(count)
        if arrived == MANY:
            all_here.set()
        await all_here.wait()
        await stream.send(GOOD)
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            await stream.receive()
        open_.discard(count)
        if len(open_) <= 4:
            few.set()

    async with server(handle) as url, Transport(url) as found:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for _ in range(MANY):
                    group.start_soon(lambda: found.post("/go", {}, usage=Usage()))
            await few.wait()


@pytest.mark.usefixtures("each_stack")
async def test_more_stay_open_where_a_server_has_no_thread_for_each() -> None:
    connections, all_here, again = 0, anyio.Event(), 20

    async def handle(stream: SocketStream, count: int) -> None:
        nonlocal connections
        connections = count
        if count == again:
            all_here.set()
        await all_here.wait()
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                await stream.send(GOOD)
                await receive_request(stream)

    async with server(handle) as url, Transport(url, idle=again) as found:
        for _ in range(2):
            async with anyio.create_task_group() as group:
                for _ in range(again):
                    group.start_soon(found.get, "/props")
    assert connections == again


# Clients.


def test_constructing_makes_no_client() -> None:
    assert len(Transport(URL)._clients) == 0


@pytest.mark.usefixtures("each_stack")
async def test_the_last_user_closes_and_the_next_reopens() -> None:
    async def handle(stream: SocketStream, count: int) -> None:
        await stream.send(GOOD)

    async with server(handle) as url:
        found = Transport(url)
        async with found:
            async with found:
                await found.get("/props")
            first = found._clients.get()
            assert not first.is_closed
        assert first.is_closed
        assert await found.get("/props") == 1
        async with found:
            pass
        assert len(found._clients) == 0


@pytest.mark.usefixtures("each_stack")
def test_one_client_for_each_loop() -> None:
    found = Transport(URL)

    async def client() -> Any:
        async with found:
            return found._clients.get()

    assert anyio.run(client) is not anyio.run(client)
    assert len(found._clients) == 0


async def test_a_users_client_is_used_as_it_is_and_never_closed() -> None:
    found, requests = transport(httpx.Response(200, json=1))
    async with found:
        await found.get("/props")
    client = found.http_client
    assert client is not None
    assert not client.is_closed
    assert requests[0].extensions["timeout"] == client.timeout.as_dict()
    found, requests = transport(httpx.Response(200, json=1), timeout=3)
    await found.get("/props")
    assert requests[0].extensions["timeout"]["read"] == 3


def test_timeouts() -> None:
    assert Transport(URL)._timeout == httpx.Timeout(600, connect=5, pool=None)
    assert Transport(URL, timeout=60)._timeout == httpx.Timeout(60, connect=5, pool=None)
    assert Transport(URL, timeout=1)._timeout.connect == 1
    assert Transport(URL, timeout=httpx.Timeout(7))._timeout == httpx.Timeout(7)


async def test_the_log_has_no_prompts_and_no_keys(caplog: pytest.LogCaptureFixture) -> None:
    found, _ = transport(httpx.Response(200, json=1), api_key=KEY)
    with caplog.at_level(logging.DEBUG, logger="cosd_providers"):
        await found.post("/go", {"prompt": "hello"})
    [message] = [record.getMessage() for record in caplog.records if record.name == "cosd_providers"]
    assert message.startswith("POST http://gpu:8080/go: 200 after 0.")
    assert "hello" not in caplog.text
    assert KEY not in caplog.text
