"""Requests of the OpenAI-compatible adapter: single ones, streams, lists, and prompts that a server cuts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from cosd_providers import (
    ContextLengthError,
    Question,
    ResponseError,
    Token,
    UnsupportedError,
    Usage,
)
from cosd_providers.contract import Context
from cosd_providers.engines.openai import OpenAICompatible
from cosd_providers.engines.openai.dialects import Dialect
from cosd_providers.testing import TextModel
from fakes.adapters import TOY, Local
from fakes.openai import FakeOpenAI
from fakes.openai_servers import QUESTIONS, SCRIPT, URL, fake
from support.asked import draft, near
from toys import toy_models as toys


async def test_a_stream_that_hides_a_character_is_asked_as_a_whole() -> None:
    vocabulary = toys.Vocabulary((b"Q", b"a", "é".encode()[:1], "é".encode()[1:], b"b", b""), 5)
    written = [b"Q", b"a", b"\xc3", b"\xa9", b"b"]
    script: Any = {b"".join(written[:at]): {written[at]: 1.0} for at in range(1, len(written))}
    model: Any = toys.ScriptedModel(vocabulary, script)
    server = FakeOpenAI(toys.Plain(model), opened="gone")
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=replace(TOY, shows_parts=False))
    usage = Usage()
    tokens = await draft(provider, limit=9, usage=usage)
    assert [token.data for token in tokens[:-1]] == [b"a", "é".encode(), b"b", b""]
    assert [bool(body.get("stream")) for body in server.bodies] == [True, False]
    # One token of the stream was read, and all of the answer.
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (2, 2, 6)


async def test_a_stream_that_hides_a_character_between_two_tokens_that_show_something() -> None:
    """None of its tokens has an empty string: only the offsets show it, one token later."""
    vocabulary = toys.Vocabulary((b"Q", b"a\xc3", b"\xa9b", b"c", b""), 4)
    script: Any = {b"Q": {b"a\xc3": 1.0}, b"Qa\xc3": {b"\xa9b": 1.0}, "Qa\xe9b".encode(): {b"c": 1.0}}
    model: Any = toys.ScriptedModel(vocabulary, script)
    server = FakeOpenAI(toys.Plain(model), opened="gone")
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=replace(TOY, shows_parts=False))
    tokens = await draft(provider, limit=9)
    assert b"".join(token.data for token in tokens[:-1]) == "a\xe9bc".encode()
    assert [bool(body.get("stream")) for body in server.bodies] == [True, False]


async def test_a_stream_that_ends_without_a_word_is_asked_why() -> None:
    class Silent(FakeOpenAI):
        def handle(self, request: httpx.Request) -> httpx.Response:
            response = super().handle(request)
            if response.status_code == 400 and json.loads(request.content).get("stream"):
                return httpx.Response(200, text="", headers={"content-type": "text/event-stream"})
            return response

    server = Silent(TextModel({"Q": [" a"]}), context=3)
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=replace(TOY, shows_parts=False))
    with pytest.raises(ContextLengthError, match="maximum context length is 3"):
        await draft(provider, "Q" * 9, limit=2)


async def test_what_a_draft_asks() -> None:
    server, provider = fake({"Q": [" a", (" b", 0.4)]}, {"dialect": "openai", "extra_body": {"seed": 7}})
    await draft(provider, limit=1)
    *_, body = server.bodies  # behind the proofs that it is unsure, and gets the prompt as it is
    assert server.requests[-1][0] == "/v1/completions"
    assert body == {
        "model": "toy",
        "prompt": "Q",
        "max_tokens": 1,
        "temperature": 0,
        "top_p": 1,
        "n": 1,
        "seed": 7,
        "logprobs": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with pytest.raises(ValueError, match=r"extra_body cannot set echo, temperature: the fusion sets it itself"):
        OpenAICompatible(URL, extra_body={"temperature": 1, "echo": True})


async def test_no_more_alternatives_are_asked_for_than_may_be() -> None:
    server, provider = fake({"Q": [" a"]})
    for count in (0, 4, 9):
        await draft(provider, limit=1, alternatives=count)
    assert [body["logprobs"] for body in server.bodies[-3:]] == [5, 5, 5]
    server, provider = fake({"Q": [" a"]}, {"dialect": replace(TOY, most=20)})
    for count in (0, 4, 9, 30):
        await draft(provider, limit=1, alternatives=count)
    assert [body["logprobs"] for body in server.bodies[-4:]] == [5, 5, 10, 20]
    server, provider = fake({"Q": [" a"]}, {"api": "chat", "dialect": "vllm"})
    for count in (0, 4, 9, 30):
        await draft(provider, limit=1, alternatives=count)
    assert [body["top_logprobs"] for body in server.bodies[-4:]] == [5, 5, 10, 20]


async def test_messages() -> None:
    way = {"api": "chat", "dialect": "vllm"}
    server, provider = fake({"Q": [" a", " b", " c"]}, way, chat_repeats=True)
    assert [token.data for token in (await draft(provider))[:-1]] == [b" a", b" b", b" c", b""]
    *_, body = server.bodies  # the others are the proof that answers keep their ends
    assert server.requests[-1][0] == "/v1/chat/completions"
    assert (body["messages"], body["logprobs"], body["top_logprobs"]) == ([{"role": "user", "content": "Q"}], True, 5)
    assert "continue_final_message" not in body
    await draft(provider, text=b" a", limit=1)
    body = server.bodies[-1]
    assert body["messages"] == [{"role": "user", "content": "Q"}, {"role": "assistant", "content": " a"}]
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)


async def test_an_answer_that_repeats_what_it_started_with() -> None:
    _, provider = fake({"Q": [" a", " b", " c"]}, {"api": "chat", "dialect": "llama.cpp"}, chat_repeats=True)
    [one, two] = await provider.propose(
        Context("Q", b" a b"), [Question(0, (b"x",)), Question(2, (b"x",))], usage=Usage()
    )
    assert (one.tokens[0].data, two.tokens[0].data) == (b" a", b" b")


async def test_no_such_route() -> None:
    _, provider = fake({"Q": ["a"]}, {"dialect": Dialect("x", completions=None)})
    with pytest.raises(UnsupportedError, match=r"x has no route for api='completions'\. Give api='chat'\."):
        await draft(provider)


async def test_all_questions_in_one_list() -> None:
    server, provider = fake(SCRIPT)
    usage = Usage()
    found = await provider.propose(Context("Q", b" a b c"), QUESTIONS, usage=usage)
    assert [one.tokens for one in found] == [(Token(b" a", 1.0),), (Token(b" b", near(0.5)),), (Token(b" c", 1.0),)]
    assert [body["prompt"] for body in server.bodies] == [["Q", "Q a", "Q a b"], "Q a b"]  # once, to see which is which
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (2, 9, 4)
    await provider.propose(Context("Q", b" a b c"), QUESTIONS, usage=usage)
    assert [body["prompt"] for body in server.bodies[2:]] == [["Q", "Q a", "Q a b"]]


async def test_a_short_answer_without_probabilities_is_asked_for_more() -> None:
    """It may be the front of a token that begins a character and is not shown; so may not four tokens."""
    server, provider = fake({"Q": ["a", "b", "c", "d", "e"]}, {"dialect": replace(TOY, probs=True)}, probs="ignored")
    words = r"http://gpu:8000: the server gives no probabilities with its tokens, although asked \(logprobs\)"
    with pytest.raises(UnsupportedError, match=words):
        await provider.propose(Context("Q", b""), [Question(0, (b"x",))], usage=Usage())
    assert [body["max_tokens"] for body in server.bodies] == [1, 4]


async def test_long_lists_are_parted() -> None:
    server, provider = fake(SCRIPT)
    await provider.propose(Context("Q", b" a b c"), [QUESTIONS[0]] * 65, usage=Usage())
    assert [type(body["prompt"]) is list and len(body["prompt"]) for body in server.bodies] == [64, False]


@pytest.mark.parametrize("lists", ["500", "first"])
async def test_a_server_without_lists_is_asked_one_by_one_and_that_is_remembered(
    lists: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosd_providers.http.retries._ATTEMPTS", 1)
    server, provider = fake(SCRIPT, lists=lists)
    for _ in range(2):
        found = await provider.propose(Context("Q", b" a b c"), QUESTIONS, usage=Usage())
        assert [one.tokens[0].data for one in found] == [b" a", b" b", b" c"]
    prompts = [body["prompt"] for body in server.bodies]
    assert prompts.count(["Q", "Q a", "Q a b"]) == 1
    assert sorted(one for one in prompts if isinstance(one, str)) == sorted(["Q", "Q a", "Q a b"] * 2)


async def test_a_list_that_a_server_promises_and_does_not_answer() -> None:
    _, provider = fake(SCRIPT, {"dialect": Dialect("x", lists=True)}, lists="first")
    with pytest.raises(ResponseError, match="3 prompts were sent, 1 answered"):
        await provider.propose(Context("Q", b" a b c"), QUESTIONS, usage=Usage())


async def test_lists_that_bill_their_first_prompt_alone() -> None:
    for tokenizer, read in ((None, 9), (True, 9)):
        server = FakeOpenAI(TextModel(SCRIPT), bills_first=True, shape="chat")
        local = Local(server.model) if tokenizer else None
        dialect = Dialect("x", list_bills_first=True)
        provider = OpenAICompatible(URL, http_client=server.client(), dialect=dialect, tokenizer=local)
        usage = Usage()
        await provider.propose(Context("QQQ", b""), [Question(0, (b"x",))] * 3, usage=usage)
        assert (usage.prompt_tokens, usage.completion_tokens) == (read, 3)


async def test_one_error_of_several_requests_is_raised_as_it_is() -> None:
    _, provider = fake(SCRIPT, {"strategy": "singles"}, context=3)
    await provider.describe()
    with pytest.raises(ContextLengthError, match="maximum context length is 3"):
        await provider.propose(Context("Q", b" a b c"), QUESTIONS, usage=Usage())


async def test_what_was_read_is_compared_wherever_there_is_a_tokenizer() -> None:
    server, _ = fake({"Q": [" a"]}, cut=3)
    dialect = replace(TOY, sample="a")
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=dialect, tokenizer=Local(server.model))
    with pytest.raises(
        ContextLengthError, match=r"read 3 tokens of a text that has 4: it cut it silently.* 'local' not"
    ):
        await draft(provider, prompt="Q a b")
