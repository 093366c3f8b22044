"""Hosted services: known by their host, asked with their key's header at their paths, refused in the right words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from cosd_providers import Question, UnsupportedError, Usage, connect, probe
from cosd_providers.contract import Context
from cosd_providers.engines.openai import DIALECTS, OpenAICompatible
from cosd_providers.engines.openai.dialects import dialect_at
from cosd_providers.testing import TextModel
from fakes.openai import FakeOpenAI
from support.asked import draft

HOSTED = [name for name, dialect in DIALECTS.items() if dialect.hosts]
URLS = {
    "openai": "https://api.openai.com",
    "azure": "https://mine.openai.azure.com",
    "together": "https://api.together.xyz",
    "fireworks": "https://api.fireworks.ai",
    "deepinfra": "https://api.deepinfra.com",
    "deepseek": "https://api.deepseek.com",
    "mistral": "https://api.mistral.ai",
    "groq": "https://api.groq.com",
    "openrouter": "https://openrouter.ai",
}
PATHS = {
    "openai": "/v1/completions",
    "azure": "/openai/v1/completions",
    "together": "/v1/completions",
    "fireworks": "/inference/v1/completions",
    "deepinfra": "/v1/openai/completions",
    "deepseek": "/beta/chat/completions",
    "mistral": "/v1/chat/completions",
    "groq": "/openai/v1/chat/completions",
    "openrouter": "/api/v1/completions",
}
SCRIPT: Mapping[str, list[Any]] = {"Q": [" a", " b", " c"]}


class Service:
    """A hosted service: the fake behind it, and what was sent to it."""

    def __init__(self, name: str, **options: Any) -> None:
        self.fake = FakeOpenAI(TextModel({**SCRIPT}), **options)
        self.name = name
        self.seen: list[httpx.Request] = []
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self.handle))

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        return self.answer(request, json.loads(request.content) if request.content else {})

    def answer(self, request: httpx.Request, body: Any) -> httpx.Response:
        return self.fake.handle(request)

    def connect(self, **options: Any) -> Any:
        return connect(URLS[self.name], model="toy", api_key="sk-secret", http_client=self.client, **options)


def test_every_service_has_a_url_here() -> None:
    assert {*URLS} == {*HOSTED} == {*PATHS}


@pytest.mark.parametrize("name", HOSTED)
async def test_a_service_is_known_by_its_host(name: str) -> None:
    service = Service(name)
    provider = service.connect()
    assert isinstance(provider, OpenAICompatible)
    assert [token.data for token in (await draft(provider, "Q"))[:-1]] == [b" a", b" b", b" c", b""]
    [found] = await provider.propose(Context("Q", b" a b"), [Question(4, (b" x",))], usage=Usage())
    assert found is not None
    assert found.tokens[0].data == b" c"
    assert service.seen[-1].url.path == PATHS[name]
    assert service.seen[-1].url.host == httpx.URL(URLS[name]).host
    assert (await provider.describe()).engine == name


@pytest.mark.parametrize("name", HOSTED)
async def test_the_key_goes_where_the_service_wants_it(name: str) -> None:
    service = Service(name)
    provider = service.connect()
    await provider.describe()
    keys = {header: value for header, value in service.seen[-1].headers.items() if "sk-secret" in value}
    assert keys == ({"api-key": "sk-secret"} if name == "azure" else {"authorization": "Bearer sk-secret"})
    assert "sk-secret" not in repr(provider)


def test_two_keys() -> None:
    with pytest.raises(ValueError, match="both an api_key and a header that holds one; this server's is 'api-key'"):
        connect(URLS["azure"], model="m", api_key="sk-secret", headers={"Authorization": "Bearer sk-other"})


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("https://api.fireworks.ai/inference/v1", "/inference/v1/completions"),
        ("https://api.fireworks.ai/inference/v1/completions", "/inference/v1/completions"),
        ("https://api.deepinfra.com/v1/openai", "/v1/openai/completions"),
        ("https://API.DeepInfra.com/v1/openai/chat/completions", "/v1/openai/completions"),
        ("https://api.deepseek.com/v1", "/beta/chat/completions"),
        ("https://mine.openai.azure.com/openai/v1/", "/openai/v1/completions"),
    ],
)
async def test_urls_as_people_write_them(url: str, path: str) -> None:
    service = Service("openai")
    await connect(url, model="toy", http_client=service.client).describe()
    assert service.seen[-1].url.path == path


@pytest.mark.parametrize("host", ["openai.azure.com.evil.example", "api.openai.com.evil.example", "xapi.groq.com", ""])
def test_other_hosts(host: str) -> None:
    assert dialect_at(host) is None


@pytest.mark.parametrize("name", ["deepseek", "mistral", "groq"])
async def test_how_an_answer_is_continued(name: str) -> None:
    service = Service(name)
    await service.connect().propose(Context("Q", b" a"), [Question(2, (b" x",))], usage=Usage())
    message = json.loads(service.seen[-1].content)["messages"][-1]
    expected = {} if name == "groq" else {"prefix": True}
    assert message == {"role": "assistant", "content": " a", **expected}


async def test_openrouter_is_told_what_it_may_not_do() -> None:
    service = Service("openrouter")
    await service.connect().describe()
    body = json.loads(service.seen[-1].content)
    assert (body["provider"], body["transforms"]) == ({"require_parameters": True}, [])
    pinned = {"order": ["one"], "require_parameters": True}
    await service.connect(extra_body={"provider": pinned}).describe()
    assert json.loads(service.seen[-1].content)["provider"] == pinned


# What they cannot do.


class ChatModel(Service):
    """A chat model of OpenAI's, which refuses the route for raw text."""

    def answer(self, request: httpx.Request, body: Any) -> httpx.Response:
        if body and "messages" not in body:
            words = (
                "This is a chat model and not supported in the v1/completions endpoint. Did you mean to use"
                " v1/chat/completions?"
            )
            return httpx.Response(404, json={"error": {"message": words, "type": "invalid_request_error"}})
        return super().answer(request, body)


