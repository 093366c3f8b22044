"""The SGLang adapter against a stand-in with toy models, which do all that is rare."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal
from unittest.mock import ANY

import httpx
import pytest

from cosd_providers import (
    ContextLengthError,
    DraftEnd,
    InvalidRequestError,
    ModelChoiceError,
    ProviderError,
    Question,
    ResponseError,
    ServerError,
    Token,
    UnsupportedError,
    Usage,
    connect,
)
from cosd_providers.contract import Context
from cosd_providers.engines.sglang import Events, Sglang, SglangAnswer, scored
from cosd_providers.testing import LanguageModel, TableModel, TextModel
from fakes.adapters import Local
from fakes.breaking import waiting
from fakes.sglang import StandInSglang
from fakes.splits import check_every_split, in_turn
from support.asked import check_what_an_echo_leaves_open, draft, near
from support.drawn import partly
from toys import toy_models as toys

URL = "http://gpu:30000"
Strategy = Literal["echo", "list", "singles"]
STRATEGIES: tuple[Strategy, ...] = ("echo", "list", "singles")


def stand_in(model: LanguageModel, *, begins: bool = True, **options: Any) -> StandInSglang:
    """In front of a model; the beginning of sequence has the id after the model's own."""
    specials = {n: f"<unused{n}>" for n, data in enumerate(model.tokens) if not data and n not in model.end_ids}
    beginning = len(model.tokens) if begins else None
    return StandInSglang(model, beginning=beginning, **{"specials": specials, **options})


def fake(scripts: dict[str, list[Any]], **options: Any) -> tuple[StandInSglang, Sglang]:
    server = stand_in(TextModel({"~": [" a", " \u00e9"], **scripts}), **{"begins": False, **options})
    return server, Sglang(URL, http_client=server.client())


def asked(server: StandInSglang) -> list[dict[str, Any]]:
    return [body for path, body in server.requests if path == "/generate"]


# Against toy models: whatever they do, the adapter gives what the model itself would.


# What goes over the wire.


async def test_what_it_is() -> None:
    server, provider = fake({}, context=99, template=("<|user|>", "<|end|>\n<|assistant|>\n"))
    info = await provider.describe()
    assert (info.engine, info.model, info.build) == ("sglang", "toy", "0.5.6")
    assert (info.endpoint, info.context, info.longest_prompt) == (URL, 99, 92)
    assert info.answer_cue == "<|end|>\n<|assistant|>\n"
    assert all(getattr(info.capabilities, name) for name in ("token_ids", "end_prob", "tokenize", "score", "probs"))
    assert (info.capabilities.top_k, info.capabilities.score_top_k, info.capabilities.sampling) == (63, 63, False)
    count = len(server.requests)
    assert await provider.describe() is info
    assert len(server.requests) == count
    assert (await fake({})[1].describe()).answer_cue is None


async def test_it_is_found_by_its_models() -> None:
    server, _ = fake({"Q": ["a"]})
    assert await draft(connect(URL, http_client=server.client()), limit=1) == [Token(b"a", 1.0), ANY]
    assert "/generate" in [path for path, _ in server.requests]


async def test_what_a_draft_asks() -> None:
    server, provider = fake({"Q": [" a", (" b", 0.4)]})
    await draft(provider, limit=1)
    path, body = server.requests[-1]
    assert path == "/generate"
    assert body["input_ids"] == server.model.encode(b"Q")
    assert (body["return_logprob"], body["logprob_start_len"], body["stream"]) == (True, -1, True)
    sampling = body["sampling_params"]
    assert (sampling["max_new_tokens"], sampling["temperature"], sampling["top_p"], sampling["top_k"]) == (1, 0, 1, -1)
    penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty", "min_p", "min_new_tokens")
    assert [sampling[name] for name in penalties] == [1.0, 0.0, 0.0, 0.0, 0]
    assert (sampling["n"], sampling["ignore_eos"], sampling["stop"], sampling["stop_token_ids"]) == (1, False, [], [])


async def test_alternatives() -> None:
    probs = {b" a": 0.4, b" b": 0.25, b"c": 0.15, b"\xc3": 0.1, b"<|stop|>": 0.1}
    letters = [bytes([n]) for n in range(256) if n != ord("c")]
    model = TableModel([b"", *probs, *letters], lambda ids: [0.0, *probs.values(), *[0.0] * 255], end_ids=(0,))
    for space, told in ((False, (Token(b" b", near(0.25)), Token(b"c", near(0.15)))), (True, ())):
        server = stand_in(model, begins=False, space=space)
        provider = connect(URL, http_client=server.client())
        for count in (0, 1, 2, 5):
            first, *_ = await draft(provider, limit=1, alternatives=count)
            assert first.alternatives == told[:count]
        bodies = [body for path, body in server.requests if path == "/generate" and body.get("stream")]
        assert [body["top_logprobs_num"] for body in bodies] == [2, 2, 3, 6]


