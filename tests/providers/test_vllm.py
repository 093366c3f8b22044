"""The vLLM adapter against a stand-in with toy models, which do all that is rare."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Literal
from unittest.mock import ANY

import anyio
import anyio.lowlevel
import httpx
import pytest

from cosd_providers import (
    ContextLengthError,
    DraftEnd,
    InvalidRequestError,
    ModelChoiceError,
    Piece,
    Question,
    ResponseError,
    ServerError,
    Token,
    UnsupportedError,
    Usage,
)
from cosd_providers.contract import Context
from cosd_providers.engines.vllm import Vllm
from cosd_providers.testing import ScriptedProvider, TableModel, TextModel
from fakes.breaking import Break, Breaking, waiting
from fakes.splits import check_every_split, in_turn
from fakes.vllm import FakeVllm
from support.asked import (
    check_what_an_echo_leaves_open,
    draft,
    near,
)
from toys import toy_models as toys

URL = "http://gpu:8000"
Strategy = Literal["echo", "list", "singles"]
STRATEGIES: tuple[Strategy, ...] = ("echo", "list", "singles")


def fake(scripts: dict[str, list[Any]], **options: Any) -> tuple[FakeVllm, Vllm]:
    server = FakeVllm(TextModel(scripts), **options)
    return server, Vllm(URL, http_client=server.client())


# Against toy models: whatever they do, the adapter gives what the model itself would.


async def test_a_model_that_says_nothing_is_asked_a_few_times_only() -> None:
    model = TableModel([b"", b"Q", b"", *(bytes([n]) for n in range(256) if n != ord("Q"))], None, end_ids=(0,))
    model.next = lambda ids: [0.0, 0.0, 1.0] + [0.0] * 255
    server = FakeVllm(model, context=1000)
    provider = Vllm(URL, http_client=server.client())
    await provider.describe()
    server.requests.clear()
    assert await draft(provider, limit=4) == [DraftEnd("context")]
    assert len(completions(server)) < 9


async def test_a_special_token_before_a_character_of_four_tokens() -> None:
    said = [b"", *(bytes([byte]) for byte in "😀".encode())]
    vocabulary = [b"", *said, *(bytes([byte]) for byte in range(256) if bytes([byte]) not in said)]
    model = TableModel(vocabulary, None, end_ids=(0,))
    model.next = lambda ids: [float(n == len(ids) % 6) for n in range(len(vocabulary))]
    provider = Vllm(URL, http_client=FakeVllm(model).client())
    [proposal] = await provider.propose(Context("Q", b""), [Question(0, (b"x",))], usage=Usage())
    assert proposal is not None
    assert [token.data for token in proposal.tokens] == ["😀".encode()]


async def test_a_token_that_spells_what_stands_between_texts_with_its_neighbours() -> None:
    """Tokens are decoded together, with `a é a` between each two, which `a`, this token and `a` make, too."""
    said = " é ".encode()
    model = TableModel([b"", said, *(bytes([byte]) for byte in range(256))], None, end_ids=(0,))
    chances = {ord("x") + 2: 0.5, 1: 0.3, ord("a") + 2: 0.2}
    model.next = lambda ids: [chances.get(n, 0.0) for n in range(258)]
    provider = Vllm(URL, http_client=FakeVllm(model).client())
    [one] = await provider.propose(Context("Q", b""), [Question(0, (b"x",))], alternatives=3, usage=Usage())
    assert one is not None
    assert [token.data for token in one.tokens[0].alternatives] == [said, b"a"]


# What goes over the wire.


def completions(server: FakeVllm) -> list[dict[str, Any]]:
    return [body for path, body in server.requests if path == "/v1/completions"]


async def test_what_it_is() -> None:
    server, provider = fake({"Q": ["a"]}, context=99, beginning=True)
    server.template = ("<|user|>", "<|end|>\n<|assistant|>\n")
    info = await provider.describe()
    assert (info.engine, info.model, info.build, info.context) == ("vllm", "toy", "0.32.0", 99)
    assert info.endpoint == URL
    assert info.answer_cue == "<|end|>\n<|assistant|>\n"
    assert all(getattr(info.capabilities, name) for name in ("token_ids", "end_prob", "tokenize", "score", "sampling"))
    assert (info.capabilities.top_k, info.capabilities.score_top_k) == (19, 19)
    asked = len(server.requests)
    assert await provider.describe() is info
    assert len(server.requests) == asked
    _, plain = fake({})
    assert (await plain.describe()).answer_cue is None


async def test_what_a_draft_asks() -> None:
    server, provider = fake({"Q": [" a", (" b", 0.4)]})
    await draft(provider, limit=1)
    path, body = server.requests[-1]
    assert path == "/v1/completions"
    assert (body["model"], body["max_tokens"], body["logprobs"]) == ("toy", 1, 1)
    assert body["prompt"] == [server.model.encode(b"Q")]
    assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"]) == (0, 1.0, -1, 0.0)
    penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    assert [body[name] for name in penalties] == [1.0, 0.0, 0.0]
    assert (body["n"], body["ignore_eos"], body["min_tokens"], body["stop"]) == (1, False, 0, [])
    assert (body["add_special_tokens"], body["skip_special_tokens"]) == (True, True)
    assert (body["return_token_ids"], body["return_tokens_as_token_ids"]) == (True, True)
    assert (body["stream"], body["stream_options"]["continuous_usage_stats"]) == (True, True)


async def test_a_draft_goes_on_from_its_ids() -> None:
    server, provider = fake({"Q": [" a", (" b", 0.4), " c"]}, beginning=True)
    *_, end = await draft(provider, limit=2)
    assert end.reason == "limit"
    server.requests.clear()
    assert await draft(provider, text=b" a b", continuation=pickle.loads(pickle.dumps(end.continuation))) == [
        Token(b" c", 1.0),
        Token(b"", 1.0, end=True, name="</s>"),
        DraftEnd("end"),
    ]
    [body] = completions(server)
    encode = server.model.encode
    assert body["prompt"] == [[*server.beginning, *encode(b"Q"), *encode(b" a"), *encode(b" b")]]


async def test_a_draft_is_billed_as_it_goes() -> None:
    _, provider = fake({"Q": [" a", " b", " c"]})
    usage = Usage()
    await draft(provider, usage=usage)
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (1, 1, 4)
    stream = provider.generate(Context("Q", b""), max_tokens=9, usage=usage)
    await anext(stream)
    await stream.aclose()
    assert (usage.requests, usage.prompt_tokens) == (2, 2)
    assert 4 < usage.completion_tokens < 8


async def test_a_stream_may_be_split_anywhere() -> None:
    server = FakeVllm(in_turn(), beginning=True)
    await check_every_split(server, Vllm(URL, http_client=server.client()))


async def test_a_character_of_several_tokens() -> None:
    _, provider = fake({"Q": [b" \xf0", (b"\x9f\x98", 0.3), (b"\x80", 0.9), "!"]})
    assert await draft(provider, limit=2) == [
        Token(" 😀".encode(), near(0.3)),
        Token(b"!", 1.0),
        DraftEnd("limit", ANY),
    ]
    [proposal] = await provider.propose(Context("Q", b""), [Question(0, (b"x",))], usage=Usage())
    assert proposal is not None
    assert proposal.tokens == (Token(" 😀".encode(), near(0.3)),)


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_how_questions_are_asked(strategy: Strategy) -> None:
    server = FakeVllm(TextModel({"Q": [" a", " b", " c", *" defghi"]}))
    provider = Vllm(URL, http_client=server.client(), strategy=strategy)
    await provider.describe()
    server.requests.clear()
    usage = Usage()
    questions = [Question(0, (b" a",), word=True), Question(2, (b" x",)), Question(4, (b" c",), word=True)]
    proposals = await provider.propose(Context("Q", b" a b c"), questions, usage=usage)
    assert [one.tokens[0].data for one in proposals if one] == [b" a", b" b", b" c"]
    asked = completions(server)
    ids = [n for part in (b"Q", b" a", b" b", b" c") for n in server.model.encode(part)]
    expected = {
        "echo": [[ids]],
        "list": [[ids[:1], ids[:2], ids[:3]]],
        "singles": [[ids[:1]], [ids[:2]], [ids[:3]]],
    }
    assert sorted(body["prompt"] for body in asked) == expected[strategy]
    assert [body.get("prompt_logprobs") for body in asked] == ([5] if strategy == "echo" else [None] * len(asked))
    assert {body["logprobs"] for body in asked} == {5}
    assert (usage.requests, usage.prompt_tokens) == (len(asked), {"echo": 4}.get(strategy, 6))
    assert {one and one.strategy for one in proposals} == {strategy}
    assert usage.strategies == {strategy: 3}


async def test_a_list_longer_than_the_server_takes() -> None:
    server, provider = fake({"Q": ["a"] * 9})
    server.most = 3
    questions = [Question(n, (b"a",)) for n in range(8)]
    proposals = await provider.propose(Context("Q", b"a" * 8), questions, usage=Usage())
    assert [one and one.start for one in proposals] == list(range(8))
    server.requests.clear()
    await provider.propose(Context("Q", b"a" * 8), questions, usage=Usage())
    assert [len(body["prompt"]) for body in completions(server)] == [3, 3, 2]


async def test_extra_body() -> None:
    server = FakeVllm(TextModel({"Q": ["a"]}))
    provider = Vllm(URL, extra_body={"priority": 3}, add_special_tokens=False, http_client=server.client())
    await draft(provider, limit=1)
    assert (server.requests[-1][1]["priority"], server.requests[-1][1]["add_special_tokens"]) == (3, False)
    with pytest.raises(ValueError, match=r"extra_body cannot set bad_words, temperature: the fusion sets it itself"):
        Vllm(URL, extra_body={"temperature": 0.7, "bad_words": ["x"]})
    with pytest.raises(ValueError, match=r"no strategy 'both'; there are 'echo', 'list', 'singles' and 'watch'"):
        Vllm(URL, strategy="both")  # type: ignore[arg-type]  # what a user may do


async def test_without_special_tokens() -> None:
    server = FakeVllm(TextModel({"Q": [" a", " b"]}), beginning=True)
    provider = Vllm(URL, add_special_tokens=False, http_client=server.client())
    *_, end = await draft(provider, limit=1)
    assert end.continuation == (*server.model.encode(b"Q"), *server.model.encode(b" a"))
    assert [token.prob for token in await provider.score(Context("Q", b" a b"), usage=Usage())] == [1.0, 1.0]
    with pytest.raises(InvalidRequestError, match="no beginning-of-sequence"):
        await draft(provider, prompt="")


# Alternatives, ends and samples.

UNSURE = {b" a": 0.4, b" b": 0.25, b"c": 0.15, b"d": 0.1, b"<|stop|>": 0.06, b"": 0.04}
"""A model's distribution everywhere, its end too. What looks like a special token is forced once, to see."""


