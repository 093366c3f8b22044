"""The llama.cpp adapter against a stand-in with toy models, which do all that is rare."""

from __future__ import annotations

import json
import pickle
from typing import Any
from unittest.mock import ANY

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_providers import (
    ContextLengthError,
    DraftEnd,
    InvalidRequestError,
    ModelChoiceError,
    Proposal,
    Question,
    ResponseError,
    Token,
    UnsupportedError,
    Usage,
)
from cosd_providers.contract import Context
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.sampling import other_seed
from cosd_providers.testing import ScriptToken, TableModel, TextModel
from fakes.breaking import Break, Breaking, waiting
from fakes.llama_cpp import FakeLlamaCpp
from support.asked import Inquiry, draft, inquired, near
from toys import toy_models as toys

URL = "http://gpu:8080"


def fake(scripts: dict[str, list[Any]], **options: Any) -> tuple[FakeLlamaCpp, LlamaCpp]:
    server = FakeLlamaCpp(TextModel(scripts), **options)
    return server, LlamaCpp(URL, http_client=server.client())


# Against toy models: whatever they do, the adapter gives what the model itself would.


# What goes over the wire.


async def test_what_a_draft_asks() -> None:
    server, provider = fake({"Q": [" a", (" b", 0.4)]})
    await draft(provider, limit=1)
    path, body = server.requests[-1]
    assert path == "/completion"
    assert body["prompt"] == "Q"
    assert (body["n_predict"], body["n_probs"], body["stream"], body["cache_prompt"]) == (1, 1, True, True)
    assert (body["temperature"], body["samplers"], body["repeat_penalty"]) == (0, ["temperature"], 1.0)
    # Left out, or with an empty list of stops, the server's own would hold.
    assert (body["dynatemp_range"], body["logit_bias"]) == (0.0, [])
    assert body["stop"]
    assert all("\0" in stop for stop in body["stop"])


async def test_a_draft_goes_on_from_its_ids() -> None:
    server, provider = fake({"Q": [" a", (" b", 0.4), " c"]})
    *_, end = await draft(provider, limit=2)
    assert end.reason == "limit"
    server.requests.clear()
    assert await draft(provider, text=b" a b", continuation=pickle.loads(pickle.dumps(end.continuation))) == [
        Token(b" c", 1.0),
        Token(b"", 1.0, end=True, name="</s>"),
        DraftEnd("end"),
    ]
    [(_, body)] = server.requests
    assert body["prompt"] == ["Q", *(server.model.encode(b" a") + server.model.encode(b" b"))]


async def test_all_questions_in_one_request() -> None:
    server, provider = fake({"Q": [" a", " b", " c"]})
    await provider.describe()
    server.requests.clear()
    usage = Usage()
    questions = [Question(0, (b" a",), word=True), Question(2, (b" x",)), Question(4, (b" c",), word=True)]
    proposals = await provider.propose(Context("Q", b" a b c"), questions, usage=usage)
    assert [one.tokens[0].data for one in proposals if one] == [b" a", b" b", b" c"]
    [(_, body)] = server.requests
    assert body["prompt"] == ["Q", "Q a", "Q a b"]
    assert body["n_probs"] == 5
    assert (usage.requests, usage.prompt_tokens) == (1, 6)


@pytest.mark.parametrize("strategy", ["list", "singles"])
async def test_how_questions_are_asked(strategy: Any) -> None:
    server = FakeLlamaCpp(TextModel({"Q": [" a", " b"], "Q a x": [" d"]}))
    provider = LlamaCpp(URL, http_client=server.client(), strategy=strategy)
    await provider.describe()
    server.requests.clear()
    usage = Usage()
    questions = [Question(at, (data,)) for at, data in ((0, b" a"), (2, b" x"), (4, b" c"))]
    proposals = await provider.propose(Context("Q", b" a x c"), questions, usage=usage)
    assert [one.tokens[0].data for one in proposals if one] == [b" a", b" b", b" d"]
    asked = [body["prompt"] for path, body in server.requests if path == "/completion"]
    expected = {
        "list": [["Q", "Q a", "Q a x"]],
        "singles": [["Q"], ["Q a"], ["Q a x"]],
    }
    assert sorted(asked) == expected[strategy]
    assert usage.strategies == {strategy: 3}