SAID = {b" a": 0.4, b" b": 0.25, b"c": 0.15, b"\xc3": 0.1, b"<|stop|>": 0.06, b"": 0.04}


def unsure(*ends: float, part: bytes = b"\xc3") -> TableModel:
    """A model that says `SAID` everywhere, and first of all further ends."""
    letters = [bytes([n]) for n in range(256) if n not in b"cd"]
    rest = 1 - sum(ends)
    said = {part if data == b"\xc3" else data: prob for data, prob in SAID.items()}
    probs = [*ends, *(prob * rest for prob in said.values()), *[0.0] * len(letters)]
    vocabulary = [*[b""] * len(ends), *said, *letters]
    return TableModel(vocabulary, lambda ids: probs, end_ids=(*range(len(ends)), len(ends) + len(SAID) - 1))


@pytest.mark.parametrize("space", [False, True])
async def test_alternatives_of_proposals_and_scores(space: bool) -> None:
    """The bytes of a listed token are asked for once, where its text alone does not show them."""
    server = stand_in(unsure(), begins=False, space=space)
    provider = Sglang(URL, http_client=server.client())
    told = (Token(b" b", near(0.25)), Token(b"c", near(0.15)), Token(b"<|stop|>", near(0.06)))
    end = Token(b"", near(0.04), end=True, name="</s>")
    for strategy in STRATEGIES:
        for count, listed in ((0, 5), (2, 5), (9, 10), (99, 64)):
            server.requests.clear()
            questions = [Question(0, (b" a",)), Question(2, (b" b",))]
            way = provider.with_strategy(strategy)
            found = await way.propose(Context("Q", b" a b"), questions, alternatives=count, usage=Usage())
            expected = Token(b" a", near(0.4), alternatives=((*told, end) if listed > 5 else told)[:count])
            assert [one and one.tokens[0] for one in found] == [expected] * 2
            sent = [body for body in asked(server) if "input_ids" in body]
            assert {body["top_logprobs_num"] for body in sent if not body["sampling_params"].get("logit_bias")} == {
                listed
            }
    server.requests.clear()
    *scored, last = await provider.score(Context("Q", b"ac"), alternatives=9, end=True, usage=Usage())
    best = Token(b" a", near(0.4))
    assert scored[-1] == Token(b"c", near(0.15), alternatives=(best, told[0], told[2], end))
    assert last == replace(end, alternatives=(best, *told))
    [body] = asked(server)
    assert (body["token_ids_logprob"], body["top_logprobs_num"]) == ([5], 10)
    await provider.score(Context("Q", b"ac"), usage=Usage())
    assert "token_ids_logprob" not in asked(server)[-1]
    assert asked(server)[-1]["top_logprobs_num"] == 5


async def test_of_several_ends_the_most_probable_counts() -> None:
    model = unsure(0.02, 0.03)
    names = dict(zip(sorted(model.end_ids), ("<|im_end|>", "<|eot_id|>", "<|endoftext|>"), strict=True))
    model.specials = names  # type: ignore[attr-defined]  # so that the stand-in parses them
    server = stand_in(model, begins=False, specials=names)
    provider = Sglang(URL, http_client=server.client())
    assert (await provider.describe()).ends == (0, 1, 7)
    expected = Token(b"", near(0.038), end=True, name="<|endoftext|>")
    assert (await provider.score(Context("Q", b"a"), end=True, usage=Usage()))[-1] == expected
    assert asked(server)[-1]["token_ids_logprob"] == [0, 1, 7]
    assert await provider.score(Context("Q", b""), end=True, usage=Usage()) == [expected]
    count = len(asked(server))
    assert await provider.score(Context("", b""), end=True, usage=Usage()) == [Token(b"", None, end=True)]
    assert len(asked(server)) == count
    learned = await provider.snapshot()
    other = Sglang(URL, http_client=server.client())
    other.restore(json.loads(json.dumps(learned)), URL)
    server.requests.clear()
    assert (await other.score(Context("Q", b"a"), end=True, usage=Usage()))[-1] == expected
    assert len(asked(server)) == 1


