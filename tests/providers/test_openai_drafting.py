"""Drafts of the OpenAI-compatible adapter: limits, contexts, characters of several tokens, and streams that break."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import toys
from adapters import TEXT, TOY, Local
from asked import draft
from breaking import Break, Breaking, waiting
from cosd_providers import (
    ContextLengthError,
    DraftEnd,
    Question,
    ResponseError,
    Token,
    UnsupportedError,
    Usage,
)
from cosd_providers.contract import Context, Piece
from cosd_providers.engines.openai import OpenAICompatible
from cosd_providers.testing import ScriptedProvider, TextModel
from cosd_providers.text import merge
from fake_openai import FakeOpenAI
from openai_servers import SCRIPT, URL, fake


async def test_a_whole_answer_has_the_alternatives_of_the_stream() -> None:
    vocabulary = toys.Vocabulary((b"Q", b" a", b"\xc3", b"\xa9", b" b", b" c", b""), 6)
    written = [b"Q", b" a", b"\xc3", b"\xa9", b" b"]
    script: Any = {b"".join(written[:at]): {written[at]: 0.75, b" c": 0.25} for at in range(1, len(written))}
    server = FakeOpenAI(toys.Plain(toys.ScriptedModel(vocabulary, script)), opened="gone")
    dialect = replace(TOY, shows_parts=False, most=9)
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=dialect)
    tokens = await draft(provider, limit=9, alternatives=6)
    listed = [(one.data, [other.data for other in one.alternatives]) for one in tokens[:-2]]
    assert listed == [(b" a", [b" c"]), ("é".encode(), []), (b" b", [b" c"])]
    assert [(bool(body.get("stream")), body["logprobs"]) for body in server.bodies] == [(True, 7), (False, 7)]


async def test_the_context_is_full() -> None:
    script: dict[str, list[Any]] = {"Q": [" a"] * 9}
    for clamps in (True, False):
        for shown in (True, False):
            listed = [{"id": "toy", **({"max_model_len": 5} if shown else {})}]
            _, provider = fake(script, context=5, clamps=clamps, listed=listed)
            assert await draft(provider) == [*[Token(b" a", 1.0)] * 4, DraftEnd("context")]
            assert await draft(provider, text=b" a a a a") == [DraftEnd("context")]
            with pytest.raises(ContextLengthError, match="maximum context length is 5"):
                await draft(provider, prompt="Q Q Q Q")


async def test_with_a_tokenizer_no_request_is_too_long() -> None:
    server, _ = fake({"Q": [" a"] * 9}, context=5)
    way: Any = {"context": 5, "tokenizer": Local(server.model), "dialect": replace(TOY, sample="a")}
    provider = OpenAICompatible(URL, http_client=server.client(), **way)
    assert await draft(provider) == [*[Token(b" a", 1.0)] * 4, DraftEnd("context")]
    assert [body["max_tokens"] for body in server.bodies] == [1, 4]
    assert await draft(provider, text=b" a a a a") == [DraftEnd("context")]
    with pytest.raises(ContextLengthError, match="does not fit into the model's context of 5 tokens"):
        await draft(provider, prompt="Q Q Q Q")
    assert len(server.bodies) == 2


async def test_a_gateway_that_drops_probabilities_from_streams_names_the_way_around() -> None:
    """As LiteLLM does on `/v1/completions`: whole answers have them, and so do streams of its chat route."""
    server, _ = fake(SCRIPT)

    def drop(request: httpx.Request) -> httpx.Response:
        response = server.handle(request)
        if request.url.path != "/v1/completions" or not json.loads(request.content).get("stream"):
            return response
        events = [json.loads(line) for line in response.text.replace("data: ", "").split("\n\n") if line[:1] == "{"]
        for choice in [one for event in events for one in event["choices"]]:
            choice["logprobs"] = None
        content = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        return httpx.Response(200, content=content, headers={"content-type": "text/event-stream"})

    client = httpx.AsyncClient(transport=httpx.MockTransport(drop))
    with pytest.raises(UnsupportedError, match=r"gives no probabilities .* although asked") as caught:
        await draft(OpenAICompatible(URL, http_client=client, model="toy"))
    assert 'engine="openai", api="chat", dialect="llama.cpp"' in str(caught.value)
    there = OpenAICompatible(URL, http_client=client, model="toy", api="chat", dialect="llama.cpp")
    assert b"".join(one.data for one in (await draft(there))[:-1]) == b" a b c"


async def test_a_content_filter() -> None:
    server, provider = fake({"Q": ["a", "b"]})
    plain = server.handle

    def handle(request: httpx.Request) -> httpx.Response:
        response = plain(request)
        content = response.content.replace(b'"finish_reason": "stop"', b'"finish_reason": "content_filter"')
        return httpx.Response(200, content=content, headers={"content-type": response.headers["content-type"]})

    client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    server.end = False
    provider = OpenAICompatible(URL, http_client=client, dialect=TOY)
    assert await draft(provider) == [Token(b"a", 1.0), Token(b"b", 1.0), DraftEnd("filter")]


async def test_a_stream_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting(monkeypatch)
    server, _ = fake({"Q": ["a", "b", "c"]})

    def cut(request: httpx.Request) -> httpx.Response:
        response = server.handle(request)
        if request.url.path == "/v1/models":
            return response
        return httpx.Response(
            200, content=response.content[: response.content.index(b"\n\n") + 2], headers=response.headers
        )

    client = httpx.AsyncClient(transport=httpx.MockTransport(cut))
    with pytest.raises(ResponseError, match="the stream ended before the answer did") as caught:
        await draft(OpenAICompatible(URL, http_client=client, dialect=TOY))
    assert caught.value.retryable


@pytest.mark.parametrize("flipped", [0, 1])
async def test_a_server_that_writes_another_token_the_second_time(flipped: int) -> None:
    parts: list[Any] = ["a", "b", b"\xf0\x9f", b"\x98\x80", "!", "?"]
    other = [*parts[:flipped], "x", *parts[flipped + 1 :]]
    after = "ab😀"
    first, _ = fake({"Q": parts, f"Q{after}": ["!", "?"], "Qab": parts[2:]})
    second, _ = fake({"Q": other})
    answers = 0

    def handle(request: httpx.Request) -> httpx.Response:
        nonlocal answers
        answers += request.url.path == "/v1/completions"
        return (second if answers == 2 else first).handle(request)

    client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    provider = OpenAICompatible(URL, http_client=client, dialect=TOY)
    *tokens, end = await draft(provider, limit=4)
    assert [token.data for token in tokens] == [b"a", b"b", "😀".encode(), b"!"]
    assert end == DraftEnd("limit")
    asked = [(body["prompt"], body["max_tokens"]) for body in (*first.bodies, *second.bodies)]
    assert asked[0] == ("Q", 4)
    assert asked[-1] == ("Q", 9)  # four tokens were three whole ones
    assert asked[1:-1] == [("Qab😀", 9)]  # what was given out stands


async def test_a_text_that_has_grown_holds_what_every_answer_gave() -> None:
    script: dict[str, list[Any]] = {"Q": ["a", b"\xf0\x9f", b"\x98\x80", "b"], "Qa😀": ["b", "c", "d"]}
    server, _ = fake(script, clamps=True, context=4)
    bodies: list[Any] = []

    def handle(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content or "null"))
        server.context = 4 if bodies[-1] and bodies[-1]["prompt"] == "Q" else 99
        return server.handle(request)

    client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    *tokens, _ = await draft(OpenAICompatible(URL, http_client=client, dialect=TOY), limit=2)
    assert [token.data for token in tokens] == [b"a", "😀".encode()]
    *tokens, _ = await draft(OpenAICompatible(URL, http_client=client, dialect=TOY), limit=4)
    assert [token.data for token in tokens] == [b"a", "😀".encode(), b"b", b"c"]


async def test_characters_of_many_tokens_need_two_requests() -> None:
    text = "한국어로 " * 30
    parts: list[Any] = [bytes([byte]) for byte in text.encode()]
    server, provider = fake({"Q": parts})
    usage = Usage()
    *tokens, _ = await draft(provider, limit=128, usage=usage)
    assert b"".join(token.data for token in tokens).decode() == text[:128]
    assert len(server.bodies) == 2
    assert usage.completion_tokens < 1.5 * len(text[:128].encode())


KINDS = (
    "Hi!",
    " 😊",
    "🇯🇵 🇩🇪",
    "👩\u200d🚀",
    "👍🏽",
    "1\ufe0f\u20e3",
    " e\u0301\u0332",
    "né",
    "日本",
    " 한국",
    "สวั",
    ".\n",
)


@st.composite
def cut_up(draw: st.DrawFn) -> list[bytes]:
    """A text in tokens that may end anywhere in a character."""
    text = "".join(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))).encode()
    cuts = [at for at in range(1, len(text)) if draw(st.booleans())]
    return [text[a:b] for a, b in pairwise((0, *cuts, len(text)))]


@pytest.mark.parametrize("bills", [True, False])
@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize("opened", ["empty", "bytes", "hidden"])
@given(parts=cut_up())
async def test_a_limit_within_a_character(parts: list[bytes], opened: Any, api: Any, bills: bool) -> None:
    """What stands before the character is kept, the character is not lost, and the answer goes on behind it."""
    model = TextModel({"Q": [(part, 0.9 - at / 256) for at, part in enumerate(parts)]})
    server = FakeOpenAI(model, opened=opened)
    dialect = replace(TOY, api=api, continues={})
    if not bills:
        dialect = replace(dialect, stream_options={})
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=dialect)
    whole = list(merge([*(Token(part, 0.9) for part in parts), Token(b"", 1.0, end=True)]))
    # Where tokens end a character and begin the next, any number of them in turn may not be shown.
    parted = any(0x80 <= part[0] < 0xC0 and toys.is_incomplete(part) for part in parts)
    assume(bills or not parted)
    for limit in range(1, len(whole) + 1):
        *tokens, end = await draft(provider, limit=limit)
        assert [token.data for token in tokens] == [token.data for token in whole[:limit]]
        assert end.reason == ("end" if limit == len(whole) else "limit")
    for size in range(1, 1 if parted else len(whole)):
        question = Question(0, tuple(token.data for token in whole[:size]), word=True)
        [found] = await provider.propose(Context("Q", b""), [question], usage=Usage())
        [expected] = await ScriptedProvider(model).propose(Context("Q", b""), [question], usage=Usage())
        assert found is not None and expected is not None
        assert [token.data for token in found.tokens] == [token.data for token in expected.tokens]


async def test_a_tokenizer_counts_a_prompt_once() -> None:
    server, _ = fake({"Q": [" a", " b", " c"]}, listed=[{"id": "toy", "max_model_len": 12}])
    local, read = Local(server.model), list[str]()

    class Counting:
        name, beginning = "local", 0

        def encode(self, text: str) -> list[Piece]:
            read.append(text)
            return local.encode(text)

        def token(self, id: int) -> bytes | None:
            return local.token(id)

    provider = OpenAICompatible(URL, http_client=server.client(), dialect=TOY, tokenizer=Counting())
    await draft(provider, limit=4)
    assert read == [TEXT, "Q"]


async def test_usage_of_a_stream_that_is_left_early() -> None:
    server, _ = fake({"Q a": [" b", " c", " d"]})
    for tokenizer, read in ((None, 0), (Local(server.model), 3)):
        provider = OpenAICompatible(URL, http_client=server.client(), dialect=TOY, tokenizer=tokenizer)
        usage = Usage()
        tokens: Any = provider.generate(Context("Q a", b""), max_tokens=9, usage=usage)
        await anext(tokens)
        await tokens.aclose()
        assert (usage.prompt_tokens, usage.completion_tokens) == (read, 1)
    usage = Usage()
    await draft(provider, prompt="Q a", usage=usage)
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (1, 3, 4)
    assert json.dumps(server.bodies[-1])


async def test_what_is_asked_after_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting(monkeypatch)
    server, _ = fake({"Q": [" a", " b", " c", " d"]})
    breaking = Breaking(server.handle)
    provider = OpenAICompatible(URL, http_client=breaking.client(), dialect=TOY)
    await provider.describe()
    server.requests.clear()
    breaking.breaks = [Break("breaks", 700), *[Break("ends", 700)] * 2]
    usage = Usage()
    found = await draft(provider, limit=4, usage=usage)
    assert [token.data for token in found[:-1]] == [b" a", b" b", b" c", b" d"]
    prompts = [body["prompt"] for _, body in server.requests if body and body.get("stream")]
    assert prompts[:2] == ["Q", "Q"]  # the same again, and then the text
    assert prompts[2].startswith("Q a")
    assert (usage.requests, usage.retries) == (1, breaking.happened)
    assert breaking.happened == len(prompts) - 1
