"""The OpenAI-compatible adapter against a stand-in that has the ways of many servers."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio.lowlevel
import httpx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import toys
from adapters import TEXT, TOY, Local, ways
from asked import check_alternatives, close, draft, near
from breaking import Break, Breaking, waiting
from cosd_providers import (
    AuthenticationError,
    ContextLengthError,
    DraftEnd,
    InvalidRequestError,
    ModelChoiceError,
    Question,
    ResponseError,
    Token,
    UnsupportedError,
    Usage,
)
from cosd_providers.contract import Piece
from cosd_providers.engines.openai import OpenAICompatible
from cosd_providers.engines.openai.dialects import DIALECTS, Dialect
from cosd_providers.testing import ScriptedProvider, TableModel, TextModel
from drawn import adapter_examples
from fake_openai import FakeOpenAI

URL = "http://gpu:8000/v1"


def fake(
    scripts: dict[str, list[Any]], provider: dict[str, Any] | None = None, **options: Any
) -> tuple[FakeOpenAI, Any]:
    server = FakeOpenAI(TextModel(scripts), **options)
    return server, OpenAICompatible(URL, http_client=server.client(), **{"dialect": TOY, **(provider or {})})


def readable(tokens: Sequence[Token]) -> bool:
    """Every token can be shown as text."""
    try:
        return all(token.data.decode() is not None for token in tokens)
    except UnicodeDecodeError:
        return False


async def nothing(*args: object) -> None:
    """In place of a check."""


# Against toy models: whatever they do, and however it is shown, the adapter gives what the model itself would.


def simple(model: toys.ToyModel) -> bool:
    """No two tokens have the same string, and only the end has none."""
    tokens = [data for n, data in enumerate(model.vocabulary.tokens) if n != model.vocabulary.end]
    return len({*tokens}) == len(tokens) and all(tokens)


def parted(model: toys.ToyModel) -> bool:
    """A token ends a character and starts another that it leaves unfinished.

    Where such characters are not shown apart, they are one token, even across the end of a prompt.
    """
    return any(0x80 <= data[0] < 0xC0 and toys.is_incomplete(data) for data in model.vocabulary.tokens if data)


@adapter_examples
@given(toys.models(may_hide_end=False), toys.prompts(), st.integers(1, 12), ways(), st.booleans())
async def test_drafts_by_either_route_are_the_models_own(
    model: toys.ToyModel, prompt: bytes, limit: int, way: dict[str, Any], chat: bool
) -> None:
    expected = ScriptedProvider(toys.Plain(model), token_ids=False, end_prob=way["end"])
    theirs = await draft(expected, prompt.decode(), limit=limit)
    assume(readable(theirs[:-1]) and simple(model))
    server = FakeOpenAI(toys.Plain(model), beginning=True, **way)
    dialect = replace(TOY, api="chat" if chat else "completions", continues={})
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=dialect)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "cosd_providers.engines.openai.discovery.check_continuation", nothing
        )  # toys do not know its texts
        ours = await draft(provider, prompt.decode(), limit=limit)
    close(ours[:-1], theirs[:-1])
    assert ours[-1] == theirs[-1]


@adapter_examples
@given(toys.models(may_hide_end=False), toys.prompts(), st.integers(1, 6), ways(), st.booleans(), st.booleans())
async def test_alternatives_by_either_route_are_the_models_own(
    model: toys.ToyModel, prompt: bytes, count: int, way: dict[str, Any], chat: bool, spaces: bool
) -> None:
    """Also where strings have lost their spaces: there they are left out."""
    expected = ScriptedProvider(toys.Plain(model), token_ids=False, end_prob=way["end"])
    theirs = await draft(expected, prompt.decode())
    assume(readable(theirs[:-1]) and simple(model))
    server = FakeOpenAI(toys.Plain(model), beginning=True, spaces=spaces, **way)
    dialect = replace(TOY, api="chat" if chat else "completions", continues={})
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=dialect)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cosd_providers.engines.openai.discovery.check_continuation", nothing)
        try:
            alone = await draft(provider, prompt.decode())
        except (ResponseError, UnsupportedError):
            assume(spaces)  # else such strings may spell nothing
            raise
        ours = await draft(provider, prompt.decode(), alternatives=count)
    assert [replace(one, alternatives=()) for one in ours[:-1]] == alone[:-1]
    assume([one.data for one in ours[:-1]] == [one.data for one in theirs[:-1]])
    check_alternatives(toys.Plain(model), prompt, ours[:-1], count, complete=False)


@pytest.mark.extended
@adapter_examples
@given(toys.models(may_hide_end=False), toys.prompts(), st.integers(1, 12), st.booleans())
async def test_drafts_of_a_stream_that_never_shows_characters_of_several_tokens(
    model: toys.ToyModel, prompt: bytes, limit: int, end: bool
) -> None:
    expected = ScriptedProvider(toys.Plain(model), token_ids=False, end_prob=end)
    theirs = await draft(expected, prompt.decode(), limit=limit)
    mixed = [data for data in model.vocabulary.tokens if data.decode("utf-8", "ignore").encode() not in (b"", data)]
    ahead = await draft(expected, prompt.decode(), limit=80)  # bytes that are no character are nowhere in the text
    assume(readable(ahead[:-1]) and simple(model) and not mixed and not parted(model))
    server = FakeOpenAI(toys.Plain(model), beginning=True, opened="gone", end=end)
    dialect = replace(TOY, shows_parts=False)
    usage = Usage()
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=dialect)
    ours = await draft(provider, prompt.decode(), limit=limit, usage=usage)
    close(ours[:-1], theirs[:-1])
    assert ours[-1] == theirs[-1]
    assert usage.requests == len(server.bodies)


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


# What goes over the wire.


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
    with pytest.raises(ValueError, match=r"extra_body cannot set echo, temperature: decoding is greedy"):
        OpenAICompatible(URL, extra_body={"temperature": 1, "echo": True})


@pytest.mark.parametrize("shape", ["legacy", "chat"])
@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_alternatives_of_which_nothing_is_known_for_sure_are_left_out(shape: Any, api: Any) -> None:
    others = {b" a": 0.4, b"\xc3": 0.2, b"</s>": 0.15, b"<|stop|>": 0.1, b" b": 0.1, b" c": 0.05}
    model = TableModel([b"", b"Q", b"", *others], lambda ids: [0.0] * 3 + [*others.values()], end_ids=(0,))
    dialect = replace(TOY, api=api, continues={})
    end, known = Token(b"", near(0.15), end=True, name="</s>"), Token(b" b", near(0.1))
    for spaces, expected in ((True, (end, known)), (False, ())):
        server = FakeOpenAI(model, shape=shape, spaces=spaces)
        provider = OpenAICompatible(URL, http_client=server.client(), dialect=dialect)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("cosd_providers.engines.openai.discovery.check_continuation", nothing)
            first, *_ = await draft(provider, limit=1, alternatives=4)
        assert (first.data, first.alternatives) == (b" a", expected)


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
    [one, two] = await provider.propose("Q", b" a b", [Question(0, (b"x",)), Question(2, (b"x",))], usage=Usage())
    assert (one.tokens[0].data, two.tokens[0].data) == (b" a", b" b")


async def test_messages_that_cannot_be_continued() -> None:
    server, provider = fake({"Q": [" a", " b"]}, {"api": "chat"})
    words = r"the chat route of toy does not continue a partial answer, .* Use a model with /v1/completions"
    with pytest.raises(UnsupportedError, match=words):
        await provider.describe()
    with pytest.raises(UnsupportedError, match=words):
        await draft(provider, limit=1)
    with pytest.raises(UnsupportedError, match=words):
        await provider.propose("Q", b"", [Question(0, (b" b",))], usage=Usage())
    assert not server.bodies


async def test_no_such_route() -> None:
    _, provider = fake({"Q": ["a"]}, {"dialect": Dialect("x", completions=None)})
    with pytest.raises(UnsupportedError, match=r"x has no route for api='completions'\. Give api='chat'\."):
        await draft(provider)


async def test_arguments() -> None:
    with pytest.raises(ValueError, match=r"no dialect 'gpt'; there are .*'llama\.cpp'.*'openai'"):
        OpenAICompatible(URL, dialect="gpt")
    with pytest.raises(ValueError, match=r"no dialect 'Together'; did you mean 'together'\?"):
        OpenAICompatible(URL, dialect="Together")
    with pytest.raises(ValueError, match=r"no api='responses'; it is 'completions', which gives the model raw text"):
        OpenAICompatible(URL, api="responses")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ValueError, match="strategy='list' needs api='completions'"):
        OpenAICompatible(URL, api="chat", strategy="list")
    with pytest.raises(ValueError, match="no strategy 'both'; there are 'echo', 'list' and 'singles'"):
        OpenAICompatible(URL, strategy="both")  # type: ignore[arg-type]  # on purpose
    provider = OpenAICompatible(URL, api_key="sk-secret", model="m", dialect="vllm")
    assert b"sk-secret" not in pickle.dumps(provider)
    assert (
        repr(pickle.loads(pickle.dumps(provider))) == "OpenAICompatible('http://gpu:8000', model='m', dialect='vllm')"
    )
    assert provider.name == "m@gpu:8000"
    with pytest.raises(UnsupportedError, match="cannot continue from token ids"):
        await draft(provider, continuation=(1,))


@pytest.mark.parametrize("name", DIALECTS)
async def test_every_dialect_drafts_and_proposes(name: str) -> None:
    server, provider = fake({"Q": [" a", " b", " c"]}, {"dialect": name, "model": "toy"})
    assert [token.data for token in (await draft(provider))[:-1]] == [b" a", b" b", b" c", b""]
    found = await provider.propose("Q", b" a b", [Question(0, (b" a",)), Question(4, (b" x",))], usage=Usage())
    assert [one.tokens[0].data for one in found] == [b" a", b" c"]
    assert all(body["max_tokens"] > 0 for body in server.bodies)
    warm = [body for body in server.bodies if body["temperature"]]  # is a model that seems certain so by itself?
    assert len(warm) == (DIALECTS[name].probs is None and warm[:1] == warm)


async def test_top_k_is_switched_off_as_every_version_of_vllm_takes_it() -> None:
    server, provider = fake({"Q": [" a"]}, {"dialect": "vllm", "model": "toy"})
    await draft(provider)
    assert {body["top_k"] for body in server.bodies} == {-1}  # up to 0.8.5, 0 is refused


# How questions are asked.


QUESTIONS = [Question(0, (b" a",)), Question(2, (b" x",)), Question(4, (b" c",))]
SCRIPT: dict[str, list[Any]] = {"Q": [" a", (" b", 0.5), " c"]}


async def test_all_questions_in_one_list() -> None:
    server, provider = fake(SCRIPT)
    usage = Usage()
    found = await provider.propose("Q", b" a b c", QUESTIONS, usage=usage)
    assert [one.tokens for one in found] == [(Token(b" a", 1.0),), (Token(b" b", near(0.5)),), (Token(b" c", 1.0),)]
    assert [body["prompt"] for body in server.bodies] == [["Q", "Q a", "Q a b"], "Q a b"]  # once, to see which is which
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (2, 9, 4)
    await provider.propose("Q", b" a b c", QUESTIONS, usage=usage)
    assert [body["prompt"] for body in server.bodies[2:]] == [["Q", "Q a", "Q a b"]]


async def test_long_lists_are_parted() -> None:
    server, provider = fake(SCRIPT)
    await provider.propose("Q", b" a b c", [QUESTIONS[0]] * 65, usage=Usage())
    assert [type(body["prompt"]) is list and len(body["prompt"]) for body in server.bodies] == [64, False]


@pytest.mark.parametrize("lists", ["500", "first"])
async def test_a_server_without_lists_is_asked_one_by_one_and_that_is_remembered(
    lists: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosd_providers.http.retries._ATTEMPTS", 1)
    server, provider = fake(SCRIPT, lists=lists)
    for _ in range(2):
        found = await provider.propose("Q", b" a b c", QUESTIONS, usage=Usage())
        assert [one.tokens[0].data for one in found] == [b" a", b" b", b" c"]
    prompts = [body["prompt"] for body in server.bodies]
    assert prompts.count(["Q", "Q a", "Q a b"]) == 1
    assert sorted(one for one in prompts if isinstance(one, str)) == sorted(["Q", "Q a", "Q a b"] * 2)


async def test_a_list_that_a_server_promises_and_does_not_answer() -> None:
    _, provider = fake(SCRIPT, {"dialect": Dialect("x", lists=True)}, lists="first")
    with pytest.raises(ResponseError, match="3 prompts were sent, 1 answered"):
        await provider.propose("Q", b" a b c", QUESTIONS, usage=Usage())


async def test_lists_that_bill_their_first_prompt_alone() -> None:
    for tokenizer, read in ((None, 9), (True, 9)):
        server = FakeOpenAI(TextModel(SCRIPT), bills_first=True, shape="chat")
        local = Local(server.model) if tokenizer else None
        dialect = Dialect("x", list_bills_first=True)
        provider = OpenAICompatible(URL, http_client=server.client(), dialect=dialect, tokenizer=local)
        usage = Usage()
        await provider.propose("QQQ", b"", [Question(0, (b"x",))] * 3, usage=usage)
        assert (usage.prompt_tokens, usage.completion_tokens) == (read, 3)


async def test_one_error_of_several_requests_is_raised_as_it_is() -> None:
    _, provider = fake(SCRIPT, {"strategy": "singles"}, context=3)
    await provider.describe()
    with pytest.raises(ContextLengthError, match="maximum context length is 3"):
        await provider.propose("Q", b" a b c", QUESTIONS, usage=Usage())


async def test_echo_that_cannot_be_told_from_a_shifted_one_is_not_used() -> None:
    server, _ = fake(SCRIPT)
    tokenizer = Local(server.model)
    way: Any = {"dialect": TOY, "strategy": "echo", "tokenizer": tokenizer}
    provider = OpenAICompatible(URL, http_client=server.client(), **way)
    assert (await provider.describe()).capabilities.score is False  # this model always ends
    with pytest.raises(UnsupportedError, match=r"does not give the probabilities of a given text.*Use it without"):
        await provider.propose("Q", b" a b c", QUESTIONS, usage=Usage())


def writer(**options: Any) -> FakeOpenAI:
    """A model that writes something after every text, of its own each time."""
    vocabulary = toys.Vocabulary((b"a", b"b", b" ", b"1", b",", b" a", b"ab", b" b", b""), 8)
    return FakeOpenAI(toys.Plain(toys.ToyModel(vocabulary, seed=5, fluency=0)), **options)


@pytest.mark.parametrize("echo", ["yes", "ignored", "shifted", "scaled", "refused"])
@pytest.mark.parametrize("beginning", [True, False])
async def test_echo_is_used_only_where_it_is_proved(echo: Any, beginning: bool) -> None:
    server = writer(echo=echo, beginning=beginning)
    local = Local(server.model)
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=TOY, strategy="echo", tokenizer=local)
    able = (await provider.describe()).capabilities.score
    assert able is (echo == "yes")
    server.requests.clear()
    if not able:
        with pytest.raises(UnsupportedError, match="does not give the probabilities of a given text"):
            await provider.score("a", b" ab", usage=Usage())
        assert not server.requests
        return
    usage = Usage()
    await provider.propose("a", b" a ab", [Question(0, (b" a",)), Question(2, (b" ",))], usage=usage)
    [body] = server.bodies
    assert (body["prompt"], body["echo"], body["max_tokens"], body["logprobs"]) == ("a a ab", True, 1, 5)
    assert usage.requests == 1
    scored = await provider.score("", b"a ab", usage=Usage())
    assert b"".join(token.data for token in scored) == b"a ab"
    assert [token.prob is None for token in scored] == [not beginning, False, False, False][: len(scored)]


async def test_every_boundary_is_asked_by_echo_where_it_is_proved() -> None:
    for echo, way in (("yes", "echo"), ("scaled", "list")):
        server = writer(echo=echo, beginning=True)
        provider = OpenAICompatible(URL, http_client=server.client(), dialect=TOY, tokenizer=Local(server.model))
        await provider.describe()
        usage = Usage()
        await provider.propose("a", b" a ab a 1 b a", None, usage=usage)
        assert {*usage.strategies} == {way}
        await provider.propose("a", b" a ab", [Question(0, (b" a",)), Question(2, (b" ",))], usage=(few := Usage()))
        assert {*few.strategies} == {"list"}


async def test_echo_without_a_tokenizer_answers_at_the_end_alone() -> None:
    server = writer(beginning=True)
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=TOY, strategy="echo")
    await provider.describe()
    server.requests.clear()
    usage = Usage()
    found = await provider.propose("a", b" a b", [Question(2, (b" b",)), Question(4, (b"a",))], usage=usage)
    assert [one and one.strategy for one in found] == ["list", "echo"]
    assert usage.strategies == {"list": 1, "echo": 1}
    first, second = server.bodies
    assert (first["prompt"], first["echo"]) == ("a a b", True)
    assert (second["prompt"], "echo" in second) == ("a a", False)


async def test_tokenize() -> None:
    server, provider = fake(SCRIPT)
    with pytest.raises(UnsupportedError, match=r"does not encode text\. Give the model's own as `tokenizer`"):
        await provider.tokenize("a")
    with pytest.raises(UnsupportedError, match="does not give the probabilities"):
        await provider.propose("Q", b" a", None, usage=Usage())
    local = OpenAICompatible(URL, http_client=server.client(), dialect=TOY, tokenizer=Local(server.model))
    assert [piece.data for piece in await local.tokenize("a b")] == [b"a", b" b"]
    assert (await local.describe()).capabilities.tokenize
    assert len(await local.propose("Q", b" a b", None, usage=Usage())) == 3


# How tokens are shown.


@pytest.mark.parametrize("shape", ["legacy", "chat"])
async def test_a_character_in_parts(shape: Any) -> None:
    script: dict[str, list[Any]] = {"Q": [b" \xf0", (b"\x9f\x98", 0.3), (b"\x80", 0.9), "!"]}
    for opened in ("empty", "lost", "bytes"):
        server, provider = fake(script, opened=opened, shape=shape)
        assert await draft(provider, limit=2) == [
            *(Token(" 😀".encode(), near(0.3)), Token(b"!", 1.0)),
            DraftEnd("limit"),
        ]
        assert [(body["prompt"], body["max_tokens"]) for body in server.bodies] == [("Q", 2), ("Q", 7)]
        [one] = await provider.propose("Q", b"", [Question(0, (b"x",))], usage=Usage())
        assert one.tokens == (Token(" 😀".encode(), near(0.3)),)


async def test_equal_characters_in_parts_and_one_that_is_cut_off() -> None:
    heart = [b"\xe2\x9d", b"\xa4\xef\xb8\x8f"]
    _, provider = fake({"Q": ["a", *heart * 4, "z"]}, opened="lost")
    data = "❤️".encode()
    [one] = await provider.propose("Q", b"", [Question(0, (b"a", *[data] * 3), word=True)], usage=Usage())
    assert [token.data for token in one.tokens] == [b"a", *[data] * 3]


async def test_missing_spaces_are_taken_from_the_text() -> None:
    for shape in ("legacy", "chat"):
        _, provider = fake({"Q": [" a", "b", " c", "."]}, spaces=False, shape=shape)
        assert [token.data for token in (await draft(provider))[:-1]] == [b" a", b"b", b" c", b".", b""]


async def test_an_end_that_is_not_shown() -> None:
    _, provider = fake({"Q": [" a"]}, end=False)
    assert await draft(provider) == [Token(b" a", 1.0), Token(b"", None, end=True), DraftEnd("end")]
    [one] = await provider.propose("Q", b" a", [Question(2, (b"",))], usage=Usage())
    assert one.tokens == (Token(b"", None, end=True),)


# Models, context and truncation.


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


async def test_an_assistant_whose_context_ends_answers_as_far_as_it_fits() -> None:
    script: dict[str, list[Any]] = {"Q": [" x", "y", "z", "w"]}
    for context in range(3, 9):
        _, provider = fake(script, context=context)
        [one] = await provider.propose("Q", b" a", [Question(0, (b" a",), word=True)], usage=Usage())
        assert b" xyzw".startswith(b"".join(token.data for token in one.tokens)) or one.tokens[-1].end


LONG = "a b " * 600
CUTS = replace(DIALECTS["openai"], truncates=True, longer="Start it with more.")


@pytest.mark.parametrize("cut", [None, 500])
@pytest.mark.parametrize("local", [False, True])
async def test_a_prompt_that_is_cut_silently_is_refused(cut: int | None, local: bool) -> None:
    server, _ = fake({LONG: [" a"]}, cut=cut)
    tokenizer = Local(server.model) if local else None
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=CUTS, tokenizer=tokenizer)
    if cut is None:
        for _ in range(2):
            await draft(provider, prompt=LONG)
        assert len(server.bodies) == 3 + 2 + 2  # the tokenizer is proved and the prompt counted, or sent twice
        return
    words = "has read 500 tokens of a text that has" if local else "cuts the prompt silently: more text before it"
    with pytest.raises(ContextLengthError, match=rf"{words}.*Start it with more"):
        await draft(provider, prompt=LONG)
    with pytest.raises(ContextLengthError, match=words):
        await provider.propose(LONG, b"", [Question(0, (b"x",))], usage=Usage())
    assert all(body["max_tokens"] == 1 and "stream" not in body for body in server.bodies)


async def test_a_short_prompt_is_not_checked_for_truncation() -> None:
    server, provider = fake({"Q": [" a"]}, {"dialect": CUTS})
    await draft(provider)
    assert [body["prompt"] for body in server.bodies] == ["a", "a", "a\n\n", "Q"]
    _, other = fake({"Q": [" a"]}, {"dialect": "fireworks"})
    await draft(other)


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
    words = r"'bytes' is not the tokenizer of this model. Of a test text the server reads \d+ tokens, and it makes 4"
    with pytest.raises(UnsupportedError, match=words):
        await draft(provider)


async def test_a_repeated_start_of_an_answer_is_found_out() -> None:
    """llama.cpp repeats it, whatever dialect is given."""
    for dialect in ("vllm", "llama.cpp"):
        _, provider = fake(
            {"Q": [" a", " b"]}, {"api": "chat", "dialect": dialect, "strategy": "singles"}, chat_repeats=True
        )
        [proposal] = await provider.propose("Q", b" a", [Question(2, (b" x",))], usage=Usage())
        assert proposal is not None
        assert proposal.tokens[0].data == b" b"


async def test_what_was_read_is_compared_wherever_there_is_a_tokenizer() -> None:
    server, _ = fake({"Q": [" a"]}, cut=3)
    dialect = replace(TOY, sample="a")
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=dialect, tokenizer=Local(server.model))
    with pytest.raises(
        ContextLengthError, match=r"read 3 tokens of a text that has 4: it cut it silently.* 'local' not"
    ):
        await draft(provider, prompt="Q a b")


# Servers that cannot, and answers that are wrong.


async def broken(changes: dict[str, Any]) -> list[Exception]:
    """The errors of a draft and of a question to a server whose answers are changed."""
    server, provider = fake({"Q": ["a", "b"]})
    server.changes = changes
    with pytest.raises((UnsupportedError, ResponseError)) as drafted:
        await draft(provider)
    with pytest.raises((UnsupportedError, ResponseError)) as proposed:
        await provider.propose("Q", b"", [Question(0, (b"a",), word=True)], usage=Usage())
    return [drafted.value, proposed.value]


def legacy(*probs: tuple[str, float, dict[str, float]]) -> dict[str, Any]:
    return {
        "logprobs": {
            "tokens": [token for token, _, _ in probs],
            "token_logprobs": [prob for _, prob, _ in probs],
            "top_logprobs": [top for _, _, top in probs],
        }
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logprobs": None}, "gives no probabilities with its tokens, although asked (logprobs)"),
        ({**legacy(("a", -2.0, {"a": -2.0, "b": -0.1})), "text": "a"}, "does not take the most probable token"),
        (
            {**legacy(("a", 0.0, {"a": 0.0}), ("b", 0.0, {})), "text": "ab"},
            "the probabilities of its first tokens only",
        ),
        ({"stop_reason": "###"}, "the server stops at a text of its own"),
        ({"finish_reason": "tool_calls"}, "ended for an unknown reason: 'tool_calls'"),
        ({"logprobs": -0.5, "text": "a"}, "sends the probability of its own token without the most probable"),
        ({"index": "x"}, "the answer is not as expected: choices.0.index"),
        ({"logprobs": {"tokens": 3}}, "the answer is not as expected: choices.0.logprobs.tokens"),
    ],
)
async def test_answers_that_cannot_be_used(changes: dict[str, Any], words: str) -> None:
    for error in await broken(changes):
        assert words in str(error)
        assert "http://gpu:8000" in str(error)


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


async def test_nothing_to_go_on_from() -> None:
    _, provider = fake({"": ["a"]})
    for asked in (draft(provider, prompt=""), provider.propose("", b"", [Question(0, (b"a",))], usage=Usage())):
        with pytest.raises(InvalidRequestError, match="prompt and text are empty, and the model has no beginning"):
            await asked


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


# What is found out before the first use.


async def test_a_template_around_the_prompt_is_refused() -> None:
    server, provider = fake({"Q": [" a"]}, {"dialect": "openai"}, template=("<|user|> ", " <|assistant|>"))
    words = r"gpu:8000: the server puts a chat template .* Is it Ollama\? Then give engine='ollama'"
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=words):
            await draft(provider)
    with pytest.raises(UnsupportedError, match="chat template around every prompt"):
        await provider.describe()
    assert {body["prompt"] for body in server.bodies} == {"a"}


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


@pytest.mark.parametrize("strings", [True, False])
async def test_a_server_that_trims_answers_is_refused(strings: bool) -> None:
    """Where strings have lost their spaces too, no answer shows it."""

    class Trims(FakeOpenAI):
        def _choice(self, part: Any, index: int, chat: str, finish: str | None, *, stream: bool) -> Any:
            choice = super()._choice(part, index, chat, finish, stream=stream)
            return {**choice, "text": choice["text"].lstrip()}

    server = Trims(TextModel({"Q": [" a", " b"]}), spaces=strings)
    provider = OpenAICompatible(URL, http_client=server.client())
    asking = provider.propose("Q", b"", [Question(0, (b" a",))], usage=Usage())
    if strings:
        with pytest.raises(UnsupportedError, match="takes white space off the beginning of its answers"):
            await asking
        with pytest.raises(UnsupportedError, match="takes white space off the beginning of its answers"):
            await draft(provider)
    else:
        assert [one.tokens[0].data for one in await asking if one] == [b"a"]


@pytest.mark.parametrize("always", [True, False])
async def test_a_server_that_seems_certain_because_of_the_temperature_is_refused(always: bool) -> None:
    """A model that is certain by itself is believed."""

    class Certain(FakeOpenAI):
        def _run(self, ids: Any, limit: int, count: int) -> Any:
            run = super()._run(ids, limit, count)
            if always or not self.bodies[-1]["temperature"]:
                for shown in run:
                    best = shown.entry["top_logprobs"][0] if shown.entry else {}
                    for one in shown.entry["top_logprobs"] if shown.entry else ():
                        one["logprob"] = 0.0 if one is best else -9999.0
                    if shown.entry:
                        shown.entry["logprob"] = 0.0
            return run

    script = {"a": [(" b", 0.5)], "Q": [(" b", 0.5)]}
    provider = OpenAICompatible(URL, http_client=Certain(TextModel(script)).client())
    if always:
        assert [token.data for token in (await draft(provider, limit=1))[:-1]] == [b" b"]
        return
    with pytest.raises(UnsupportedError, match="at temperature 0 the server reports no probabilities but 1 and 0"):
        await draft(provider)


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


async def test_usage_of_a_stream_that_is_left_early() -> None:
    server, _ = fake({"Q a": [" b", " c", " d"]})
    for tokenizer, read in ((None, 0), (Local(server.model), 3)):
        provider = OpenAICompatible(URL, http_client=server.client(), dialect=TOY, tokenizer=tokenizer)
        usage = Usage()
        tokens: Any = provider.generate("Q a", b"", max_tokens=9, usage=usage)
        await anext(tokens)
        await tokens.aclose()
        assert (usage.prompt_tokens, usage.completion_tokens) == (read, 1)
    usage = Usage()
    await draft(provider, prompt="Q a", usage=usage)
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (1, 3, 4)
    assert json.dumps(server.bodies[-1])


# Streams that break.


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