async def test_an_older_server_tells_the_end_where_it_is_listed() -> None:
    server = stand_in(unsure(), begins=False)

    def handle(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content or b"{}")
        body.pop("token_ids_logprob", None)
        return server.handle(httpx.Request(request.method, request.url, json=body if request.content else None))

    provider = Sglang(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    probs = [
        (await provider.score(Context("Q", b"a"), alternatives=count, end=True, usage=Usage()))[-1].prob
        for count in (0, 9)
    ]
    assert probs == [None, near(0.04)]


async def test_a_server_that_ignores_seeds_does_not_sample() -> None:
    server = stand_in(unsure(part=b"d"), begins=False)
    provider = Sglang(URL, http_client=server.client())
    with pytest.raises(UnsupportedError, match="not known to draw tokens from the model's own distribution"):
        await draft(provider, temperature=1, seed=1)
    server.deterministic = True
    provider = Sglang(URL, http_client=server.client())
    assert (await provider.describe()).capabilities.sampling
    server.requests.clear()
    drawn = [(await draft(provider, limit=1, alternatives=2, temperature=1, seed=seed))[0] for seed in range(4, 30)]
    sampling = asked(server)[0]["sampling_params"]
    assert (sampling["temperature"], sampling["sampling_seed"], sampling["top_k"], sampling["top_p"]) == (1, 4, -1, 1)
    assert {b" a", b" b", b"c"} < {token.data for token in drawn}
    for token in drawn:
        if token.data in (b" b", b"c"):
            assert token.alternatives[0] == Token(b" a", near(0.4))
            assert token.prob == near(SAID[token.data])
    server.requests.clear()
    await draft(provider, limit=2, temperature=1)
    assert "sampling_seed" not in asked(server)[0]["sampling_params"]


async def test_a_draft_that_is_drawn_in_turn_is_the_same() -> None:
    """The server draws by seed and place, so that each request has the seed of the draft."""
    server = stand_in(unsure(), begins=False, deterministic=True)
    provider = Sglang(URL, http_client=server.client())
    whole = await draft(provider, limit=12, temperature=1, seed=9)
    parts, continuation, text = list[Token](), None, b""
    while len(parts) < len(whole) - 1:
        *more, end = await draft(provider, "Q", text, 3, continuation=continuation, temperature=1, seed=9)
        parts, continuation, text = parts + more, end.continuation, text + b"".join(token.data for token in more)
    assert parts == whole[:-1]


async def test_what_the_server_prefers_does_not_matter() -> None:
    preferred = {"temperature": 0.7, "stop": ["a"], "repetition_penalty": 1.3}
    _, provider = fake({"Q": [" a", (" b", 0.4)]}, preferred=preferred)
    assert await draft(provider, limit=2) == [Token(b" a", 1.0), Token(b" b", near(0.4)), DraftEnd("limit", ANY)]


async def test_a_draft_goes_on_from_its_ids() -> None:
    server, provider = fake({"Q": [" a", (" b", 0.4), " c"]}, begins=True)
    *_, end = await draft(provider, limit=2)
    assert end.reason == "limit"
    server.requests.clear()
    assert await draft(provider, text=b" a b", continuation=pickle.loads(pickle.dumps(end.continuation))) == [
        Token(b" c", 1.0),
        Token(b"", 1.0, end=True, name=ANY),
        DraftEnd("end"),
    ]
    encode = server.model.encode
    assert asked(server)[0]["input_ids"] == [server.beginning, *encode(b"Q"), *encode(b" a"), *encode(b" b")]
    assert "/v1/tokenize" not in [path for path, _ in server.requests]


async def test_a_draft_is_billed_as_it_goes() -> None:
    _, provider = fake({"Q": [" a", " b", " c"]})
    usage = Usage()
    await draft(provider, usage=usage)
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (1, 1, 4)
    stream = provider.generate(Context("Q", b""), max_tokens=9, usage=usage)
    await anext(stream)
    await stream.aclose()
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (2, 2, 5)


@pytest.mark.parametrize("incremental", partly([False, True]))
async def test_a_stream_may_be_split_anywhere(incremental: bool) -> None:
    server = stand_in(in_turn(), incremental=incremental)
    await check_every_split(server, Sglang(URL, http_client=server.client()))


@pytest.mark.parametrize("incremental", partly([False, True]))
async def test_a_long_draft_is_asked_in_turn(incremental: bool) -> None:
    server, provider = fake({"Q": [" a"] * 600}, incremental=incremental)
    ours = await draft(provider, limit=520)
    assert (len(ours), ours[-1].reason) == (521, "limit")
    assert [body["sampling_params"]["max_new_tokens"] for body in asked(server)[2:]] == [256, 256, 8]


async def test_plain_words_need_no_question_what_they_say() -> None:
    server, provider = fake({"Q": [" the", " cat", "s", " sat"]})
    await provider.describe()
    server.requests.clear()
    assert b"".join(one.data for one in (await draft(provider, limit=4))[:-1]) == b" the cats sat"
    assert [path for path, _ in server.requests] == ["/v1/tokenize", "/generate"]


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_how_questions_are_asked(strategy: Strategy) -> None:
    server = stand_in(TextModel({"~": [" a", " \u00e9"], "Q": [" a", " b", " c", *" defghi"]}), begins=False)
    provider = Sglang(URL, http_client=server.client(), strategy=strategy)
    await provider.describe()
    server.requests.clear()
    usage = Usage()
    questions = [Question(0, (b" a",), word=True), Question(2, (b" x",)), Question(4, (b" c",), word=True)]
    proposals = await provider.propose(Context("Q", b" a b c"), questions, usage=usage)
    assert [one.tokens[0].data for one in proposals if one] == [b" a", b" b", b" c"]
    q, a, b, c = (server.model.encode(part)[0] for part in (b"Q", b" a", b" b", b" c"))
    expected = {
        "echo": [[q, a, b, c]],
        "list": [[[q], [q, a], [q, a, b]]],
        "singles": [[q], [q, a], [q, a, b]],
    }
    sent = asked(server)
    assert [body["input_ids"] for body in sent] == expected[strategy]
    assert [body["logprob_start_len"] for body in sent] == ([0] if strategy == "echo" else [-1] * len(sent))
    assert {body["top_logprobs_num"] for body in sent} == {5}
    assert (usage.requests, usage.prompt_tokens) == (len(sent), {"echo": 4}.get(strategy, 6))
    assert {one and one.strategy for one in proposals} == {strategy}
    assert usage.strategies == {strategy: 3}
    assert [path for path, _ in server.requests].count("/v1/tokenize") <= 2


async def test_the_last_id_of_the_vocabulary_is_shown_as_0_in_a_scored_text() -> None:
    probs = [0.05, 0.05, 0.3, 0.1, 0.1, 0.4]
    model = TableModel([b"", b"Q", b"a", b" ", "\u00e9".encode(), b"b"], lambda ids: probs, end_ids=(0,))
    server = stand_in(model, begins=False)
    provider = Sglang(URL, http_client=server.client())
    questions = [Question(at, (b"b",)) for at in (0, 1, 2)]
    expected = await provider.with_strategy("list").propose(Context("Q", b"bab"), questions, usage=Usage())
    assert await provider.propose(Context("Q", b"bab"), questions, usage=(usage := Usage())) == expected
    assert usage.strategies == {"echo": 3}
    assert await provider.score(Context("Q", b"bab"), usage=Usage()) == [
        Token(b"b", near(0.4)),
        Token(b"a", near(0.3)),
        Token(b"b", near(0.4)),
    ]


async def test_a_text_is_scored_from_the_first_place_on() -> None:
    server = stand_in(TextModel({"~": [" a", " \u00e9"], "Q" * 40: [" a", " b", " c"]}))
    provider = Sglang(URL, http_client=server.client(), strategy="echo")
    questions = [Question(2, (b" b",)), Question(4, (b" c",)), Question(6, (b"",))]
    proposals = await provider.propose(Context("Q" * 40, b" a b c"), questions, usage=Usage())
    assert [one and (one.tokens[0].data, one.tokens[0].end) for one in proposals] == [
        (b" b", False),
        (b" c", False),
        (b"", True),
    ]
    [body] = [body for body in asked(server) if len(body.get("input_ids", ())) == 44]
    assert body["logprob_start_len"] == 41  # one token before the first place: the beginning, 40 letters, and " a"


async def test_extra_body() -> None:
    server, _ = fake({"Q": ["a"]})
    provider = Sglang(URL, extra_body={"priority": 3}, http_client=server.client())
    await draft(provider, limit=1)
    assert server.requests[-1][1]["priority"] == 3
    with pytest.raises(ValueError, match=r"extra_body cannot set sampling_params, stream: the fusion sets it itself"):
        Sglang(URL, extra_body={"sampling_params": {"temperature": 1}, "stream": False})
    with pytest.raises(ValueError, match=r"no strategy 'sideways'; there are 'echo', 'list', 'singles' and 'watch'"):
        Sglang(URL, strategy="sideways")  # type: ignore[arg-type]  # what a user may do


async def test_without_special_tokens() -> None:
    server = stand_in(TextModel({"~": [" a", " \u00e9"], "Q": [" a", " b"]}))
    provider = Sglang(URL, add_special_tokens=False, http_client=server.client())
    *_, end = await draft(provider, limit=1)
    assert end.continuation == (*server.model.encode(b"Q"), *server.model.encode(b" a"))
    assert [token.prob for token in await provider.score(Context("Q", b" a b"), usage=Usage())] == [1.0, 1.0]
    with pytest.raises(InvalidRequestError, match="no beginning-of-sequence"):
        await draft(provider, prompt="")


async def test_nothing_to_go_on_from() -> None:
    _, provider = fake({})
    for ask in (
        lambda: draft(provider, prompt=""),
        lambda: provider.propose(Context("", b""), [Question(0, (b"a",))], usage=Usage()),
    ):
        with pytest.raises(InvalidRequestError, match="the model has no beginning-of-sequence token to continue from"):
            await ask()
    assert await provider.score(Context("", b""), usage=Usage()) == []
    assert (await provider.score(Context("", b"ab"), usage=Usage()))[0].prob is None


async def test_an_adapter_on_top_of_the_model() -> None:
    lora = {"id": "poet", "root": "/poet", "parent": "toy", "owned_by": "sglang"}
    server, provider = fake({"Q": ["a"]}, models=[lora])
    assert (await provider.describe()).model == "toy"
    poet = Sglang(URL, model="poet", http_client=server.client())
    await draft(poet, limit=1)
    assert ((await poet.describe()).model, server.requests[-1][1]["lora_path"]) == ("poet", "poet")
    assert (await poet.describe()).context == 4096
    with pytest.raises(ModelChoiceError, match=r"no model 'x'; the server has 'toy', 'poet'\. Give one as `model`\."):
        await Sglang(URL, model="x", http_client=server.client()).describe()


async def test_what_was_learned_is_enough_for_another() -> None:
    server, provider = fake({"Q": [" a", "😀", ""]})
    ours = await draft(provider)
    learned = json.loads(json.dumps(await provider.snapshot()))
    other = Sglang(URL, http_client=server.client())
    other.restore(learned, URL)
    server.requests.clear()
    assert await draft(other) == ours
    assert {path for path, _ in server.requests} == {"/v1/models", "/v1/tokenize", "/generate"}


async def test_what_the_scored_text_leaves_open_is_asked_by_a_list() -> None:
    server, _ = fake({"Q": ["ab", "c"], "x": ["a", "b"]})
    await check_what_an_echo_leaves_open(Sglang(URL, http_client=server.client(), strategy="echo"))


async def test_questions_about_one_place_are_counted_each() -> None:
    server, _ = fake({"Q": [" a", " b", " c"]})
    provider, usage = Sglang(URL, http_client=server.client(), strategy="echo"), Usage()
    questions = [Question(0, (b" a",)), Question(0, (b" x",)), Question(2, (b" b",))]
    await provider.propose(Context("Q", b" a b"), questions, usage=usage)
    assert usage.strategies == {"echo": 3}


# Ties.


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("count", [2, 5, 9])
async def test_of_equals_the_drafts_own_is_taken_and_gone_on_from(strategy: Strategy, count: int) -> None:
    others = [b"n%d" % n for n in range(count - 2)]
    tokens = [b"no", *others[:2], b"ye", *others[2:]]
    server = stand_in(toys.tied(*tokens, second={b"ye": b"s!", b"no": b"pe"}), begins=False)
    provider = Sglang(URL, http_client=server.client(), strategy=strategy)
    questions = [Question(0, (b"ye", b"s!"), word=True), Question(0, (b"no", b"pe"), word=True)]
    proposals = await provider.propose(Context("Q", b"x"), questions, usage=Usage())
    assert [one and [token.data for token in one.tokens] for one in proposals] == [[b"ye", b"s!"], [b"no", b"pe"]]


async def test_the_end_may_be_one_of_equals() -> None:
    model = toys.tied(b"no")
    plain = model.next
    model.next = lambda ids: [0.5, 0.0, 0.5] + [0.0] * (len(model.tokens) - 3) if len(ids) == 1 else plain(ids)
    model.tokens = [model.tokens[2], model.tokens[1], model.tokens[0], *model.tokens[3:]]
    model.end_ids = (2,)
    provider = Sglang(URL, http_client=stand_in(model, begins=False).client())
    [proposal] = await provider.propose(Context("Q", b"x"), [Question(0, (b"",))], usage=Usage())
    assert proposal is not None
    assert [(token.end, token.prob, token.name) for token in proposal.tokens] == [(True, near(0.5), "</s>")]


# Ends and limits.


async def test_the_end_is_a_token_with_its_probability() -> None:
    _, provider = fake({"Q": [" a", ("", 0.7)]})
    first = await draft(provider)
    assert first == [Token(b" a", 1.0), Token(b"", near(0.7), end=True, name=ANY), DraftEnd("end")]


async def test_the_end_as_the_last_token_that_was_asked_for() -> None:
    """The server then says that the answer ended for its length."""
    server, provider = fake({"Q": [" a", ("", 0.7)]})
    assert (await draft(provider, text=b" a", limit=1)) == [
        Token(b"", near(0.7), end=True, name="</s>"),
        DraftEnd("end"),
    ]
    assert [body["sampling_params"]["max_new_tokens"] for body in asked(server)] == [1, 2, 1]  # it was forced, once
    [proposal] = await provider.propose(Context("Q", b" a"), [Question(2, (b"x",))], usage=Usage())
    assert proposal is not None
    assert proposal.tokens == (Token(b"", near(0.7), end=True, name="</s>"),)
    assert len(asked(server)) == 4


async def test_the_context_is_full() -> None:
    server, provider = fake({"Q": [" a"] * 99}, context=30)
    assert await draft(provider, limit=99) == [*[Token(b" a", 1.0)] * 27, DraftEnd("context")]
    assert len(asked(server)) == 3  # two to learn, and one that the server has cut
    assert await draft(provider, text=b" a" * 23) == [DraftEnd("context")]
    assert await draft(provider, text=b" a", continuation=(1,) * 24) == [DraftEnd("context")]
    with pytest.raises(ContextLengthError, match=r"the text has 31 tokens, the server takes at most 23"):
        await draft(provider, prompt="Q" * 31)
    with pytest.raises(ContextLengthError, match=r"the text has 31 tokens, the server takes at most 23"):
        await provider.propose(Context("Q" * 31, b""), [Question(0, (b"a",))], usage=Usage())
    assert all(len(body.get("input_ids", ())) < 24 for body in asked(server))


async def test_a_text_that_the_server_has_cut() -> None:
    server, provider = fake({"Q": [" a"] * 99}, context=30, truncates=True)
    await provider.describe()
    server.context = 20
    for ask in (
        lambda: draft(provider, prompt="Q" + " a" * 18),
        lambda: provider.propose(Context("Q", b" a" * 18), [Question(36, (b"a",))], usage=Usage()),
    ):
        with pytest.raises(ContextLengthError, match=r"cut the text: it read 13 of 19 tokens.*--allow-auto-truncate"):
            await ask()
    assert await draft(provider, text=b" a" * 18) == [DraftEnd("context")]


async def test_a_server_that_does_not_tell_how_much_it_takes() -> None:
    server, _ = fake({"Q": [" a"] * 99}, context=30)

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("server_info"):
            return httpx.Response(403, json={"error": "admins only"})
        return server.handle(request)

    provider = Sglang(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    info = await provider.describe()
    assert (info.build, info.longest_prompt) == (None, None)
    assert await draft(provider, text=b" a" * 26) == [DraftEnd("context")]
    for ask in (
        lambda: draft(provider, prompt="Q" + " a" * 26),
        lambda: provider.propose(Context("Q", b" a" * 26), [Question(52, (b"a",))], usage=Usage()),
    ):
        with pytest.raises(ContextLengthError, match=r"Input length \(27 tokens\) exceeds the maximum allowed length"):
            await ask()


# Streams that break.


# What goes wrong.


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        (
            {"certain": True},
            UnsupportedError,
            "its own token the probability 1, and all others 0.*SGLANG_RETURN_ORIGINAL_LO",
        ),
        ({"bias": {5: 9.0}}, UnsupportedError, "does not take the most probable token, although asked for greedy"),
        (
            {"old": True},
            UnsupportedError,
            r"does not encode text \(/v1/tokenize\).*ask it by OpenAI's protocol",
        ),
        ({"finish": {"type": "stop", "matched": "###"}}, UnsupportedError, "stops at a text of its own"),
        ({"finish": {"type": "stop", "matched": "NaN happened"}}, ResponseError, r"not finite \(NaN\)"),
    ],
)
async def test_a_server_that_cannot_be_used_is_refused_before_the_first_token(
    options: dict[str, Any], kind: type[ProviderError], words: str
) -> None:
    _, provider = fake({"Q": [" a"]}, **options)
    with pytest.raises(kind, match=words) as caught:
        await provider.describe()
    assert caught.value.endpoint == URL


