"""Two replicas behind nginx, with the configuration of docs/gateway.md.

They need an nginx: on the path, or named by COSD_NGINX. A Debian package that is only unpacked will do:
`apt-get download nginx && dpkg --extract nginx_*.deb nginx`, and then `COSD_NGINX=$PWD/nginx/usr/sbin/nginx`.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from cosd_api import Fusion
from cosd_providers.testing import Fault, ScriptedProvider
from support.on_sockets import KEY, Served, port_of, served
from support.shipped import ROOT
from support.visits import until
from toys.lima import DRAFT, FUSED, assistant

#: Read here: no test sees a COSD_ variable (see tests/conftest.py).
NGINX = shutil.which(os.environ.get("COSD_NGINX") or "nginx") or shutil.which("/usr/sbin/nginx")

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(NGINX is None, reason="no nginx on the path: install it, or name one by COSD_NGINX"),
]

#: Around that of the page, so that it needs no rights and no folders of the system's.
MAIN = """
daemon off;
master_process off;
pid nginx.pid;
error_log stderr warn;
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
{}
}}
"""
CONVERSATIONS = [f"conversation-{number}" for number in range(16)]


@dataclass(frozen=True)
class Replica:
    """One gateway, and the model that drafts for it."""

    server: Served
    draft: ScriptedProvider
    port: int


@dataclass(frozen=True)
class Balanced:
    """Replicas, and a client of the nginx before them."""

    replicas: Sequence[Replica]
    client: openai.AsyncOpenAI

    async def ask(self, conversation: str) -> int:
        """Asks once; the replica that answered."""
        before = [one.draft.requests for one in self.replicas]
        headers = {"x-conversation": conversation} if conversation else {}
        answer = await self.client.completions.create(model="fused", prompt="Q:", extra_headers=headers)
        assert answer.choices[0].text == FUSED
        [found] = [at for at, one in enumerate(self.replicas) if one.draft.requests > before[at]]
        return found


def configuration(ports: Sequence[int], own: int) -> str:
    """The page's, with the ports of the test."""
    page = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")
    [text] = re.findall(r"^```nginx\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    for number, port in enumerate(ports, 11):
        text, found = re.subn(rf"\b10\.0\.0\.{number}:8000\b", f"127.0.0.1:{port}", text)
        assert found == 1
    text, found = re.subn(r"listen 443 ssl;", f"listen 127.0.0.1:{own};", text)
    assert found == 1
    return MAIN.format(text)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def nginx(folder: Path, config: str) -> Iterator[subprocess.Popen[bytes]]:
    """An nginx that works in a folder."""
    assert NGINX is not None
    (folder / "nginx.conf").write_text(config, encoding="utf-8")
    with subprocess.Popen([NGINX, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]) as process:
        try:
            yield process
        finally:
            process.terminate()


@asynccontextmanager
async def balanced(folder: Path, *faults: Fault) -> AsyncGenerator[Balanced]:
    """Two replicas behind nginx, whose drafts fail so."""
    async with AsyncExitStack() as stack:
        replicas: list[Replica] = []
        for _ in range(2):
            draft = ScriptedProvider.from_texts(DRAFT, faults=faults)
            server, url = await stack.enter_async_context(served(Fusion(draft=draft, assistant=assistant())))
            replicas.append(Replica(server, draft, port_of(url)))
        own = free_port()
        with nginx(folder, configuration([one.port for one in replicas], own)) as process:
            await until(lambda: accepts(own) or process.poll() is not None)
            url = f"http://127.0.0.1:{own}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
                yield Balanced(replicas, client)


async def test_a_conversation_stays_on_its_replica_while_that_runs(tmp_path: Path) -> None:
    async with balanced(tmp_path) as found:
        first = {name: await found.ask(name) for name in CONVERSATIONS}
        assert {*first.values()} == {0, 1}
        assert first == {name: await found.ask(name) for name in CONVERSATIONS}
        assert {await found.ask("") for _ in range(32)} == {0, 1}
        found.replicas[0].server.should_exit = True
        await until(lambda: not accepts(found.replicas[0].port))
        assert {await found.ask(name) for name in CONVERSATIONS} == {1}


async def test_a_stream_comes_as_it_is_written_and_its_end_reaches_the_models(tmp_path: Path) -> None:
    hangs = Fault(None, tokens=4)  # the draft writes no further, and what it has written is there
    async with balanced(tmp_path, hangs) as found:
        stream = await found.client.completions.create(model="fused", prompt="Q:", stream=True)
        assert (await anext(aiter(stream))).choices[0].text == " The"
        assert [one.draft.open_requests for one in found.replicas] in ([0, 1], [1, 0])
        await stream.close()
        await until(lambda: not any(one.draft.open_requests for one in found.replicas))
