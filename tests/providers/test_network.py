"""Certificates and proxies, as httpx users expect them: over real sockets on loopback."""

from __future__ import annotations

import os
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import anyio
import httpx
import pytest
import trustme
from anyio.lowlevel import checkpoint

from cosd_providers.errors import ConnectError
from cosd_providers.http.transport import Transport

pytestmark = pytest.mark.usefixtures("each_stack")


class Handler(BaseHTTPRequestHandler):
    """Answers every GET with the requested path; a proxy sees whole URLs there."""

    seen: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers["Authorization"]))
        body = b'{"ok": true}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Silent."""


class Server(ThreadingHTTPServer):
    """Quiet where a client hangs up, as one that refuses the certificate does."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Silent."""


@pytest.fixture
def server() -> Iterator[Server]:
    Handler.seen.clear()
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without pauses."""

    async def sleep(seconds: float) -> None:
        """Return at once."""

    monkeypatch.setattr(anyio, "sleep", sleep)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def with_tls(server: Server, authority: trustme.CA, *, asks_clients: bool = False) -> str:
    """Puts TLS under the server; its URL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    if asks_clients:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return f"https://127.0.0.1:{server.server_port}"


async def test_a_private_certificate_is_refused_with_what_helps(server: Server, authority: trustme.CA) -> None:
    async with Transport(with_tls(server, authority)) as transport:
        with pytest.raises(ConnectError, match="For a private certificate set SSL_CERT_FILE or") as caught:
            await transport.get("/props")
        assert not caught.value.retryable


async def test_http_where_https_is_asked(server: Server) -> None:
    async with Transport(f"https://127.0.0.1:{server.server_port}") as transport:
        with pytest.raises(ConnectError, match="Does the server speak https, and not http") as caught:
            await transport.get("/props")
        assert not caught.value.retryable


@pytest.mark.usefixtures("no_pauses")
async def test_a_host_that_does_not_exist() -> None:
    async with Transport("http://gpu1.example:8080") as transport:
        with pytest.raises(ConnectError, match=r"no connection: no name but localhost .* Is the host's name right"):
            await transport.get("/props")


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.skipif(sys.platform == "win32", reason="files are not counted there")
async def test_too_many_open_files(server: Server) -> None:
    import resource

    url, (soft, hard) = f"http://127.0.0.1:{server.server_port}", resource.getrlimit(resource.RLIMIT_NOFILE)
    async with Transport(url) as transport:
        await transport.get("/props")  # the client is made, its certificates are read
        for answering in threading.enumerate():  # what they close while files are counted would be free again
            if "process_request_thread" in answering.name:
                answering.join()
        for _ in range(5):
            await checkpoint()
        other = Transport(url)
        held: list[int] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        try:
            with suppress(OSError):
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            with pytest.raises(ConnectError, match=r"no connection: Too many open files. Raise the limit") as caught:
                await other.get("/props")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for file in held:
                os.close(file)
        assert caught.value.retryable


async def test_ssl_cert_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(ConnectError, match="Does the file that SSL_CERT_FILE names exist"):
        await Transport("https://127.0.0.1:9").get("/props")


async def test_ssl_cert_file_is_believed(
    server: Server, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    async with Transport(with_tls(server, authority)) as transport:
        assert await transport.get("/props") == {"ok": True}


async def test_a_client_with_a_certificate_of_its_own(server: Server, authority: trustme.CA) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    authority.issue_cert("client@example.org").configure_cert(context)
    url = with_tls(server, authority, asks_clients=True)
    async with httpx.AsyncClient(verify=context) as client, Transport(url, http_client=client) as transport:
        assert await transport.get("/props") == {"ok": True}


async def test_proxies_of_the_environment_are_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.server_port}")
    async with Transport("http://gpu1.example:8080", api_key="secret-key") as transport:
        assert await transport.get("/props") == {"ok": True}
    assert Handler.seen == [("http://gpu1.example:8080/props", "Bearer secret-key")]


async def test_a_client_that_does_not_trust_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    url = f"http://127.0.0.1:{server.server_port}"
    async with httpx.AsyncClient(trust_env=False) as client, Transport(url, http_client=client) as transport:
        assert await transport.get("/props") == {"ok": True}