@pytest.mark.parametrize(("prompt", "several"), [("Q", "list"), ("Q" * 2000, "singles")])
async def test_a_short_prompt_is_asked_by_a_list_and_a_long_one_by_singles(prompt: str, several: str) -> None:
    _, provider = fake({prompt: [" a", " b", " c"]})
    questions = [Question(at, (b" a",)) for at in (0, 2, 4)]
    for asked, way in ((questions, several), (questions[:1], "singles"), (None, "list")):
        usage = Usage()
        await provider.propose(Context(prompt, b" a b c"), asked, usage=usage)
        assert {*usage.strategies} == {way}


async def test_places_of_a_list_that_was_refused_count_as_asked_singly() -> None:
    """The words go on, each in its own request, where one of them has reached the end of the context."""
    _, provider = fake({"Q": [" a", *"bcdefghi"], "Q a x": [" y", *"bcdefghi"]}, context=6)
    provider, usage = provider.with_strategy("list"), Usage()
    questions = [Question(0, (b" abcdefghi",), word=True), Question(4, (b" ybcdefghi",), word=True)]
    found = await provider.propose(Context("Q", b" a x"), questions, usage=usage)
    assert [one and one.strategy for one in found] == ["singles", "singles"]
    assert usage.strategies == {"singles": 2}


async def test_a_strategy_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="no strategy 'echo'; there are 'list', 'singles' and 'watch'"):
        LlamaCpp(URL, strategy="echo")  # type: ignore[arg-type]  # what a user may do


async def test_a_character_of_several_tokens_is_as_sure_as_its_least_sure_part() -> None:
    _, provider = fake({"Q": [b" \xf0", (b"\x9f\x98", 0.3), (b"\x80", 0.9), "!"]})
    assert await draft(provider, limit=2) == [
        Token(" 😀".encode(), near(0.3)),
        Token(b"!", 1.0),
        DraftEnd("limit", ANY),
    ]
    [proposal] = await provider.propose(Context("Q", b""), [Question(0, (b"x",))], usage=Usage())
    assert proposal is not None
    assert proposal.tokens == (Token(" 😀".encode(), near(0.3)),)


# Alternatives, the end of a text, and samples.


async def test_alternatives_are_asked_in_the_same_requests() -> None:
    server, provider = fake({"Q": [" a", (" b", 0.4)]})
    question = Question(2, (b" b",))
    await provider.describe()
    for count, places, scores in ((0, 5, 50), (4, 5, 50), (9, 10, 50), (99, 100, 100)):
        server.requests.clear()
        await provider.propose(Context("Q", b" a"), [question], alternatives=count, usage=Usage())
        await provider.score(Context("Q", b" a"), alternatives=count, usage=Usage())
        asked = [body["n_probs"] for path, body in server.requests if path == "/completion"]
        assert asked == [places, scores]


async def test_how_many_alternatives_there_are() -> None:
    server, provider = fake({"Q": ["a"]})
    able = (await provider.describe()).capabilities
    assert (able.top_k, able.score_top_k, able.sampling) == (1000, 1000, True)
    server.vocabulary = 32000
    able = (await LlamaCpp(URL, http_client=server.client()).describe()).capabilities
    assert (able.top_k, able.score_top_k) == (31999, 31999)


def ending(*ends: float, rest: int = 1) -> TableModel:
    """A model with these probabilities of its ends, and as many other tokens."""
    tokens = [b""] * len(ends) + [bytes([n]) for n in range(128)][:rest] + [b"a"]
    probs = [*ends, *[(1 - sum(ends)) / rest] * rest, 0.0]
    return TableModel(tokens, lambda ids: probs, end_ids=range(len(ends)))


