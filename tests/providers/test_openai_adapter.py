"""The OpenAI-compatible adapter against a stand-in that has the ways of many servers."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cosd_providers import (
    DraftEnd,
    InvalidRequestError,
    Piece,
    Question,
    ResponseError,
    Token,
    UnsupportedError,
    Usage,
)
from cosd_providers.contract import Context
from cosd_providers.engines.openai import OpenAICompatible
from cosd_providers.engines.openai.dialects import DIALECTS
from cosd_providers.testing import ScriptedProvider, TableModel, TextModel
from fakes.adapters import TOY, Local, ways
from fakes.openai import FakeOpenAI
from fakes.openai_servers import QUESTIONS, SCRIPT, URL, fake
from support.asked import check_alternatives, check_scored, close, draft, near
from toys import toy_models as toys


def readable(tokens: Sequence[Token]) -> bool:
    """Every token can be shown as text."""
    try:
        return all(token.data.decode() is not None for token in tokens)
    except UnicodeDecodeError:
        return False


async def nothing(*args: object) -> None:
    """In place of a check."""


def simple(model: toys.ToyModel) -> bool:
    """No two tokens have the same string, and only the end has none."""
    tokens = [data for n, data in enumerate(model.vocabulary.tokens) if n != model.vocabulary.end]
    return len({*tokens}) == len(tokens) and all(tokens)


def parted(model: toys.ToyModel) -> bool:
    """A token ends a character and starts another that it leaves unfinished.

    Where such characters are not shown apart, they are one token, even across the end of a prompt.
    """
    return any(0x80 <= data[0] < 0xC0 and toys.is_incomplete(data) for data in model.vocabulary.tokens if data)


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


OTHERS = (b"</s>", b" a", b" b", b" c", b"d", b"e", b"\xc3", b"\xe4\xb8", b"<|stop|>", b" b", b" a", b"f")
"""Tokens beside " a": the end, parts of characters, a special one, and two that read like others."""


@st.composite
def crowds(draw: st.DrawFn) -> TableModel:
    """Models that write " a", and might have written anything else, in any order."""
    weights = [13, *draw(st.permutations(range(1, len(OTHERS) + 1)))]
    tokens = [b"", b"Q", b" a", *OTHERS[1:]]
    probs = {2: weights[0], 0: weights[1], **{n: weights[n - 1] for n in range(3, len(tokens))}}
    return TableModel(tokens, lambda ids: [probs.get(n, 0) / sum(weights) for n in range(len(tokens))], end_ids=(0,))


@given(crowds(), st.integers(1, 15), ways(), st.booleans(), st.booleans(), st.booleans())
async def test_ranked_alternatives_have_no_gap(
    model: TableModel, count: int, way: dict[str, Any], chat: bool, spaced: bool, proposed: bool
) -> None:
    """No token that is left out is more probable than one that is given."""
    server = FakeOpenAI(model, **way)
    listed: dict[str, Any] = {"ranked": True, "spaced": spaced, "end_prob": way["end"], "most": 20}
    dialect = replace(TOY, api="chat" if chat else "completions", continues={}, **listed)
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=dialect)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cosd_providers.engines.openai.discovery.check_continuation", nothing)
        if proposed:
            [found] = await provider.propose(
                Context("Q", b""), [Question(0, (b"x",))], alternatives=count, usage=Usage()
            )
            assert found is not None
            [token] = found.tokens
        else:
            token, *_ = await draft(provider, limit=1, alternatives=count)
    probs = model.next(())
    says = {n: (data, n in model.end_ids) for n, data in enumerate(model.tokens)}
    given = [((one.data, one.end), one.prob or 0.0) for one in token.alternatives]
    assert (token.data, len(given) <= count) == (b" a", True)
    for text, prob in given:
        assert any(prob == near(probs[n]) for n, said in says.items() if said == text)
        more = {said for n, said in says.items() if probs[n] > prob * (1 + 1e-9) and said != (b" a", False)}
        assert more <= {said for said, _ in given}


@pytest.mark.parametrize("shape", ["legacy", "chat"])
async def test_ranked_alternatives_end_where_one_is_unknown(shape: Any) -> None:
    tokens = [b"", b"Q", b" a", b" b", b" a", b" c", b"\xc3", b" d"]
    model = TableModel(tokens, lambda ids: [0.15, 0, 0.3, 0.2, 0.12, 0.1, 0.08, 0.05], end_ids=(0,))
    server = FakeOpenAI(model, shape=shape)
    dialect = replace(TOY, ranked=True, end_prob=True, most=20, chat_most=20)
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=dialect)
    told = (Token(b" b", near(0.2)), Token(b"", near(0.15), end=True, name="</s>"), Token(b" c", near(0.1)))
    first, *_ = await draft(provider, limit=1, alternatives=7)
    # Keyed by their strings, one " a" hides the other: then what is listed must be more probable than what is not.
    assert first.alternatives == (told if shape == "chat" else told[:2])
    [found] = await provider.propose(Context("Q", b""), [Question(0, (b"x",))], alternatives=7, usage=Usage())
    assert found is not None
    assert found.tokens == (first,)


async def test_proposals_have_alternatives_only_where_lists_are_ranked() -> None:
    for ranked, most in ((True, 20), (False, 20), (True, 5)):
        server, provider = fake({"Q": [(" a", 0.9)]}, {"dialect": replace(TOY, ranked=ranked, most=most, spaced=True)})
        able = (await provider.describe()).capabilities
        assert (able.top_k, able.score_top_k) == ((most - 1 if ranked else 0), 0)
        server.requests.clear()
        await provider.propose(Context("Q", b""), [Question(0, (b"x",))], alternatives=30, usage=Usage())
        assert [body["logprobs"] for body in server.bodies] == [most if ranked else 5]


@pytest.mark.parametrize(("api", "late"), [("completions", True), ("completions", False), ("chat", True)])
async def test_a_server_that_lists_fewer_is_asked_for_fewer(api: Any, late: bool) -> None:
    way = {"dialect": replace(TOY, api=api, ranked=True, most=20, lists=True, continues={})}
    name = "logprobs" if api == "completions" else "top_logprobs"
    for ask in ("draft", "one", "several"):
        server, provider = fake(SCRIPT, way, most=7, late=late)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("cosd_providers.engines.openai.discovery.check_continuation", nothing)
            await provider.describe()
            server.requests.clear()
            for _ in range(2):
                questions = QUESTIONS[: 1 if ask == "one" else 2]
                if ask == "draft":
                    await draft(provider, alternatives=12)
                else:
                    await provider.propose(Context("Q", b" a b c"), questions, alternatives=12, usage=Usage())
        asked = [body[name] for body in server.bodies]
        assert set(asked) == {13, 7}
        assert asked.index(7) <= asked.count(13)  # and never again
    server, provider = fake(SCRIPT, way, most=3)
    with pytest.raises(InvalidRequestError, match="max allowed: 3"):
        await provider.propose(Context("Q", b""), QUESTIONS[:1], alternatives=12, usage=Usage())


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize(
    "refuses",
    [["stream_options"], ["continuous_usage_stats"], ["include_usage", "continuous_usage_stats"], ["top_p", "n"]],
)
async def test_a_field_that_no_answer_depends_on_is_left_out_once_it_was_refused(
    refuses: list[str], api: Any, late: bool
) -> None:
    dialect = replace(TOY, api=api, continues={}, stream_options=DIALECTS["vllm"].stream_options)
    plain, unrefused = fake(SCRIPT, {"dialect": dialect})
    server, provider = fake(SCRIPT, {"dialect": dialect}, refuses=refuses, late=late)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cosd_providers.engines.openai.discovery.check_continuation", nothing)
        for _ in range(2):
            assert await draft(provider) == await draft(unrefused)
    *tried, first, second = (_fields(body) for body in server.bodies)
    assert all({*refuses} & {*fields} for fields in tried)
    assert 1 <= len(tried) <= len(refuses)
    gone = {*refuses, "stream_options"} if "include_usage" in refuses else {*refuses}
    gone |= {*dialect.stream_options} if "stream_options" in gone else set()
    assert {*first} == {*second} == {*_fields(plain.bodies[-1])} - gone


def _fields(body: Mapping[str, Any]) -> list[str]:
    return [*body, *body.get("stream_options", ())]


async def test_a_field_that_answers_depend_on_is_never_left_out() -> None:
    _, provider = fake(SCRIPT, refuses=["temperature"])
    with pytest.raises(InvalidRequestError, match="Unrecognized request argument supplied: temperature"):
        await draft(provider)


def writing(*, dialect: Any = TOY, **options: Any) -> tuple[FakeOpenAI, OpenAICompatible]:
    """A server whose echo can be proved, with ranked lists."""
    server = writer(**{"beginning": True, **options})
    known = replace(dialect, ranked=True, spaced=True, end_prob=True, most=20)
    return server, OpenAICompatible(URL, http_client=server.client(), dialect=known)


async def test_scores_have_alternatives_and_the_end() -> None:
    server, provider = writing()
    able = (await provider.describe()).capabilities
    assert (able.top_k, able.score_top_k) == (19, 19)
    server.requests.clear()
    scored = await provider.score(Context("a", b" ab"), alternatives=8, end=True, usage=Usage())
    assert [(body["logprobs"], bool(body.get("echo"))) for body in server.bodies] == [(9, True)]
    check_scored(server.model, b"a", scored, 8)
    assert max(len(token.alternatives) for token in scored) > 1
    alone = await provider.score(Context("a", b" ab"), usage=Usage())
    assert [replace(token, alternatives=()) for token in scored[:-1]] == alone


async def test_an_end_that_is_not_among_the_first_is_asked_for() -> None:
    tokens = (b"a", b"b", b" ", b"1", b",", b" a", b"ab", b" b", b"")
    toy = toys.ToyModel(toys.Vocabulary(tokens, 8), seed=5, fluency=0)

    class Plain(toys.Plain):
        def next(self, ids: Sequence[int]) -> Sequence[float]:
            probs = [*toys.Plain.next(self, ids)]
            probs[8] = 0.0
            return [*(prob / sum(probs) * 0.999 for prob in probs[:8]), 0.001]

    for most, prob in ((20, near(0.001)), (5, None)):
        server = FakeOpenAI(Plain(toy), beginning=True)
        dialect = replace(TOY, ranked=True, spaced=True, end_prob=True, most=most)
        provider = OpenAICompatible(URL, http_client=server.client(), dialect=dialect)
        assert (await provider.describe()).capabilities.score
        server.requests.clear()
        *_, end = await provider.score(Context("a", b" ab"), end=True, usage=Usage())
        listed = sum(prob > 0.001 for prob in server.model.next(server.model.encode(b"a ab")))
        if listed < 5:
            continue
        assert (end.end, end.prob) == (True, prob)
        asked = [(body["logprobs"], bool(body.get("echo"))) for body in server.bodies]
        assert asked == [(5, True), *[(20, False)][: most > 5]]
        server.requests.clear()
        [end] = await provider.score(Context("a ab", b""), end=True, usage=Usage())
        assert (end.end, end.prob) == (True, prob)
        assert not any("echo" in body for body in server.bodies)


async def test_drawn_tokens() -> None:
    server, provider = fake({"Q": [(" a", 0.5), "b"]}, {"dialect": replace(TOY, sampling={"temperature": 1, "x": 0})})
    assert (await provider.describe()).capabilities.sampling
    server.requests.clear()
    drafts = [await draft(provider, temperature=1, seed=seed) for seed in (1, 1, 2, 2**32 + 1)]
    assert drafts[0] == drafts[1]
    bodies = [(body["temperature"], body["x"], body["seed"]) for body in server.bodies]
    assert bodies == [(1, 0, 1), (1, 0, 1), (1, 0, 2), (1, 0, 2)]
    for _ in range(3):
        await draft(provider, temperature=1)
    assert len({body["seed"] for body in server.bodies[-3:]}) == 3
    assert {token.data for items in drafts for token in items[:-1]} <= {b" a", b"b", b""}


async def test_a_text_that_has_grown_is_drawn_with_another_seed() -> None:
    tokens = [b"", b"Q", b"a", b"b"]
    model = TableModel(tokens, lambda ids: [0, 0, 0.5, 0.5], end_ids=(0,))
    server = FakeOpenAI(model, clamps=True, context=6)
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=replace(TOY, sampling={"temperature": 1}))

    def handle(request: httpx.Request) -> httpx.Response:
        server.context = 1 + len(json.loads(request.content)["prompt"]) + 2 if request.content else 9
        return server.handle(request)

    client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    provider = OpenAICompatible(URL, http_client=client, dialect=replace(TOY, sampling={"temperature": 1}))
    await draft(provider, limit=8, temperature=1, seed=5)
    asked = [(body["prompt"], body["seed"]) for body in server.bodies if "seed" in body]
    assert len({seed for _, seed in asked}) == len({prompt for prompt, _ in asked}) > 1
    assert asked[0] == ("Q", 5)


async def test_other_servers_draw_in_their_own_way() -> None:
    server, provider = fake({"Q": [(" a", 0.5), "b"]})
    able = (await provider.describe()).capabilities
    assert (able.sampling, able.draws) == (False, True)
    with pytest.raises(ValueError, match="temperature must be 0 or 1"):
        await draft(provider, temperature=0.5)
    assert all(not body["temperature"] for body in server.bodies)
    server.requests.clear()
    *tokens, end = await draft(provider, temperature=1, seed=7, alternatives=3)
    [body] = server.bodies
    assert (body["temperature"], body["seed"], "logprobs" in body) == (1, 7, False)
    assert b"".join(token.data for token in tokens) == server.drawn[-1]
    assert {token.prob for token in tokens} == {None} and end.reason == "end"


@pytest.mark.parametrize(
    ("dialect", "seed"), [("mistral", {"random_seed": 7}), ("openrouter", {}), ("groq", {"seed": 7})]
)
async def test_a_seed_has_the_name_that_the_service_knows(dialect: str, seed: dict[str, int]) -> None:
    server = FakeOpenAI(TextModel({"Q": [" a", " b"]}), probs="refused")
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=dialect, api="messages")
    await draft(provider, temperature=1, seed=7)
    assert {name: value for name, value in server.bodies[-1].items() if "seed" in name} == seed


async def test_messages_that_cannot_be_continued() -> None:
    server, provider = fake({"Q": [" a", " b"]}, {"api": "chat"})
    words = r"the chat route of toy does not continue a partial answer, .* Use a model with /v1/completions"
    with pytest.raises(UnsupportedError, match=words):
        await provider.describe()
    with pytest.raises(UnsupportedError, match=words):
        await draft(provider, limit=1)
    with pytest.raises(UnsupportedError, match=words):
        await provider.propose(Context("Q", b""), [Question(0, (b" b",))], usage=Usage())
    assert not server.bodies


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
    _, served = fake({"Q": ["a"]})
    with pytest.raises(UnsupportedError, match="cannot continue from token ids"):
        await draft(served, continuation=(1,))


@pytest.mark.parametrize("name", DIALECTS)
async def test_every_dialect_drafts_and_proposes(name: str) -> None:
    server, provider = fake({"Q": [" a", " b", " c"]}, {"dialect": name, "model": "toy"})
    assert [token.data for token in (await draft(provider))[:-1]] == [b" a", b" b", b" c", b""]
    found = await provider.propose(Context("Q", b" a b"), [Question(0, (b" a",)), Question(4, (b" x",))], usage=Usage())
    assert [one.tokens[0].data for one in found] == [b" a", b" c"]
    assert all(body["max_tokens"] > 0 for body in server.bodies)
    warm = [body for body in server.bodies if body["temperature"]]  # is a model that seems certain so by itself?
    assert len(warm) == (DIALECTS[name].probs is None and warm[:1] == warm)


async def test_top_k_is_switched_off_as_every_version_of_vllm_takes_it() -> None:
    server, provider = fake({"Q": [" a"]}, {"dialect": "vllm", "model": "toy"})
    await draft(provider)
    assert {body["top_k"] for body in server.bodies} == {-1}  # up to 0.8.5, 0 is refused


async def test_echo_that_cannot_be_told_from_a_shifted_one_is_not_used() -> None:
    server, _ = fake(SCRIPT)
    tokenizer = Local(server.model)
    way: Any = {"dialect": TOY, "strategy": "echo", "tokenizer": tokenizer}
    provider = OpenAICompatible(URL, http_client=server.client(), **way)
    assert (await provider.describe()).capabilities.score is False  # this model always ends
    with pytest.raises(UnsupportedError, match=r"does not give the probabilities of a given text.*Use it without"):
        await provider.propose(Context("Q", b" a b c"), QUESTIONS, usage=Usage())


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
            await provider.score(Context("a", b" ab"), usage=Usage())
        assert not server.requests
        return
    usage = Usage()
    await provider.propose(Context("a", b" a ab"), [Question(0, (b" a",)), Question(2, (b" ",))], usage=usage)
    [body] = server.bodies
    assert (body["prompt"], body["echo"], body["max_tokens"], body["logprobs"]) == ("a a ab", True, 1, 5)
    assert usage.requests == 1
    scored = await provider.score(Context("", b"a ab"), usage=Usage())
    assert b"".join(token.data for token in scored) == b"a ab"
    assert [token.prob is None for token in scored] == [not beginning, False, False, False][: len(scored)]


async def test_every_boundary_is_asked_by_echo_where_it_is_proved() -> None:
    for echo, way in (("yes", "echo"), ("scaled", "list")):
        server = writer(echo=echo, beginning=True)
        provider = OpenAICompatible(URL, http_client=server.client(), dialect=TOY, tokenizer=Local(server.model))
        await provider.describe()
        usage = Usage()
        await provider.propose(Context("a", b" a ab a 1 b a"), None, usage=usage)
        assert {*usage.strategies} == {way}
        await provider.propose(
            Context("a", b" a ab"), [Question(0, (b" a",)), Question(2, (b" ",))], usage=(few := Usage())
        )
        assert {*few.strategies} == {"list"}


class Noting(Local):
    """A tokenizer that notes of the long texts whether it was in the thread of the event loop."""

    blocked: list[bool]

    def encode(self, text: str) -> list[Piece]:
        if len(text) > 70_000:
            self.blocked.append(threading.current_thread() is threading.main_thread())
        return super().encode(text)


async def test_long_texts_are_encoded_beside_the_event_loop() -> None:
    server = writer(echo="refused", context=1_000_000)
    local = Noting(server.model)
    local.blocked = []
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=TOY, tokenizer=local)
    await provider.describe()
    prompt = "a" * 70_001
    await draft(provider, prompt, limit=2)
    await provider.propose(Context(prompt, b" a ab"), [Question(0, (b" a",)), Question(2, (b" ",))], usage=Usage())
    await provider.count_tokens(prompt)
    await provider.tokenize(prompt)
    assert len(local.blocked) >= 4
    assert not any(local.blocked)


async def test_echo_without_a_tokenizer_answers_at_the_end_alone() -> None:
    server = writer(beginning=True)
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=TOY, strategy="echo")
    await provider.describe()
    server.requests.clear()
    usage = Usage()
    found = await provider.propose(Context("a", b" a b"), [Question(2, (b" b",)), Question(4, (b"a",))], usage=usage)
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
        await provider.propose(Context("Q", b" a"), None, usage=Usage())
    local = OpenAICompatible(URL, http_client=server.client(), dialect=TOY, tokenizer=Local(server.model))
    assert [piece.data for piece in await local.tokenize("a b")] == [b"a", b" b"]
    assert (await local.describe()).capabilities.tokenize
    assert len(await local.propose(Context("Q", b" a b"), None, usage=Usage())) == 3


@pytest.mark.parametrize("shape", ["legacy", "chat"])
async def test_a_character_in_turn(shape: Any) -> None:
    script: dict[str, list[Any]] = {"Q": [b" \xf0", (b"\x9f\x98", 0.3), (b"\x80", 0.9), "!"]}
    for opened in ("empty", "lost", "bytes"):
        server, provider = fake(script, opened=opened, shape=shape)
        assert await draft(provider, limit=2) == [
            *(Token(" 😀".encode(), near(0.3)), Token(b"!", 1.0)),
            DraftEnd("limit"),
        ]
        assert [(body["prompt"], body["max_tokens"]) for body in server.bodies] == [("Q", 2), ("Q", 7)]
        [one] = await provider.propose(Context("Q", b""), [Question(0, (b"x",))], usage=Usage())
        assert one.tokens == (Token(" 😀".encode(), near(0.3)),)


async def test_equal_characters_in_turn_and_one_that_is_cut_off() -> None:
    heart = [b"\xe2\x9d", b"\xa4\xef\xb8\x8f"]
    _, provider = fake({"Q": ["a", *heart * 4, "z"]}, opened="lost")
    data = "❤️".encode()
    [one] = await provider.propose(Context("Q", b""), [Question(0, (b"a", *[data] * 3), word=True)], usage=Usage())
    assert [token.data for token in one.tokens] == [b"a", *[data] * 3]


async def test_missing_spaces_are_taken_from_the_text() -> None:
    for shape in ("legacy", "chat"):
        _, provider = fake({"Q": [" a", "b", " c", "."]}, spaces=False, shape=shape)
        assert [token.data for token in (await draft(provider))[:-1]] == [b" a", b"b", b" c", b".", b""]


async def test_an_end_that_is_not_shown() -> None:
    _, provider = fake({"Q": [" a"]}, end=False)
    assert await draft(provider) == [Token(b" a", 1.0), Token(b"", None, end=True), DraftEnd("end")]
    [one] = await provider.propose(Context("Q", b" a"), [Question(2, (b"",))], usage=Usage())
    assert one.tokens == (Token(b"", None, end=True),)


async def test_an_assistant_whose_context_ends_answers_as_far_as_it_fits() -> None:
    script: dict[str, list[Any]] = {"Q": [" x", "y", "z", "w"]}
    for context in range(3, 9):
        _, provider = fake(script, context=context)
        [one] = await provider.propose(Context("Q", b" a"), [Question(0, (b" a",), word=True)], usage=Usage())
        assert b" xyzw".startswith(b"".join(token.data for token in one.tokens)) or one.tokens[-1].end


async def broken(changes: dict[str, Any]) -> list[Exception]:
    """The errors of a draft and of a question to a server whose answers are changed."""
    server, provider = fake({"Q": ["a", "b"]})
    server.changes = changes
    with pytest.raises((UnsupportedError, ResponseError)) as drafted:
        await draft(provider)
    with pytest.raises((UnsupportedError, ResponseError)) as proposed:
        await provider.propose(Context("Q", b""), [Question(0, (b"a",), word=True)], usage=Usage())
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


async def test_nothing_to_go_on_from() -> None:
    _, provider = fake({"": ["a"]})
    for asked in (
        draft(provider, prompt=""),
        provider.propose(Context("", b""), [Question(0, (b"a",))], usage=Usage()),
    ):
        with pytest.raises(InvalidRequestError, match="prompt and text are empty, and the model has no beginning"):
            await asked


@pytest.mark.parametrize("strings", [True, False])
async def test_a_server_that_trims_answers_is_refused(strings: bool) -> None:
    """Where strings have lost their spaces too, no answer shows it."""

    class Trims(FakeOpenAI):
        def _choice(self, part: Any, index: int, chat: str, finish: str | None, *, stream: bool) -> Any:
            choice = super()._choice(part, index, chat, finish, stream=stream)
            return {**choice, "text": choice["text"].lstrip()}

    server = Trims(TextModel({"Q": [" a", " b"]}), spaces=strings)
    provider = OpenAICompatible(URL, http_client=server.client())
    asking = provider.propose(Context("Q", b""), [Question(0, (b" a",))], usage=Usage())
    if strings:
        with pytest.raises(UnsupportedError, match="takes white space off the beginning of its answers"):
            await asking
        with pytest.raises(UnsupportedError, match="takes white space off the beginning of its answers"):
            await draft(provider)
    else:
        assert [one.tokens[0].data for one in await asking if one] == [b"a"]
