"""The Ollama adapter against a stand-in with toy models, which does what the server's source says."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

import toys
from asked import check_alternatives, draft, near
from cosd_providers import (
    Capabilities,
    ContextLengthError,
    DraftEnd,
    InvalidRequestError,
    ModelChoiceError,
    Piece,
    Question,
    ResponseError,
    ServerError,
    ServerInfo,
    Token,
    UnsupportedError,
    Usage,
    connect,
)
from cosd_providers.contract import Context
from cosd_providers.engines.ollama import Ollama, OllamaEvent
from cosd_providers.engines.openai.wire import steps
from cosd_providers.probe_client import RawRequest
from cosd_providers.testing import Model, ScriptedProvider, TableModel, TextModel
from stand_in_ollama import StandInOllama

URL = "http://gpu:11434"
ABLE = Capabilities(token_ids=False, end_prob=False, tokenize=False, score=False)
INFO = ServerInfo(URL, "ollama", "toy:latest", "0.34.4", 512, ABLE)
KNOWN: dict[str, Any] = {"served": {}, "known": {"info": TypeAdapter(ServerInfo).dump_python(INFO, mode="json")}}
SCRIPTS: dict[str, list[Any]] = {"a": [" b"], "Q": [" a", (" b", 0.6), " c"]}


def fake(
    scripts: dict[str, list[Any]] | None = None, provider: dict[str, Any] | None = None, **options: Any
) -> tuple[StandInOllama, Ollama]:
    server = StandInOllama(TextModel({**SCRIPTS, **(scripts or {})}), **options)
    return server, Ollama(URL, http_client=server.client(), **(provider or {}))


def over(model: toys.ToyModel, **options: Any) -> Ollama:
    """Over a toy, which does not know the texts of the proofs: they are recalled."""
    toy = toys.Plain(model)
    server = StandInOllama(toy, beginning=len(toy.tokens), **options)
    provider = Ollama(URL, http_client=server.client())
    provider.restore(KNOWN, URL)
    return provider


def readable(tokens: Sequence[Any]) -> bool:
    """True if every token can be shown as text."""
    try:
        return all(token.data.decode() is not None for token in tokens)
    except UnicodeDecodeError:
        return False


def simple(model: toys.ToyModel) -> bool:
    """True if no two tokens have the same string, and only the end has none."""
    tokens = [data for n, data in enumerate(model.vocabulary.tokens) if n != model.vocabulary.end]
    return len({*tokens}) == len(tokens) and all(tokens)


class Local:
    """A model's tokenizer on this machine; another one's where it is given none."""

    name, beginning = "local", 0

    def __init__(self, model: Model | None = None) -> None:
        self._model = model

    def encode(self, text: str) -> list[Piece]:
        ids = list(text.encode()) if self._model is None else self._model.encode(text.encode())
        return [Piece(n, bytes([n]) if self._model is None else self._model.tokens[n]) for n in ids]

    def token(self, id: int) -> bytes | None:
        return None


# Against toy models: whatever they do, the adapter gives what the model itself would.


@given(toys.models(may_hide_end=False), toys.prompts().filter(bool), st.integers(1, 12))
async def test_hidden_tokens_make_no_probability_up(model: toys.ToyModel, prompt: bytes, limit: int) -> None:
    """Where tokens are left out, the text is the same, and no probability is another one than the model's."""
    expected = ScriptedProvider(toys.Plain(model), token_ids=False, end_prob=False)
    theirs = await draft(expected, prompt.decode(), limit=limit)
    assume(readable(theirs[:-1]) and simple(model))
    ours = await draft(over(model), prompt.decode(), limit=limit)
    assert [token.data for token in ours[:-1]] == [token.data for token in theirs[:-1]]
    for one, other in zip(ours[:-1], theirs[:-1], strict=True):
        assert one.prob is None or one.prob == near(other.prob)


@given(
    toys.models(may_hide_end=False),
    toys.prompts().filter(bool),
    st.integers(1, 6),
    st.sampled_from(("llama-server", "engine")),
)
async def test_alternatives_by_either_runner_are_the_models_own(
    model: toys.ToyModel, prompt: bytes, count: int, runner: str
) -> None:
    """Of one that has a whole character and a part of another, llama-server shows the first: nobody can tell."""
    mixed = [data for data in model.vocabulary.tokens if data.decode("utf-8", "ignore").encode() not in (b"", data)]
    assume(runner == "engine" or not mixed)
    theirs = await draft(ScriptedProvider(toys.Plain(model)), prompt.decode())
    assume(readable(theirs[:-1]) and simple(model))
    provider = over(model, runner=runner)
    alone = await draft(provider, prompt.decode())
    ours = await draft(provider, prompt.decode(), alternatives=count)
    assert [replace(one, alternatives=()) for one in ours[:-1]] == alone[:-1]
    check_alternatives(toys.Plain(model), prompt, ours[:-1], count, complete=False)


