"""The TGI adapter against a stand-in with toy models, each of whose answers is held against the published document."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_providers import (
    Capabilities,
    ContextLengthError,
    DraftEnd,
    InvalidRequestError,
    Message,
    ModelChoiceError,
    ProviderError,
    Question,
    RateLimitError,
    ResponseError,
    ServerError,
    Token,
    UnsupportedError,
    Usage,
)
from cosd_providers.contract import Context
from cosd_providers.engines.openai.probe_client import RawRequest
from cosd_providers.engines.tgi import Tgi, TgiClient, TgiFacts
from cosd_providers.engines.tgi_wire import EncodedText, TgiEncoding, TgiEvent
from cosd_providers.http.transport import Transport
from cosd_providers.testing import ScriptedProvider, TableModel, TextModel
from fakes import tgi as stand_in_tgi
from fakes.adapters import Tidy
from fakes.breaking import Break, Breaking, breaks, waiting
from fakes.tgi import StandInTgi
from toys import toy_models as toys

URL = "http://gpu:8080"


@pytest.fixture(autouse=True)
def nothing_breaks_the_document() -> Iterator[None]:
    """Whatever a test asks and is answered is as the document says."""
    stand_in_tgi.VIOLATIONS.clear()
    yield
    assert stand_in_tgi.VIOLATIONS == []


def fake(scripts: dict[str, list[Any]], **options: Any) -> tuple[StandInTgi, Tgi]:
    server = StandInTgi(TextModel(scripts), **options)
    return server, Tgi(URL, http_client=server.client())


def over(model: Tidy, **options: Any) -> Tgi:
    server = StandInTgi(model, beginning=len(model.tokens), loses=False, **options)
    return Tgi(URL, http_client=server.client())


def scripted(model: Tidy) -> ScriptedProvider:
    return ScriptedProvider(model, token_ids=False)


async def draft(provider: Any, prompt: str = "Q", text: bytes = b"", limit: int = 20, **more: Any) -> list[Any]:
    usage = more.pop("usage", Usage())
    return [item async for item in provider.generate(Context(prompt, text), max_tokens=limit, usage=usage, **more)]


async def ask(provider: Any, prompt: str, text: bytes, *questions: Question, usage: Usage | None = None) -> list[Any]:
    return list(await provider.propose(Context(prompt, text), questions, usage=usage or Usage()))


def near(prob: float) -> Any:
    """A probability that went through a logarithm of 32 bits."""
    return pytest.approx(prob, rel=1e-6)


def close(ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    """Equal tokens, with probabilities equal but for the rounding of a logarithm."""
    assert [t.data for t in ours] == [t.data for t in theirs]
    assert [t.end for t in ours] == [t.end for t in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert (one.prob is None) == (other.prob is None)
        assert other.prob is None or one.prob == near(other.prob)


def asked(server: StandInTgi, path: str) -> list[Any]:
    return [body for where, body in server.requests if where == path]


# Against toy models: whatever they do, the adapter gives what the model itself would.

tidy = st.builds(Tidy, toys.models(may_hide_end=False), st.booleans())
some = toys.prompts().filter(bool)


async def test_alternatives() -> None:
    """As many as the server lists; never the end, nor what may have lost its space."""
    probs = {b" a": 0.4, b" b": 0.25, b"c": 0.12, b"\xc3": 0.1, b"<|stop|>": 0.08, b"": 0.05}
    model = TableModel([*probs, b"Q", b"a"], lambda ids: [*probs.values(), 0.0, 0.0], end_ids=(5,))
    server = StandInTgi(model)
    provider = Tgi(URL, http_client=server.client())
    told = (Token(b" b", near(0.25)), Token(b"c", near(0.12)))
    for count in (0, 1, 2, 9):
        first, *_ = await draft(provider, limit=1, alternatives=count)
        assert first.alternatives == told[:count]
    bodies = asked(server, "/generate_stream")
    assert [body["parameters"].get("top_n_tokens") for body in bodies] == [1, 2, 3, 5]
    bare = TableModel([b"c", b"a", b"d", b"Q"], lambda ids: [0.5, 0.3, 0.2, 0.0])
    first, *_ = await draft(Tgi(URL, http_client=StandInTgi(bare).client()), limit=1, alternatives=2)
    assert (first.data, first.alternatives) == (b"c", ())


async def test_proposals_and_scores_have_no_alternatives() -> None:
    server, provider = fake({"Q": [" a", (" b", 0.6)]}, prefill=True)
    able = (await provider.describe()).capabilities
    assert (able.top_k, able.score_top_k, able.sampling) == (0, 0, False)
    [found] = await provider.propose(Context("Q", b""), [Question(0, (b"x",))], alternatives=9, usage=Usage())
    assert found is not None
    assert found.tokens == (Token(b" a", 1.0),)
    scored = await provider.score(Context("Q", b" a b"), alternatives=9, usage=Usage())
    assert scored == await provider.score(Context("Q", b" a b"), usage=Usage())
    assert {body["parameters"]["top_n_tokens"] for _, body in server.requests if body and "parameters" in body} == {5}
    with pytest.raises(UnsupportedError, match=r"not known to draw tokens .* Use a method that drafts greedily"):
        await draft(provider, temperature=1, seed=1)


@pytest.mark.parametrize("name", ["</s>", "<|halt|>"])
@pytest.mark.parametrize("special", [True, False])
async def test_the_end_of_a_text(name: str, special: bool) -> None:
    """It has a probability where it is listed and known to be an end; a common name is known at once."""
    probs = {b" a": 0.5, b"": 0.3, b" b": 0.2}
    later = [0.1, 0.8, 0.1]
    model = TableModel([*probs, b"Q", b"a"], lambda ids: [*(later if len(ids) > 2 else probs.values()), 0, 0], (1,))
    server = StandInTgi(model, prefill=True, specials={1: name}, end_is_special=special)
    provider = Tgi(URL, http_client=server.client())
    *_, end = await provider.score(Context("Q", b" a"), end=True, usage=Usage())
    assert (end.end, end.prob) == (True, near(0.3) if name == "</s>" else None)
    *_, end = await provider.score(Context("Q", b" a a"), end=True, usage=Usage())
    assert end == Token(b"", near(0.8), end=True, name=name)
    *_, end = await provider.score(Context("Q", b" a"), end=True, usage=Usage())
    assert end == Token(b"", near(0.3), end=True, name=name)
    assert await provider.score(Context("Q a", b""), end=True, usage=Usage()) == [end]
    assert await provider.score(Context("Q a", b""), usage=Usage()) == []


@st.composite
def inquiries(draw: st.DrawFn) -> tuple[bytes, bytes, list[Question]]:
    """A prompt, a text, and questions within it."""
    words = st.text(st.sampled_from(toys.CHARACTERS), min_size=1, max_size=4).map(str.encode)
    tokens = draw(st.lists(words, max_size=8))
    places = []
    for cut in draw(st.lists(st.integers(0, len(tokens)), max_size=4)):
        judged = tuple(tokens[cut : cut + 3]) or draw(st.sampled_from(((b"",), (b"a",))))
        places.append(Question(len(b"".join(tokens[:cut])), judged, word=draw(st.booleans())))
    return draw(some), b"".join(tokens), places


@given(toys.models(), some)
async def test_tokens_spell_the_text(model: toys.ToyModel, text: bytes) -> None:
    pieces = await over(Tidy(model, by_text=True)).tokenize(text.decode())
    assert [piece.id for piece in pieces] == list(model.vocabulary.encode(text))
    assert b"".join(piece.data for piece in pieces) == text


@pytest.mark.parametrize(
    "spans",
    [
        # Every part of a character stands where all of it stands: tokens that are bytes.
        [(0, 0), (0, 1), (1, 5), (2, 5), (2, 5), (5, 7), (5, 8)],
        # All parts but the last one have no width: single bytes for what is not in the vocabulary.
        [(0, 0), (0, 1), (1, 2), (2, 2), (2, 5), (5, 5), (5, 8)],
    ],
)
def test_offsets_become_bytes(spans: list[tuple[int, int]]) -> None:
    raw = TgiEncoding.model_validate([{"id": n, "start": a, "stop": b} for n, (a, b) in enumerate(spans)])
    own = EncodedText.of(raw, "a 一éb", (0,))
    assert own.ids == [1, 2, 3, 4, 5, 6]
    assert own.all == [0, 1, 2, 3, 4, 5, 6]
    widths = [b"a", b"", b"", " 一".encode(), b"", "éb".encode()]
    if spans[2] == (1, 2):
        widths = [b"a", b" ", b"", "一".encode(), b"", "éb".encode()]
    assert own.data == widths


def test_text_that_no_token_covers_is_kept() -> None:
    raw = TgiEncoding.model_validate([{"id": 1, "start": 0, "stop": 1}, {"id": 2, "start": 3, "stop": 4}])
    assert EncodedText.of(raw, "a  b ", ()).data == [b"a", b"  b "]


async def test_a_token_without_text_leaves_a_character_open_unless_it_is_empty_by_itself() -> None:
    _, provider = fake({})
    client = TgiClient(Transport(URL), {})
    client.facts = TgiFacts(await provider.describe(), 99, (), prefill=False, top=5)
    for alone, unfinished in (("\ufffd", True), ("", False), (None, True)):
        word = {"id": 5, "text": "", "logprob": -1.0, "special": False}
        top = [{**word, "id": 6} if alone is None else {**word, "text": alone}]
        position = client.position(TgiEvent.model_validate({"token": word, "index": 1, "top_tokens": top}))
        assert (position.pick.token.data, position.pick.open) == (b"", unfinished)


# What goes over the wire.


async def test_what_a_draft_asks() -> None:
    server, provider = fake({"Q": [" a", (" b", 0.4)]})
    assert await draft(provider, limit=1) == [Token(b" a", 1.0), DraftEnd("limit")]
    assert asked(server, "/generate_stream") == [
        {
            "inputs": "Q",
            "parameters": {
                "do_sample": False,
                "watermark": False,
                "return_full_text": False,
                "details": True,
                "decoder_input_details": False,
                "max_new_tokens": 1,
                "top_n_tokens": 1,
            },
        }
    ]


async def test_a_draft_goes_on_from_text() -> None:
    server, provider = fake({"Q": [" a", (" b", 0.4), " c"]})
    assert (await draft(provider, limit=2))[-1] == DraftEnd("limit", None)
    ours = await draft(provider, text=b" a b")
    assert ours == [Token(b" c", 1.0), Token(b"", 1.0, end=True, name="</s>"), DraftEnd("end")]
    assert asked(server, "/generate_stream")[-1]["inputs"] == "Q a b"


async def test_a_character_of_several_tokens_is_as_sure_as_its_least_sure_part() -> None:
    server, provider = fake({"Q": [b" \xf0", (b"\x9f\x98", 0.3), (b"\x80", 0.9), "!"]})
    assert await draft(provider, limit=2) == [Token(" 😀".encode(), near(0.3)), Token(b"!", 1.0), DraftEnd("limit")]
    # The same text again with more tokens, past those that are known: a part of a character cannot be sent.
    sent = [(one["inputs"], one["parameters"]["max_new_tokens"]) for one in asked(server, "/generate_stream")]
    assert sent == [("Q", 2), ("Q", 8)]
    [proposal] = await ask(provider, "Q", b"", Question(0, (b"x",)))
    assert proposal.tokens == (Token(" 😀".encode(), near(0.3)),)


async def test_bytes_that_are_no_characters() -> None:
    server, provider = fake({"Q": [" a", b"\xff", "b", "c"]})
    assert b"".join(token.data for token in (await draft(provider))[:-1]) == b" abc"
    await draft(provider, text=b" a\xff", limit=1)
    assert asked(server, "/generate_stream")[-1]["inputs"] == "Q a"


async def test_special_tokens_have_no_bytes() -> None:
    server, provider = fake({"Q": ["a", "b", "c"]})
    server.specials = {server.model.encode(b"b")[0]: "<|mark|>"}
    assert await draft(provider) == [
        Token(b"a", 1.0),
        Token(b"c", 1.0),  # the special one belongs to what follows
        Token(b"", 1.0, end=True, name="</s>"),
        DraftEnd("end"),
    ]


@pytest.mark.parametrize("special", [True, False])
async def test_an_end_that_is_the_last_token_asked_for(special: bool) -> None:
    """The server says "length" of it: one token more is asked for, once, to see."""
    server, provider = fake({"Q": ["a", "b"]}, end_is_special=special, prefill=True)
    end = Token(b"", 1.0, end=True, name="</s>")
    for known in (False, True):
        await provider.describe()
        server.requests.clear()
        usage = Usage()
        [proposal] = await ask(provider, "Q", b"ab", Question(2, (b"c",)), usage=usage)
        assert proposal.tokens == (end,)
        singles = [body["parameters"]["max_new_tokens"] for path, body in server.requests if "generate" in path]
        assert singles == ([1] if known else [1, 2])
        assert (usage.requests, usage.completion_tokens) == ((1, 1) if known else (2, 2))
    _, provider = fake({"Q": ["a", "b"]}, end_is_special=special)
    assert await draft(provider, limit=3) == [Token(b"a", 1.0), Token(b"b", 1.0), end, DraftEnd("end")]


@pytest.mark.parametrize("special", [True, False])
async def test_an_end_in_a_chat_is_no_text(special: bool) -> None:
    server, provider = fake({"Q": ["a"]}, end_is_special=special, template=("", ""))
    rendered = await provider.render_prompt([Message("user", "Q")])
    assert rendered.provider is not None
    items = [one async for one in rendered.provider.generate(Context("Q", b""), max_tokens=2, usage=Usage())]
    assert items == [Token(b"a", 1.0), Token(b"", 1.0, end=True, name="</s>"), DraftEnd("end")]
    [proposal] = await ask(rendered.provider, "Q", b"a", Question(1, (b"b",)))
    assert proposal.tokens[0].end
    assert server.read


async def test_a_special_token_that_does_not_end_is_asked_for_once() -> None:
    server, provider = fake({"Q": ["a", "b", "c"]})
    server.specials = {server.model.encode(b"b")[0]: "<|mark|>"}
    await provider.describe()
    for more in (1, 0):
        server.requests.clear()
        assert await draft(provider, limit=1, text=b"a") == [Token(b"c", 1.0), DraftEnd("limit")]
        assert len(asked(server, "/generate")) == more


async def test_an_end_where_the_context_ends() -> None:
    """There is no room to ask for one token more."""
    _, provider = fake({"Q": ["a", "b"]}, max_total=4, max_input=3)
    assert (await draft(provider))[2:] == [Token(b"", 1.0, end=True, name="</s>"), DraftEnd("end")]
    _, provider = fake({"Q": ["a", "<b>", "c"]}, max_total=3, max_input=2)  # which only looks like one
    assert await draft(provider) == [Token(b"a", 1.0), Token(b"<b>", 1.0), DraftEnd("context")]
    assert await draft(provider, limit=1, text=b"a") == [Token(b"<b>", 1.0), DraftEnd("limit")]


async def test_an_end_without_a_number_is_refused() -> None:
    _, provider = fake({"Q": ["a"]}, end="nan")
    for call in (draft(provider), ask(provider, "Q", b"a", Question(1, (b"b",), word=True))):
        with pytest.raises(ResponseError, match="no usable probability: its logarithm is missing"):
            await call


async def test_positions_behind_characters_of_several_bytes() -> None:
    _, provider = fake({"Q é": [" dég", "uster", " un"]}, prefill=True)
    pieces = await provider.tokenize("Q é dég")
    assert b"".join(piece.data for piece in pieces) == "Q é dég".encode()
    text = " dégustern".encode()
    assert b"".join(token.data for token in await provider.score(Context("Q é", text), usage=Usage())) == text
    everywhere = await provider.propose(Context("Q é", " dég".encode()), None, usage=Usage())
    said = {one.start: one.tokens[0].data for one in everywhere if one}
    assert (said[0], said[5]) == (" dég".encode(), b"uster")


async def test_a_server_that_lists_fewer_tokens() -> None:
    server, provider = fake({"Q": [" a"]}, max_top=2)
    await ask(provider, "Q", b"", Question(0, (b" a",)))
    tops = [one["parameters"].get("top_n_tokens") for path, one in server.requests if path.startswith("/generate")]
    assert tops == [5, 2, 2]


async def test_a_tie_is_resolved_in_favour_of_the_draft() -> None:
    model = TextModel({"Q": ["a", "b", "c"], "Qd": ["e", "f"]})
    plain = model.next
    ids = {data: n for n, data in enumerate(model.tokens)}

    def tied(given: Sequence[int]) -> list[float]:
        probs = list(plain(given))
        if list(given) == [ids[b"Q"]]:
            for data in (b"a", b"d", b"1", b"2", b"3", b"4", b"5"):  # more of them than are asked for
                probs[ids[data]] = 0.125
        return probs

    model.next = tied
    server = StandInTgi(model)
    provider = Tgi(URL, http_client=server.client())
    [one] = await ask(provider, "Q", b"", Question(0, (b"d", b"e"), word=True))
    assert [token.data for token in one.tokens] == [b"d", b"e"]
    assert [one["inputs"] for one in asked(server, "/generate_stream")] == ["Q", "Qd"]


@pytest.mark.parametrize("strips", [False, True])
async def test_listed_tokens_that_lose_their_space_are_not_compared(strips: bool) -> None:
    """Some tokenizers write the space before a word only inside a text: alone, " d" and "d" look alike."""
    server, _ = fake({"Q": [" a", " d", "d", " e"]})
    half = {data: n for n, data in enumerate(server.model.tokens) if data in (b" a", b" d")}
    server.model.next = lambda ids: [0.5 if n in half.values() else 0.0 for n in range(len(server.model.tokens))]  # type: ignore[method-assign]

    def alone(event: dict[str, Any]) -> None:
        for listed in event.get("top_tokens", []):
            listed["text"] = listed["text"].strip() if strips else listed["text"]

    provider = Tgi(URL, http_client=server.client(changed(alone)))
    [one] = await ask(provider, "Q", b"", Question(0, (b"d",)))
    assert one.tokens[0].data == b" a"
    [one] = await ask(provider, "Q", b"", Question(0, (b" d",)))
    assert one.tokens[0].data == (b" a" if strips else b" d")


async def test_extra_body() -> None:
    server = StandInTgi(TextModel({"Q": ["a"]}))
    provider = Tgi(URL, extra_body={"adapter_id": "mine"}, http_client=server.client())
    await draft(provider, limit=1)
    assert asked(server, "/generate_stream")[0]["parameters"]["adapter_id"] == "mine"
    with pytest.raises(ValueError, match=r"extra_body cannot set temperature, truncate: the fusion sets it itself"):
        Tgi(URL, extra_body={"temperature": 0.7, "truncate": 5})


# What it is.


async def test_description() -> None:
    server, provider = fake({}, max_total=512, template=("<|user|>", "<|end|>\n<|assistant|>"))
    info = await provider.describe()
    assert (info.engine, info.endpoint, info.model, info.build) == ("tgi", URL, "toys/toy", "3.3.6-dev0")
    assert (info.context, info.answer_cue) == (512, "<|end|>\n<|assistant|>")
    assert info.capabilities == Capabilities(token_ids=False, end_prob=True, tokenize=True, score=False)
    count = len(server.requests)
    await provider.describe()
    assert len(server.requests) == count
    _, other = fake({}, prefill=True)
    assert (await other.describe()).capabilities.score
    assert (await other.describe()).answer_cue is None


async def test_the_longest_prompt_and_who_asks_for_it() -> None:
    server, _ = fake({}, max_input=70, max_total=99)

    async def handle(request: httpx.Request) -> httpx.Response:
        await anyio.lowlevel.checkpoint()
        return server.handle(request)

    provider = Tgi(URL, http_client=httpx.AsyncClient(transport=httpx.MockTransport(handle)))
    async with anyio.create_task_group() as group:
        for _ in range(9):
            group.start_soon(provider.describe)
    info = await provider.describe()
    assert (info.longest_prompt, info.context) == (70, 99)
    paths = [path for path, _ in server.requests]
    assert sorted(paths) == ["/chat_tokenize", "/generate", "/info", "/tokenize"]


async def test_models() -> None:
    server, _ = fake({})
    named = Tgi(URL, model="toys/toy", http_client=server.client())
    assert (await named.describe()).model == "toys/toy"
    assert named.name == "toys/toy@gpu:8080"
    with pytest.raises(ModelChoiceError, match=r"no model 'tiny'; the server has 'toys/toy'\. Give that as `model`"):
        await Tgi(URL, model="tiny", http_client=server.client()).describe()


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(404, json={"detail": "Not Found"}),
        httpx.Response(200, html="<html>"),
        httpx.Response(200, json={"model_id": "x"}),
    ],
)
async def test_not_tgi(response: httpx.Response) -> None:
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: response))
    with pytest.raises(UnsupportedError, match="does not look like TGI"):
        await Tgi(URL, http_client=client).describe()


async def test_backends_without_usable_numbers_are_refused() -> None:
    _, provider = fake({"Q": ["a"]}, backend="neuron")
    with pytest.raises(UnsupportedError, match="does not list the most probable tokens, although asked"):
        await provider.describe()
    _, provider = fake({"Q": ["a"]}, backend="llamacpp", max_top=0)
    with pytest.raises(
        UnsupportedError, match=r"does not list the most probable tokens, so.* use llama.cpp's own server"
    ):
        await provider.describe()


async def test_a_server_that_does_not_list_what_was_asked_for() -> None:
    provider = spoilt(lambda event: event.get("index") and event.pop("top_tokens", None))
    await provider.describe()
    for call in (draft(provider), ask(provider, "Q", b"", Question(0, (b"x",)))):
        with pytest.raises(UnsupportedError, match="does not list the most probable tokens, although asked"):
            await call


async def test_a_server_that_does_not_take_the_most_probable_token() -> None:
    def sampled(event: dict[str, Any]) -> None:
        if event.get("index"):
            event["token"]["logprob"] = -1.0

    for call in (draft(spoilt(sampled)), ask(spoilt(sampled), "Q", b"", Question(0, (b"x",)))):
        with pytest.raises(UnsupportedError, match="does not take the most probable token"):
            await call


async def test_a_probe_sees_what_is_sampled() -> None:
    def sampled(event: dict[str, Any]) -> None:
        if event.get("index"):
            event["token"]["logprob"] = -1.0

    client = await spoilt(sampled).probe_client()
    [reply] = await client.send(RawRequest(["Q"], temperature=2.0), Usage())
    assert [position.pick.token.prob for position in reply.positions] == [near(math.exp(-1))]


async def test_an_encoder_decoder_is_refused() -> None:
    _, provider = fake({"Q": ["a"]}, encoder=True, prefill=True)
    with pytest.raises(UnsupportedError, match=r"does not read the tokens of its prompt.* encoder-decoder"):
        await provider.describe()


async def test_a_server_without_probabilities_of_the_prompt() -> None:
    _, provider = fake({"Q": ["a"]})
    with pytest.raises(UnsupportedError, match=r"for the tokens of a prompt. Start it with --enable-prefill-log"):
        await provider.score(Context("Q", b"a"), usage=Usage())


async def test_a_server_without_a_fast_tokenizer_is_refused() -> None:
    _, provider = fake({"Q": [" a"]}, fast=False)
    words = r"does not report the positions of tokens \(/tokenize\)\. Serve a model that has a fast tokenizer"
    with pytest.raises(UnsupportedError, match=words):
        await provider.describe()


# Ends, limits, and texts that are cut.


async def test_the_context_is_full() -> None:
    server, provider = fake({"Q": [" a"] * 9}, max_total=6, max_input=5)
    assert await draft(provider) == [*[Token(b" a", 1.0)] * 5, DraftEnd("context")]
    assert asked(server, "/generate_stream")[-1]["parameters"]["max_new_tokens"] == 5
    assert await draft(provider, text=b" a a a a a") == [DraftEnd("context")]
    with pytest.raises(ContextLengthError, match=r"the text has 11 tokens; the server takes at most 5, and 6 with"):
        await draft(provider, prompt="Q Q Q Q Q Q")
    for call in (
        provider.score(Context("Q", b" a a a a a"), usage=Usage()),
        ask(provider, "Q", b" a a a a a", Question(10, (b" a",))),
    ):
        server.prefill = True
        with pytest.raises((ContextLengthError, UnsupportedError)):
            await call


async def test_an_assistant_whose_context_ends_says_what_still_fits() -> None:
    for context in range(3, 9):
        _, provider = fake({"Q": [" x", "y", "z", "w"]}, max_total=context, max_input=context - 1)
        [one] = await ask(provider, "Q", b" a", Question(0, (b" a",), word=True))
        written = b"".join(token.data for token in one.tokens)
        assert written == b" xyzw"[: min(context, 5)]
    _, provider = fake({"Q": [" x"]}, max_total=4, max_input=3)
    with pytest.raises(ContextLengthError, match="has 4 tokens; the server takes at most 3"):
        await ask(provider, "Q", b" x x x", Question(0, (b" x",)), Question(6, (b" x",)))


async def test_a_text_that_the_server_cuts_is_refused() -> None:
    for prefill in (False, True):
        server, provider = fake({"Q": [" a"] * 9}, prefill=prefill)
        await provider.describe()
        server.cut = 2
        words = r"the server cut the text: it read 2 of 4 tokens. Shorten the prompt, or"
        with pytest.raises(ContextLengthError, match=words):
            await draft(provider, text=b" a a a", limit=1)
        with pytest.raises(ContextLengthError, match=words):
            await ask(provider, "Q", b" a a a", Question(2, (b" a",)), Question(6, (b" a",)))
        if prefill:
            with pytest.raises(ContextLengthError, match=words):
                await provider.score(Context("Q", b" a a a"), usage=Usage())


async def test_nothing_to_go_on_from() -> None:
    _, provider = fake({"": ["a"]})
    with pytest.raises(InvalidRequestError, match="`inputs` cannot be empty"):
        await draft(provider, prompt="")


# Errors, in the server's own five words.


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("overloaded", RateLimitError, "429: Model is overloaded"),
        ("generation", ServerError, "424: Request failed during generation: Server error: CUDA out of memory"),
        ("incomplete_generation", ServerError, "500: Incomplete generation"),
    ],
)
async def test_what_may_pass_is_tried_again(
    no_waiting: list[float], kind: str, error: type[ProviderError], words: str
) -> None:
    for run in (
        lambda provider, usage: draft(provider, limit=1, usage=usage),
        lambda provider, usage: ask(provider, "Q", b" a", Question(0, (b" a",)), usage=usage),
        lambda provider, usage: provider.score(Context("Q", b" a"), usage=usage),
    ):
        server, provider = fake({"Q": [" a", " b"]}, prefill=True)
        await provider.describe()
        server.faults = [(kind, 0)] * 2
        usage = Usage()
        await run(provider, usage)
        assert (usage.requests, usage.retries) == (1, 2)
        assert len(no_waiting) == 2
        server.faults = [(kind, 0)] * 4
        with pytest.raises(error, match=words) as caught:
            await run(provider, Usage())
        assert caught.value.retryable
        assert not server.faults
        no_waiting.clear()


async def test_an_error_in_the_middle_of_a_stream(no_waiting: list[float]) -> None:
    server, provider = fake({"Q": [" a", " b"]})
    await provider.describe()
    server.faults = [("generation", 1)]
    usage = Usage()
    found = await draft(provider, limit=9, usage=usage)
    assert [token.data for token in found[:-1]] == [b" a", b" b", b""]
    assert (usage.requests, usage.retries, len(no_waiting)) == (1, 1, 1)
    server.faults = [("generation", 1)] * 2 + [("generation", 0)] * 2
    tokens = provider.generate(Context("Q", b""), max_tokens=9, usage=Usage())
    assert await anext(tokens) == Token(b" a", 1.0)
    with pytest.raises(ServerError, match=r"424: Request failed during generation.* \(tried 4 times\)"):
        await anext(tokens)


async def test_what_is_refused_is_not_tried_again(no_waiting: list[float]) -> None:
    server, provider = fake({"Q": ["a"]})
    await provider.describe()
    server.max_top = 0
    with pytest.raises(InvalidRequestError, match="422: Input validation error: `top_n_tokens` must be >= 0 and <= 0"):
        await ask(provider, "Q", b"", Question(0, (b"a",)))
    server.max_top, server.max_total, server.max_input = 5, 2, 1
    with pytest.raises(ContextLengthError, match=r"`inputs` tokens \+ `max_new_tokens` must be <= 2. Given: 1 "):
        await draft(provider)
    server.max_total = 9
    with pytest.raises(ContextLengthError, match=r"`inputs` must have less than 1 tokens. Given: 2"):
        await draft(provider, prompt="Qa", limit=1)
    assert no_waiting == []


def test_the_stand_in_refuses_what_real_servers_refuse() -> None:
    server = StandInTgi(TextModel({"Q": ["a"]}))
    refused: list[tuple[dict[str, Any], str]] = [
        ({"max_new_tokens": 0}, "`max_new_tokens` must be strictly positive"),
        ({"top_n_tokens": 6}, "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
        ({"max_new_tokens": 9999}, "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 1 `inputs` tokens"),
    ]
    for wrong, words in refused:
        answer = server.answer("POST", "/generate", {"inputs": "Q", "parameters": wrong})
        assert answer.status == 422
        assert words in str(answer.body)
    stream = server.answer("POST", "/generate_stream", {"inputs": "Q", "parameters": {"decoder_input_details": True}})
    assert stream.events is not None
    assert [event["error_type"] for event in stream.events] == ["validation"]
    assert server.answer("GET", "/v1/other", None).status == 404
    assert stand_in_tgi.VIOLATIONS == []
    # What the document itself forbids does not pass unseen.
    forbidden: list[dict[str, Any]] = [{"temperature": 0}, {"max_new_tokens": "1"}, {"unknown": 1}, {"stop": ["a"] * 5}]
    for wrong in forbidden:
        assert server.answer("POST", "/generate", {"inputs": "Q", "parameters": wrong}).status == 500
    assert len(stand_in_tgi.VIOLATIONS) == 4
    stand_in_tgi.VIOLATIONS.clear()


# Answers that are wrong.


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[httpx.Response], httpx.Response]:
    """Changes every event and answer of a generation, in place."""

    def answer(response: httpx.Response) -> httpx.Response:
        if "event-stream" in response.headers.get("content-type", ""):
            events = [json.loads(line[5:]) for line in response.text.split("\n\n") if line]
            for event in events:
                change(event)
            text = "".join(f"data:{json.dumps(event)}\n\n" for event in events)
            return httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})
        body = response.json()
        if isinstance(body, dict) and "generated_text" in body:
            change(body)
        return httpx.Response(response.status_code, json=body)

    return answer


def spoilt(change: Callable[[dict[str, Any]], object], script: Sequence[Any] = (" a", " b"), **options: Any) -> Tgi:
    """A provider whose every event or answer of a generation is changed."""
    server = StandInTgi(TextModel({"Q": script}), **options)
    return Tgi(URL, http_client=server.client(changed(change)))


async def test_a_stream_that_ends_too_early(no_waiting: list[float]) -> None:
    server, provider = fake({"Q": [" a", " b"]})
    server.broken = 0
    with pytest.raises(ResponseError, match=r"the stream ended before the answer did \(tried 4 times\)") as caught:
        await draft(provider)
    assert caught.value.retryable
    server.broken = 1  # at each token: what was written once more is followed by the text
    server.requests.clear()
    found = await draft(provider, limit=2)
    assert [token.data for token in found[:-1]] == [b" a", b" b"]
    asked = [body["inputs"] for path, body in server.requests if path == "/generate_stream"]
    assert asked == ["Q", "Q", "Q a"]


async def test_shapes_that_are_wrong() -> None:
    with pytest.raises(ResponseError, match="the answer is not as expected: token: Field required"):
        await draft(spoilt(lambda event: event.pop("token", None)))
    with pytest.raises(ResponseError, match="the answer is not as expected: details: Input should be"):
        await draft(spoilt(lambda event: event.update(details=None)))
    with pytest.raises(UnsupportedError, match="does not take the most probable token, although asked for greedy"):
        await draft(spoilt(lambda event: "index" in event and event["token"].update(logprob=-1.0)))
    with pytest.raises(UnsupportedError, match="stops at a text of its own"):
        await draft(spoilt(lambda event: "index" in event and event.update(details=STOPPED)))
    provider = spoilt(lambda answer: "index" not in answer and answer["details"]["prefill"].reverse(), prefill=True)
    with pytest.raises(ResponseError, match="not those of /tokenize"):
        await provider.score(Context("Q", b" a"), usage=Usage())


STOPPED = {"finish_reason": "stop_sequence", "generated_tokens": 1, "input_length": 1}


async def test_a_server_that_says_something_else_when_asked_again() -> None:
    count = iter(range(1000, 2000))

    def other(event: dict[str, Any]) -> None:
        if "token" in event:
            event["token"]["id"] = next(count)
            event["token"]["text"] = "" if event["details"] is None else "x"

    assert (await draft(spoilt(other, "abcdefgh"), limit=2))[0].data == b"x"
    provider = spoilt(other, "abcdefgh")
    [one] = await ask(provider, "Q", b"", Question(0, (b"xx", b"y"), word=True))
    assert [token.data for token in one.tokens] == [b"x"]


async def test_what_was_given_out_stands_when_the_server_writes_something_else() -> None:
    """Under load arithmetic is not the same twice: asked again, the fourth token is another one."""
    first = ["abcdefgh"[n] for n in range(8)]
    server, provider = fake({"Q": [*first[:4], b"\xf0\x9f", b"\x98\x80", "i", "j"], "Qabce": ["z"] * 20})
    model: Any = server.model
    plain = model.next

    def following(ids: Sequence[int]) -> Sequence[float]:
        again = len(asked(server, "/generate_stream")) == 2
        return plain(ids) if not again or len(ids) != 4 else [0.0, *plain(ids)[:-1]]

    model.next = following
    ours = await draft(provider, limit=7)
    sent = [(one["inputs"], one["parameters"]["max_new_tokens"]) for one in asked(server, "/generate_stream")]
    assert b"".join(token.data for token in ours[:-1]) == "abcd😀ij".encode()
    assert [at for at, _ in sent] == ["Q", "Q", "Qabcd😀i"]
    assert sent[0][1] == 7
    assert sent[2][1] == 1
    assert ours[-1] == DraftEnd("limit")


@pytest.mark.usefixtures("no_waiting")
async def test_a_server_that_stops_before_it_should() -> None:
    """Nothing is known that does this; whatever does must not be asked for ever."""
    server, provider = fake({"Q": ["a", "b", "c", "d"]})
    server.most = 2
    assert b"".join(token.data for token in (await draft(provider))[:-1]) == b"abcd"
    assert [one["inputs"] for one in asked(server, "/generate_stream")] == ["Q", "Qab", "Qabcd"]
    server, provider = fake({"Q": [b"\xf0\x9f", b"\x98\x80"]})
    server.most = 1
    with pytest.raises(ResponseError, match="stopped without a token and without a reason") as caught:
        await draft(provider)
    assert caught.value.retryable


@pytest.mark.parametrize(("script", "most"), [("中文字" * 60, 1.6), ("a中b文 c" * 40, 2.0), ("😀" * 60, 1.6)])
async def test_characters_of_several_tokens_take_two_requests(script: str, most: float) -> None:
    data = script.encode()
    _, provider = fake({"Q": [data[at : at + 1] for at in range(len(data))]})
    usage = Usage()
    ours = await draft(provider, limit=60, usage=usage)
    assert b"".join(token.data for token in ours[:-1]) == script[:60].encode()
    assert usage.requests <= 3
    assert usage.completion_tokens < most * len(script[:60].encode())


async def test_a_long_prompt_is_counted_once() -> None:
    prompt = "abcd " * 600
    for context, count in ((9000, 1), (1500, 1)):  # it surely fits; it fits only once it is counted
        server, provider = fake(
            {"~": ["abcd "], prompt: [" a", " b", " c"], "Q" * 80: ["a", "b"]},
            max_total=context,
            max_input=context - 1,
            prefill=True,
        )
        await provider.describe()
        server.requests.clear()
        for text in (b"", b" a", b" a x", b" y"):
            unfinished: Any = provider.generate(Context(prompt, text), max_tokens=9, usage=Usage())
            await anext(unfinished)
            await unfinished.aclose()
            await ask(provider, prompt, text, Question(len(text), (b"x",), word=True))
        assert len(asked(server, "/tokenize")) == count
    # Where that is not enough to know that it fits, there is another count.
    await draft(provider, prompt, b" x" * 450, limit=9)
    assert len(asked(server, "/tokenize")) == count + 1
    # A question is read to its end, which tells it.
    other = Tgi(URL, http_client=server.client())
    await other.describe()
    server.requests.clear()
    server.max_total, usage = 9000, Usage()
    await ask(other, "Q" * 80, b"", Question(0, (b"x",)), usage=usage)
    assert (len(asked(server, "/tokenize")), usage.prompt_tokens) == (0, 80)


async def test_a_draft_that_is_left_early_is_billed_by_what_is_known() -> None:
    prompt = "abcd " * 600
    _, provider = fake({"~": ["abcd "], prompt: [" a", " b", " c", " d"]})
    # The prompt is counted; a text that continues it is not, as that costs the server time.
    for text, tokens, estimated in ((b"", 600, 0), (b" a", 606, 606), (b" a b", 608, 608)):
        usage = Usage()
        unfinished: Any = provider.generate(Context(prompt, text), max_tokens=9, usage=usage)
        await anext(unfinished)
        await unfinished.aclose()
        assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (1, tokens, 1)
        assert usage.estimated_tokens == estimated
    usage = Usage()
    await draft(provider, prompt, b" a b", usage=usage)
    assert usage.prompt_tokens == 602  # as the end tells


async def test_only_a_few_encodings_are_kept() -> None:
    server, provider = fake({})
    await provider.describe()
    for at in range(9):
        await provider.tokenize(f"text {at}")
    server.requests.clear()
    for at in (5, 6, 7, 8, 4):
        await provider.tokenize(f"text {at}")
    assert server.requests == [("/tokenize", {"inputs": "text 4"})]


async def test_no_prompt_is_pickled() -> None:
    server, provider = fake({"Q": [" a", " secret"]})
    assert len(await draft(provider)) == 4
    await provider.tokenize("Q a secret")
    data = pickle.dumps(provider)
    assert b"secret" not in data
    server.requests.clear()
    with pytest.raises(ProviderError):  # without its client it reaches no server
        await pickle.loads(data).tokenize("Q a secret")


# Usage, and what is under way.


async def test_usage() -> None:
    _, provider = fake({"Q": [" a", " b", " c"]}, beginning=999)
    usage = Usage()
    await draft(provider, usage=usage)
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (1, 2, 4)
    usage = Usage()
    unfinished: Any = provider.generate(Context("Q", b" a"), max_tokens=9, usage=usage)
    await anext(unfinished)
    await unfinished.aclose()
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (1, 3, 1)


# Streams that break.


@given(tidy, inquiries(), breaks(3))
async def test_questions_whose_streams_break(
    model: Tidy, inquiry: tuple[bytes, bytes, list[Question]], faults: list[Break]
) -> None:
    prompt, text, questions = inquiry
    server = StandInTgi(model, beginning=len(model.tokens), loses=False)
    expected = await ask(Tgi(URL, http_client=server.client()), prompt.decode(), text, *questions)
    breaking = Breaking(server.handle, *faults)
    with pytest.MonkeyPatch.context() as patch:
        waiting(patch)
        provider, usage = Tgi(URL, http_client=breaking.client()), Usage()
        assert await ask(provider, prompt.decode(), text, *questions, usage=usage) == expected
    assert usage.retries == breaking.happened
