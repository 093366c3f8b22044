"""The event loop and the garbage collector of a process that is ours."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
import socket
import sys
import urllib.request
from collections.abc import Callable
from importlib import metadata
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from cosd_api.common.event_loop import event_loop_name, run_async
from cosd_providers.http import clients
from fakes.commands import gone, start_scripted
from support.on_sockets import KEY, unread

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="uvloop is for other systems, and signals are POSIX's")

LOOPS = {"aiohttp": "uvloop", "httpx": "asyncio"}
"""The event loop of a command by `COSD_HTTP`, where both of extra `fast` are installed."""


async def loop_of(*given: object) -> tuple[str, int, tuple[object, ...]]:
    """The package of the running loop, the collector's first threshold, and the arguments."""
    await anyio.lowlevel.checkpoint()
    return type(asyncio.get_running_loop()).__module__.partition(".")[0], gc.get_threshold()[0], given


@POSIX
def test_a_command_runs_it_and_leaves_the_process_as_it_was(each_stack: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log names it. The collector has its usual thresholds again, and every object."""
    before, frozen = gc.get_threshold(), bool(gc.get_freeze_count())
    with caplog.at_level(logging.DEBUG, logger="cosd_api"):
        assert run_async(loop_of, 1, "a") == (LOOPS[each_stack], 10_000, (1, "a"))
    assert (gc.get_threshold(), bool(gc.get_freeze_count())) == (before, frozen)
    assert [record.getMessage() for record in caplog.records] == [f"event loop: {event_loop_name()}"]
    name = LOOPS[each_stack]
    assert event_loop_name() == (name if name == "asyncio" else f"uvloop {metadata.version('uvloop')}")


def test_an_error_leaves_the_process_as_it_was() -> None:
    before = gc.get_threshold()

    async def fail() -> None:
        assert gc.get_threshold() != before
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_async(fail)
    assert gc.get_threshold() == before


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (lambda _: None, "uvloop"),
        (lambda patch: patch.setenv("HTTPS_PROXY", "http://127.0.0.1:9"), "uvloop"),
        (lambda patch: patch.setenv("COSD_HTTP", "httpx"), "asyncio"),
        (lambda patch: patch.setattr(clients, "_installed", lambda name: name != "uvloop"), "asyncio"),
    ],
    ids=["installed", "a proxy", "turned off", "not installed"],
)
@POSIX
def test_uvloop_where_it_is_installed(
    prepare: Callable[[pytest.MonkeyPatch], None], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COSD_HTTP")
    prepare(monkeypatch)
    assert clients.event_loop() == expected


@POSIX
def test_a_gateway_of_the_command_answers_and_stops_on_it(each_stack: str) -> None:
    """`cosd serve` says in its log which loop it runs; SIGTERM ends it with exit code 0."""
    environment = {"COSD_LOG": "debug"}
    with start_scripted("--port", "0", command=["serve"], environment=environment) as process:
        url = process.stdout.readline().decode().strip()
        body: Any = {"model": "cosd", "prompt": "Q", "max_tokens": 4}
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{url}/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            assert json.load(response)["choices"][0]["text"] == " a c d d"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert f"event loop: {event_loop_name()}" in process.stderr.read().decode()
    assert event_loop_name().partition(" ")[0] == LOOPS[each_stack]


@POSIX
def test_a_second_interrupt_of_a_gateway_waits_for_nothing(each_stack: str) -> None:
    """A client that reads nothing of its answer holds it up as little as any other, and no warning is printed."""
    script: Any = {"texts": {"Q": [" a"] * 8000}, "draft": "token_delay=0.001"}
    environment = {"COSD_SERVE_KEYS": KEY}
    with start_scripted("--port", "0", command=["serve"], environment=environment, **script) as process:
        url = process.stdout.readline().decode().strip()
        with unread(url, model="cosd", prompt="Q", logprobs=1) as client:
            assert client.recv(1, socket.MSG_PEEK)
            process.send_signal(signal.SIGINT)
            assert gone(url)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) in (0, -signal.SIGINT)
        assert "ResourceWarning" not in process.stderr.read().decode()
