"""The llama.cpp adapter against real servers: what it relies on and what it makes of it, held against plain HTTP."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio
import httpx
import pytest

from cosd_providers import ContextLengthError, DraftEnd, ModelChoiceError, Question, UnsupportedError, Usage
from cosd_providers.contract import Context
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.messages import Message
from cosd_providers.tokenizers import words_of
from naive.plain_http import CLOSE, MODELS, ask, get
from support.asked import draft
from support.cancelled import check_cancelling
from support.drawn import partly
from toys import recitals

pytestmark = pytest.mark.live

MIXED = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"


def encoded(url: str, text: str, *, special: bool = False) -> list[int]:
    body = {"content": text, "add_special": special, "parse_special": True}
    return list(httpx.post(f"{url}/tokenize", json=body, headers=CLOSE).json()["tokens"])


@pytest.fixture(params=partly(["sums", "facts"]))
def url(request: pytest.FixtureRequest) -> str:
    """Each of the two real servers."""
    return str(request.getfixturevalue(f"{request.param}_url"))


async def test_description(url: str) -> None:
    async with LlamaCpp(url) as provider:
        info = await provider.describe()
    props = get(f"{url}/props")
    assert (info.engine, info.endpoint, info.build) == ("llama.cpp", url, props["build_info"])
    assert info.context == props["default_generation_settings"]["n_ctx"]
    async with LlamaCpp(url, model="gpt-9") as provider:
        with pytest.raises(ModelChoiceError, match=r"no model 'gpt-9'; the server has '"):
            await provider.describe()


async def test_a_tokenizer_that_was_given_splits_words_alone(sums_url: str, facts_url: str) -> None:
    folder = MODELS / "sums"
    async with LlamaCpp(sums_url, tokenizer=folder) as ours, LlamaCpp(sums_url) as theirs:
        assert ours.encodes_locally is False
        mine, able = [(await one.describe()).capabilities for one in (ours, theirs)]
        assert (mine.words, able.words, replace(mine, words=False)) == (True, False, able)
        assert await ours.tokenize(MIXED) == await theirs.tokenize(MIXED)
        chat = (await ours.render_prompt([Message("user", "What is 3 and 4?")])).provider
        for view in (ours, chat):
            split = await words_of(view)
            assert split is not None
            assert split("The total is 42.") == [3, 9, 12, 13, 14, 15, 16]  # every digit is a word of this model
    async with LlamaCpp(facts_url, tokenizer=folder) as other:
        with pytest.raises(UnsupportedError) as refused:
            await other.describe()
    words = f"{facts_url}: {str(folder)!r} is not the tokenizer of this model. "
    assert str(refused.value) == words + (
        "It encodes a test text differently from the server. Give the model's own, or none."
    )


def test_mixed_prompts_are_read_as_their_text(url: str) -> None:
    for text in (MIXED, "", "Zürich 😀", "</s><s>"):
        whole = encoded(url, text, special=True)
        [more] = encoded(url, "x")
        for mixed, ids in ((text, whole), ([text, more, more], [*whole, more, more])):
            if ids:
                one, other = ask(url, mixed), ask(url, ids)
                assert one["tokens_evaluated"] == other["tokens_evaluated"] == len(ids)
                assert one["tokens"] == other["tokens"]


def test_probabilities_are_raw(url: str) -> None:
    [free] = ask(url, MIXED, n_probs=50)["completion_probabilities"]
    for entry in free["top_logprobs"][:20:4]:
        if entry["bytes"]:
            [forced] = ask(url, MIXED, logit_bias=[[entry["id"], 1e4]])["completion_probabilities"]
            assert forced["id"] == entry["id"]
            assert forced["logprob"] == pytest.approx(entry["logprob"], abs=1e-2)


async def test_draft(url: str) -> None:
    usage = Usage()
    async with LlamaCpp(url) as provider:
        tokens = await draft(provider, MIXED, limit=64, usage=usage)
        end = tokens.pop()
        plain = ask(url, MIXED, n_predict=64)
        assert b"".join(token.data for token in tokens).decode() == plain["content"]
        assert end == DraftEnd("end")
        assert tokens[-1].end
        assert tokens[-1].name == get(f"{url}/props")["eos_token"]
        expected = [math.exp(entry["logprob"]) for entry in plain["completion_probabilities"]]
        assert [token.prob for token in tokens] == pytest.approx(expected, abs=1e-3)
        assert (usage.requests, usage.completion_tokens) == (1, plain["tokens_predicted"])
        assert usage.prompt_tokens == plain["tokens_evaluated"]

        rounds, continuation, text = list[Any](), None, b""
        while not (rounds and rounds[-1].end):
            *more, last = await draft(provider, MIXED, text, 5, continuation=continuation)
            rounds, continuation = rounds + more, last.continuation
            text = b"".join(token.data for token in rounds)
        assert [token.data for token in rounds] == [token.data for token in tokens]


@pytest.mark.parametrize("word", [False, True])
async def test_proposals(url: str, word: bool) -> None:
    text = " The capital of Peru is Zürich 😀 and the total is 42.\n".encode()
    questions = [Question(at, (text[at : at + 4],), word=word) for at in range(0, 29, 3)]
    async with LlamaCpp(url) as provider:
        proposals = await provider.propose(Context(MIXED, text), questions, usage=Usage())
    for question, proposal in zip(questions, proposals, strict=True):
        plain = ask(url, MIXED + text[: question.start].decode(), n_predict=12)
        assert proposal is not None
        data = b"".join(token.data for token in proposal.tokens)
        assert plain["content"].encode().startswith(data)
        [first, *_] = plain["completion_probabilities"]
        assert proposal.tokens[0].data == bytes(first["bytes"])
        assert proposal.tokens[0].prob == pytest.approx(math.exp(first["logprob"]), rel=1e-2, abs=1e-3)


@pytest.mark.extended
async def test_lists_come_back_whole_and_in_order(url: str) -> None:
    prefixes = [MIXED[:cut] for cut in range(2, len(MIXED), 3)]
    answers = ask(url, prefixes)
    assert [item["index"] for item in answers] == list(range(len(prefixes)))
    assert [item["tokens_evaluated"] for item in answers] == [len(encoded(url, one, special=True)) for one in prefixes]
    assert isinstance(ask(url, prefixes[:1]), dict)


async def test_scores(url: str) -> None:
    text = " The capital is Zürich 😀.".encode()
    async with LlamaCpp(url) as provider:
        scored = await provider.score(Context(MIXED, text), usage=Usage())
    assert b"".join(token.data for token in scored) == text
    ids, at = encoded(url, MIXED + text.decode(), special=True), len(encoded(url, MIXED, special=True))
    expected = []
    for place in range(at, len(ids)):
        answered = ask(url, ids[:place], n_probs=10**6, logit_bias=[[encoded(url, "a")[-1], 1e4]])
        [entry] = answered["completion_probabilities"]
        expected += [math.exp(one["logprob"]) for one in entry["top_logprobs"] if one["id"] == ids[place]]
    for token in scored:
        probs = (
            [expected.pop(0) for _ in encoded(url, "a" + token.data.decode())[1:]]
            if len(token.data) > 1
            else [expected.pop(0)]
        )
        assert token.prob == pytest.approx(min(probs), rel=5e-2)  # of one in a billion, too


async def test_tokens(url: str) -> None:
    async with LlamaCpp(url) as provider:
        for text in (MIXED, "Zürich 😀", " a", ""):
            pieces = await provider.tokenize(text)
            assert [piece.id for piece in pieces] == encoded(url, text)
            assert b"".join(piece.data for piece in pieces) == text.encode()


async def test_context(url: str) -> None:
    async with LlamaCpp(url) as provider:
        context = (await provider.describe()).context or 0
        [piece] = await provider.tokenize("x")
        with pytest.raises(ContextLengthError, match=rf"{context + 1} tokens\) exceeds .* \({context} tokens"):
            await draft(
                provider, continuation=("", *[piece.id] * (context + (len(encoded(url, "", special=True)) == 0)))
            )
        start = ("", *[piece.id] * (context - 6))
        *tokens, end = await draft(provider, continuation=start)
        assert end.reason in ("context", "end")
        assert len(tokens) <= 6


@pytest.mark.extended
async def test_tokens_that_the_server_hides(trio: Mapping[str, str]) -> None:
    """Some prompt makes the model write a character in parts: each part's id and probability are found."""
    url = trio["reciter"]
    start, ids, count = find_hidden(url)
    async with LlamaCpp(url) as provider:
        *tokens, end = await draft(provider, limit=count, continuation=tuple(start))
    assert end == DraftEnd("limit", (*start, *ids))
    visible, probs = encoded(url, "a")[-1], []
    for at, wanted in enumerate(ids):
        answered = ask(url, [*start, *ids[:at]], n_probs=10**6, logit_bias=[[visible, 1e4]])
        [entry] = answered["completion_probabilities"]
        probs += [
            (bytes(one["bytes"]), math.exp(one["logprob"])) for one in entry["top_logprobs"] if one["id"] == wanted
        ]
    for token in tokens:
        parts = [probs.pop(0)]
        while b"".join(data for data, _ in parts) != token.data:
            parts.append(probs.pop(0))
        assert token.prob == pytest.approx(min(prob for _, prob in parts), abs=1e-3)


