"""Hidden states: of drafts and of texts, by the adapter for llama.cpp, and through views of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import CoLLMVerifier, Defer, fuse
from cosd_providers import (
    ContextLengthError,
    DraftEnd,
    ResponseError,
    ServerError,
    Token,
    UnsupportedError,
    Usage,
    connect,
)
from cosd_providers.chat.leading_space import WithoutLeadingSpace
from cosd_providers.contract import Context, HiddenStates
from cosd_providers.drafting import SEARCH, STRETCH
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.testing import ScriptedProvider, TextModel
from fakes.llama_cpp import FakeLlamaCpp
from naive import defer as naive_defer
from support.asked import draft
from support.drawn import examples
from toys import toy_models as toys

URL = "http://gpu:8080"


async def stated(provider: HiddenStates, prompt: str, text: bytes = b"", limit: int = 40, **options: Any) -> list[Any]:
    """A draft with its states, and its end."""
    usage = options.pop("usage", None) or Usage()
    stream = provider.generate_with_states(Context(prompt, text), max_tokens=limit, usage=usage, **options)
    return [item async for item in stream]


def states_of(items: Sequence[Token | DraftEnd]) -> list[tuple[float, ...] | None]:
    return [None if one.state is None else tuple(one.state) for one in items if isinstance(one, Token)]


@examples(25)
@given(toys.models(), toys.prompts().filter(bool), st.sampled_from((1, 2, 15, 16, 17, 40)), st.booleans())
async def test_a_draft_has_the_states_of_its_own_ids(
    toy: toys.ToyModel, prompt: bytes, limit: int, beginning: bool
) -> None:
    """In every stretch, and behind a pause: as the model itself gives them, one place at a time."""
    model = toys.Plain(toy)
    server = FakeLlamaCpp(model, beginning=beginning)
    server.states = toys.state
    adapter = LlamaCpp(URL, http_client=server.client())
    expected = ScriptedProvider(model, states=toys.state)
    ours, theirs = [await stated(one, prompt.decode(), limit=limit) for one in (adapter, expected)]
    plain = await draft(expected, prompt.decode(), limit=limit)
    if ours[-1].reason == "context":  # some models write nothing for ever
        theirs, plain = theirs[: len(ours)], plain[: len(ours)]
    assert [one.data for one in ours[:-1]] == [one.data for one in theirs[:-1]] == [one.data for one in plain[:-1]]
    assert states_of(ours) == states_of(theirs)
    naively = islice(naive_defer.following(toy, prompt), len(ours) - 1)
    assert states_of(theirs) == [toys.state(before) for _, _, before in naively]
    if ours[-1].reason == "limit":
        more = await stated(adapter, prompt.decode(), b"", 3, continuation=ours[-1].continuation)
        again = await stated(expected, prompt.decode(), b"", 3, continuation=theirs[-1].continuation)
        assert states_of(more) == states_of(again)[: len(more) - 1]


@examples(25)
@given(toys.models(), toys.prompts(), toys.prompts(), st.booleans())
async def test_a_text_has_the_states_at_its_boundaries(
    toy: toys.ToyModel, prompt: bytes, text: bytes, beginning: bool
) -> None:
    model = toys.Plain(toy)
    server = FakeLlamaCpp(model, beginning=beginning)
    server.states = toys.state
    found = await LlamaCpp(URL, http_client=server.client()).hidden_states(
        Context(prompt.decode(), text), usage=Usage()
    )
    wanted = {}
    ids = model.encode(prompt + text)
    for at in range(0 if beginning else 1, len(ids) + 1):
        before = toy.vocabulary.decode(ids[:at])
        if len(before) >= len(prompt) and not toys.is_incomplete(before):
            wanted[len(before) - len(prompt)] = toys.state(ids[:at])
    assert {at: tuple(state) for at, state in found.items()} == wanted
    if not beginning:
        scripted = ScriptedProvider(model, states=toys.state)
        assert await scripted.hidden_states(Context(prompt.decode(), text), usage=Usage()) == wanted


def fake(answer: str = "abcdefgh" * 6, **options: Any) -> tuple[FakeLlamaCpp, LlamaCpp]:
    server = FakeLlamaCpp(TextModel({"Q": [*answer]}), **options)
    server.states = lambda ids: [float(len(ids)), 1.0]
    return server, LlamaCpp(URL, http_client=server.client())


async def test_a_stretch_is_one_request() -> None:
    server, provider = fake()
    assert (await provider.describe()).capabilities.hidden_states == 2
    server.requests.clear()
    usage = Usage()
    items = await stated(provider, "Q", limit=40, usage=usage)
    assert states_of(items) == [(1.0 + at, 1.0) for at in range(40)]
    asked = [body["content"] for path, body in server.requests if path == "/embedding"]
    assert [len(one) if isinstance(one, list) else 1 for one in asked] == [STRETCH, 2 * STRETCH, 40]
    assert all(isinstance(one, list) and one[0] == "Q" for one in asked)
    assert usage.requests == 1 + 3
    assert usage.prompt_tokens == 1 + 16 + 32 + 40


async def test_only_what_was_drafted_is_asked_about_when_it_is_left() -> None:
    server, provider = fake()
    stream = provider.generate_with_states(Context("Q", b""), max_tokens=40, usage=Usage())
    first = await anext(stream)
    await stream.aclose()
    assert isinstance(first, Token)
    assert [path for path, _ in server.requests].count("/embedding") == 1 + 1  # one to find out whether it can


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"states": None}, "the server does not report the model's hidden states"),
        ({"pooled": True}, "the server does not report the model's hidden states"),
    ],
)
async def test_without_embeddings_it_is_refused(changed: dict[str, Any], words: str) -> None:
    server, provider = fake()
    vars(server).update(changed)
    assert (await provider.describe()).capabilities.hidden_states == 0
    for asked in (stated(provider, "Q"), provider.hidden_states(Context("Q", b"a"), usage=Usage())):
        with pytest.raises(UnsupportedError, match=words) as found:
            await asked
        assert "--embeddings --pooling none" in found.value.hint


@pytest.mark.parametrize("physical", [2, 11, 15, 16, 17, 20, 31, 39])
async def test_what_is_longer_than_a_physical_batch_is_refused_behind_all_that_fits(physical: int) -> None:
    server, provider = fake()
    server.physical = physical
    await provider.describe()
    usage, items = Usage(), list[Any]()

    async def take_all() -> None:
        async for item in provider.generate_with_states(Context("Q", b""), max_tokens=40, usage=usage):
            items.append(item)

    words = rf"computed in one pass, .* too long: 500: input \({physical + 1} tokens\)"
    with pytest.raises(ContextLengthError, match=words) as found:
        await take_all()
    assert states_of(items) == [(1.0 + at, 1.0) for at in range(physical)]
    assert "--ubatch-size" in found.value.hint
    assert usage.requests <= 1 + -(-40 // STRETCH) + SEARCH  # the draft, its stretches, and the search in the last one
    assert (usage.retries, found.value.retryable) == (0, False)


@pytest.mark.parametrize("draft_length", [None, 1, 2, 4, 16])
async def test_an_answer_that_fits_into_a_physical_batch_does_not_depend_on_the_stretches(
    draft_length: int | None,
) -> None:
    """The last of its tokens is computed from as many tokens as fit; what would be drafted behind it is not needed."""
    server, provider = fake("abcdefgh" * 2 + "abc." + "abcdefgh" * 4)
    server.physical = 20
    gate = CoLLMVerifier(width=2, bias=-1.0, weights=(0.0, 0.0), eta=0.5)
    result = await fuse(
        "Q",
        draft=provider,
        assistant=ScriptedProvider.from_texts({"Q": ["a"]}),
        method=Defer(gate=gate),
        unit="token",
        draft_length=draft_length,
        max_tokens=40,
        stop=["."],
    )
    assert (result.text, result.finish_reason) == ("abcdefgh" * 2 + "abc", "stop")


@pytest.mark.parametrize("status", [502, 503])
@pytest.mark.usefixtures("no_waiting")
async def test_a_server_that_was_not_reached_is_asked_for_its_states_again(status: int) -> None:
    server, _ = fake()
    statuses = iter([status] * 20)

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/embedding" and failing:
            return httpx.Response(next(statuses))
        return server.handle(request)

    failing = True
    provider = LlamaCpp(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    with pytest.raises(ServerError):
        await provider.describe()
    failing = False
    assert (await provider.describe()).capabilities.hidden_states == 2


@pytest.mark.parametrize("status", [401, 403, 500])
@pytest.mark.usefixtures("no_waiting")
async def test_a_server_whose_embeddings_are_broken_or_forbidden_reports_no_states(status: int) -> None:
    server, _ = fake()

    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status) if request.url.path == "/embedding" else server.handle(request)

    provider = LlamaCpp(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    assert (await provider.describe()).capabilities.hidden_states == 0


@pytest.mark.parametrize(
    ("embedding", "words"),
    [([[1.0, 1.0]], "gave 1 states, and 3 were asked for"), ([[None, 1.0]] * 4, "states that are no numbers")],
)
async def test_answers_that_are_no_states(embedding: list[Any], words: str) -> None:
    server, _ = fake()

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/embedding" and len(server.requests) > 5:
            return httpx.Response(200, json=[{"index": 0, "embedding": embedding}])
        return server.handle(request)

    provider = LlamaCpp(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    await provider.describe()
    with pytest.raises(ResponseError, match=words):
        await stated(provider, "Q", limit=3)


async def test_through_a_provider_that_finds_out_what_its_server_is() -> None:
    server, adapter = fake()
    found = connect(URL, http_client=server.client())
    assert isinstance(found, HiddenStates)
    async with found:
        assert await stated(found, "Q") == await stated(adapter, "Q")
        assert states_of(await stated(found, "Q")) == states_of(await stated(adapter, "Q"))
        text = b"abc"
        mine = await found.hidden_states(Context("Q", text), usage=Usage())
        assert mine == await adapter.hidden_states(Context("Q", text), usage=Usage())


async def test_behind_the_white_space_of_a_template() -> None:
    """The state of the first token is that before the space, by which the model says the first word, too."""
    states = {"states": lambda ids: [float(len(ids))]}
    for words in ([" ", "a", "b"], [" a", "b"]):
        model = ScriptedProvider.from_texts({"Q": words}, **states)
        view = WithoutLeadingSpace(model, b" ")
        items = await stated(view, "Q", limit=2)
        assert [one.data for one in items[:-1]] == [b"a", b"b"]
        assert states_of(items) == [(1.0,), (float(len(words)),)]
        found = await view.hidden_states(Context("Q", b"ab"), usage=Usage())
        assert found == {0: [1.0], 1: [float(len(words))], 2: [1.0 + len(words)]}
    with pytest.raises(UnsupportedError, match="does not report the model's hidden states"):
        await stated(WithoutLeadingSpace(ScriptedProvider.from_texts({"Q": ["a"]}), b" "), "Q")
