"""Detection of engines, and the provider that delegates to the detected adapter."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import anyio
import httpx
import pytest

from cosd_providers import (
    AuthenticationError,
    DraftEnd,
    Provider,
    ProviderTimeoutError,
    Question,
    ServerError,
    Token,
    UnsupportedError,
    Usage,
    connect,
)
from cosd_providers.contract import Context
from cosd_providers.detection import DetectedProvider, detect
from cosd_providers.engines.tgi import Tgi
from cosd_providers.http.transport import Transport
from cosd_providers.testing import ScriptedProvider, TextModel
from fakes.llama_cpp import FakeLlamaCpp

URL = "http://gpu:8080"


def server(routes: Mapping[str, Any]) -> httpx.AsyncClient:
    """A server with these routes alone."""

    def handle(request: httpx.Request) -> httpx.Response:
        answer = routes.get(request.url.path)
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200 if answer else 404, json=answer)

    return httpx.AsyncClient(transport=httpx.MockTransport(handle))


def owned(owner: str) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": owner}]}


@pytest.mark.parametrize(
    ("routes", "engine"),
    [
        ({"/v1/models": owned("llamacpp")}, "llama.cpp"),
        ({"/v1/models": owned("vllm")}, "vllm"),
        ({"/v1/models": owned("library")}, "ollama"),
        ({"/v1/models": owned("someone/tiny"), "/info": {"model_id": "tiny", "max_total_tokens": 9}}, "tgi"),
        ({"/info": {"model_id": "tiny", "max_total_tokens": 9}}, "tgi"),
        ({"/props": {"default_generation_settings": {}}}, "llama.cpp"),
        ({"/v1/models": owned("system")}, "openai"),
        ({"/v1/models": {"data": [{"id": "m", "owned_by": ["vllm"]}]}}, "openai"),
        ({"/v1/models": owned("me"), "/openapi.json": {"paths": {"/extras/tokenize/count": {}}}}, "llama-cpp-python"),
        ({"/v1/models": owned("me"), "/openapi.json": {"paths": {"/v1/completions": {}}}}, "openai"),
        ({"/v1/models": owned("me"), "/openapi.json": {"paths": []}}, "openai"),
        ({"/v1/models": owned("bartowski"), "/api/tags": {"models": []}}, "ollama"),
        ({"/v1/models": owned("openai"), "/info": httpx.Response(403), "/props": httpx.Response(405)}, "openai"),
        ({"/v1/models": {"data": []}}, "openai"),
        ({"/v1/models": {"data": [None, {"owned_by": 3}]}, "/info": ["x"]}, "openai"),
        ({"/v1/models": httpx.Response(200, html="<html>"), "/props": {"default_generation_settings": 1}}, "llama.cpp"),
    ],
)
async def test_engines(routes: Mapping[str, Any], engine: str) -> None:
    assert await detect(Transport(URL, http_client=server(routes))) == engine


async def test_a_fault_of_the_server_itself_is_not_taken_for_a_proxy() -> None:
    """The reasons of an engine's own adapter are shown: without probabilities, `/v1` would be of no use either."""
    fake = FakeLlamaCpp(TextModel({"Q": ["a"]}))
    fake.slots = [{"id": 0, "speculative": True}]
    with pytest.raises(UnsupportedError, match="decodes speculatively"):
        await connect(URL, http_client=fake.client()).describe()


async def test_what_cannot_be_told() -> None:
    with pytest.raises(
        UnsupportedError, match=r"answers none of /v1/models, /info, /props and /api/tags.* engine='openai'"
    ):
        await connect(URL, http_client=server({})).describe()
    refused = server({"/v1/models": httpx.Response(401, json={"error": {"message": "no key"}})})
    with pytest.raises(AuthenticationError, match="no key"):
        await connect(URL, http_client=refused).describe()


async def test_a_wrong_key_at_a_gateway_without_a_database() -> None:
    """LiteLLM looks every key but its own up in the database, and answers all routes like this."""
    words = {"message": "No connected db.", "type": "no_db_connection", "param": None, "code": "400"}
    answer = httpx.Response(400, json={"error": words})
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: answer))
    with pytest.raises(AuthenticationError, match=r"400: No connected db. The key was refused."):
        await connect(URL, api_key="sk-wrong", http_client=client).describe()