@pytest.mark.parametrize(
    ("model", "name", "prob"),
    [
        (ending(0.2, 0.3, 0.1), "<|eot_id|>", 0.3),
        (ending(0.004, 0.003, rest=90), "</s>", 0.004),  # not among those listed first
        (ending(0.003, 0.02, rest=90), "<|eot_id|>", 0.02),
        (ending(0.0), "</s>", 0.0),
    ],
)
async def test_the_end_of_a_text_is_the_most_probable_of_all_ends(model: TableModel, name: str, prob: float) -> None:
    server = FakeLlamaCpp(model)
    provider = LlamaCpp(URL, http_client=server.client())
    for text in (b"", b"a"):
        *_, end = await provider.score(Context("a", text), end=True, usage=Usage())
        assert end == Token(b"", near(prob), end=True, name=name)
    looked_up = [body for path, body in server.requests if path == "/tokenize" and "<|im_end|>" in body["content"]]
    assert len(looked_up) == 1


async def test_all_ends_are_known_before_the_first_answer() -> None:
    server = FakeLlamaCpp(ending(0.25, 0.5, 0.1))
    provider = LlamaCpp(URL, http_client=server.client())
    assert (await provider.describe()).ends == (0, 1, 2)
    server.requests.clear()
    usage = Usage()
    [proposal] = await provider.propose(Context("a", b"a"), [Question(0, (b"a",))], usage=usage)
    [token] = await provider.next_tokens([Context("a", b"", (3,))], alternatives=3, usage=usage)
    assert proposal is not None
    assert token is not None
    assert proposal.tokens[0].name == token.name == "<|eot_id|>"
    assert [one.end for one in token.alternatives] == [True, False, True]
    assert len(server.requests) == usage.requests == 2


async def test_a_name_of_an_end_that_ends_nothing() -> None:
    server = FakeLlamaCpp(ending(0.2))
    server.ends |= {"<|end|>": 2}
    assert (await LlamaCpp(URL, http_client=server.client()).describe()).ends == (0,)


async def test_an_end_without_a_known_name() -> None:
    server = FakeLlamaCpp(ending(0.2))
    server.ends = {}
    [end] = await LlamaCpp(URL, http_client=server.client()).score(Context("a", b""), end=True, usage=Usage())
    assert end == Token(b"", near(0.2), end=True)


async def test_a_literal_prompt_is_scored_by_its_ids() -> None:
    server, provider = fake({"Q</s>!": [(" a", 0.4), (" b", 0.7)]})
    view = await provider.literal(["Q", "!"])
    assert view is not None
    server.requests.clear()
    await view.score(Context("Q!", b" a"), end=True, usage=Usage())
    [asked] = [body["prompt"] for path, body in server.requests if path == "/completion" and len(body["prompt"]) == 2]
    pieces = [server.model.encode(text) for text in (b"Q", b"!", b" a")]
    assert asked == [[*pieces[0], *pieces[1]], [*pieces[0], *pieces[1], *pieces[2]]]


async def test_the_first_token_of_all_has_no_probability_without_a_beginning_of_sequence() -> None:
    _, provider = fake({"Q": [(" a", 0.4), (" b", 0.7)]})
    first, *others = await provider.score(Context("", b"Q a b"), usage=Usage())
    assert first == Token(b"Q", None)
    assert [(token.data, token.prob) for token in others] == [(b" a", near(0.4)), (b" b", near(0.7))]
    [one, end] = await provider.score(Context("", b"Q"), end=True, usage=Usage())
    assert (one.prob, end.end) == (None, True)


async def test_what_a_sample_asks() -> None:
    server, provider = fake({"Q": [" a", (" b", 0.4)]})
    for seed, sent in ((7, 7), (0, 0), (None, -1)):
        await draft(provider, temperature=1, seed=seed, limit=1)
        _, body = server.requests[-1]
        assert (body["temperature"], body["seed"], body["samplers"], body["n_probs"]) == (1, sent, ["temperature"], 1)
    assert (body["top_k"], body["top_p"], body["min_p"], body["repeat_penalty"]) == (0, 1.0, 0.0, 1.0)
    await draft(provider, limit=1)
    assert "seed" not in server.requests[-1][1]
    with pytest.raises(ValueError, match="extra_body cannot set seed"):
        LlamaCpp(URL, extra_body={"seed": 7})


