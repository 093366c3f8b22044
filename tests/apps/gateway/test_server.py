"""The gateway on uvicorn, asked by OpenAI's own client; and how it stops."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio
import anyio.to_thread
import httpx
import openai
import pytest

from cosd_api import Fusion, SettingError
from cosd_api.apps.gateway.idle_connections import ClientConnection
from cosd_api.apps.gateway.server import GatewayServer, check_host, listening
from cosd_providers import ServerError
from cosd_providers.testing import Fault, ScriptedProvider, TextModel
from support.on_sockets import KEY, LOOPS, port_of, post, served, unread
from support.visits import until
from toys.lima import FUSED, assistant, draft


@pytest.fixture(scope="module", params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Each event loop, in turn."""
    return request.param


def connections(server: GatewayServer) -> list[ClientConnection]:
    return [one for one in server.server_state.connections if isinstance(one, ClientConnection)]


def endless(**options: Any) -> tuple[ScriptedProvider, ScriptedProvider]:
    """A pair that agrees on eight thousand tokens."""
    script = {"Q:": [" a"] * 8000}
    return ScriptedProvider.from_texts(script, **options), ScriptedProvider.from_texts(script)


def fused(**options: Any) -> Fusion:
    return Fusion(draft=draft(**options), assistant=assistant())


async def test_a_body_that_is_too_large_is_refused_after_its_client_has_sent_it() -> None:
    """Or the client would find its connection closed, and no reason."""
    async with served(fused(), body_bytes=1000) as (_, url):
        for size in (3_000_000, 5_000_000):
            head = f"POST /v1/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\n"
            head += f"content-type: application/json\r\ncontent-length: {size}\r\n\r\n"
            async with await anyio.connect_tcp("127.0.0.1", port_of(url)) as stream:
                await stream.send(head.encode())
                if size < 4_000_000:
                    with anyio.move_on_after(0.2) as early:
                        await stream.receive()
                    assert early.cancelled_caught
                    await stream.send(b"x" * size)
                assert (await stream.receive()).startswith(b"HTTP/1.1 413")


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
        assert chat.model_extra is not None and chat.id.startswith("chatcmpl-")
        assert (chat.choices[0].message.content, chat._request_id) == ("", chat.model_extra["cosd"]["request_id"])
        async with client.chat.completions.stream(model="fused", messages=messages) as events:
            assert (await events.get_final_completion()).choices[0].finish_reason == "stop"


async def test_an_answer_that_was_taken_is_counted_as_one() -> None:
    """The server reports each client as gone once its answer is complete."""
    async with served(fused()) as (_, url), httpx.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as client:
        for stream in (True, False):
            await client.post(f"{url}/completions", json={"model": "fused", "prompt": "Q:", "stream": stream})
        page = (await client.get(url.replace("/v1", "/metrics"))).text
    assert 'cosd_requests_total{model="fused",outcome="ok",route="/v1/completions"} 2.0' in page
    assert "disconnected" not in page


async def test_openais_client_passes_heartbeats_over() -> None:
    asked: dict[str, Any] = {"model": "fused", "prompt": "Q:", "stream": True}
    async with served(fused(token_delay=0.02), heartbeat_seconds=0.005) as (_, url):
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(headers=headers) as plain:
            assert ": waiting\n\n" in (await plain.post(f"{url}/completions", json=asked)).text
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
            stream = await client.completions.create(**asked)
            assert "".join([one.choices[0].text async for one in stream]) == FUSED


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
            with pytest.raises(openai.BadRequestError, match="tool_choice needs tools") as refused:
                await client.chat.completions.create(
                    model="fused", messages=[{"role": "user", "content": "Hi"}], tool_choice="required"
                )
            assert (refused.value.param, refused.value.type) == ("tool_choice", "invalid_request_error")
            with pytest.raises(openai.NotFoundError, match="the models are: fused"):
                await client.models.retrieve("other")
            for base in (url.removesuffix("/v1"), f"{url}/v1"):
                with pytest.raises(
                    openai.NotFoundError, match="there is no such route; /v1/completions is the right one"
                ):
                    await client.with_options(base_url=base).completions.create(model="fused", prompt="Q:")
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
        served(Fusion(draft=models[0], assistant=models[1]), stop_seconds=0.1) as (server, url),
        openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client,
    ):
        stream = await client.completions.create(model="fused", prompt="Q:", stream=True, max_tokens=5000)
        await anext(aiter(stream))
        server.should_exit = True
        with pytest.raises(openai.APIError, match="the gateway was stopped before the answer was complete"):
            async for _ in stream:
                pass
    async with (
        served(fused(token_delay=0.01), stop_seconds=60) as (server, url),
        openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client,
    ):
        stream = await client.completions.create(model="fused", prompt="Q:", stream=True)
        text = (await anext(aiter(stream))).choices[0].text
        server.should_exit = True
        assert text + "".join([one.choices[0].text async for one in stream]) == FUSED