def unsure(*ends: float, part: bytes = b"d") -> TableModel:
    """A model that says `UNSURE` everywhere, and first of all further ends; it may say a part of a character."""
    others = [bytes([n]) for n in range(256) if n not in b"cd"]
    rest = 1 - sum(ends)
    said = {part if data == b"d" else data: prob for data, prob in UNSURE.items()}
    probs = [*ends, *(prob * rest for prob in said.values()), *[0.0] * len(others)]
    vocabulary = [*[b""] * len(ends), *said, *others]
    return TableModel(vocabulary, lambda ids: probs, end_ids=(*range(len(ends)), len(ends) + len(said) - 1))


def provider_of(server: FakeVllm, **options: Any) -> Vllm:
    return Vllm(URL, http_client=server.client(), **options)


async def test_alternatives_are_asked_for_as_far_as_the_server_lists_them() -> None:
    server = FakeVllm(unsure(part=b"\xc3"))
    provider = provider_of(server)
    await provider.describe()
    shown = (Token(b" b", near(0.25)), Token(b"c", near(0.15)), Token(b"<|stop|>", near(0.06)))
    told = (*shown, Token(b"", near(0.04), end=True, name="</s>"))
    for strategy in STRATEGIES:
        for count, listed in ((0, 5), (3, 5), (9, 10), (50, 20)):
            server.requests.clear()
            questions = [Question(0, (b" a",)), Question(2, (b" b",))]
            asked = provider.with_strategy(strategy)
            found = await asked.propose(Context("Q", b" a b"), questions, alternatives=count, usage=Usage())
            assert [one and one.tokens[0] for one in found] == [
                Token(b" a", near(0.4), alternatives=told[: count if listed > 5 else 3 if count else 0])
            ] * 2
            written = [body for body in completions(server) if "logit_bias" not in body]
            assert {body["logprobs"] for body in written} == {listed}
            assert {body.get("prompt_logprobs") for body in written} == {listed if strategy == "echo" else None}
    server.requests.clear()
    *scored, end = await provider.score(Context("Q", b" ac"), alternatives=9, end=True, usage=Usage())
    assert scored == [
        Token(b" a", near(0.4), alternatives=told),
        Token(b"c", near(0.15), alternatives=(Token(b" a", near(0.4)), told[0], *told[2:])),
    ]
    assert end == Token(b"", near(0.04), end=True, name="</s>", alternatives=(Token(b" a", near(0.4)), *shown))
    [body] = completions(server)
    assert (body["prompt_logprobs"], body["prompt"][0][-1]) == (10, 5)
    assert await provider.score(Context("Q", b" ac"), usage=Usage()) == [
        replace(one, alternatives=()) for one in scored
    ]
    assert completions(server)[-1]["prompt_logprobs"] == 5