async def test_a_sample_that_broke_off_goes_on_with_other_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting(monkeypatch)
    server, _ = fake({"Q": ["a", "b", "c"]})
    at = len(b"\n\n".join(server.handle(streamed()).content.split(b"\n\n")[:2])) + 20  # in the third event
    server.requests.clear()
    provider = LlamaCpp(URL, http_client=Breaking(server.handle, Break("breaks", at)).client())
    *tokens, _ = await draft(provider, temperature=1, seed=7)
    assert b"".join(token.data for token in tokens) == b"abc"
    seeds = [body["seed"] for path, body in server.requests if path == "/completion" and body.get("stream")]
    assert seeds == [7, other_seed(7, 2)]


async def test_bytes_that_are_no_characters_are_left_out() -> None:
    server, provider = fake({"Q": [" a"]})
    await draft(provider, text=b" a\xff", limit=1)
    assert server.requests[-1][1]["prompt"] == "Q a"


async def test_extra_body() -> None:
    server = FakeLlamaCpp(TextModel({"Q": ["a"]}))
    provider = LlamaCpp(URL, extra_body={"id_slot": 3, "cache_prompt": False}, http_client=server.client())
    await draft(provider, limit=1)
    assert (server.requests[-1][1]["id_slot"], server.requests[-1][1]["cache_prompt"]) == (3, False)
    with pytest.raises(ValueError, match=r"extra_body cannot set grammar, temperature: the fusion sets it itself"):
        LlamaCpp(URL, extra_body={"temperature": 0.7, "grammar": "x"})
    for value in (b"x", {1}, float("nan")):  # no server would get what was meant
        with pytest.raises(ValueError, match=r"extra_body is not JSON: "):
            LlamaCpp(URL, extra_body={"lora": [value]})


# Ends and limits.


@pytest.mark.parametrize("special", [False, True])
async def test_the_end_is_a_token_with_its_probability(special: bool) -> None:
    _, provider = fake({"Q": [" a", ("", 0.7)]}, special=special)
    assert await draft(provider) == [
        Token(b" a", 1.0),
        Token(b"", near(0.7), end=True, name="</s>"),
        DraftEnd("end"),
    ]


@pytest.mark.parametrize("special", [False, True])
async def test_an_end_that_was_not_known(special: bool) -> None:
    model = TextModel({"Q": ["a"]})
    model.tokens = [*model.tokens, b""]
    model.end_ids = (0, len(model.tokens) - 1)
    model.next = lambda ids: [0.0] * (len(model.tokens) - 1) + [1.0]
    server = FakeLlamaCpp(model, special=special)
    server.ends, server.banned = {}, [0]  # it bans only one of its ends, as an older build does
    provider = LlamaCpp(URL, http_client=server.client())
    assert await draft(provider) == [Token(b"", 1.0, end=True), DraftEnd("end")]
    assert await draft(provider) == [Token(b"", 1.0, end=True), DraftEnd("end")]


async def test_alternatives_of_which_nothing_is_known_for_sure_are_left_out() -> None:
    others = {b" a": 0.4, b"": 0.2, b"\xc3": 0.2, b"<|stop|>": 0.1, b" b": 0.1}
    model = TableModel([b"", b"Q", b"a", *others], lambda ids: [0.0] * 3 + [*others.values()], end_ids=(0,))
    first, *_ = await draft(LlamaCpp(URL, http_client=FakeLlamaCpp(model).client()), limit=1, alternatives=5)
    assert first.alternatives == (Token(b" b", near(0.1)),)


