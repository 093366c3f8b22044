"""Streams that hide or repeat something: the end that shows nothing, and proxies that send an event twice."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Fusion, RuleVerifier
from cosd_providers import Usage
from cosd_providers.engines.openai import OpenAICompatible
from cosd_providers.engines.openai.stream_checks import StreamCheck
from cosd_providers.engines.openai.wire import WireAnswer
from cosd_providers.testing import TextModel
from fakes.adapters import TOY
from fakes.breaking import Repeating
from fakes.openai import FakeOpenAI
from fakes.openai_servers import URL
from support.asked import draft

WRITTEN = [" a", " b", " b", " c", " 😀", " d"]
SCRIPT: list[Any] = [(text, 0.9 - at / 50) for at, text in enumerate(WRITTEN)]
TWICE = (
    "http://gpu:8000: a part of a stream came twice, so the answer was requested once more, without a stream. "
    "Is there a proxy that repeats events?"
)
BILLED = (
    "http://gpu:8000: parts of a stream came twice, and more tokens came than the server has billed: the answer may "
    "repeat what the model wrote once. Is there a proxy that repeats events?"
)


def over(client: httpx.AsyncClient, **dialect: Any) -> OpenAICompatible:
    return OpenAICompatible(URL, http_client=client, dialect=replace(TOY, **dialect))


# The end of sequence.


def ending(server: FakeOpenAI, data: list[int] | None, *, at_once: bool = False) -> httpx.AsyncClient:
    """A server whose end of sequence has an entry with an empty string and these bytes, before or with its reason."""

    def handle(request: httpx.Request) -> httpx.Response:
        response = server.handle(request)
        if not response.headers["content-type"].startswith("text/event-stream"):
            return response
        events = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
        for event in events:
            for choice in event["choices"]:
                for entry in (choice["logprobs"] or {}).get("content", ()):
                    if entry["token"] == "</s>":
                        entry |= {"token": "", "bytes": data}
        if at_once:
            [own] = [event for event in events if any(one["finish_reason"] for one in event["choices"])]
            events.remove(own)
            [last] = [one for one in events if any(c["logprobs"] for c in one["choices"])][-1:]
            last["choices"][0]["finish_reason"] = "stop"
        lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        return httpx.Response(200, text=lines + "data: [DONE]\n\n", headers=response.headers)

    return httpx.AsyncClient(transport=httpx.MockTransport(handle))


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(("data", "requests"), [([], 1), (None, 2)])
async def test_an_end_without_bytes_is_no_hidden_character(
    data: list[int] | None, requests: int, at_once: bool
) -> None:
    """A token whose bytes are not told, with an empty string, may be a part of a character: the answer is repeated."""
    server, usage = FakeOpenAI(TextModel({"Q": SCRIPT}), shape="chat"), Usage()
    provider = over(ending(server, data, at_once=at_once), shows_parts=False)
    *tokens, end = await draft(provider, usage=usage)
    assert [token.data for token in tokens] == [*(text.encode() for text in WRITTEN), b""]
    assert (tokens[-1].end, end.reason) == (True, "end")
    assert (usage.requests, usage.prompt_tokens) == (requests, requests)
    assert [body["max_tokens"] for body in server.bodies] == [20] * requests


async def test_a_token_without_bytes_before_others_hides_a_character() -> None:
    """As where a server writes the bytes of a string that is empty: only what follows shows that it was no end."""
    written: list[Any] = [" a", b"\xc3", b"\xa9", " b"]

    class Empty(FakeOpenAI):
        def _named(self, *args: Any) -> dict[str, Any]:
            named = super()._named(*args)
            return named if named["token"] else {**named, "bytes": []}

    server = Empty(TextModel({"Q": [(one, 0.9) for one in written]}), shape="chat", opened="gone")
    tokens = await draft(over(server.client(), shows_parts=False))
    assert [token.data for token in tokens[:-1]] == [b" a", "é".encode(), b" b", b""]
    assert [bool(body.get("stream")) for body in server.bodies] == [True, False]


# Events that come twice.


@given(
    st.integers(1, 8),
    st.integers(1, 3),
    st.integers(1, 8),
    st.sampled_from(("legacy", "chat")),
    st.sampled_from(("completions", "chat")),
    st.sampled_from(("empty", "bytes", "hidden")),
    st.booleans(),
)
async def test_a_repeated_event_is_not_written_twice(
    at: int, size: int, limit: int, shape: Any, api: Any, opened: Any, shows: bool
) -> None:
    server = FakeOpenAI(TextModel({"Q": SCRIPT, "a": [("a", 0.5)]}), shape=shape, opened=opened)
    proxy, usage = Repeating(server.handle, at, size), Usage()
    provider = over(proxy.client(), api=api, continues={}, shows_parts=shows, probs=True)
    await provider.describe()
    server.requests.clear()
    tokens = await draft(provider, limit=limit, usage=usage)
    assert [token.data for token in tokens[:-1]] == [*(text.encode() for text in WRITTEN), b""][:limit]
    assert set(usage.warnings) <= {TWICE}
    assert bool(usage.warnings) <= bool(proxy.happened)
    assert len(server.bodies) <= 4


async def test_a_repeated_event_is_told_in_the_result() -> None:
    server = FakeOpenAI(TextModel({"Q": SCRIPT}))
    drafting = over(Repeating(server.handle, 1).client())
    async with Fusion(
        draft=drafting, assistant=over(server.client()), verifier=RuleVerifier(alpha=0, beta=1)
    ) as fusion:
        result = await fusion.generate("Q")
    assert result.text == "".join(WRITTEN)
    assert [one for one in result.warnings if "twice" in one] == [TWICE]
    assert [(bool(body.get("stream")), body["prompt"]) for body in server.bodies[-2:]] == [(True, "Q"), (False, "Q")]


async def test_a_model_that_repeats_itself_is_believed() -> None:
    """Also with the same probabilities: the whole answer shows it, and nothing is said."""
    server, usage = FakeOpenAI(TextModel({"Q": [(" a", 0.9)] * 4})), Usage()
    tokens = await draft(over(server.client()), usage=usage)
    assert [token.data for token in tokens[:-1]] == [b" a"] * 4 + [b""]
    assert [bool(body.get("stream")) for body in server.bodies] == [True, False]
    assert usage.warnings == []


async def test_offsets_tell_a_model_that_repeats_itself_from_a_proxy() -> None:
    server = FakeOpenAI(TextModel({"Q": [(" a", 0.9)] * 4}), opened="gone")
    tokens = await draft(over(server.client()))
    assert [token.data for token in tokens[:-1]] == [b" a"] * 4 + [b""]
    assert len(server.bodies) == 1


# What the bill shows, where there are no probabilities that could.


@pytest.mark.parametrize("probs", ["certain", "none"])
@pytest.mark.parametrize(("at", "warned"), [(1, True), (2, True), (9, False)])
async def test_more_tokens_than_billed(probs: Literal["certain", "none"], at: int, warned: bool) -> None:
    script: list[Any] = [" a", " b", " c", " d"]
    server = FakeOpenAI(TextModel({"Q": script}), probs="yes" if probs == "certain" else "ignored")
    provider, usage = over(Repeating(server.handle, at).client(), probs=probs == "certain"), Usage()
    text = b"".join(token.data for token in (await draft(provider, limit=4, usage=usage))[:-1])
    assert (text == b" a b c d") is not warned
    assert usage.warnings == ([BILLED] if warned else [])


@given(st.lists(st.sampled_from(("a", " b", " ab", "bb", "😀")), min_size=2, max_size=6), st.booleans())
async def test_a_gateway_that_cuts_text_into_characters_is_not_suspected(words: list[str], ended: bool) -> None:
    """More pieces than tokens prove nothing where repeated pieces do not explain them."""

    class Cutting(FakeOpenAI):
        def handle(self, request: httpx.Request) -> httpx.Response:
            response = super().handle(request)
            if not response.headers["content-type"].startswith("text/event-stream"):
                return response
            lines: list[str] = []
            for line in response.text.split("\n\n"):
                event = json.loads(line[6:]) if line.startswith("data: {") else {}
                text = "".join(choice.get("text", "") for choice in event.get("choices", ()))
                lines += [f"data: {json.dumps({'choices': [{'text': one}]})}" for one in text] or [line]
            return httpx.Response(200, text="\n\n".join(lines), headers=response.headers)

    text = "".join(words)
    again = sum(one == other for one, other in pairwise(text))
    server, usage = Cutting(TextModel({"Q": [*words]}), probs="ignored"), Usage()
    await draft(over(server.client(), probs=False), limit=99, usage=usage)
    if len(text) - again > len(words) + 1:
        assert usage.warnings == []


# The check by itself.


def shown(text: str, prob: float, **more: Any) -> WireAnswer:
    entry = {"token": text, "logprob": prob, "top_logprobs": [{"token": text, "logprob": prob}]}
    choice = {"text": text, "logprobs": {"content": [entry]}, "finish_reason": None, **more}
    return WireAnswer.model_validate({"choices": [choice]})


@pytest.mark.parametrize(
    ("first", "second", "broken"),
    [
        (shown("a", -0.5), shown("a", -0.5), True),
        (shown("a", -0.5), shown("a", -0.25), False),
        (shown("a", -0.5), shown("b", -0.5), False),
        (shown("a", 0.0), shown("a", 0.0), False),
        (shown("a", -9999.0), shown("a", -9999.0), False),
    ],
)
def test_what_counts_as_the_same(first: WireAnswer, second: WireAnswer, broken: bool) -> None:
    for between in ((), (shown("x", -0.125),)):
        check = StreamCheck(hides=False, probs=True)
        for event in (first, *between, second):
            check.feed(event)
        assert check.broken is broken
    without = StreamCheck(hides=False, probs=False)
    assert [one for event in (first, second) for one in without.feed(event)] == [first, second]