async def test_the_bytes_of_all_alternatives_are_asked_for_at_once() -> None:
    server = FakeVllm(unsure(part=b"\xc3"))
    provider = provider_of(server)
    await provider.describe()
    server.requests.clear()
    contexts = [Context(prompt, b"", ()) for prompt in "QRS"]
    for one in await provider.next_tokens(contexts, alternatives=6, usage=Usage()):
        assert one is not None
        shown = [server.model.tokens[other.id or 0] for other in one.alternatives if not other.end]
        assert [other.data for other in one.alternatives if not other.end] == [
            b"" if b"\xc3" in data else data for data in shown
        ]
    assert sum(path == "/detokenize" for path, _ in server.requests) <= 2, "one for the names of special tokens"
    server.requests.clear()
    await provider.next_tokens(contexts, alternatives=6, usage=Usage())
    assert [path for path, _ in server.requests if path == "/detokenize"] == []


@pytest.mark.parametrize(("listed", "most"), [(7, 6), (40, 39), (2**30, 19)])
async def test_the_server_tells_how_many_it_lists(listed: int, most: int) -> None:
    server = FakeVllm(unsure())
    server.listed = listed
    provider = provider_of(server)
    able = (await provider.describe()).capabilities
    assert (able.top_k, able.score_top_k) == (most, most)
    server.requests.clear()
    await draft(provider, limit=1, alternatives=100)
    await provider.score(Context("Q", b"a"), alternatives=100, usage=Usage())
    assert [body["logprobs"] for body in completions(server) if "logit_bias" not in body] == [most + 1] * 2


async def test_a_token_of_the_text_is_no_alternative_where_it_is_improbable() -> None:
    """A server lists it all the same; others that are not listed may be more probable."""
    server = FakeVllm(unsure())
    server.listed = 5
    provider = provider_of(server, strategy="echo")
    questions = [Question(0, (b"x",)), Question(1, (b"y",))]
    for one in await provider.propose(Context("Q", b"xy"), questions, alternatives=9, usage=Usage()):
        assert one is not None
        assert [other.data for other in one.tokens[0].alternatives] == [b" b", b"c", b"d", b"<|stop|>"]


async def test_improbable_tokens_that_hide_each_other_are_not_asked_again() -> None:
    """Two tokens of a long list have the same string: neither is as probable as the one that was taken."""
    twins = [b" a", b"b", b"b", b"c", b"c", *(bytes([n]) for n in range(256) if n not in b"bc")]
    probs = [0.7, 0.1, 0.1, 0.05, 0.05] + [0.0] * 254
    server = FakeVllm(TableModel([b"", *twins], lambda ids: [0.0, *probs], end_ids=(0,)))
    provider = provider_of(server, strategy="list")
    await provider.propose(Context("Q", b""), [Question(0, (b"x",))], alternatives=9, usage=Usage())
    server.requests.clear()
    [found] = await provider.propose(Context("Q", b""), [Question(0, (b"x",))], alternatives=9, usage=Usage())
    assert found is not None
    assert [(other.data, other.prob) for other in found.tokens[0].alternatives] == [
        (b"b", near(0.1)),
        (b"c", near(0.05)),
    ]
    assert len(completions(server)) == 1