async def test_another_server() -> None:
    async def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404, json={"detail": "Not Found"})

    provider = Sglang(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    with pytest.raises(UnsupportedError, match=r"does not look like SGLang.*`sglang serve`, without /v1"):
        await provider.describe()


async def test_another_tokenizer() -> None:
    server, _ = fake({})
    other = Local(TextModel({"~": [" ", "a \u00e9"]}))
    with pytest.raises(UnsupportedError, match="the tokenizer that was given encodes text differently"):
        await Sglang(URL, tokenizer=other, http_client=server.client()).describe()


@pytest.mark.parametrize("strategy", ["echo", None])
async def test_entries_of_a_prompt_that_stand_elsewhere_are_never_believed(strategy: Any) -> None:
    server = stand_in(TextModel({"~": [" a", " \u00e9"], "Q": [" a", " b", " c"]}))
    provider = Sglang(URL, http_client=server.client(), strategy=strategy)
    await provider.describe()
    server.shifted = 1
    questions = [Question(0, (b" a",)), Question(2, (b" b",))]
    with pytest.raises(UnsupportedError, match=r"do not belong to its tokens\. Use strategy='list'\."):
        await provider.propose(Context("Q", b" a b c"), questions, usage=Usage())
    with pytest.raises(UnsupportedError, match="do not belong to its tokens"):
        await provider.score(Context("Q", b" a b c"), usage=Usage())


@pytest.mark.parametrize(
    ("entry", "top", "right"),
    [
        ([-0.5, 7, ""], [[-0.5, 7, ""], [-1.5, 8, ""]], True),
        ([-1.5, 7, ""], [[-0.5, 8, ""], [-1.5, 7, ""]], True),
        ([-9.0, 7, ""], [[-0.5, 8, ""], [-1.5, 9, ""]], True),
        ([None, 7, ""], [[-0.5, 8, ""], [-1.5, 9, ""]], True),  # as good as impossible
        ([-0.5, 6, ""], [[-0.5, 6, ""], [-1.5, 8, ""]], False),  # another token
        ([-0.7, 7, ""], [[-0.5, 7, ""], [-1.5, 8, ""]], False),  # listed with another probability
        ([-0.7, 7, ""], [[-0.5, 8, ""], [-1.5, 9, ""]], False),  # more probable than what is listed
        ([None, 7, ""], [[-0.5, 7, ""], [-1.5, 9, ""]], False),
        ([-0.5, 7, ""], None, False),
    ],
)
def test_an_entry_has_to_belong_to_its_token(entry: list[Any], top: Any, right: bool) -> None:
    meta = {"prompt_tokens": 2, "completion_tokens": 1}
    scores = {"input_token_logprobs": [[None, 5, ""], entry], "input_top_logprobs": [None, top]}
    answer = SglangAnswer.model_validate({"text": "", "meta_info": {**meta, **scores}})
    if right:
        assert len(scored(answer, [5, 7], 1, URL)) == 1
    else:
        with pytest.raises(UnsupportedError, match="do not belong to its tokens"):
            scored(answer, [5, 7], 1, URL)


def test_a_text_without_entries() -> None:
    answer = SglangAnswer.model_validate({"text": "", "meta_info": {"prompt_tokens": 2, "completion_tokens": 1}})
    with pytest.raises(UnsupportedError, match=r"does not give the probabilities of a text.*Use strategy='list'\."):
        scored(answer, [5, 7], 1, URL)


def test_an_event_that_is_sent_twice_counts_once() -> None:
    """Events that hold what is new alone, of which one comes again."""
    events = Events(URL, 1)
    one, two = (
        SglangAnswer.model_validate(
            {
                "text": text,
                "meta_info": {
                    "prompt_tokens": 1,
                    "completion_tokens": count,
                    "output_token_logprobs": [[-0.5, token_id, text]],
                    "output_top_logprobs": [[[-0.5, token_id, text], [-2.0, 9, ""]]],
                },
            }
        )
        for count, token_id, text in ((1, 5, "a"), (2, 6, "b"))
    )
    found = [events.feed(event) for event in (one, one, two, two)]
    assert [([step.id for step in steps], text) for steps, text in found] == [
        ([5], "a"),
        ([], ""),
        ([6], "b"),
        ([], ""),
    ]


Change = Callable[[dict[str, Any]], Any]


def _meta(**changes: Any) -> Change:
    return lambda answer: {**answer, "meta_info": {**answer["meta_info"], **changes}}


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (_meta(output_token_logprobs=None), UnsupportedError, r"no probabilities with its tokens.*\(return_logprob\)"),
        (
            _meta(output_token_logprobs=[[None, 5, "x"]], output_top_logprobs=[[[-1, 5, "x"]]]),
            ResponseError,
            "no usable",
        ),
        (_meta(completion_tokens=3), UnsupportedError, "for some of its tokens only.*--speculative-algorithm"),
        (_meta(output_token_logprobs=[[0.5, 5, "x"]], output_top_logprobs=[[[0.5, 5, ""]]]), ResponseError, "above 0"),
        (_meta(finish_reason={"type": "abort", "message": "out of it", "status_code": 500}), ServerError, "out of it"),
        (_meta(finish_reason={"type": "abort"}), ResponseError, r"broke the answer off \(finish reason 'abort'\)"),
        (
            _meta(finish_reason={"type": "abort", "message": "exceeds the maximum allowed length", "status_code": 400}),
            ContextLengthError,
            "maximum allowed length",
        ),
        (lambda answer: {"text": "x"}, ResponseError, "not as expected: meta_info"),
        (lambda answer: [answer, answer], ResponseError, "1 prompts were sent, 2 answered"),
    ],
)
async def test_an_answer_that_cannot_be_right(change: Change, kind: type[ProviderError], words: str) -> None:
    server, _ = fake({"Q": [" a"]})
    spoil = False

    def handle(request: httpx.Request) -> httpx.Response:
        response = server.handle(request)
        if not spoil or request.url.path != "/generate":
            return response
        return httpx.Response(200, json=change(response.json()))

    provider = Sglang(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    await provider.describe()
    await provider.propose(Context("Q", b""), [Question(0, (b"x",))], usage=Usage())
    spoil = True
    with pytest.MonkeyPatch.context() as patch:
        waiting(patch)
        with pytest.raises(kind, match=words):
            await provider.propose(Context("Q", b""), [Question(0, (b"x",))], usage=Usage())


@pytest.mark.parametrize("finish", [{"type": "abort"}, {"type": "abort", "message": "full", "status_code": 503}])
async def test_an_answer_that_is_broken_off_is_asked_for_again(
    finish: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting(monkeypatch)
    server, usual = fake({"Q": [" a", " b"]})
    spoilt = list[str]()

    def handle(request: httpx.Request) -> httpx.Response:
        response = server.handle(request)
        if request.url.path != "/generate" or "now" not in spoilt or len(spoilt) > 1:
            return response
        spoilt.append("once")
        last = _meta(finish_reason=finish)
        if response.headers["content-type"].startswith("text/event-stream"):
            events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
            lines = "".join(_lines(*events[:-1], last(events[-1])))
            return httpx.Response(200, text=lines, headers={"content-type": "text/event-stream"})
        found = response.json()
        return httpx.Response(200, json=[*found[:-1], last(found[-1])] if isinstance(found, list) else last(found))

    provider = Sglang(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    questions = [Question(0, (b"x",)), Question(2, (b"x",))]
    for strategy in (None, "list", "singles"):
        ways = [one.with_strategy(strategy) for one in (provider, usual)]
        await ways[0].describe()
        spoilt[:], usage = ["now"], Usage()
        found = await ways[0].propose(Context("Q", b" a"), questions, usage=usage)
        assert [one and one.tokens for one in found] == [
            one and one.tokens for one in await ways[1].propose(Context("Q", b" a"), questions, usage=Usage())
        ]
        assert (len(spoilt), usage.retries) == (2, 1)
    spoilt[:] = ["now"]
    assert await draft(provider) == await draft(usual)
    assert len(spoilt) == 2


def _lines(*events: dict[str, Any]) -> Iterator[str]:
    for event in events:
        yield f"data: {json.dumps(event)}\n\n"


async def test_errors_within_a_stream() -> None:
    server, _ = fake({"Q": [" a"]})
    event = {"error": {"message": "the request was aborted", "type": "invalid_request_error", "code": 400}}

    def handle(request: httpx.Request) -> httpx.Response:
        if b'"stream":true' in request.content:
            return httpx.Response(200, text="".join(_lines(event)), headers={"content-type": "text/event-stream"})
        return server.handle(request)

    provider = Sglang(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    with pytest.raises(InvalidRequestError, match="the request was aborted"):
        await draft(provider)


async def test_copies_hold_no_text() -> None:
    _, provider = fake({"Q": [" a"]})
    await draft(provider, prompt="a secret prompt", limit=1)
    assert b"secret" not in pickle.dumps(Sglang(URL)) + pickle.dumps(provider._client.__getstate__()["_ids"])
