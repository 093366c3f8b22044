"""Drafts of the OpenAI-compatible adapter: limits, contexts, characters of several tokens, and streams that break."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cosd_api import fuse
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
from fakes.adapters import TEXT, TOY, Local
from fakes.breaking import Break, Breaking, waiting
from fakes.openai import FakeOpenAI
from fakes.openai_servers import SCRIPT, URL, fake
from support.asked import draft
from toys import toy_models as toys


async def nothing(*args: object) -> None:
    """Stands in for a check that a toy cannot pass."""


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
    with pytest.raises(
        UnsupportedError, match=r"asked \(logprobs\)\. Not every server, model and route has them; is there"
    ):
        await draft(OpenAICompatible(URL, http_client=client, dialect="llama.cpp"))  # not a server of an unknown kind
    there = OpenAICompatible(URL, http_client=client, model="toy", api="chat", dialect="llama.cpp")
    assert b"".join(one.data for one in (await draft(there))[:-1]) == b" a b c"


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize("every", [1, 2, 9, 99])
async def test_probabilities_in_events_of_their_own_after_the_text(every: int, api: Any) -> None:
    """After every so many events with text, at the end, or after it: they belong to the text without tokens."""
    server, provider = fake(SCRIPT, {"api": api, "dialect": "llama.cpp"})
    wanted = await draft(provider)
    assert len(wanted) > 2 and isinstance(wanted[0], Token) and wanted[0].prob is not None

    def later(request: httpx.Request) -> httpx.Response:
        response = server.handle(request)
        if not json.loads(request.content or "{}").get("stream"):
            return response
        events = [json.loads(line) for line in response.text.replace("data: ", "").split("\n\n") if line[:1] == "{"]
        sent, held = list[Any](), list[Any]()
        for number, event in enumerate(events, 1):
            over = any(choice["finish_reason"] for choice in event["choices"])
            for choice in event["choices"]:
                none: dict[str, Any] = {"text": ""} if api == "completions" else {"delta": {}}
                held.append({**event, "choices": [{**choice, **none, "finish_reason": None}]})
                choice["logprobs"] = None
            now = held if over or number % every == 0 else []
            sent += [*now, event] if over and every < 99 else [event, *now]
            held = [] if now else held
        content = "".join(f"data: {json.dumps(event)}\n\n" for event in sent) + "data: [DONE]\n\n"
        return httpx.Response(200, content=content, headers={"content-type": "text/event-stream"})

    async with httpx.AsyncClient(transport=httpx.MockTransport(later)) as client:
        assert await draft(OpenAICompatible(URL, http_client=client, api=api, dialect="llama.cpp")) == wanted


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
    """The text before the character is kept, the character is not lost, and the answer goes on behind it."""
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
    # A token for each of three bytes, and a few that the server may add; a tokenizer knows better.
    for tokenizer, read in ((None, 11), (Local(server.model), 4)):
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


async def left(provider: Any, prompt: str = "Q a") -> Usage:
    """The bill of a draft that is left after its first token."""
    usage = Usage()
    async with aclosing(provider.generate(Context(prompt, b""), max_tokens=9, usage=usage)) as tokens:
        await anext(tokens)
    return usage


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_what_was_once_reported_of_a_prompt_is_billed_as_known(api: Any) -> None:
    dialect = replace(TOY, api=api, continues={})
    server, provider = fake({"Q a": [" b", " c"], "Q a ab": [" b"]}, {"dialect": dialect})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cosd_providers.engines.openai.discovery.check_continuation", nothing)
        guessed = await left(provider)
        assert guessed.estimated_tokens == guessed.prompt_tokens > 3
        await draft(provider, "Q a")
        known, longer = await left(provider), await left(provider, "Q a ab")
    assert (known.prompt_tokens, known.estimated_tokens) == (3, 0)
    # Of a longer prompt, only what is new is estimated.
    assert len(server.model.encode(b"Q a ab")) <= longer.prompt_tokens == longer.estimated_tokens
    assert longer.prompt_tokens < guessed.prompt_tokens


async def test_a_server_that_never_reports_is_billed_by_estimate() -> None:
    server, provider = fake({"Q a": [" b", " c"]}, refuses=["stream_options"])
    usage = Usage()
    await draft(provider, "Q a", usage=usage)
    assert (usage.requests, usage.unreported, usage.completion_tokens) == (2, 1, 3)
    assert usage.prompt_tokens == usage.estimated_tokens >= len(server.model.encode(b"Q a"))
    assert (await left(provider)).unreported == 1  # the server has refused to report it
    _, provider = fake({"Q a": [" b", " c"]})
    assert (await left(provider)).unreported == 0  # the report would have come later


async def test_a_fusion_says_that_a_bill_is_an_estimate_because_the_server_does_not_report_it() -> None:
    script: dict[str, list[Any]] = {"Q a": [" b", " c"]}
    warnings = {}
    for refuses in ([], ["stream_options"]):
        (_, writer), (_, other) = fake(script, refuses=refuses), fake(script)
        result = await fuse("Q a", draft=writer, assistant=other, unit="word")
        assert result.text == " b c"
        warnings[bool(refuses)] = [one for one in result.warnings if "how many tokens" in one]
        spent = result.usage["draft"]
    assert warnings[False] == []
    [told] = warnings[True]
    assert told == (
        f"draft does not always report how many tokens it reads: {spent.estimated_tokens} of the {spent.prompt_tokens} "
        "prompt tokens in its usage are estimated from the length of the text; limits and prices count them"
    )


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