async def test_the_end_is_found_by_its_name_or_in_the_chat_template() -> None:
    for model, name in ((unsure(), "</s>"), (unsure(), "<|stop|>"), (unsure(), "<|im_end|>")):
        server = FakeVllm(model)
        [end] = model.end_ids
        if name != "</s>":
            server.specials = {end: name}
        if name == "<|stop|>":
            server.template = ("[U]", name)
        provider, usage = provider_of(server), Usage()
        assert (await provider.describe()).ends == (end,)
        assert completions(server)[-1]["prompt"] == [server.model.encode(b" a")]  # the end is forced, to see
        server.requests.clear()
        found = [await provider.score(Context("Q", b"a"), end=True, usage=usage) for _ in range(2)]
        assert [one[-1] for one in found] == [Token(b"", near(0.04), end=True, name=name)] * 2
        assert [body["prompt"] for body in completions(server)] == [[[*server.model.encode(b"Qa"), end]]] * 2
        learned = await provider.snapshot()
        other = provider_of(server)
        other.restore(learned, URL)
        server.requests.clear()
        assert await other.score(Context("Q", b"a"), end=True, usage=Usage()) == found[0]
        assert len(completions(server)) == 1


async def test_a_server_that_forces_no_token_is_used_all_the_same() -> None:
    server = FakeVllm(unsure())

    def handle(request: httpx.Request) -> httpx.Response:
        if b"logit_bias" in request.content:
            words = "logit_bias is not supported with speculative decoding"
            return httpx.Response(400, json={"error": {"message": words, "code": 400}})
        return server.handle(request)

    provider = Vllm(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    assert (await provider.describe()).ends == ()
    first, *_ = await draft(provider, limit=1)
    assert first == Token(b" a", near(0.4))


async def test_an_end_of_an_uncommon_name_is_known_once_it_ended_a_draft() -> None:
    server = FakeVllm(unsure())
    server.specials = {5: "<|halt|>"}
    provider = provider_of(server)
    assert (await provider.score(Context("Q", b"a"), end=True, usage=Usage()))[-1] == Token(b"", None, end=True)
    await draft(provider, limit=99, temperature=1, seed=3)
    assert (await provider.score(Context("Q", b"a"), end=True, usage=Usage()))[-1].prob == near(0.04)


@pytest.mark.parametrize(("ends", "best"), [((0.3, 0.2), 0.3), ((0.02, 0.03), 0.0380)])
async def test_of_several_ends_the_most_probable_counts(ends: tuple[float, float], best: float) -> None:
    model = unsure(*ends)
    server = FakeVllm(model)
    server.specials = dict(zip(sorted(model.end_ids), ("<|im_end|>", "<|eot_id|>", "<|endoftext|>"), strict=True))
    provider = provider_of(server)
    for count in (0, 1, 9):
        *_, end = await provider.score(Context("Q", b"a"), alternatives=count, end=True, usage=Usage())
        assert end.prob == near(best)
        assert not any(other.end for other in end.alternatives)
    server.requests.clear()
    await provider.score(Context("Q", b"a"), end=True, usage=Usage())
    # Where none is among the most probable tokens, each has to be asked for.
    assert [len(body["prompt"]) for body in completions(server)] == ([1] if best == 0.3 else [1, 2])


async def test_the_end_of_nothing() -> None:
    server, provider = fake({"": ["a"], "Q": [("", 0.25)]})
    server.beginning = []
    assert await provider.score(Context("Q", b""), end=True, usage=Usage()) == [
        Token(b"", near(0.25), end=True, name="</s>")
    ]
    count = len(completions(server))
    assert await provider.score(Context("", b""), end=True, usage=Usage()) == [Token(b"", None, end=True)]
    assert len(completions(server)) == count


async def test_what_a_sampled_draft_asks() -> None:
    server = FakeVllm(unsure())
    provider = provider_of(server)
    await provider.describe()
    server.requests.clear()
    first = await draft(provider, limit=3, alternatives=2, temperature=1, seed=7)
    assert await draft(provider, limit=3, alternatives=2, temperature=1, seed=7) == first
    body = completions(server)[0]
    assert (body["temperature"], body["seed"], body["logprobs"], body["max_tokens"]) == (1, 7, 3, 3)
    assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (1.0, -1, 0.0, 1.0)
    await draft(provider, limit=3, temperature=1)
    assert "seed" not in completions(server)[-1]
    await draft(provider, limit=3)
    assert completions(server)[-1]["temperature"] == 0
    drawn = [(await draft(provider, limit=1, alternatives=2, temperature=1, seed=seed))[0] for seed in range(40)]
    assert len({(token.data, token.end) for token in drawn}) > 3
    for token in drawn:
        assert token.prob == near(UNSURE[token.data])
        assert token.data == b" a" or token.alternatives[0] == Token(b" a", near(0.4))
    with pytest.raises(ValueError, match="temperature must be 0 or 1"):
        await draft(provider, temperature=0.5)


async def test_a_sampled_draft_that_broke_draws_by_another_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting(monkeypatch)
    server = FakeVllm(unsure(part=b"\xc3"))
    breaking = Breaking(server.handle)
    provider = Vllm(URL, http_client=breaking.client())
    await provider.describe()
    for at in range(900, 2600, 100):
        breaking.breaks, breaking.happened = [Break("breaks", at)], 0
        server.requests.clear()
        *found, _ = await draft(provider, limit=6, temperature=1, seed=5)
        whole = [*server.model.encode(b"Q"), *(n for n, _ in known(server, found))]
        prompts = [body["prompt"][0] for body in completions(server)]
        seeds = [body["seed"] for body in completions(server)]
        if len(prompts) < 2 or prompts[1] == "Q":
            continue
        assert prompts[1] == whole[: len(prompts[1])]
        assert seeds[0] == 5 != seeds[1]
        assert server.model.tokens[prompts[1][-1]] != b"\xc3"  # no request ends inside a character


def known(server: FakeVllm, tokens: Sequence[Token]) -> list[tuple[int, Token]]:
    """Each token with its id, up to one that is joined of several."""
    ids = {data: n for n, data in reversed([*enumerate(server.model.tokens)])}
    return [(ids[token.data], token) for token in takewhile(lambda token: token.data in ids and token.data, tokens)]


async def test_a_decoder_that_takes_the_first_space_away() -> None:
    """As SentencePiece's do: a token keeps it behind a plain one, and many are decoded by one request."""
    server = FakeVllm(unsure(), beginning=True)
    server.spaces = True
    provider = provider_of(server, strategy="list")
    questions = [Question(0, (b" a",)), Question(2, (b" b",))]
    told = (Token(b" b", near(0.25)), Token(b"c", near(0.15)), Token(b"d", near(0.1)))
    for one in await provider.propose(Context("Q", b" a b"), questions, alternatives=3, usage=Usage()):
        assert one is not None
        assert one.tokens == (Token(b" a", near(0.4), alternatives=told),)
    first, *_ = await draft(provider, limit=1, alternatives=3)
    assert first == Token(b" a", near(0.4), alternatives=told)
    assert len([body for path, body in server.requests if path == "/detokenize" and len(body["tokens"]) > 20]) == 1


async def test_what_the_scored_text_leaves_open_is_asked_by_a_list() -> None:
    server, _ = fake({"Q": ["ab", "c"], "x": ["a", "b"]})
    await check_what_an_echo_leaves_open(Vllm(URL, http_client=server.client(), strategy="echo"))


async def test_questions_about_one_place_are_counted_each() -> None:
    server, _ = fake({"Q": [" a", " b", " c"]})
    provider, usage = Vllm(URL, http_client=server.client(), strategy="echo"), Usage()
    questions = [Question(0, (b" a",)), Question(0, (b" x",)), Question(2, (b" b",))]
    await provider.propose(Context("Q", b" a b"), questions, usage=usage)
    assert usage.strategies == {"echo": 3}


# Ties.


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_word_goes_on_behind_one_of_equals(strategy: Strategy) -> None:
    """From its ids: the text would be read as the one token "Qy"."""
    tokens = [b"", b"Q", b"n", b"y", b"Qy", b"!", *(bytes([n]) for n in range(256) if n not in b"Qny!")]
    after: dict[int, dict[int, float]] = {1: {2: 0.5, 3: 0.5}, 3: {5: 0.9375}, 4: {5: 0.5625}}

    def following(read: Sequence[int]) -> list[float]:
        found = after.get(read[-1], {})
        return [1 - sum(found.values()), *(found.get(n, 0.0) for n in range(1, len(tokens)))]

    server = FakeVllm(TableModel(tokens, following, end_ids=(0,)))
    provider = Vllm(URL, http_client=server.client(), strategy=strategy)
    [proposal] = await provider.propose(Context("Q", b"x"), [Question(0, (b"y", b"!"), word=True)], usage=Usage())
    assert proposal is not None
    assert [(token.data, token.prob) for token in proposal.tokens] == [(b"y", near(0.5)), (b"!", near(0.9375))]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("count", [2, 5, 9])
async def test_of_equals_the_drafts_own_is_taken_and_gone_on_from(strategy: Strategy, count: int) -> None:
    others = [b"n%d" % n for n in range(count - 2)]
    tokens = [b"no", *others[:2], b"ye", *others[2:]]
    server = FakeVllm(toys.tied(*tokens, second={b"ye": b"s!", b"no": b"pe"}))
    provider = Vllm(URL, http_client=server.client(), strategy=strategy)
    questions = [Question(0, (b"ye", b"s!"), word=True), Question(0, (b"no", b"pe"), word=True)]
    proposals = await provider.propose(Context("Q", b"x"), questions, usage=Usage())
    assert [one and [token.data for token in one.tokens] for one in proposals] == [[b"ye", b"s!"], [b"no", b"pe"]]


async def test_of_equals_with_the_same_string_the_first_is_taken() -> None:
    model = toys.tied(b"no", b"ye", b"ye", second={b"ye": b"s!"})
    after = model.next
    model.next = lambda ids: [0.0, 1.0] + [0.0] * (len(model.tokens) - 2) if ids[-1] == 4 else after(ids)
    server = FakeVllm(model)
    provider = Vllm(URL, http_client=server.client())
    [proposal] = await provider.propose(Context("Q", b"x"), [Question(0, (b"ye", b"s!"), word=True)], usage=Usage())
    assert proposal is not None
    assert [token.data for token in proposal.tokens] == [b"ye", b"s!"]


async def test_the_end_may_be_one_of_equals() -> None:
    model = toys.tied(b"no")
    plain = model.next
    model.next = lambda ids: [0.5, 0.0, 0.5] + [0.0] * (len(model.tokens) - 3) if len(ids) == 1 else plain(ids)
    model.tokens = [model.tokens[2], model.tokens[1], model.tokens[0], *model.tokens[3:]]
    model.end_ids = (2,)
    provider = Vllm(URL, http_client=FakeVllm(model).client())
    [proposal] = await provider.propose(Context("Q", b"x"), [Question(0, (b"",))], usage=Usage())
    assert proposal is not None
    assert [(token.end, token.prob) for token in proposal.tokens] == [(True, near(0.5))]


# Ends and limits.


async def test_the_end_is_a_token_with_its_probability() -> None:
    _, provider = fake({"Q": [" a", ("", 0.7)]})
    assert await draft(provider) == [Token(b" a", 1.0), Token(b"", near(0.7), end=True, name="</s>"), DraftEnd("end")]


@pytest.mark.parametrize("cuts", [False, True])
async def test_the_context_is_full(cuts: bool) -> None:
    server, provider = fake({"Q": [" a"] * 9}, context=5)
    server.cuts = cuts
    assert await draft(provider) == [*[Token(b" a", 1.0)] * 4, DraftEnd("context")]
    assert await draft(provider, text=b" a a a a") == [DraftEnd("context")]
    assert await draft(provider, text=b" a", continuation=(1,) * 5) == [DraftEnd("context")]
    with pytest.raises(ContextLengthError, match="the text has 7 tokens, the server takes at most 4"):
        await draft(provider, prompt="Q Q Q Q")
    assert all(body["prompt"][0] != "Q Q Q Q" for body in completions(server))


async def test_a_limit_of_the_servers_own_does_not_end_a_draft() -> None:
    script = [" a", b" \xf0\x9f", b"\x98\x80", *(f" {n}" for n in range(20))]
    server, provider = fake({"Q": script}, context=200)
    expected = ScriptedProvider(server.model)
    for cap in (1, 3):
        server.cap = cap
        for limit in (2, 9, 40):
            ours, theirs = await draft(provider, limit=limit), await draft(expected, limit=limit)
            assert ours[:-1] == theirs[:-1]
            assert ours[-1].reason == theirs[-1].reason
    server.context = 12
    other = Vllm(URL, http_client=server.client())
    assert (await draft(other))[-1] == DraftEnd("context")
    assert len(await draft(other)) == 11  # as many tokens, of which two are one character, and the end of the draft
    question = Question(0, (b" a", " 😀".encode(), b" 0", b" 1", b" 2"), word=True)
    said = await other.propose(Context("Q", b""), [question], usage=Usage())
    assert said == await expected.propose(Context("Q", b""), [question], usage=Usage())


async def test_a_scored_text_is_encoded_no_more_than_it_has_to_be() -> None:
    server = FakeVllm(TextModel({"Q": [" a", " b", " c"]}))
    provider = Vllm(URL, http_client=server.client(), strategy="echo")
    await provider.describe()
    for questions, count in (
        ([Question(0, (b" a",)), Question(2, (b" b",)), Question(2, (b" b", b" c"), word=True)], 3),
        ([Question(0, (b" a",)), Question(2, (b" b",))], 0),  # all is known
        ([Question(6, (b" d",)), Question(0, (b" a",))], 0),  # the whole text itself
        ([Question(4, (b" c",))], 1),
    ):
        server.requests.clear()
        await provider.propose(Context("Q", b" a b c"), questions, usage=Usage())
        assert [path for path, _ in server.requests].count("/tokenize") == count


@pytest.mark.parametrize("cuts", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_an_assistant_whose_context_ends_says_what_still_fits(strategy: Strategy, cuts: bool) -> None:
    for context in range(3, 9):
        server = FakeVllm(TextModel({"Q": [" x", "y", "z", "w"]}), context=context)
        server.cuts = cuts
        provider = Vllm(URL, http_client=server.client(), strategy=strategy)
        [proposal] = await provider.propose(Context("Q", b" a"), [Question(0, (b" a",), word=True)], usage=Usage())
        assert proposal is not None
        written = b"".join(token.data for token in proposal.tokens)
        assert b" xyzw".startswith(written) or proposal.tokens[-1].end
        assert len(written) == min(context, 5) or proposal.tokens[-1].end
    server, provider = fake({"Q": [" x"]}, context=3)
    fits, too_long = Question(0, (b" a",)), Question(6, (b" a",))
    assert [one and one.start for one in await provider.propose(Context("Q", b" a a a"), [fits], usage=Usage())] == [0]
    with pytest.raises(ContextLengthError, match="the text has 7 tokens, the server takes at most 2"):
        await provider.propose(Context("Q", b" a a a"), [fits, too_long], usage=Usage())
    with pytest.raises(ContextLengthError, match="the text has 7 tokens, the server takes at most 2"):
        await provider.score(Context("Q", b" a a a"), usage=Usage())


async def test_nothing_to_go_on_from() -> None:
    _, provider = fake({"": ["a"]})
    with pytest.raises(InvalidRequestError, match="prompt and text are empty, and the model has no beginning"):
        await draft(provider, prompt="")
    with pytest.raises(InvalidRequestError, match="prompt and text are empty, and the model has no beginning"):
        await provider.propose(Context("", b"a"), [Question(0, (b"a",))], usage=Usage())
    assert await provider.score(Context("", b""), usage=Usage()) == []
    [token] = await provider.score(Context("", b"a"), usage=Usage())
    assert token == Token(b"a", None)


# Servers that cannot, and answers that are wrong.


async def test_models() -> None:
    server, provider = fake({})
    server.models = [{"id": "a", "root": "/m"}, {"id": "b", "root": "/m"}, {"id": "tuned", "root": "/t", "parent": "a"}]
    assert (await provider.describe()).model == "a"
    named = Vllm(URL, model="tuned", http_client=server.client())
    assert (await named.describe()).model == "tuned"
    assert named.name == "tuned@gpu:8000"
    assert {body["model"] for _, body in server.requests if body} == {"a", "tuned"}
    with pytest.raises(ModelChoiceError, match="no model 'tiny'; the server has 'a', 'b', 'tuned'"):
        await Vllm(URL, model="tiny", http_client=server.client()).describe()
    server.models = [{"id": "small"}, {"id": "large"}]
    with pytest.raises(ModelChoiceError, match="several models, and none was named; the server has 'small', 'large'"):
        await Vllm(URL, http_client=server.client()).describe()


async def test_a_template_that_fails_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting(monkeypatch)
    server, provider = fake({"Q": ["a"]})
    server.template, server.broken = ("<|user|>", "<|assistant|>"), True
    assert (await provider.describe()).answer_cue is None


async def test_what_it_is_is_asked_once_by_all() -> None:
    server, _ = fake({})

    async def handle(request: httpx.Request) -> httpx.Response:
        await anyio.lowlevel.checkpoint()
        return server.handle(request)

    provider = Vllm(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    async with anyio.create_task_group() as group:
        for _ in range(9):
            group.start_soon(provider.describe)
    assert [path for path, _ in server.requests].count("/version") == 1
    # The second is to be told how many there are, the third forces a possible end.
    assert [body["logprobs"] for body in completions(server)] == [5, 2**24, 5]


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(404, json={"detail": "Not Found"}),
        httpx.Response(200, html="<html>"),
        httpx.Response(200, json={}),
    ],
)
async def test_not_vllm(response: httpx.Response) -> None:
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: response))
    with pytest.raises(UnsupportedError, match=r"does not look like vLLM. Give the URL of `vllm serve`, without /v1"):
        await Vllm(URL, http_client=client).describe()


