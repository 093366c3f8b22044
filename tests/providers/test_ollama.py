"""The Ollama adapter against a stand-in with toy models, which does what the server's source says.

The tests of every adapter are in test_adapters.py and ../live/test_conformance_ollama.py; ../wire has what is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cosd_providers import (
    ContextLengthError,
    DraftEnd,
    InvalidRequestError,
    ModelChoiceError,
    Question,
    ResponseError,
    ServerError,
    Token,
    UnsupportedError,
    Usage,
    connect,
)
from cosd_providers.contract import Context
from cosd_providers.engines.ollama import Ollama, OllamaEvent
from cosd_providers.engines.openai.wire import steps
from cosd_providers.testing import LanguageModel, ScriptedProvider, TableModel, TextModel
from fakes.adapters import OLLAMA_ABLE, OLLAMA_SNAPSHOT, OLLAMA_URL, Local, readable, simple
from fakes.ollama import StandInOllama
from support.asked import draft, near
from toys import toy_models as toys

SCRIPTS: dict[str, list[Any]] = {"a": [" b"], "Q": [" a", (" b", 0.6), " c"]}
Change = Callable[[dict[str, Any]], object]


def fake(scripts: dict[str, list[Any]] | None = None, **options: Any) -> tuple[StandInOllama, Callable[..., Ollama]]:
    """A stand-in, and what makes an adapter over it."""
    server = StandInOllama(TextModel({**SCRIPTS, **(scripts or {})}), **options)
    return server, lambda **given: Ollama(OLLAMA_URL, http_client=server.client(), **given)


def restored(model: LanguageModel, **options: Any) -> tuple[StandInOllama, Ollama]:
    """An adapter over a model that does not know the texts of the checks: they are recalled."""
    server = StandInOllama(model, **options)
    provider = Ollama(OLLAMA_URL, http_client=server.client())
    provider.restore(OLLAMA_SNAPSHOT, OLLAMA_URL)
    return server, provider


def changed(path: str, change: Change) -> Ollama:
    """An adapter over a stand-in whose answers on one route are changed."""
    server, _ = fake()

    def handle(request: httpx.Request) -> httpx.Response:
        answer = server.handle(request)
        if request.url.path != path or answer.status_code != 200:
            return answer
        body = answer.json()
        change(body)
        return httpx.Response(200, json=body)

    return Ollama(OLLAMA_URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))


async def refused(provider: Ollama, error: type[Exception], words: str, text: str = "Q") -> None:
    """Asks for a draft and for a proposal, which both fail with these words."""
    with pytest.raises(error, match=words):
        await draft(provider, text)
    with pytest.raises(error, match=words):
        await provider.propose(Context(text, b""), [Question(0, (b"x",))], usage=Usage())


@given(toys.models(may_hide_end=False), toys.prompts().filter(bool), st.integers(1, 12))
async def test_hidden_tokens_make_no_probability_up(model: toys.ToyModel, prompt: bytes, limit: int) -> None:
    """Where tokens are left out, the text is the same, and no probability is another one than the model's."""
    plain = toys.Plain(model)
    theirs = await draft(ScriptedProvider(plain, token_ids=False, end_prob=False), prompt.decode(), limit=limit)
    assume(readable(theirs[:-1]) and simple(plain))
    _, provider = restored(plain, beginning=len(plain.tokens))
    ours = await draft(provider, prompt.decode(), limit=limit)
    assert [token.data for token in ours[:-1]] == [token.data for token in theirs[:-1]]
    for one, other in zip(ours[:-1], theirs[:-1], strict=True):
        assert one.prob is None or one.prob == near(other.prob)


async def test_a_draft() -> None:
    _, made = fake()
    usage = Usage()
    *tokens, end = await draft(made(), usage=usage)
    assert [(token.data, token.prob) for token in tokens] == [(b" a", 1), (b" b", near(0.6)), (b" c", 1), (b"", None)]
    assert end == DraftEnd("end")
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (1, 1, 4)


async def test_alternatives() -> None:
    probs = {b" a": 0.4, b" b": 0.25, b" c": 0.15, b"\xc3": 0.1, b"<|stop|>": 0.1}
    server, provider = restored(
        TableModel([b"", b"Q", *probs], lambda ids: [0.0] * 2 + [*probs.values()], end_ids=(0,))
    )
    expected = (Token(b" b", near(0.25)), Token(b" c", near(0.15)))
    for count in (0, 1, 4, 9, 30):
        first, *_ = await draft(provider, limit=1, alternatives=count)
        assert first.alternatives == expected[:count]
    assert [body["top_logprobs"] for body in server.bodies] == [5, 5, 5, 10, 20]