async def test_the_context_is_full() -> None:
    _, provider = fake({"Q": [" a"] * 9}, context=5)
    assert await draft(provider) == [*[Token(b" a", 1.0)] * 4, DraftEnd("context")]
    assert await draft(provider, text=b" a a a a") == [DraftEnd("context")]
    with pytest.raises(ContextLengthError, match=r"request \(7 tokens\) exceeds .* \(5 tokens\)"):
        await draft(provider, prompt="Q Q Q Q")


async def test_a_server_that_shifts_its_context_is_stopped() -> None:
    server, provider = fake({"Q": [" a"] * 9})
    server.context = 5
    await provider.describe()
    server.context = 4096
    assert await draft(provider) == [*[Token(b" a", 1.0)] * 4, DraftEnd("context")]


async def test_nothing_to_go_on_from() -> None:
    _, provider = fake({"": ["a"]})
    with pytest.raises(InvalidRequestError, match="prompt and text are empty, and the model has no beginning"):
        await draft(provider, prompt="")


# Servers that cannot, and answers that are wrong.


async def test_models() -> None:
    server, provider = fake({})
    server.models = ["small", "large"]
    with pytest.raises(ModelChoiceError, match="several models, and none was named; the server has 'small', 'large'"):
        await provider.describe()
    with pytest.raises(ModelChoiceError, match="no model 'tiny'; the server has 'small', 'large'"):
        await LlamaCpp(URL, model="tiny", http_client=server.client()).describe()
    named = LlamaCpp(URL, model="large", http_client=server.client())
    assert (await named.describe()).model == "large"
    assert named.name == "large@gpu:8080"
    await draft(named)
    assert server.requests[-1][1]["model"] == "large"
    # A server with several models answers none of these without the model's name.
    assert [body["model"] for path, body in server.requests if path == "/tokenize"] == ["large"] * 2
    assert server.queries["/props"] == "model=large"
    server.models = []
    with pytest.raises(ModelChoiceError, match="the server has none"):
        await LlamaCpp(URL, model="tiny", http_client=server.client()).describe()


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(404, json={"detail": "Not Found"}),
        httpx.Response(200, html="<html>"),
        httpx.Response(200, json={}),
    ],
)
async def test_not_llama_cpp(response: httpx.Response) -> None:
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: response))
    with pytest.raises(
        UnsupportedError, match=r"does not look like a llama.cpp server\. Give the URL of `llama-server`"
    ):
        await LlamaCpp(URL, http_client=client).describe()


async def test_speculative_decoding_is_refused() -> None:
    server, provider = fake({"Q": ["a"]})
    server.changes = {"completion_probabilities": [{"id": 1, "bytes": [97], "logprob": 0.0, "top_logprobs": []}]}
    with pytest.raises(UnsupportedError, match=r"speculatively .* without a draft model \(--model-draft"):
        await draft(provider)
    with pytest.raises(UnsupportedError, match="speculatively"):
        await provider.propose(Context("Q", b""), [Question(0, (b"a",))], usage=Usage())


async def test_a_server_that_says_that_it_speculates_is_refused_at_once() -> None:
    server, provider = fake({"Q": ["a"]})
    server.slots = [{"id": 0, "speculative": True}]
    with pytest.raises(UnsupportedError, match=r"speculatively .* without a draft model \(--model-draft"):
        await provider.describe()


async def test_a_stream_whose_probabilities_stop_is_one_of_a_speculating_server() -> None:
    server, provider = fake({"Q": ["a", "b", "c"]})
    server.changes_from = 2
    server.changes = {"completion_probabilities": None}
    with pytest.raises(UnsupportedError, match="speculatively"):
        await draft(provider)


async def test_a_server_that_does_not_decode_greedily_is_refused() -> None:
    server, provider = fake({"Q": ["a"]})
    better = {"id": 99, "bytes": [98], "logprob": -0.1}
    server.changes = {
        "completion_probabilities": [{"id": 98, "bytes": [97], "logprob": -3.0, "top_logprobs": [better]}]
    }
    with pytest.raises(UnsupportedError, match="does not take the most probable token"):
        await draft(provider)