async def test_a_server_that_shows_no_ids() -> None:
    """As versions before 0.10.2."""
    server, provider = fake({"Q": [" a"]})
    server.ids = False
    words = (
        r"version of vLLM \(0.32.0\) does not show token ids, as 0.10.2 and newer do.*engine='openai', dialect='vllm'"
    )
    with pytest.raises(UnsupportedError, match=words):
        await provider.describe()


async def test_a_server_that_shows_no_strings() -> None:
    server, provider = fake({"~": [" a", " \u00e9"], "Q": [" a"]})
    server.strings = False
    assert await provider.tokenize("Q a") == [Piece(n, server.model.tokens[n]) for n in server.model.encode(b"Q a")]
    assert [token.data for token in await provider.score(Context("Q", b" a"), usage=Usage())] == [b" a"]


async def test_a_tokenizer_of_the_users_own_saves_requests() -> None:
    server, _ = fake({"~": [" a", " \u00e9"], "Q": [" a", (" b", 0.5)]})
    helped = Vllm(URL, http_client=server.client(), tokenizer=Local(server.model))
    await helped.describe()
    server.requests.clear()
    assert await helped.tokenize("Q a") == [Piece(n, server.model.tokens[n]) for n in server.model.encode(b"Q a")]
    await draft(helped, limit=2, alternatives=3)
    assert {path for path, _ in server.requests} == {"/v1/completions"}
    wrong = Vllm(URL, http_client=server.client(), tokenizer=Local(TextModel({"~": [" ", "a \u00e9"]})))
    with pytest.raises(UnsupportedError, match="the tokenizer that was given encodes text differently from the model"):
        await wrong.describe()