@pytest.mark.parametrize("name", ["openai", "azure"])
async def test_a_chat_model_ends_in_the_right_words(name: str) -> None:
    service = ChatModel(name)
    words = r"messages only, .* does not continue a partial answer\. Use a model with .*davinci-002.*DeepSeek"
    with pytest.raises(UnsupportedError, match=words) as caught:
        await service.connect().describe()
    assert caught.value.endpoint.startswith(URLS[name])
    asked = len(service.seen)
    with pytest.raises(UnsupportedError, match="does not continue a partial answer"):
        await service.connect(api="chat").describe()
    assert not [request for request in service.seen[asked:] if request.method == "POST"]


async def test_the_report_of_a_chat_model_has_the_reason() -> None:
    service = ChatModel("openai")
    report = await probe(service.connect())
    assert report.model == "toy"
    assert report.spent.requests == len([request for request in service.seen if request.method == "POST"]) > 0
    assert not report.can_draft
    shown = " ".join(str(report).split())
    assert "https://api.openai.com: openai, model toy server refused: this model takes messages only" in shown
    assert "\nas a draft         no\nas an assistant    no\n" in str(report)
    assert "Mistral" not in shown


async def test_a_service_without_raw_text_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"groq has no route for api='completions'\. Give api='chat'\."):
        await Service("groq").connect(api="completions").describe()
    with pytest.raises(
        ValueError, match=r"there is no api='message'; it is 'completions', .* 'chat', .* or 'messages'"
    ):
        Service("groq").connect(api="message")


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("groq", 400, "property 'logprobs' is unsupported"),
        ("mistral", 422, [{"type": "extra_forbidden", "loc": ["body", "logprobs"], "msg": "Extra inputs are not ..."}]),
        ("openrouter", 404, "No endpoints found that can handle the requested parameters."),
        ("openai", 403, "You are not allowed to request logprobs from this model"),
    ],
)
async def test_probabilities_that_are_refused(name: str, status: int, message: Any) -> None:
    class Refusing(Service):
        def answer(self, request: httpx.Request, body: Any) -> httpx.Response:
            if "logprobs" in body:
                error = {"error": {"message": message}} if isinstance(message, str) else {"detail": message}
                return httpx.Response(status, json=error)
            return super().answer(request, body)

    service = Refusing(name, probs="ignored")
    provider = service.connect()
    assert not (await provider.describe()).capabilities.probs
    with pytest.raises(UnsupportedError, match="gives no probabilities"):
        await provider.propose(Context("Q", b" a"), None, usage=Usage())
    assert {token.prob for token in (await draft(provider, "Q"))[:-1]} == {None}
    [found] = await provider.propose(Context("Q", b" a"), [Question(2, (b" b",), word=True)], usage=Usage())
    assert found is not None
    assert found.tokens[0].data == b" b"
    refused = [request for request in service.seen if b"logprobs" in request.content]
    assert len(refused) == 1


async def test_a_service_whose_models_are_not_listed_needs_a_name() -> None:
    service = Service("deepseek")
    with pytest.raises(ValueError, match=r"no model was named; the server has none\. Give one as `model`"):
        await connect(URLS["deepseek"], http_client=service.client).describe()