# What is asked.


async def test_what_a_draft_asks() -> None:
    server, provider = fake()
    usage = Usage()
    *tokens, end = await draft(provider, usage=usage)
    assert [(token.data, token.prob) for token in tokens] == [
        (b" a", 1),
        (b" b", near(0.6)),
        (b" c", 1),
        (b"", None),
    ]
    assert end == DraftEnd("end")
    assert server.bodies[-1] == {
        "model": "toy:latest",
        "prompt": "Q",
        "raw": True,
        "think": False,
        "stream": True,
        "logprobs": True,
        "top_logprobs": 5,
        "truncate": False,
        "shift": False,
        "options": {
            "num_predict": 20,
            "temperature": 0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "typical_p": 1.0,
            "repeat_penalty": 1.0,
            "repeat_last_n": 0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop": [],
        },
    }
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (1, 1, 4)


async def test_alternatives() -> None:
    probs = {b" a": 0.4, b" b": 0.25, b" c": 0.15, b"\xc3": 0.1, b"<|stop|>": 0.1}
    model = TableModel([b"", b"Q", *probs], lambda ids: [0.0] * 2 + [*probs.values()], end_ids=(0,))
    server = StandInOllama(model)
    provider = Ollama(URL, http_client=server.client())
    provider.restore(KNOWN, URL)
    expected = (Token(b" b", near(0.25)), Token(b" c", near(0.15)))
    for count in (0, 1, 4, 9, 30):
        first, *_ = await draft(provider, limit=1, alternatives=count)
        assert first.alternatives == expected[:count]
    assert [body["top_logprobs"] for body in server.bodies] == [5, 5, 5, 10, 20]


async def test_proposals_have_no_alternatives_and_nothing_is_drawn() -> None:
    server, provider = fake()
    able = (await provider.describe()).capabilities
    assert (able.top_k, able.score_top_k, able.sampling) == (0, 0, False)
    [found] = await provider.propose(Context("Q", b""), [Question(0, (b"x",))], alternatives=9, usage=Usage())
    assert found is not None
    assert found.tokens == (Token(b" a", 1.0),)
    assert server.bodies[-1]["top_logprobs"] == 5
    with pytest.raises(UnsupportedError, match="not known to draw tokens"):
        await draft(provider, temperature=1, seed=1)
    with pytest.raises(UnsupportedError, match="does not give the probabilities of a given text"):
        await provider.score(Context("Q", b" a"), alternatives=2, end=True, usage=Usage())


async def test_what_a_proposal_asks() -> None:
    server, provider = fake()
    usage = Usage()
    questions = [Question(0, (b" a",)), Question(2, (b" x",)), Question(4, (b" x",))]
    found = await provider.propose(Context("Q", b" a x"), questions, usage=usage)
    assert [one and one.tokens[0].data for one in found] == [b" a", b" b", b""]
    asked = [(body["prompt"], body["stream"], body["options"]["num_predict"]) for body in server.bodies[-3:]]
    assert asked == [("Q", False, 1), ("Q a", False, 1), ("Q a x", False, 1)]
    assert usage.strategies == {"singles": 3}


async def test_the_models_own_stop_strings_and_thoughts_are_switched_off() -> None:
    for way in ({"stop": " b"}, {"thinks": ("<think>", "</think>")}):
        _, provider = fake(**way)
        assert [token.data for token in (await draft(provider))[:-1]] == [b" a", b" b", b" c", b""]


async def test_extra_body_and_context() -> None:
    extra = {"keep_alive": -1, "options": {"num_gpu": 0}}
    server, provider = fake(provider={"extra_body": extra, "context": 256})
    assert (await provider.describe()).context == 256
    await draft(provider)
    for body in server.bodies:
        options = body["options"]
        assert (body["keep_alive"], options["num_gpu"], options["num_ctx"], options["top_k"]) == (-1, 0, 256, 0)
    with pytest.raises(ValueError, match="extra_body cannot set raw, template: the fusion sets it itself"):
        Ollama(URL, extra_body={"template": "", "raw": False})
    with pytest.raises(ValueError, match="extra_body cannot set num_ctx, temperature"):
        Ollama(URL, extra_body={"options": {"temperature": 1, "num_ctx": 9}})
    with pytest.raises(ValueError, match="options of extra_body are a mapping"):
        Ollama(URL, extra_body={"options": 3})