@dataclass
class Local:
    """A tokenizer on this machine."""

    model: Any
    name: str = "local"
    beginning: int = 0

    def encode(self, text: str) -> list[Piece]:
        return [Piece(n, self.model.tokens[n]) for n in self.model.encode(text.encode())]

    def token(self, id: int) -> bytes | None:
        return self.model.tokens[id] or None


def changing(server: FakeVllm, **fields: Any) -> None:
    """Changes fields of every choice."""

    def change(answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, "choices": [{**choice, **fields} for choice in answer["choices"]]}

    server.change = change


def shown(logprobs: dict[int, float | None]) -> dict[str, Any]:
    """The first of some tokens as the server's own, with all of them beside it."""
    top = {f"token_id:{n}": value for n, value in logprobs.items()}
    return {"tokens": [*top][:1], "token_logprobs": [*top.values()][:1], "top_logprobs": [top]}


async def both(provider: Vllm) -> None:
    """A draft and a proposal, of which the second is to fail as the first does."""
    with pytest.raises((UnsupportedError, ResponseError)) as first:
        await draft(provider)
    with pytest.raises(type(first.value)) as second:
        await provider.propose(Context("Q", b""), [Question(0, (b"a",))], usage=Usage())
    assert first.value.args[0].startswith(second.value.args[0])
    raise first.value


