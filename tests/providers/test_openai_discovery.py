"""Discovery of the OpenAI-compatible adapter: models, and proof that a server does what a fusion needs."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import anyio.lowlevel
import httpx
import pytest

from cosd_providers import (
    AuthenticationError,
    InvalidRequestError,
    ModelChoiceError,
    Question,
    UnsupportedError,
    Usage,
)
from cosd_providers.contract import Context, Piece
from cosd_providers.engines.openai import OpenAICompatible
from cosd_providers.engines.openai.dialects import Dialect
from cosd_providers.testing import TextModel
from fakes.adapters import TOY
from fakes.openai import FakeOpenAI
from fakes.openai_servers import URL, fake
from support.asked import draft


async def test_models() -> None:
    server, provider = fake({}, listed=[{"id": f"m{n}", "max_model_len": 7} for n in range(10)])
    with pytest.raises(ModelChoiceError, match=r"several models, and none was named; .*'m7', and 2 more\. Give one"):
        await provider.describe()
    named = OpenAICompatible(URL, model="m3", http_client=server.client())
    assert ((await named.describe()).model, (await named.describe()).context) == ("m3", 7)
    fixed = OpenAICompatible(URL, model="m3", context=5, http_client=server.client())
    assert (await fixed.describe()).context == 5
    unlisted = OpenAICompatible(URL, model="other", http_client=server.client())
    assert ((await unlisted.describe()).model, (await unlisted.describe()).context) == ("other", None)
    with pytest.raises(ModelChoiceError, match="no model 'other'; the server has 'm0'"):
        await OpenAICompatible(URL, model="other", dialect="vllm", http_client=server.client()).describe()


async def test_a_server_that_lists_no_models() -> None:
    server, provider = fake({}, listed=None)
    with pytest.raises(InvalidRequestError, match="404"):
        await provider.describe()
    assert (await OpenAICompatible(URL, model="m", http_client=server.client()).describe()).model == "m"
    silent = OpenAICompatible(URL, dialect=Dialect("x", models=None), http_client=server.client())
    with pytest.raises(ModelChoiceError, match="no model was named; the server has none"):
        await silent.describe()


async def test_another_models_tokenizer_is_refused() -> None:
    server, _ = fake({"Q": [" a"]})

    class Bytes:
        name, beginning = "bytes", 0

        def encode(self, text: str) -> list[Piece]:
            return [Piece(byte, bytes([byte])) for byte in text.encode()]

        def token(self, id: int) -> bytes | None:
            return bytes([id])

    provider = OpenAICompatible(
        URL, http_client=server.client(), dialect=replace(TOY, sample="ab a"), tokenizer=Bytes()
    )
    words = r"'bytes' is not the tokenizer of this model. For a test text the server reads \d+ tokens, and it makes 4"
    with pytest.raises(UnsupportedError, match=words):
        await draft(provider)


async def test_a_repeated_start_of_an_answer_is_found_out() -> None:
    """llama.cpp repeats it, whatever dialect is given."""
    for dialect in ("vllm", "llama.cpp"):
        _, provider = fake(
            {"Q": [" a", " b"]}, {"api": "chat", "dialect": dialect, "strategy": "singles"}, chat_repeats=True
        )
        [proposal] = await provider.propose(Context("Q", b" a"), [Question(2, (b" x",))], usage=Usage())
        assert proposal is not None
        assert proposal.tokens[0].data == b" b"


async def test_a_template_around_the_prompt_is_refused() -> None:
    server, provider = fake({"Q": [" a"]}, {"dialect": "openai"}, template=("<|user|> ", " <|assistant|>"))
    words = r"gpu:8000: the server puts a chat template .* Is it Ollama\? Then give engine='ollama'"
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=words):
            await draft(provider)
    with pytest.raises(UnsupportedError, match="chat template around every prompt"):
        await provider.describe()
    assert {body["prompt"] for body in server.bodies} == {"a"}
    _, provider = fake({"Q": [" a"]}, {"dialect": "together"}, template=("<|user|> ", " <|assistant|>"))
    with pytest.raises(UnsupportedError, match=r"cannot continue an answer\. Use a model whose template is the bare"):
        await draft(provider)  # this service is known: it is not Ollama


@pytest.mark.parametrize("beginning", [True, False])
async def test_a_prompt_without_a_template_is_looked_into_once(beginning: bool) -> None:
    server, provider = fake({"Q": [" a"]}, {"dialect": "openai"}, beginning=beginning)
    for _ in range(2):
        await draft(provider)
    assert [body["prompt"] for body in server.bodies] == ["a", "a", "a\n\n", "Q", "Q"]


async def test_a_server_that_trims_prompts_is_refused() -> None:
    class Trims(FakeOpenAI):
        def _answer(self, body: Any, prompts: list[str], chat: str) -> Any:
            return super()._answer(body, [prompt.rstrip() for prompt in prompts], chat)

    provider = OpenAICompatible(URL, http_client=Trims(TextModel({"Q": [" a"]})).client())
    with pytest.raises(UnsupportedError, match=r"takes white space off the end of every prompt.* cannot continue"):
        await draft(provider)


@pytest.mark.parametrize(
    ("always", "dialect", "hint"),
    [
        (True, "openai", ""),
        (False, "openai", "Is there a setting by which the server shows the model's own log probabilities?"),
        (False, "sglang", "Update SGLang, or start it with SGLANG_RETURN_ORIGINAL_LOGPROB=1"),
    ],
)
async def test_a_server_that_seems_certain_because_of_the_temperature_is_refused(
    always: bool, dialect: str, hint: str
) -> None:
    """A model that is certain by itself is believed."""

    class Certain(FakeOpenAI):
        def _run(self, ids: Any, limit: int, count: int, chance: Any = None) -> Any:
            run = super()._run(ids, limit, count, chance)
            if always or not self.bodies[-1]["temperature"]:
                for shown in run:
                    best = shown.entry["top_logprobs"][0] if shown.entry else {}
                    for one in shown.entry["top_logprobs"] if shown.entry else ():
                        one["logprob"] = 0.0 if one is best else -9999.0
                    if shown.entry:
                        shown.entry["logprob"] = 0.0
            return run

    script = {"a": [(" b", 0.5)], "Q": [(" b", 0.5)]}
    provider = OpenAICompatible(URL, http_client=Certain(TextModel(script)).client(), dialect=dialect)
    if always:
        assert [token.data for token in (await draft(provider, limit=1))[:-1]] == [b" b"]
        return
    words = "gpu:8000: at temperature 0 the server reports no probabilities but 1 and 0. "
    with pytest.raises(UnsupportedError, match=words) as caught:
        await draft(provider)
    assert hint in str(caught.value) and "vLLM" not in str(caught.value)


async def test_a_template_that_trims_answers_is_refused() -> None:
    way: dict[str, Any] = {"api": "chat", "dialect": "vllm"}
    _, provider = fake({"Q": [" a"]}, way, trims=True)
    with pytest.raises(UnsupportedError, match=r"takes white space off the end .* Give api=\"completions\""):
        await provider.describe()
    server, provider = fake({"Q": [" a"]}, way)
    for _ in range(2):
        await draft(provider)
    assert [len(body["messages"]) for body in server.bodies] == [2, 2, 2, 1, 1]


async def test_what_many_ask_at_once_is_found_out_once() -> None:
    server, _ = fake({"Q": [" a"]})

    async def handle(request: httpx.Request) -> httpx.Response:
        await anyio.lowlevel.checkpoint()
        return server.handle(request)

    client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    provider = OpenAICompatible(URL, http_client=client)
    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(provider.describe)
    alone, other = fake({"Q": [" a"]}, {"dialect": "openai"})
    await other.describe()
    assert len(server.requests) == len(alone.requests)
    assert pickle.loads(pickle.dumps(OpenAICompatible(URL)))


async def test_a_refused_key() -> None:
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(401, json={"error": "no"})))
    with pytest.raises(AuthenticationError, match="The key was refused"):
        await OpenAICompatible(URL, model="m", api_key="sk-secret", http_client=client).describe()
