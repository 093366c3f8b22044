"""The network is closed in tests, but for loopback; and the user's own settings are out of sight."""

import os
import socket

import anyio
import httpx
import pytest
from anyio.abc import SocketAttribute, SocketStream


def test_no_connection_leaves_the_machine() -> None:
    with socket.socket() as out, pytest.raises((UserWarning, RuntimeError), match="allowed"):
        out.connect(("192.0.2.1", 80))


async def test_no_name_resolves() -> None:
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError, match="resolve"):
            await client.get("http://draft.example/health")


async def test_loopback_works() -> None:
    async def echo(stream: SocketStream) -> None:
        async with stream:
            await stream.send(await stream.receive())

    async with (
        await anyio.create_tcp_listener(local_host="localhost") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, echo)
        port = listener.extra(SocketAttribute.local_port)
        async with await anyio.connect_tcp("localhost", port) as stream:
            await stream.send(b"hello")
            assert await stream.receive() == b"hello"
        tasks.cancel_scope.cancel()


def test_keys_and_proxies_of_the_user_are_out_of_sight() -> None:
    set_here = {"COSD_HTTP"}  # by the tests themselves, so that all run over one transport wherever they run
    assert {name for name in os.environ if name.startswith(("COSD_", "OPENAI_"))} == set_here
    assert not os.environ.get("HTTPS_PROXY")


@pytest.mark.live
def test_tests_of_live_servers_run_in_a_worker_of_theirs(request: pytest.FixtureRequest) -> None:
    """Its scheduler reads the group at the end of the name; without it, each worker would start servers."""
    assert request.node.nodeid.endswith("@served") or "PYTEST_XDIST_WORKER" not in os.environ