async def test_a_proposal_is_a_request_for_each_place() -> None:
    server, made = fake()
    provider, usage = made(), Usage()
    questions = [Question(0, (b" a",)), Question(2, (b" x",)), Question(4, (b" x",))]
    found = await provider.propose(Context("Q", b" a x"), questions, alternatives=9, usage=usage)
    assert [one and one.tokens[0].data for one in found] == [b" a", b" b", b""]
    assert all(one and not one.tokens[0].alternatives for one in found)
    asked = [(body["prompt"], body["stream"], body["options"]["num_predict"]) for body in server.bodies[-3:]]
    assert asked == [("Q", False, 1), ("Q a", False, 1), ("Q a x", False, 1)]
    assert usage.strategies == {"singles": 3}


async def test_extra_body_and_context() -> None:
    server, made = fake()
    provider = made(extra_body={"keep_alive": -1, "options": {"num_gpu": 0}}, context=256)
    assert (await provider.describe()).context == 256
    await draft(provider)
    for body in server.bodies:
        options = body["options"]
        assert (body["keep_alive"], options["num_gpu"], options["num_ctx"], options["top_k"]) == (-1, 0, 256, 0)
    for extra, words in (
        ({"template": "", "raw": False}, "extra_body cannot set raw, template: the fusion sets it itself"),
        ({"options": {"temperature": 1, "num_ctx": 9}}, "extra_body cannot set num_ctx, temperature"),
        ({"options": 3}, "options of extra_body are a mapping"),
    ):
        with pytest.raises(ValueError, match=words):
            made(extra_body=extra)


async def test_description() -> None:
    server, made = fake()
    info = await connect(f"{OLLAMA_URL}/v1", http_client=server.client()).describe()
    assert (info.endpoint, info.engine, info.model, info.build) == (OLLAMA_URL, "ollama", "toy:latest", "0.34.4")
    assert (info.context, info.answer_cue, info.capabilities) == (512, None, OLLAMA_ABLE)
    assert (info.capabilities.top_k, info.capabilities.score_top_k, info.capabilities.sampling) == (0, 0, False)
    assert repr(made(model="m")) == "Ollama('http://gpu:11434', model='m')"
    assert (await Ollama(f"{OLLAMA_URL}/api/", http_client=server.client()).describe()).endpoint == OLLAMA_URL


async def test_models() -> None:
    server, made = fake(names=("llama3.2:latest", "qwen3:4b"))
    with pytest.raises(ModelChoiceError, match=r"none was named; the server has 'llama3\.2:latest', 'qwen3:4b'"):
        await made().describe()
    info = await made(model="llama3.2").describe()
    assert (info.model, info.context, server.bodies[0]["model"]) == ("llama3.2", 512, "llama3.2")
    with pytest.raises(InvalidRequestError, match=r"404: model 'gemma' not found. .* the model's name right"):
        await made(model="gemma").describe()