async def test_it_is_the_adapter_and_asks_once() -> None:
    made: list[str] = []
    scripted = ScriptedProvider.from_texts({"Q": [" a", (" b", 0.4)]})

    def make(engine: str) -> Provider:
        made.append(engine)
        return scripted

    provider = DetectedProvider(Transport(URL, http_client=server({"/v1/models": owned("vllm")})), make, "m")
    assert isinstance(provider, Provider)
    assert provider.name == "m@gpu:8080"
    async with provider:
        usage = Usage()
        first, _ = [item async for item in provider.generate(Context("Q", b""), max_tokens=1, usage=usage)]
        assert first == Token(b" a", 1.0)
        draft = provider.generate(Context("Q", b" a"), max_tokens=3, continuation=None, usage=usage)
        assert [item async for item in draft][-1] == DraftEnd("end")
        [proposal] = await provider.propose(Context("Q", b" a"), [Question(2, (b"x",))], usage=usage)
        assert proposal is not None
        assert proposal.tokens[0] == Token(b" b", 0.4)
        assert await provider.describe() == await scripted.describe()
        assert await provider.tokenize("Q") == await scripted.tokenize("Q")
        assert await provider.score(Context("Q", b" a"), usage=usage) == await scripted.score(
            Context("Q", b" a"), usage=usage
        )
        more: dict[str, Any] = {"alternatives": 2, "usage": usage}
        async for _ in provider.generate(Context("Q", b""), max_tokens=1, temperature=1, seed=3, **more):
            pass
        await provider.propose(Context("Q", b" a"), [Question(2, (b"x",))], **more)
        await provider.score(Context("Q", b" a"), end=True, **more)
        called = [(call.alternatives, call.temperature, call.seed, call.end) for call in scripted.calls[-3:]]
        assert called == [(2, 1, 3, False), (2, 0, None, False), (2, 0, None, True)]
    assert made == ["vllm"]


@pytest.mark.usefixtures("no_waiting")
async def test_it_is_asked_again_after_a_failure() -> None:
    answers = [httpx.Response(500), *[httpx.Response(500)] * 9]

    def handle(request: httpx.Request) -> httpx.Response:
        return answers.pop() if answers else httpx.Response(200, json=owned("vllm"))

    client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    scripted = ScriptedProvider.from_texts({"Q": ["a"]})
    provider = DetectedProvider(Transport(URL, http_client=client), lambda _: scripted, None)
    with pytest.raises(ServerError):
        await provider.describe()
    answers.clear()
    assert await provider.describe() == await scripted.describe()


async def test_the_adapter_is_entered_and_left_as_often() -> None:
    class Counted(ScriptedProvider):
        open = 0

        async def __aenter__(self) -> Self:
            self.open += 1
            return self

        async def __aexit__(self, *exc: object) -> None:
            self.open -= 1

    adapter = Counted(TextModel({"Q": ["a"]}))
    provider = DetectedProvider(
        Transport(URL, http_client=server({"/v1/models": owned("vllm")})), lambda _: adapter, None
    )
    async with provider:
        async with provider:
            await provider.describe()
            assert adapter.open == 2
        async with provider:
            assert adapter.open == 2
        assert adapter.open == 1
    assert adapter.open == 0
    await provider.describe()


async def test_a_copy_asks_again_and_has_no_key() -> None:
    fake = FakeLlamaCpp(TextModel({"Q": ["a"]}))
    provider = connect(URL, api_key="sk-one", headers={"X": "sk-two"}, http_client=fake.client())
    await provider.describe()
    data = pickle.dumps(provider)
    assert b"sk-" not in data
    copy = pickle.loads(data)
    assert repr(copy) == repr(provider) == "connect('http://gpu:8080', model=None)"
    assert "sk-" not in repr(vars(provider))


@pytest.mark.parametrize("failure", [httpx.Response(500), httpx.ReadTimeout("")])
async def test_a_route_that_a_gateway_does_not_know_is_asked_once(failure: Any) -> None:
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json=owned("someone"))
        if isinstance(failure, Exception):
            raise failure
        return httpx.Response(failure.status_code)

    transport = Transport(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    assert await detect(transport) == "openai"
    assert {"/v1/models", "/info", "/props", "/api/tags"} <= {*asked}
    assert len(asked) == len({*asked})


async def test_a_server_that_never_answers_is_given_up_soon() -> None:
    asked: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        raise httpx.ReadTimeout("")

    client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    transport = Transport(URL, http_client=client, timeout=600)
    with pytest.raises(
        ProviderTimeoutError, match=r"no answer within 10 s. It accepted the connection. Is it an API\?"
    ):
        await detect(transport)
    assert [request.extensions["timeout"]["read"] for request in asked] == [10]


def test_in_several_event_loops_at_once() -> None:
    """The loops share one detection, and each closes what it has opened."""
    all_three = threading.Barrier(3, timeout=20)
    client = server({"/info": {"model_id": "tiny", "max_total_tokens": 9}})
    provider = DetectedProvider(
        Transport(URL, http_client=client), lambda _, **over_v1: Tgi(URL, http_client=client), None
    )

    async def use() -> Provider:
        async with provider:
            all_three.wait()
            adapter = await provider.adapter()
            all_three.wait()
            return adapter

    async def look() -> None:
        async with provider:
            all_three.wait()
            all_three.wait()

    with ThreadPoolExecutor(3) as pool:
        one, other, _ = pool.map(anyio.run, [use, use, look])
    assert one is other
    assert (provider._users, provider._entered) == ({}, {})
