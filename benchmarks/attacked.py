"""The processes that are attacked: two llama.cpp servers, each at a fixed port, and `cosd serve` in front of them.

python -m benchmarks.attacked MODEL PORT CONTEXT      one server, until it is killed
"""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import anyio
import httpx

from benchmarks.weights import in_full
from cosd_api.apps.demo.servers import MODELS, PAIR

__all__ = [
    "KEY",
    "OTHER_KEY",
    "SLOTS",
    "Attacked",
    "ModelServer",
    "attacked",
    "environment",
    "free_port",
    "gateway",
    "smollm2",
]

ROOT = Path(__file__).parent.parent
KEY = "the-key-of-the-attack"
OTHER_KEY = "the-key-of-another-client"
SLOTS = 8
_LIMITS = {"drain_seconds": 2, "stop_seconds": 4, "timeout": 60}


def environment() -> dict[str, str]:
    """The environment variables for the processes, so that they import the packages of this checkout."""
    paths = [str(ROOT), str(ROOT / "providers"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COSD_SERVE_KEYS": f"{KEY},{OTHER_KEY}"}


@dataclass
class ModelServer:
    """The server of one model.

    Attributes:
        name: the model's name.
        model: the model's file.
        port: the server's port, the same after every start.
        context: number of tokens in each slot.
        cache: size in MiB of the server's cache of the prompts that have no slot.
    """

    name: str
    model: Path
    port: int
    context: int = 512
    cache: int = 64
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The server's URL."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start the server, and wait until it is healthy."""
        given = map(str, (self.model, self.port, self.context, self.cache))
        command = [sys.executable, "-m", "benchmarks.attacked", *given]
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL)  # noqa: ASYNC220 - a fork takes no time
        await self.healthy()

    async def healthy(self) -> None:
        """Wait until the server answers."""
        async with httpx.AsyncClient(timeout=5) as client:
            with anyio.fail_after(60):
                while True:
                    try:
                        if (await client.get(f"{self.url}/health")).is_success:
                            return
                    except httpx.HTTPError:
                        pass
                    await anyio.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server's process."""
        assert self._process is not None
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()

    def kill(self) -> None:
        """Kill the server if it is running."""
        if self._process is not None:
            self.signal(signal.SIGKILL)

    async def busy(self) -> int:
        """The number of busy slots."""
        async with httpx.AsyncClient(timeout=5) as client:
            return sum(one["is_processing"] for one in (await client.get(f"{self.url}/slots")).json())


@dataclass
class Attacked:
    """The gateway and its models' servers.

    Attributes:
        process: the gateway's process.
        port: the port at which the gateway listens.
        draft, assistant: the servers of the models.
        log: the gateway's standard error.
    """

    process: subprocess.Popen[bytes]
    port: int
    draft: ModelServer
    assistant: ModelServer
    log: IO[bytes]
    limits: Mapping[str, float] = field(default_factory=lambda: dict(_LIMITS))

    @property
    def url(self) -> str:
        """The gateway's URL, without `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    async def held(self) -> dict[str, float]:
        """Resources in use: requests in flight, descriptors, threads, memory in MB, and busy slots of both servers."""
        async with httpx.AsyncClient(timeout=10) as client:
            page = (await client.get(f"{self.url}/metrics", headers={"authorization": f"Bearer {KEY}"})).text
        flying = sum(float(one) for one in re.findall(r"^cosd_in_flight\{.*\} (.+)$", page, re.MULTILINE))
        found = {"requests in flight": flying, "busy slots": await self.draft.busy() + await self.assistant.busy()}
        return found | self._of_the_process()

    def _of_the_process(self) -> dict[str, float]:
        found = dict[str, float]()
        about = Path(f"/proc/{self.process.pid}")
        if about.exists():  # only on Linux
            status = dict(re.findall(r"^(\w+):\s+(\d+)", (about / "status").read_text(), re.MULTILINE))
            found["descriptors"] = len(list((about / "fd").iterdir()))
            found["threads"] = int(status["Threads"])
            found["memory, MB"] = int(status["VmRSS"]) / 1e3
            found["memory at most, MB"] = int(status["VmHWM"]) / 1e3
        return found


def free_port() -> int:
    """A port that no other program uses at the moment."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


async def smollm2() -> Path:
    """The file of SmolLM2, which is fetched once."""
    command = [sys.executable, str(ROOT / "tests" / "smollm2" / "install.py")]
    found = await anyio.run_process(command, stderr=None)
    return Path(found.stdout.decode().strip()) / "smollm2.gguf"


@asynccontextmanager
async def attacked(folder: Path) -> AsyncGenerator[Attacked]:
    """Run all three processes during the block, and kill them at its end; models and logs are in the folder."""
    servers = list[ModelServer]()
    try:
        for name in PAIR:
            model = folder / f"{name}.gguf"
            model.write_bytes(in_full((MODELS / f"{name}.gguf").read_bytes()))
            servers.append(ModelServer(name, model, free_port()))
            await servers[-1].start()
        draft, assistant = servers
        either = {"on_assistant_error": "draft", "on_draft_error": "assistant"}
        fusion = {"draft": {"url": draft.url}, "assistants": [{"url": assistant.url}], **either}
        async with gateway(folder, {"fusions": {"cosd": fusion}, "limits": _LIMITS}, draft, assistant) as found:
            yield found
    finally:
        for one in servers:
            one.kill()


@asynccontextmanager
async def gateway(
    folder: Path, settings: Any, draft: ModelServer, assistant: ModelServer, log_bytes: int | None = None
) -> AsyncGenerator[Attacked]:
    """Run `cosd serve` during the block. If `log_bytes` is given, the disk is full when its log has so many bytes."""
    (folder / "gateway.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "cosd_api", "serve", str(folder / "gateway.json"), "--port", "0"]
    small = None if log_bytes is None else partial(resource.setrlimit, resource.RLIMIT_FSIZE, (log_bytes, log_bytes))
    with (folder / "gateway.log").open("a+b") as log:
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=log, preexec_fn=small)  # noqa: ASYNC220, PLW1509
        try:
            assert process.stdout is not None
            url = await anyio.to_thread.run_sync(process.stdout.readline)
            assert url, (folder / "gateway.log").read_text()
            yield Attacked(process, int(url.split(b":")[2].split(b"/")[0]), draft, assistant, log)
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _serve(model: str, port: int, context: int, cache: int) -> None:
    xllamacpp: Any = importlib.import_module("xllamacpp")  # the package has no type annotations
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames, params.port = ["127.0.0.1"], port
    params.verbosity = 1
    params.warmup = params.ui = params.kv_unified = False
    params.endpoint_props = params.endpoint_slots = True
    params.cache_ram_mib, params.n_parallel, params.n_ctx = cache, SLOTS, context * SLOTS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, file=sys.stderr)
    signal.pause()


if __name__ == "__main__":
    _serve(sys.argv[1], *map(int, sys.argv[2:]))
