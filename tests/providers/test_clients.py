"""The library that carries HTTP, and what holds for each of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import metadata

import pytest

from cosd_providers import ConnectError
from cosd_providers.http import clients
from cosd_providers.http.transport import Transport

VERSIONS = {name: f"{name} {metadata.version(name)}" for name in ("aiohttp", "httpx")}


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is chosen, and both are installed."""
    monkeypatch.delenv("COSD_HTTP")


def test_aiohttp_where_it_is_installed() -> None:
    assert (clients.carrier(), clients.http_stack()) == ("aiohttp", VERSIONS["aiohttp"])


@pytest.mark.parametrize(
    "prepare",
    [
        lambda patch: patch.setenv("COSD_HTTP", "httpx"),
        lambda patch: patch.setattr(clients, "_installed", lambda name: False),
        lambda patch: patch.setenv("HTTPS_PROXY", "http://127.0.0.1:9"),
    ],
    ids=["turned off", "not installed", "a proxy"],
)
def test_httpx_alone(prepare: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch)
    assert (clients.carrier(), clients.http_stack()) == ("httpx", VERSIONS["httpx"])


def test_hosts_without_a_proxy_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "localhost")
    assert clients.carrier() == "aiohttp"


async def test_the_log_names_it(each_stack: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="cosd_providers"):
        async with Transport("http://127.0.0.1:9") as found:
            found._clients.get()
    assert [record.getMessage() for record in caplog.records] == [f"HTTP by {VERSIONS[each_stack]}"]


async def test_other_urls_are_refused(each_stack: str) -> None:
    async with Transport("ftp://127.0.0.1:9") as found:
        with pytest.raises(ConnectError, match=r"an unsupported protocol 'ftp://'. Is the URL right") as caught:
            await found.get("/props")
        assert not caught.value.retryable


async def test_nobody_need_close_it(each_stack: str, caplog: pytest.LogCaptureFixture) -> None:
    found = Transport("http://127.0.0.1:9")
    found._clients.get()
    del found
    assert caplog.records == []