async def test_a_server_that_stops_at_a_text_of_its_own_is_refused() -> None:
    server, provider = fake({"Q": ["a"]})
    server.changes = {"stop_type": "word"}
    with pytest.raises(UnsupportedError, match=r"stops at a text of its own, .*--reverse-prompt"):
        await draft(provider, limit=1)


async def test_a_server_that_stops_without_a_token_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting(monkeypatch)
    server, provider = fake({"Q": ["a"]})
    await provider.describe()
    empty = {"stop": True, "stop_type": "limit", "tokens_predicted": 0, "tokens_evaluated": 1}

    def handle(request: httpx.Request) -> httpx.Response:
        if not json.loads(request.content or "{}").get("stream"):
            return server.handle(request)
        server.requests.append(("stream", None))
        lines = f"data: {json.dumps(empty)}\n\n"
        return httpx.Response(200, text=lines, headers={"content-type": "text/event-stream"})

    provider = LlamaCpp(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    server.requests.clear()
    with pytest.raises(ResponseError, match=r"stopped without a token and without a reason \(tried 4 times\)"):
        await draft(provider)
    assert [path for path, _ in server.requests].count("stream") == 4


async def test_an_assistant_whose_context_ends_says_what_still_fits() -> None:
    script: dict[str, list[ScriptToken]] = {"Q": [" x", "y", "z", "w"]}
    for context in range(3, 9):
        server, provider = fake(script, context=context)
        [proposal] = await provider.propose(Context("Q", b" a"), [Question(0, (b" a",), word=True)], usage=Usage())
        assert proposal is not None
        written = b"".join(token.data for token in proposal.tokens)
        assert b" xyzw".startswith(written) or proposal.tokens[-1].end
        assert server.requests
    server, provider = fake(script, context=3)
    fits, too_long = Question(0, (b" a",)), Question(4, (b" a",))
    assert [one and one.start for one in await provider.propose(Context("Q", b" a a a"), [fits], usage=Usage())] == [0]
    with pytest.raises(ContextLengthError):
        await provider.propose(Context("Q", b" a a a"), [fits, too_long], usage=Usage())


async def test_what_an_assistant_says_of_a_text_that_its_server_has_shifted_is_not_taken() -> None:
    server, provider = fake({"Q": [" a"] * 9}, context=4)
    await provider.describe()
    server.context = 4096
    [proposal] = await provider.propose(Context("Q", b""), [Question(0, (b" a",) * 9, word=True)], usage=Usage())
    assert proposal is not None
    assert [token.data for token in proposal.tokens] == [b" a"] * 3


@pytest.mark.parametrize("strategy", ["list", "singles"])
@given(case=inquired(toys.models(may_hide_end=False, longest_merge=6)), context=st.integers(6, 30))
async def test_near_the_end_of_the_context_all_strategies_answer_as_one_question(
    strategy: Any, case: tuple[toys.ToyModel, Inquiry], context: int
) -> None:
    model, (prompt, text, questions) = case

    async def found(way: Any, asked: list[Question]) -> list[Proposal | None] | None:
        server = FakeLlamaCpp(toys.Plain(model), context=context)
        provider = LlamaCpp(URL, http_client=server.client(), strategy=way)
        try:
            return await provider.propose(Context(prompt.decode(), text), asked, usage=Usage())
        except (ContextLengthError, InvalidRequestError):
            return None

    alone = [await found("singles", [question]) for question in questions]
    assert await found(strategy, questions) == (
        None if None in alone else [one for some in alone for one in some or ()]
    )


async def test_a_character_that_still_fits_into_the_context_is_said() -> None:
    """The first of its tokens is hidden, and the last one fills the context."""
    tokens = [b"Q", b"\xc3", b"\xa9", b"", b"a"]
    parts = TableModel(tokens, lambda ids: [float(n == ids[-1] + 1) for n in range(5)], end_ids=(3,))
    server = FakeLlamaCpp(parts, context=3)
    provider = LlamaCpp(URL, http_client=server.client())
    [proposal] = await provider.propose(Context("Q", b""), [Question(0, (b"x",), word=True)], usage=Usage())
    assert proposal is not None
    assert [token.data for token in proposal.tokens] == ["é".encode()]


async def test_missing_probabilities() -> None:
    server, provider = fake({"Q": ["a"]})
    server.changes = {"completion_probabilities": None}
    words = r"although asked \(n_probs\)\. llama\.cpp's own server gives them: is there a proxy"
    with pytest.raises(UnsupportedError, match=words):
        await draft(provider)
    with pytest.raises(UnsupportedError, match=r"gives no probabilities .* although asked \(n_probs\)"):
        await provider.propose(Context("Q", b""), [Question(0, (b"a",))], usage=Usage())


ENTRY = {"id": 1, "bytes": [97], "logprob": -0.1, "top_logprobs": []}


@pytest.mark.parametrize(
    ("field", "value", "where"),
    [
        ("tokens_predicted", "secret", "tokens_predicted: Input should be a valid integer"),
        ("tokens_predicted", None, "tokens_predicted: Field required"),
        ("tokens_evaluated", None, "tokens_evaluated: Field required"),
        ("stop", "secret", "stop: Input should be a valid boolean"),
        ("completion_probabilities", ["secret"], r"completion_probabilities\.0: Input should be a valid dictionary"),
        ("completion_probabilities", [{**ENTRY, "id": "secret"}], r"completion_probabilities\.0\.id: Input"),
        ("completion_probabilities", [{**ENTRY, "bytes": [256]}], r"completion_probabilities\.0\.bytes\.0: Input"),
        ("completion_probabilities", [{"id": 1, "bytes": [97]}], r"completion_probabilities\.0\.logprob: Field"),
        (
            "completion_probabilities",
            [{**ENTRY, "top_logprobs": [{**ENTRY, "bytes": [-1]}]}],
            r"completion_probabilities\.0\.top_logprobs\.0\.bytes\.0: Input",
        ),
    ],
)
async def test_strange_answers(field: str, value: Any, where: str) -> None:
    """A field that is missing or wrong is refused by its place, in an event as in an answer; its value is not shown."""
    server, provider = fake({"Q": ["a"]})
    await provider.describe()
    server.changes = {field: value}
    for asked in (draft(provider), provider.propose(Context("Q", b""), [Question(0, (b"a",))], usage=Usage())):
        with pytest.raises(ResponseError, match=f"the answer is not as expected: {where}") as caught:
            await asked
        assert "secret" not in str(caught.value)


async def test_a_stream_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    server, _ = fake({"Q": ["a", "b", "c"]})
    pauses = waiting(monkeypatch)
    provider = LlamaCpp(URL, http_client=Breaking(server.handle, *[Break("ends")] * 4).client())
    usage = Usage()
    with pytest.raises(ResponseError, match=r"the stream ended before the answer did \(tried 4 times\)$") as caught:
        await draft(provider, usage=usage)
    assert caught.value.retryable
    assert (usage.requests, usage.retries, len(pauses)) == (1, 3, 3)


async def test_what_is_asked_after_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    server, _ = fake({"Q": ["a", "b", "c", "d"]})
    waiting(monkeypatch)
    at = len(b"\n\n".join(server.handle(streamed()).content.split(b"\n\n")[:2])) + 20  # in the third event
    provider = LlamaCpp(URL, http_client=Breaking(server.handle, Break("breaks", at)).client())
    usage = Usage()
    found = await draft(provider, limit=3, usage=usage)
    assert [token.data for token in found[:-1]] == [b"a", b"b", b"c"]
    asked = [(body["prompt"], body["n_predict"]) for _, body in server.requests[1:] if body and "stream" in body]
    ids = found[-1].continuation[1:]
    assert asked == [("Q", 3), (["Q", *ids[:2]], 1)]
    assert (usage.requests, usage.retries) == (1, 1)
    assert (usage.prompt_tokens, usage.completion_tokens) == (1 + 3, 2 + 1)  # what the server read and wrote, twice


def streamed() -> httpx.Request:
    """A request for a draft."""
    body = {"prompt": "Q", "n_predict": 3, "n_probs": 1, "stream": True}
    return httpx.Request("POST", f"{URL}/completion", json=body)


async def test_values_that_are_no_probabilities() -> None:
    server, provider = fake({"Q": ["a"]})
    for value, says in ((-3.4e38, r"-3.4e\+38"), (float("-inf"), "-inf"), (float("nan"), "nan"), (1e-7, "")):
        server.changes = {
            "completion_probabilities": [
                {
                    "id": 98,
                    "bytes": [97],
                    "logprob": value,
                    "top_logprobs": [{"id": 98, "bytes": [97], "logprob": value}],
                }
            ]
        }
        if not says:
            assert (await draft(provider, limit=1))[0].prob == 1.0
            continue
        with pytest.raises(ResponseError, match=f"wrote a token with no usable probability: its logarithm is {says}. "):
            await draft(provider, limit=1)


# Chat templates.


@pytest.mark.parametrize(
    ("template", "marks", "cue"),
    [
        ("<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", 1, "<|im_end|>\n<|im_start|>assistant\n"),
        ("<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", 6, None),  # the server's own, for a model without
        ("User: {}\nAssistant:", 6, "\nAssistant:"),
        ("no content", 1, None),
        (None, 1, None),
    ],
)
async def test_what_is_written_before_an_answer(template: str | None, marks: int, cue: str | None) -> None:
    server, _ = fake({"Q": ["a"]})

    def handle(request: httpx.Request) -> httpx.Response:
        body: Any = json.loads(request.content) if request.content else {}
        if request.url.path == "/apply-template" and template is not None:
            return httpx.Response(200, json={"prompt": template.replace("{}", body["messages"][0]["content"])})
        if body.get("content") == "<|im_start|>":
            return httpx.Response(200, json={"tokens": [{"id": n, "piece": "x"} for n in range(marks)]})
        return server.handle(request)

    provider = LlamaCpp(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    assert (await provider.describe()).answer_cue == cue


async def test_a_long_text_is_read_a_part_at_a_time_and_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_sync, threads = anyio.to_thread.run_sync, list[Any]()

    async def noted(*given: Any) -> Any:
        threads.append(given)
        return await run_sync(*given)

    monkeypatch.setattr(anyio.to_thread, "run_sync", noted)
    server, provider = fake({"Q": [" a"]})
    for size, long in ((4000, False), (9000, True)):
        pieces = await provider.tokenize("Q" * size + "é")
        assert b"".join(piece.data for piece in pieces) == b"Q" * size + "é".encode()
        assert [piece.id for piece in pieces] == server.model.encode(b"Q" * size + "é".encode())
        assert bool(threads) is long
    answer = httpx.Response(200, json={"tokens": [{"id": 1, "piece": "Q"}] * 5000 + [{"id": 1}]})
    broken = LlamaCpp(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(lambda _: answer)))
    with pytest.raises(ResponseError):
        await broken.tokenize("Q" * 5001)


@pytest.mark.parametrize(
    ("cache", "context", "again", "requests"),
    [("anywhere", 4096, 0, 2), ("checkpoint", 4096, 6, 3), ("", 4096, None, 3), ("anywhere", 12, None, 0)],
)
async def test_six_tokens_in_the_cache_are_read_again_behind_a_change(
    cache: Any, context: int, again: int | None, requests: int
) -> None:
    server, provider = fake({"Q": [" a"]}, context=context)
    server.cache = cache
    assert (await provider.describe()).capabilities.reread == again
    sent = [body["prompt"] for path, body in server.requests if path == "/completion"]
    assert len([prompt for prompt in sent if len(prompt) > 1]) == requests
