"""Clients of httpx2, the continuation of httpx, given as `http_client`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from cosd_providers import (
    AuthenticationError,
    ConnectError,
    ProviderTimeoutError,
    ResponseError,
    StatusError,
    Usage,
    connect,
)
from cosd_providers.http.transport import Transport

URL = "http://gpu:8080"


class Body(httpx2.AsyncByteStream):
    """The body of an answer, which may break."""

    def __init__(self, *parts: bytes | Exception) -> None:
        self.parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            if isinstance(part, Exception):
                raise part
            yield part


def transport(*answers: httpx2.Response | Exception, **options: Any) -> tuple[Transport, list[httpx2.Request]]:
    """A transport whose server gives these answers in turn, and then the last one always."""
    headers = options.pop("client_headers", None)
    requests: list[httpx2.Request] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        found = answers[min(len(requests), len(answers)) - 1]
        if isinstance(found, Exception):
            raise found
        return found

    client: Any = httpx2.AsyncClient(transport=httpx2.MockTransport(handle), headers=headers, timeout=7)
    return Transport(URL, http_client=client, **options), requests


async def test_requests_and_answers() -> None:
    found, requests = transport(httpx2.Response(200, json={"a": 1}), client_headers={"X": "own"}, api_key="secret")
    assert await found.post("/go", {"prompt": "hé"}) == {"a": 1}
    (request,) = requests
    assert (request.method, str(request.url), request.content) == ("POST", f"{URL}/go", '{"prompt":"hé"}'.encode())
    assert request.headers["authorization"] == "Bearer secret"
    assert (request.headers["x"], request.headers["content-type"]) == ("own", "application/json")
    assert request.headers["user-agent"].startswith("python-httpx2")
    assert request.extensions["timeout"] == {"connect": 7, "read": 7, "write": 7, "pool": 7}
    found, requests = transport(httpx2.Response(200, json=1), timeout=3)
    assert await found.get("/props") == 1
    assert request.content
    assert requests[0].extensions["timeout"]["read"] == 3


async def test_streams() -> None:
    body = Body(b'data: {"a": 1}\n', b'\ndata: {"b"', b": 2}\n\n", httpx2.ReadError("gone"))
    found, _ = transport(httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=body))
    async with found.stream("/go", {}, usage=Usage()) as events:
        assert [await anext(events), await anext(events)] == [{"a": 1}, {"b": 2}]
        with pytest.raises(ResponseError, match="the connection broke in the middle of the answer"):
            await anext(events)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (httpx2.ConnectError("no way"), ConnectError, "no connection: no way"),
        (httpx2.ReadTimeout("late"), ProviderTimeoutError, "no answer within 7 s"),
        (httpx2.RemoteProtocolError("gone"), ConnectError, "the server closed the connection without an answer"),
        (httpx2.InvalidURL("bad"), StatusError, "redirects"),
        (
            httpx2.Response(307, headers={"location": "https://other.example/x"}),
            StatusError,
            "redirects to https://oth",
        ),
        (httpx2.Response(401, json={"error": "own-key is wrong"}), AuthenticationError, r"401: \*\*\* is wrong"),
    ],
)
async def test_failures(answer: Any, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosd_providers.http.retries._ATTEMPTS", 1)
    found, _ = transport(answer, client_headers={"X-API-Key": "own-key"})
    with pytest.raises(kind, match=words):
        await found.get("/props", once=True)


async def test_it_is_never_closed_by_us_and_a_closed_one_is_refused() -> None:
    client: Any = httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, json=1)))
    async with Transport(URL, http_client=client) as found:
        await found.get("/props")
    assert not client.is_closed
    await client.aclose()
    with pytest.raises(ConnectError, match="Give an `http_client` that is open"):
        await found.get("/props")


def test_connect_takes_one() -> None:
    client: Any = httpx2.AsyncClient()
    assert connect(URL, engine="llama.cpp", http_client=client).name == "gpu:8080"
    wrong: Any = httpx2.Client()
    with pytest.raises(TypeError, match=r"http_client must be an httpx.AsyncClient, not Client"):
        connect(URL, http_client=wrong)