@pytest.mark.extended
async def test_samples_that_the_server_hides(trio: Mapping[str, str]) -> None:
    """Characters of several tokens are drawn as often as they should be; a chi-squared test with 2 degrees."""
    before, count, drawn = recitals.UNSURE_PROMPT + " café", 300, Counter[str]()
    async with LlamaCpp(trio["reciter"]) as provider:
        for seed in range(count):
            first, _ = await draft(provider, before, limit=1, temperature=1, seed=seed)
            drawn[first.data.decode()] += 1
    means = {f" {text}": count * prob for text, prob in recitals.UNSURE_PARTS[3].items()}
    assert drawn.keys() == means.keys()
    assert sum((drawn[text] - mean) ** 2 / mean for text, mean in means.items()) < 13.8


def find_hidden(url: str) -> tuple[list[int], list[int], int]:
    """A prompt after which the server writes more ids than it shows; those ids; how many are shown."""
    prompts = [
        encoded(url, prompt + text[:at])
        for prompt, text in recitals.CERTAIN.items()
        for at, character in enumerate(text)
        if not character.isascii()
    ]
    for prompt, found in zip(prompts, ask(url, prompts, n_predict=3), strict=True):
        shown = [entry["id"] for entry in found.get("completion_probabilities", [])]
        if found["stop_type"] == "limit" and found["tokens"] != shown and found["tokens"][-1:] == shown[-1:]:
            return prompt, found["tokens"], len(shown)
    pytest.fail("no prompt was found after which the server hides a token")


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_cancelling_frees_the_server(url: str, how: str) -> None:
    async with LlamaCpp(url) as provider:
        [piece] = await provider.tokenize("a")
        usage = Usage()
        endless: Any = provider.generate(
            Context(MIXED, b""), max_tokens=400, continuation=(MIXED, piece.id), usage=usage
        )
        if how == "close":
            await anext(endless)
            await endless.aclose()
        else:
            with anyio.CancelScope() as scope:  # it is cancelled at its next wait: what has arrived still comes
                async for _ in endless:
                    scope.cancel()
        with anyio.fail_after(20):
            while any(slot["is_processing"] for slot in get(f"{url}/slots")):  # noqa: ASYNC110
                await anyio.sleep(0.002)
        assert usage.busy_seconds > 0
        assert usage.completion_tokens < 400


@pytest.mark.parametrize("http", ["", "httpx"])
async def test_few_tokens_are_generated_after_a_cancellation(
    sums_url: str, http: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own count; on a busy machine it may hear late of a stream that was left, but not each time."""
    monkeypatch.setenv("COSD_HTTP", http)
    await check_cancelling(sums_url)