@pytest.mark.extended
async def test_a_client_that_does_not_read_pauses_the_models() -> None:
    written = 0
    script = {"Q:": [" a"] * 8000}

    class Counted(TextModel):
        def _next(self, ids: Sequence[int]) -> list[float]:
            nonlocal written
            written += 1
            return super()._next(ids)

    models = ScriptedProvider(Counted(script)), ScriptedProvider.from_texts(script)
    async with served(Fusion(draft=models[0], assistant=models[1]), unread_tokens=16) as (_, url):
        with unread(url):
            await until(lambda: models[0].open_requests == 1)
            before = -1
            while before != written:
                before = written
                await anyio.sleep(0.5)
            assert (models[0].open_requests, written < 8000) == (1, True), written
        await until(lambda: not any(one.open_requests for one in models))


async def test_a_client_that_takes_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosd_api.apps.gateway.idle_connections.TAKING_SECONDS", 0.2)
    models = endless()
    async with served(Fusion(draft=models[0], assistant=models[1]), unread_tokens=16) as (server, url):
        with unread(url):
            await until(lambda: models[0].open_requests > 0)
            await until(lambda: not any(one.open_requests for one in models))
            await until(lambda: not server.server_state.connections)
            assert not any(one.open_requests for one in models)


async def test_a_client_that_takes_enough_is_not_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    models = endless()
    async with served(Fusion(draft=models[0], assistant=models[1]), unread_tokens=16) as (server, url):
        with unread(url) as client:
            await until(lambda: any(one._taking_timer for one in connections(server)))
            [connection] = connections(server)
            before = connection._unsent()
            monkeypatch.setattr("cosd_api.apps.gateway.idle_connections._TAKEN_BYTES", 1)
            client.setblocking(False)
            while connection._unsent() >= before:
                with suppress(BlockingIOError):
                    client.recv(4096)
                await anyio.sleep(0.001)
            connection._check_taking(before)
            await anyio.sleep(0.01)
            assert connections(server) == [connection]
            connection._check_taking(0)
            await until(lambda: not connections(server))


async def test_a_client_that_leaves_before_the_first_token_cancels_the_models_and_is_counted() -> None:
    models = endless(token_delay=0.001)
    models[1].request_delay = 600
    async with served(Fusion(draft=models[0], assistant=models[1], ask="all")) as (_, url):
        with socket.create_connection(("127.0.0.1", port_of(url))) as client:
            client.sendall(post(max_tokens=8000))
            await until(lambda: [one.open_requests for one in models] == [1, 1])
        await until(lambda: [one.open_requests for one in models] == [0, 0])
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as asking:
            page = (await asking.get(url.replace("/v1", "/metrics"))).text
    route = 'model="fused",outcome="disconnected",route="/v1/completions"'
    assert f"cosd_requests_total{{{route}}} 1.0" in page
    tokens = re.findall(r'cosd_tokens_total{endpoint="(\w+)",kind="\w+",model="fused"} (\d+)', page)
    assert {name for name, count in tokens if int(count)} == {"draft", "assistant"}


async def test_a_gateway_that_drains_answers_and_is_not_ready() -> None:
    async with served(fused(), drain_seconds=600) as (server, url), httpx.AsyncClient() as client:
        root = url.removesuffix("/v1")
        assert (await client.get(f"{root}/ready")).json()["status"] == "ready"
        server.should_exit = True
        while (found := await client.get(f"{root}/ready")).status_code == 200:  # noqa: ASYNC110 - it is asked
            await anyio.sleep(0.01)
        assert (found.status_code, found.json()) == (503, {"status": "stopping"})
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as asking:
            assert (await asking.completions.create(model="fused", prompt="Q:")).choices[0].text == FUSED
        server.force_exit = True  # as by a second Ctrl-C


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