async def test_missing_probabilities() -> None:
    server, provider = fake({"Q": ["a"]})
    await provider.describe()
    changing(server, logprobs=None)
    with pytest.raises(UnsupportedError, match=r"gives no probabilities .* although asked \(logprobs\)"):
        await both(provider)
    changing(server, prompt_logprobs=None)
    with pytest.raises(UnsupportedError, match=r"probabilities of a text, although asked \(prompt_logprobs\)"):
        await provider.score(Context("Q", b"a"), usage=Usage())


async def test_a_server_that_stops_at_a_text_of_its_own_is_refused() -> None:
    server, provider = fake({"Q": ["a"]})
    await provider.describe()
    changing(server, stop_reason="###")
    with pytest.raises(UnsupportedError, match="stops at a text of its own, which no request can undo"):
        await both(provider)


async def test_an_answer_that_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting(monkeypatch)
    server, provider = fake({"Q": ["a"]})
    await provider.describe()
    for reason, words in (("abort", r"broke the answer off \(finish reason 'abort'\)"), ("x", "unknown reason: 'x'")):
        changing(server, finish_reason=reason)
        with pytest.raises(ResponseError, match=words) as caught:
            await both(provider)
        assert caught.value.retryable == (reason == "abort")


async def test_a_server_that_does_not_decode_greedily_is_refused() -> None:
    server, provider = fake({"Q": ["a"]})
    await provider.describe()
    logprobs = shown({7: -3.0, 8: -0.1})
    changing(server, logprobs=logprobs)
    with pytest.raises(UnsupportedError, match="does not take the most probable token"):
        await draft(provider)


