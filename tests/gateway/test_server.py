"""The gateway on uvicorn, asked by OpenAI's own client; and how it stops."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.to_thread
import openai
import pytest

from cosd_api import Fusion, SettingError
from cosd_api.gateway import ClientKey, Gateway, GatewayLimits
from cosd_api.gateway.server import GatewayServer, check_host, listening
from cosd_providers import ServerError
from cosd_providers.testing import Fault, ScriptedProvider, TextModel
from lima import FUSED, assistant, draft
from visits import until

KEY = "k" * 16


class Served(GatewayServer):
    """One that leaves the signals of the tests alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def served(fusion: Fusion, *, seconds: float = 5.0, **limits: Any) -> AsyncGenerator[tuple[Served, str]]:
    """A gateway on a free port, and its URL."""
    gateway = Gateway({"fused": fusion}, keys={KEY: ClientKey(name="a", env="A")}, limits=GatewayLimits(**limits))
    ready = anyio.Event()
    with listening("127.0.0.1", 0) as at:
        server = Served(gateway, seconds, ready.set)
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [at])
            await ready.wait()
            yield server, f"http://127.0.0.1:{at.getsockname()[1]}/v1"
            server.should_exit = True


def fused(**options: Any) -> Fusion:
    return Fusion(draft=draft(**options), assistant=assistant())


async def test_openais_client_is_answered() -> None:
    asked: dict[str, Any] = {"model": "fused", "prompt": "Q:"}
    async with served(fused()) as (_, url), openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
        assert [one.id async for one in client.models.list()] == ["fused"]
        whole = await client.completions.create(**asked, logprobs=1)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == (FUSED, "stop")
        assert whole.model_extra is not None and whole.model_extra["cosd"]["replacements"] == 1
        stream = await client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        chunks = [one async for one in stream]
        assert "".join(one.choices[0].text for one in chunks if one.choices) == FUSED
        assert chunks[-1].usage == whole.usage
        messages: Any = [{"role": "user", "content": "Hi"}]
        chat = await client.chat.completions.create(model="fused", messages=messages, logprobs=True)
        assert (chat.choices[0].message.content, chat._request_id) == ("", chat.id)
        async with client.chat.completions.stream(model="fused", messages=messages) as events:
            assert (await events.get_final_completion()).choices[0].finish_reason == "stop"


async def test_openais_client_in_a_thread_is_answered() -> None:
    def ask(url: str) -> str:
        with openai.OpenAI(base_url=url, api_key=KEY) as client:
            whole = client.completions.create(model="fused", prompt="Q:")
            stream = client.completions.create(model="fused", prompt="Q:", stream=True)
            assert "".join(one.choices[0].text for one in stream) == whole.choices[0].text
            return whole.choices[0].text

    async with served(fused()) as (_, url):
        assert await anyio.to_thread.run_sync(ask, url) == FUSED


async def test_openais_client_raises_its_own_errors() -> None:
    broken = ServerError("it broke", status=500)
    async with served(fused(faults=[Fault(broken, tokens=3)]), concurrency=1) as (_, url):
        async with openai.AsyncOpenAI(base_url=url, api_key="wrong" * 4, max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError, match="the API key is wrong"):
                await client.models.list()
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
            with pytest.raises(openai.BadRequestError, match="calls no tools") as refused:
                await client.chat.completions.create(
                    model="fused", messages=[{"role": "user", "content": "Hi"}], tool_choice="required"
                )
            assert (refused.value.param, refused.value.type) == ("tool_choice", "invalid_request_error")
            with pytest.raises(openai.NotFoundError, match="there are: fused"):
                await client.models.retrieve("other")
            stream = await client.completions.create(model="fused", prompt="Q:", stream=True)
            with pytest.raises(openai.APIError, match="a model's server failed"):
                async for _ in stream:
                    pass


async def test_a_client_that_closes_its_stream_cancels_the_models() -> None:
    models = [ScriptedProvider.from_texts({"Q:": [" a"] * 5000}, token_delay=delay) for delay in (0.001, 0)]
    fusion = Fusion(draft=models[0], assistant=models[1])
    async with served(fusion) as (_, url), openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
        stream = await client.completions.create(model="fused", prompt="Q:", stream=True, max_tokens=5000)
        await anext(aiter(stream))
        assert models[0].open_requests == 1
        await stream.close()
        await until(lambda: not any(one.open_requests for one in models))


async def test_stopping_lets_requests_end_and_ends_what_takes_too_long() -> None:
    models = [ScriptedProvider.from_texts({"Q:": [" a"] * 5000}, token_delay=delay) for delay in (0.001, 0)]
    async with (
        served(Fusion(draft=models[0], assistant=models[1]), seconds=0.1) as (server, url),
        openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client,
    ):
        stream = await client.completions.create(model="fused", prompt="Q:", stream=True, max_tokens=5000)
        await anext(aiter(stream))
        server.should_exit = True
        with pytest.raises(openai.APIError, match="the gateway was stopped before the answer was complete"):
            async for _ in stream:
                pass
    async with (
        served(fused(token_delay=0.01), seconds=60) as (server, url),
        openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client,
    ):
        stream = await client.completions.create(model="fused", prompt="Q:", stream=True)
        text = (await anext(aiter(stream))).choices[0].text
        server.should_exit = True
        assert text + "".join([one.choices[0].text async for one in stream]) == FUSED


@pytest.mark.extended
async def test_a_client_that_does_not_read_pauses_the_models() -> None:
    written = 0

    class Counted(TextModel):
        def _next(self, ids: Sequence[int]) -> list[float]:
            nonlocal written
            written += 1
            return super()._next(ids)

    script = {"Q:": [" a"] * 8000}
    models = [ScriptedProvider(Counted(script)), ScriptedProvider.from_texts(script)]
    body = b'{"model": "fused", "prompt": "Q:", "stream": true, "max_tokens": 8000}'
    lines = ["POST /v1/completions HTTP/1.1", "host: a", f"authorization: Bearer {KEY}", f"content-length: {len(body)}"]
    head = "\r\n".join([*lines, "content-type: application/json", "", ""]).encode()
    async with served(Fusion(draft=models[0], assistant=models[1]), unread_tokens=16) as (_, url):
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", int(url.split(":")[2].removesuffix("/v1"))))
            client.sendall(head + body)
            await until(lambda: models[0].open_requests == 1)
            before = -1
            while before != written:
                before = written
                await anyio.sleep(0.5)
            assert (models[0].open_requests, written < 8000) == (1, True), written
        await until(lambda: not any(one.open_requests for one in models))


@pytest.mark.parametrize(("host", "secured", "good"), [
    ("127.0.0.1", False, True), ("::1", False, True), ("localhost", False, True), ("127.0.0.2", False, True),
    ("0.0.0.0", False, False), ("127.example.com", False, False), ("0.0.0.0", True, True),
])  # fmt: skip
def test_other_machines_need_a_key(host: str, secured: bool, good: bool) -> None:
    if good:
        check_host(host, secured=secured)
    else:
        with pytest.raises(
            SettingError, match="other machines could use the models without a key: set COSD_SERVE_KEYS"
        ):
            check_host(host, secured=secured)


def test_a_port_that_is_taken_is_named() -> None:
    with listening("127.0.0.1", 0) as at:
        at.listen()
        port = at.getsockname()[1]
        with pytest.raises(
            SettingError, match=f"cannot listen on 127.0.0.1, port {port}: .*Another --port may be free"
        ):
            listening("127.0.0.1", port)