# What it is.


async def test_description() -> None:
    server, provider = fake()
    info = await provider.describe()
    assert (info.endpoint, info.engine, info.model, info.build) == (URL, "ollama", "toy:latest", "0.34.4")
    assert (info.context, info.answer_cue, info.longest_prompt) == (512, None, None)
    assert info.capabilities == Capabilities(token_ids=False, end_prob=False, tokenize=False, score=False)
    assert provider.name == "gpu:11434"
    assert repr(provider) == "Ollama('http://gpu:11434', model=None)"
    before = len(server.requests)
    await provider.describe()
    assert len(server.requests) == before
    assert (await fake(version=None)[1].describe()).build is None
    copy = pickle.loads(pickle.dumps(Ollama(URL, model="m", api_key="sk-secret")))
    assert (copy.name, b"sk-secret" in pickle.dumps(copy)) == ("m@gpu:11434", False)


async def test_it_is_found_by_its_url() -> None:
    server, _ = fake()
    info = await connect(URL + "/v1", http_client=server.client()).describe()
    assert (info.engine, info.model) == ("ollama", "toy:latest")
    assert isinstance(connect(URL, engine="ollama", model="m", context=4096), Ollama)
    assert (await Ollama(URL + "/api/", http_client=server.client()).describe()).endpoint == URL


async def test_models() -> None:
    names = ("llama3.2:latest", "qwen3:4b")
    with pytest.raises(ModelChoiceError, match=r"none was named; the server has 'llama3\.2:latest', 'qwen3:4b'"):
        await fake(names=names)[1].describe()
    server, provider = fake(provider={"model": "llama3.2"}, names=names)
    info = await provider.describe()
    assert (info.model, info.context, server.bodies[0]["model"]) == ("llama3.2", 512, "llama3.2")
    with pytest.raises(InvalidRequestError, match=r"404: model 'gemma' not found. .* the model's name right"):
        await fake(provider={"model": "gemma"}, names=names)[1].describe()


async def test_what_is_kept_and_recalled() -> None:
    server, provider = fake()
    learned = await provider.snapshot()
    assert learned == {"served": {"id": "toy:latest"}, "known": KNOWN["known"]}
    other = Ollama(URL, http_client=server.client())
    other.restore(learned, URL)
    before = len(server.requests)
    assert [token.data for token in (await draft(other, limit=2))[:-1]] == [b" a", b" b"]
    assert [path for path, _ in server.requests[before:]] == ["/v1/models", "/api/generate"]
    assert (await other.describe()).context == 512


async def test_it_can_be_asked_freely() -> None:
    server, provider = fake()
    wire, usage = await provider.probe_client(), Usage()
    [said] = await wire.send(RawRequest(["Q"], limit=2), usage)
    assert (said.read, said.written, len(said.positions), usage.completion_tokens) == (1, 2, 2, 2)
    await wire.send(RawRequest(["Q"], top=3, temperature=0.5), usage)
    body = server.bodies[-1]
    assert (body["options"]["temperature"], body["top_logprobs"], "temperature" in body) == (0.5, 3, False)
    assert await wire.models() == ["toy:latest"]
    for send in (wire.send(RawRequest(["Q", "a"]), usage), wire.send(RawRequest([[1]]), usage), wire.score("Q", usage)):
        with pytest.raises(UnsupportedError, match="/api/generate"):
            await send
    with pytest.raises(UnsupportedError, match="no field makes the server write"):
        await wire.recite("b", "Q", usage)


# What it cannot do, or what is wrong.


