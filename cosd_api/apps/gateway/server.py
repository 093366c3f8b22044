"""The gateway on uvicorn, with a graceful stop that gives requests in progress some time to finish."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn

from cosd_api import SettingError
from cosd_api.apps.gateway.client_limits import is_local
from cosd_api.apps.gateway.idle_connections import TAKING_SECONDS, ClientConnection
from cosd_api.apps.gateway.routes import Gateway
from cosd_api.common.event_loop import own_process
from cosd_providers.http.clients import EventLoop

__all__ = ["GatewayServer", "check_host", "listening", "run_gateway"]

_SEND_BYTES = 16_384  # size of the send buffer of each connection
_LAST_SECONDS = 3.0  # time for sending errors to aborted requests; the gateway itself gives up sooner
_MORE_CONNECTIONS = 64  # for idle clients and health checks, in addition to two per request in progress


class GatewayServer(uvicorn.Server):
    """A server that notifies the gateway when it stops.

    Args:
        gateway: the application.
        ready: function that is called when the server accepts connections.
        loop: the kind of event loop that `run` starts.
    """

    def __init__(
        self,
        gateway: Gateway,
        ready: Callable[[], None] = lambda: None,
        *,
        loop: EventLoop = "asyncio",
    ) -> None:
        protocol: Any = partial(ClientConnection, most=2 * gateway.limits.concurrency + _MORE_CONNECTIONS)
        config = uvicorn.Config(
            gateway,
            http=protocol,
            loop=loop,
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            ws="none",
            lifespan="on",
            timeout_graceful_shutdown=math.ceil(gateway.limits.stop_seconds + _LAST_SECONDS),
        )
        super().__init__(config)
        self._gateway = gateway
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server, then call `ready`."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop gracefully.

        First, a load balancer is given time to notice. Then, no more connections are accepted, and requests that take
        too long are aborted.
        """
        self._gateway.draining()
        await self._drain()
        self._gateway.stopping()
        stop_seconds = self._gateway.limits.stop_seconds
        timer = asyncio.get_running_loop().call_later(stop_seconds, self._gateway.end_requests)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            for one in [*self.server_state.connections]:  # uvicorn's shutdown does not wait for these connections
                one.transport.abort()

    async def _drain(self) -> None:
        end = time.monotonic() + self._gateway.limits.drain_seconds
        while (left := end - time.monotonic()) > 0 and not self.force_exit:  # noqa: ASYNC110 - set by a signal
            await asyncio.sleep(min(left, 0.1))


def check_host(host: str, *, secured: bool) -> None:
    """Check that a gateway without keys is not reachable from other machines.

    Raises:
        SettingError: other machines could reach the gateway, and it has no keys.
    """
    local = host in ("localhost", "127.0.0.1", "::1") or (host.startswith("127.") and is_local(host))
    if not (local or secured):
        words = f"on {host} other machines could use the models without a key"
        raise SettingError(f"{words}: set COSD_SERVE_KEYS (openssl rand -hex 24 makes a key), or leave out --host")


def listening(host: str, port: int) -> socket.socket:
    """Create a socket that is bound to a host and a port; port 0 chooses a free one.

    Raises:
        SettingError: the socket cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # By default, the operating system buffers megabytes for a client that does not read, so models would not pause.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux then closes the connection of a client that never reads
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * TAKING_SECONDS))
        found.bind((host, port))
    except (OSError, OverflowError) as error:
        found.close()
        words = getattr(error, "strerror", None) or str(error)
        raise SettingError(f"cannot listen on {host}, port {port}: {words}. Another --port may be free") from None
    return found


def run_gateway(gateway: Gateway, at: socket.socket, *, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until the process is interrupted; then give requests in progress some time to finish.

    Args:
        gateway: the application.
        at: a bound socket.
        ready: function that is called when the server accepts connections.

    Raises:
        KeyboardInterrupt: the process was interrupted, and the server has stopped.
    """
    with own_process() as loop:
        GatewayServer(gateway, ready, loop=loop).run(sockets=[at])