async def test_a_stop_token_of_the_models_own_is_an_end() -> None:
    server, provider = fake({"Q": ["a", "b"]})
    await provider.describe()
    server.specials = {9: "<|eot|>"}
    changing(server, text="", finish_reason="stop", stop_reason=9, token_ids=[9], logprobs=shown({9: 0.0}))
    assert await draft(provider, limit=1) == [Token(b"", 1.0, end=True, name="<|eot|>"), DraftEnd("end")]


async def test_a_stream_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting(monkeypatch)
    server, provider = fake({"Q": ["a", "b", "c"]})
    await provider.describe()
    changing(server, finish_reason=None)
    with pytest.raises(ResponseError, match="the stream ended before the answer did"):
        await draft(provider)


@pytest.mark.usefixtures("no_waiting")
async def test_an_error_within_a_stream() -> None:
    server, provider = fake({"Q": ["a"]})
    await provider.describe()
    server.change = lambda answer: {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}
    with pytest.raises(ServerError, match="500: EngineCore died"):
        await draft(provider)


async def test_strange_answers() -> None:
    server, provider = fake({"Q": ["a"]})
    await provider.describe()
    changing(server, token_ids="many")
    with pytest.raises(ResponseError, match=r"the answer is not as expected: choices.0.token_ids"):
        await both(provider)
    server.change = lambda answer: {**answer, "choices": []}
    with pytest.raises(ResponseError, match="1 prompts were sent, 0 answered"):
        await provider.propose(Context("Q", b""), [Question(0, (b"a",))], usage=Usage())


@pytest.mark.parametrize(("value", "says"), [(-9999.0, "its logarithm is -9999"), (None, "its logarithm is missing")])
async def test_values_that_are_no_probabilities(value: float | None, says: str) -> None:
    server, provider = fake({"Q": ["a"]})
    await provider.describe()
    changing(server, logprobs=shown({7: 1e-7}))
    assert (await draft(provider, limit=1))[0].prob == 1.0
    changing(server, logprobs=shown({7: value}))
    for strategy in STRATEGIES[1:]:
        provider = Vllm(URL, http_client=server.client(), strategy=strategy)
        with pytest.raises(ResponseError, match=f"wrote a token with no usable probability: {says}"):
            await provider.propose(Context("Q", b""), [Question(0, (b"a",))], usage=Usage())
    with pytest.raises(ResponseError, match=f"wrote a token with no usable probability: {says}"):
        await draft(provider, limit=1)


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_scored_text_says_nothing_where_its_beginning_is_encoded_differently(strategy: Strategy) -> None:
    vocabulary = [b"", b"Q", b"Qa", b"x", b"y", *(bytes([n]) for n in range(256) if n not in b"Qxy")]

    def following(ids: Sequence[int]) -> list[float]:
        alone = list(ids) == [vocabulary.index(b"Qa")]
        return [float(data == (b"x" if alone else b"y")) for data in vocabulary]

    model = TableModel(vocabulary, following, end_ids=(0,))
    longest = model.encode
    model.encode = lambda text: longest(text[:1]) + longest(text[1:]) if len(text) > 2 else longest(text)  # type: ignore[method-assign]
    provider = Vllm(URL, http_client=FakeVllm(model).client(), strategy=strategy)
    questions = [Question(1, (b"b",)), Question(2, (b"c",))]
    proposals = await provider.propose(Context("Q", b"ab"), questions, usage=Usage())
    assert [one and one.tokens[0].data for one in proposals] == [b"x", b"y"]


# Streams that break.


async def test_what_is_asked_after_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting(monkeypatch)
    server, provider = fake({"Q": [" a", " b", " c", " d"]})
    breaking = Breaking(server.handle)
    provider = Vllm(URL, http_client=breaking.client())
    await provider.describe()
    server.requests.clear()
    breaking.breaks = [Break("breaks", 1100), *[Break("ends", 1100)] * 2]
    usage = Usage()
    found = await draft(provider, limit=4, usage=usage)
    assert [token.data for token in found[:-1]] == [b" a", b" b", b" c", b" d"]
    prompts = [body["prompt"][0] for body in completions(server)]
    assert breaking.happened == len(prompts) - 1 == usage.retries > 0
    assert usage.requests == 1
    assert [prompts[-1][: len(prompt)] for prompt in prompts] == prompts == sorted(prompts, key=len)