async def test_what_is_not_supported() -> None:
    _, provider = fake()
    for ask, words in (
        (provider.score(Context("Q", b""), usage=Usage()), "does not give the probabilities of a given text"),
        (provider.tokenize("Q"), "does not encode text. Give the model's own as `tokenizer`"),
        (provider.propose(Context("Q", b""), None, usage=Usage()), "does not encode text"),
        (draft(provider, continuation=[1]), "cannot continue from token ids"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            await ask


@pytest.mark.parametrize("way", [{"old": True}, {"listed": False}])
async def test_a_server_without_probabilities_is_refused(way: dict[str, Any]) -> None:
    server, provider = fake(version="0.9.2", **way)
    words = r"gpu:11434: Ollama 0\.9\.2 gives no probabilities .* from 0\.12\.11 on: update it\. .* cloud have none"
    for ask in (provider.describe(), draft(provider), provider.propose(Context("Q", b""), [], usage=Usage())):
        with pytest.raises(UnsupportedError, match=words):
            await ask
    assert {body["prompt"] for body in server.bodies} == {"a"}
    with pytest.raises(UnsupportedError, match="Ollama gives no probabilities"):
        await fake(version=None, **way)[1].describe()


async def test_a_model_that_ends_at_once_is_no_proof() -> None:
    _, provider = fake({"a": []})
    assert [token.data for token in (await draft(provider))[:-1]] == [b" a", b" b", b" c", b""]
    _, old = fake({"a": []}, old=True)
    with pytest.raises(UnsupportedError, match="no probabilities with its tokens, although asked"):
        await draft(old)


async def test_a_server_that_cuts_in_silence_is_refused() -> None:
    server, provider = fake(cuts=True)
    words = r"cuts a text that is too long and does not say so, although told not to \(truncate\)"
    for ask in (provider.describe(), draft(provider), provider.propose(Context("Q", b""), [], usage=Usage())):
        with pytest.raises(UnsupportedError, match=words):
            await ask
    proof = server.bodies[-1]
    assert len(proof["prompt"].split()) > server.context
    assert (proof["truncate"], proof["shift"]) == (False, False)


async def test_a_context_that_is_not_told() -> None:
    with pytest.raises(UnsupportedError, match=r"/api/ps does not report it. Give it as `context`"):
        await fake(tells_context=False)[1].describe()
    _, provider = fake(provider={"context": 300}, tells_context=False)
    assert (await provider.describe()).context == 300


@pytest.mark.parametrize("cached", ["told", "whole", "hidden"])
async def test_what_does_not_fit(cached: Any) -> None:
    _, provider = fake(cached=cached)
    long = "x" * 512
    with pytest.raises(ContextLengthError, match="longer than the context length"):
        await draft(provider, long)
    with pytest.raises(ContextLengthError, match="longer than the context length"):
        await provider.propose(Context(long, b""), [Question(0, (b"x",))], usage=Usage())
    *_, end = await draft(provider, "Q", b"x" * 511)
    assert end == DraftEnd("context")


@pytest.mark.parametrize("cached", ["told", "whole", "hidden"])
async def test_the_context_is_full(cached: Any) -> None:
    """However much of the prompt is told to have been read: nothing is written behind the end of the context."""
    _, provider = fake({"R": ["x"] * 600}, cached=cached)
    await draft(provider, "R", limit=1)
    *tokens, end = await draft(provider, "R", limit=600)
    assert (len(tokens), end) == (511, DraftEnd("context"))


async def test_a_context_that_is_shifted_is_seen() -> None:
    _, provider = fake({"R" * 10: ["x"] * 600, "R": ["x"] * 600}, shifts=True)
    with pytest.raises(ResponseError, match=r"processed 515 tokens in a context of 512 \(shift\)"):
        await draft(provider, "R" * 10, limit=505)


async def test_thoughts_that_are_taken_out_are_an_error() -> None:
    server, _ = fake()

    def handle(request: httpx.Request) -> httpx.Response:
        answer = server.handle(request)
        if request.url.path != "/api/generate" or answer.status_code != 200:
            return answer
        return httpx.Response(200, json={"response": "", "thinking": "hm", "done": True, "done_reason": "stop"})

    provider = Ollama(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    with pytest.raises(UnsupportedError, match=r"taken a part of the answer for thinking, although asked not to"):
        await provider.describe()


async def test_nothing_to_go_on_from() -> None:
    _, provider = fake()
    for ask in (draft(provider, ""), provider.propose(Context("", b""), [Question(0, (b"x",))], usage=Usage())):
        with pytest.raises(InvalidRequestError, match="Ollama writes nothing after an empty prompt"):
            await ask


async def test_a_tokenizer_is_held_against_the_server() -> None:
    server, _ = fake({"R": ["fox", "The quick", " 89"]})  # tokens that the test text has
    right = Ollama(URL, http_client=server.client(), tokenizer=Local(server.model))
    assert (await right.describe()).capabilities.tokenize
    with pytest.raises(UnsupportedError, match=r"'local' is not the tokenizer of this model\. For a test text"):
        await Ollama(URL, http_client=server.client(), tokenizer=Local()).describe()
    server.cached = "hidden"  # where it cannot be seen, it is not
    await Ollama(URL, http_client=server.client(), tokenizer=Local()).describe()


@pytest.mark.parametrize("cached", ["told", "whole", "hidden"])
async def test_what_was_cached_is_not_taken_for_cut(cached: Any) -> None:
    server, _ = fake({"Q a b": [" c"]}, cached=cached)
    provider = Ollama(URL, http_client=server.client(), tokenizer=Local(server.model))
    for _ in range(2):
        await draft(provider, "Q a b")
        await provider.propose(Context("Q a b", b""), [Question(0, (b" c",))], usage=Usage())


async def test_every_boundary_with_a_tokenizer() -> None:
    server, _ = fake()
    provider = Ollama(URL, http_client=server.client(), tokenizer=Local(server.model))
    found = await provider.propose(Context("Q", b" a b"), None, usage=Usage())
    assert [(one.start, one.tokens[0].data) for one in found if one] == [(0, b" a"), (2, b" b"), (4, b" c")]
    assert [piece.data for piece in await provider.tokenize("Q a")] == [b"Q", b" a"]


# Faults.


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("words", [None, "prediction aborted, token repeat limit reached"])
async def test_a_stream_that_breaks_off_is_resumed(words: str | None) -> None:
    server, provider = fake()
    await provider.describe()
    server.error = [(words, 1)]
    assert [token.data for token in (await draft(provider))[:-1]] == [b" a", b" b", b" c", b""]
    server.error = [(words, 0)] * 99
    with pytest.raises((ResponseError, ServerError), match=words or "the stream ended before the answer did"):
        await draft(provider)


@pytest.mark.usefixtures("no_waiting")
async def test_a_queue_that_is_full_is_waited_for() -> None:
    server, provider = fake()
    await provider.describe()
    server.busy, usage = 2, Usage()
    await draft(provider, usage=usage)
    assert usage.retries == 2
    server.busy = 99
    with pytest.raises(ServerError, match="503: server busy, please try again"):
        await draft(provider)


@pytest.mark.parametrize("rechunked", [1, 7, 10**6])
async def test_events_in_pieces(rechunked: int) -> None:
    """Lines are cut anywhere, even within a character; only a newline ends one."""
    server, _ = fake({"Q": [" é", " \u2028", " 😀"]})

    def handle(request: httpx.Request) -> httpx.Response:
        answer = server.handle(request)
        if not answer.headers["content-type"].startswith("application/x-ndjson"):
            return answer
        data = answer.text.encode().replace(b"\\u00e9", "é".encode()).replace(b"\\u2028", "\u2028".encode())

        async def parts() -> Any:
            for at in range(0, len(data), rechunked):
                yield data[at : at + rechunked]

        return httpx.Response(200, content=parts(), headers={"content-type": "application/x-ndjson; charset=utf-8"})

    provider = Ollama(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    tokens = (await draft(provider))[:-1]
    assert b"".join(token.data for token in tokens).decode() == " é \u2028 😀"


async def test_leaving_a_draft_frees_the_server() -> None:
    server, _ = fake({"R": ["x"] * 400}, pace=60.0)
    with server.serve() as url:
        async with Ollama(url) as provider:
            await provider.describe()
            found = provider.generate(Context("R", b""), max_tokens=400, usage=Usage())
            assert isinstance(await anext(found), Token)
            await found.aclose()
            with anyio.fail_after(20):
                while not server.gone:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
    assert server.gone == [1]


# Shapes.


def test_tokens_that_the_server_has_hidden_are_seen() -> None:
    """The string of a token is that of the whole character, and none of the listed ones says it."""
    also = {"token": "é", "logprob": -4.5}  # which is a token by itself, too
    listed = [{"token": "\ufffd", "logprob": -0.1}, {"token": " b", "logprob": -2.5}, also]
    entry = {"token": "é", "logprob": -0.1, "bytes": None, "top_logprobs": listed}
    [step] = steps(OllamaEvent.model_validate({"response": "é", "logprobs": [entry]}).answer.choices[0])
    assert step.hides
    [plain] = steps(
        OllamaEvent.model_validate(
            {"response": " b", "logprobs": [{**entry, "token": " b", "logprob": -2.5}]}
        ).answer.choices[0]
    )
    assert not plain.hides
    other = {"token": "x", "logprob": -0.1, "top_logprobs": listed}  # which cannot complete a character
    [wrong] = steps(OllamaEvent.model_validate({"response": "x", "logprobs": [other]}).answer.choices[0])
    assert not wrong.hides


def test_what_an_answer_cost() -> None:
    last = {"response": "", "done": True, "done_reason": "length", "prompt_eval_count": 9, "eval_count": 3}
    billed = OllamaEvent.model_validate(last).answer.usage
    assert billed is not None
    assert (billed.prompt_tokens, billed.completion_tokens, billed.prompt_tokens_details) == (9, 3, None)
    billed = OllamaEvent.model_validate({**last, "prompt_eval_cached_count": 0}).answer.usage
    assert billed is not None
    assert billed.prompt_tokens_details is not None
    assert OllamaEvent.model_validate({"response": "x"}).answer.usage is None