async def test_what_is_not_supported() -> None:
    provider = fake()[1]()
    for ask, words in (
        (
            provider.score(Context("Q", b" a"), usage=Usage()),
            "does not give the probabilities of a given text",
        ),
        (provider.tokenize("Q"), "does not encode text. Give the model's own as `tokenizer`"),
        (provider.propose(Context("Q", b""), None, usage=Usage()), "does not encode text"),
        (draft(provider, continuation=[1]), "cannot continue from token ids"),
        (draft(provider, temperature=1, seed=1), "not known to draw tokens"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            await ask
    await refused(provider, InvalidRequestError, "Ollama writes nothing after an empty prompt", "")


async def test_a_server_without_probabilities_is_refused() -> None:
    server, made = fake(version="0.9.2", old=True)
    words = r"gpu:11434: Ollama 0\.9\.2 gives no probabilities .* from 0\.12\.11 on: update it\. .* cloud have none"
    await refused(made(), UnsupportedError, words)
    assert {body["prompt"] for body in server.bodies} == {"a"}
    bare = changed("/api/generate", lambda body: [entry.pop("top_logprobs") for entry in body["logprobs"]])
    with pytest.raises(UnsupportedError, match="gives no probabilities"):
        await bare.describe()
    at_once = fake({"a": []})[1]()  # a model that ends at once is no proof
    assert [token.data for token in await draft(at_once, limit=1) if isinstance(token, Token)] == [b" a"]


async def test_a_server_that_cuts_in_silence_is_refused() -> None:
    server, made = fake(cuts=True)
    await refused(made(), UnsupportedError, r"cuts a text that is too long .* although told not to \(truncate\)")
    proof = server.bodies[-1]
    assert len(proof["prompt"].split()) > server.context
    assert (proof["truncate"], proof["shift"]) == (False, False)


async def test_answers_that_are_not_as_they_were_asked_for() -> None:
    untold = changed("/api/ps", lambda body: body["models"][0].pop("context_length"))
    with pytest.raises(UnsupportedError, match=r"/api/ps does not report it. Give it as `context`"):
        await untold.describe()
    thinking = changed("/api/generate", lambda body: body.update(thinking="hm"))
    with pytest.raises(UnsupportedError, match="taken a part of the answer for thinking, although asked not to"):
        await thinking.describe()
    shifted = changed("/api/generate", lambda body: body.update(prompt_eval_count=500, eval_count=14))
    shifted.restore(OLLAMA_SNAPSHOT, OLLAMA_URL)
    with pytest.raises(ResponseError, match=r"processed 514 tokens in a context of 512 \(shift\)"):
        await shifted.propose(Context("Q", b""), [Question(0, (b"x",))], usage=Usage())


@pytest.mark.parametrize("cached", ["told", "whole", "hidden"])
async def test_the_context_is_full(cached: Any) -> None:
    """However much of the prompt is told to have been read: nothing is written behind the end of the context."""
    _, made = fake({"R": ["x"] * 600}, cached=cached)
    provider = made()
    await refused(provider, ContextLengthError, "longer than the context length", "x" * 512)
    assert (await draft(provider, "Q", b"x" * 511))[-1] == DraftEnd("context")
    await draft(provider, "R", limit=1)
    *tokens, end = await draft(provider, "R", limit=600)
    assert (len(tokens), end) == (511, DraftEnd("context"))


async def test_a_tokenizer() -> None:
    server, made = fake({"R": ["fox", "The quick", " 89"]})  # tokens that the test text has
    provider = made(tokenizer=Local(server.model))
    assert (await provider.describe()).capabilities.tokenize
    found = await provider.propose(Context("Q", b" a b"), None, usage=Usage())
    assert [(one.start, one.tokens[0].data) for one in found if one] == [(0, b" a"), (2, b" b"), (4, b" c")]
    other = TableModel([bytes([n]) for n in range(256)], lambda ids: [1.0] * 256, end_ids=())
    with pytest.raises(UnsupportedError, match=r"'local' is not the tokenizer of this model\. For a test text"):
        await made(tokenizer=Local(other)).describe()
    server.cached = "hidden"  # where it cannot be seen, it is not
    await made(tokenizer=Local(other)).describe()


@pytest.mark.usefixtures("no_waiting")
async def test_a_server_that_is_busy_and_a_stream_that_breaks_off() -> None:
    server, made = fake()
    provider, usage = made(), Usage()
    await provider.describe()
    server.busy = 2
    await draft(provider, usage=usage)
    assert usage.retries == 2
    server.busy = 99
    with pytest.raises(ServerError, match="503: server busy, please try again"):
        await draft(provider)
    server.busy = 0
    for words in (None, "prediction aborted, token repeat limit reached"):
        server.error = [(words, 1)]
        assert [token.data for token in (await draft(provider))[:-1]] == [b" a", b" b", b" c", b""]
        server.error = [(words, 0)] * 99
        with pytest.raises((ResponseError, ServerError), match=words or "the stream ended before the answer did"):
            await draft(provider)


@pytest.mark.parametrize(("text", "logprob", "hides"), [("é", -0.1, True), (" b", -2.5, False), ("x", -0.1, False)])
def test_tokens_that_the_server_has_hidden_are_seen(text: str, logprob: float, hides: bool) -> None:
    """The string of a token is that of the whole character, and none of the listed ones says it."""
    also = {"token": "é", "logprob": -4.5}  # which is a token by itself, too
    listed = [{"token": "\ufffd", "logprob": -0.1}, {"token": " b", "logprob": -2.5}, also]
    entry = {"token": text, "logprob": logprob, "bytes": None, "top_logprobs": listed}
    [step] = steps(OllamaEvent.model_validate({"response": text, "logprobs": [entry]}).answer.choices[0])
    assert step.hides == hides
