"""Providers from URLs: accepted and refused arguments, and keys."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import httpx
import pytest

from cosd_providers import Provider, UnsupportedError, connect
from cosd_providers.connect import ADAPTERS
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.engines.ollama import Ollama
from cosd_providers.engines.openai import DIALECTS, OpenAICompatible
from cosd_providers.engines.tgi import Tgi
from cosd_providers.engines.vllm import Vllm


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://gpu1:8080", "http://gpu1:8080"),
        (" http://gpu1:8080/ ", "http://gpu1:8080"),
        ("http://gpu1:8080/v1", "http://gpu1:8080"),
        ("http://gpu1:8080/v1/", "http://gpu1:8080"),
        ("http://gpu1:8080/completion", "http://gpu1:8080"),
        ("http://gpu1:8080/v1/completions", "http://gpu1:8080"),
        ("http://gpu1:8080/v1/chat/completions", "http://gpu1:8080"),
        ("https://example.com/llm/one/v1", "https://example.com/llm/one"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_urls(url: str, endpoint: str) -> None:
    provider = connect(url)
    assert isinstance(provider, Provider)
    assert repr(provider) == f"connect({endpoint!r}, model=None)"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("gpu1:8080", r"'gpu1:8080' is not a URL; did you mean 'http://gpu1:8080'\?"),
        ("localhost", r"did you mean 'http://localhost'\?"),
        ("", "the URL is not valid"),
        ("ftp://gpu1", "is not the URL of a server; expected http://HOST:PORT"),
        ("http://", "is not the URL of a server"),
        ("http://gpu1:port", "has an invalid port"),
        ("http://gpu1:99999", "has an invalid port"),
        ("http://gpu1?key=sk-secret", "has no '.' and no '#'; give keys as api_key"),
        ("http://me:sk-secret@gpu1", "the URL holds credentials; give the key as api_key"),
        ("me:sk-secret@gpu1", "the URL holds credentials"),
        ("gpu1:8080?key=sk-secret", "has no '.' and no '#'"),
        ("http://gpu1:99999?key=sk-secret", "has no '.' and no '#'"),
        ("http://gpu1:99999#sk-secret", "has no '.' and no '#'"),
        ("http://gpu1:99999/sk-secret", "the URL of 'gpu1' has an invalid port"),
        ("http://gpu1:sk-secret", "has an invalid port"),
        ("ftp://gpu1/sk-secret", "'ftp://gpu1' is not the URL of a server"),
        ("sk-secret", "the URL is not valid; expected http://HOST:PORT"),
        ("SK-SECRET", "the URL is not valid"),
        ("x" * 61, "the URL is not valid"),
        ("my sk-secret", "the URL is not valid"),
        ("http://[sk-secret", "the URL cannot be read"),
        ("http://sk-secret\u2100", "the URL cannot be read"),
    ],
)
def test_refused_urls(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        connect(url)
    assert "sk-secret" not in str(caught.value).lower()
    assert "x" * 61 not in str(caught.value)


@pytest.mark.parametrize(
    ("engine", "kind"),
    [("llama.cpp", LlamaCpp), ("vllm", Vllm), ("tgi", Tgi), ("openai", OpenAICompatible), ("ollama", Ollama)],
)
def test_engines_by_name(engine: str, kind: type[Provider]) -> None:
    assert type(connect("http://gpu1", engine=engine)) is kind


def test_an_engine_that_nobody_knows() -> None:
    with pytest.raises(ValueError, match=r"there is no engine 'vlm'; did you mean 'vllm'\?"):
        connect("http://gpu1", engine="vlm")
    with pytest.raises(ValueError, match=r"there is no engine 'LLaMA.cpp'; did you mean 'llama.cpp'\?"):
        connect("http://gpu1", engine="LLaMA.cpp")
    with pytest.raises(ValueError, match=r"no engine 'x'; known are azure, .*llama.cpp, .*openai, .*tgi, .*vllm"):
        connect("http://gpu1", engine="x")


def test_options_of_one_engine() -> None:
    connect("http://gpu1", engine="openai", api="chat", strategy="singles")
    connect("http://gpu1", engine="openai", dialect="vllm", api="chat")  # as errors and docs advise
    with pytest.raises(TypeError, match="'api' is an option of some engines only; name the engine"):
        connect("http://gpu1", api="chat")
    with pytest.raises(TypeError, match=r"unknown argument 'modle'; did you mean 'model'\?"):
        connect("http://gpu1", modle="m")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"unknown argument 'strategi'; did you mean 'strategy'\?"):
        connect("http://gpu1", engine="vllm", strategi="list")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'api' is not an option of the engine 'vllm'"):
        connect("http://gpu1", engine="vllm", api="chat")


@pytest.mark.parametrize("engine", [None, "openai", "llama.cpp"])
@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"url": None}, TypeError, "url must be a text such as 'http://gpu1:8080', not NoneType"),
        ({"report": 5}, TypeError, "report must be what probe returned, or its file, not int$"),
        ({"report": {"model": "m"}}, TypeError, r"not dict; use ProbeReport.model_validate\(report\)"),
        (
            {"report": '{"schema_version": 1}'},
            ValueError,
            r"report is JSON text; give its file, or ProbeReport\.model_va",
        ),
        ({"limits": {"concurrency": 2}}, TypeError, "limits must be cosd_providers.Limits"),
        ({"limits": httpx.Limits()}, TypeError, "limits of an HTTP client belong to the `http_client`"),
        ({"http_client": httpx.Client()}, TypeError, "http_client must be an httpx.AsyncClient, not Client"),
        ({"http_client": "proxy"}, TypeError, "http_client must be an httpx.AsyncClient, not str"),
    ],
)
def test_what_is_of_another_kind_is_refused_at_once(engine: str | None, given: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        connect(**{"url": "http://gpu1", "engine": engine, **given})


def test_an_engine_is_a_name() -> None:
    with pytest.raises(TypeError, match="engine must be a name such as 'vllm', not type"):
        connect("http://gpu1", engine=Vllm)  # type: ignore[arg-type]


def test_tokenizers() -> None:
    folder = Path(__file__).parent.parent / "models" / "sums"
    for engine in (None, *ADAPTERS, *DIALECTS):
        connect("http://gpu1", engine=engine, tokenizer=folder)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://gpu-1.example.com:8080", "COSD_API_KEY_GPU_1_EXAMPLE_COM"),
        ("http://gpu-1.example.com:8080", "COSD_API_KEY_GPU_1_EXAMPLE_COM_8080"),
        ("https://EXAMPLE.com", "COSD_API_KEY_EXAMPLE_COM_443"),
        ("http://127.0.0.1:80", "COSD_API_KEY_127_0_0_1"),
    ],
)
async def test_keys_from_the_environment(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "sk-mine\n")
    assert await sent_key(url) == "Bearer sk-mine"
    assert await sent_key(url, "sk-given") == "Bearer sk-given"
    assert await sent_key(url, "") is None
    assert await sent_key("http://other:8080") is None


async def test_the_port_is_the_more_exact_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSD_API_KEY_GPU", "sk-host")
    monkeypatch.setenv("COSD_API_KEY_GPU_8080", "sk-port")
    assert await sent_key("http://gpu:8080") == "Bearer sk-port"
    assert await sent_key("http://gpu:8081") == "Bearer sk-host"


async def sent_key(url: str, api_key: str | None = None) -> str | None:
    """The key that a provider sends."""
    keys: list[str | None] = []

    def handle(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers.get("authorization"))
        return httpx.Response(404)

    client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    provider = connect(url, api_key=api_key, http_client=client)
    with pytest.raises(UnsupportedError):
        await provider.describe()
    return keys[0]


def test_keys_that_cannot_be_sent() -> None:
    with pytest.raises(ValueError, match="the api_key has characters that cannot be sent") as caught:
        connect("http://gpu1", api_key="sk-\x00secret")
    assert "secret" not in str(caught.value)


async def test_white_space_around_a_key_is_none_of_it() -> None:
    assert await sent_key("http://gpu1", " sk-mine\n") == "Bearer sk-mine"


def test_a_header_takes_the_place_of_the_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSD_API_KEY_GPU1", "sk-env")
    connect("http://gpu1", headers={"authorization": "Bearer sk-mine"})
    with pytest.raises(ValueError, match="both an api_key and an Authorization header"):
        connect("http://gpu1", api_key="sk-two", headers={"authorization": "Bearer sk-mine"})


def test_settings_survive_pickling_but_for_keys() -> None:
    provider = connect("http://gpu1", model="m", api_key="sk-one", headers={"X-Key": "sk-two"}, timeout=3)
    data = pickle.dumps(provider)
    assert b"sk-" not in data
    assert repr(pickle.loads(data)) == repr(provider)
