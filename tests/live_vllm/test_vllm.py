"""The vLLM adapter against real servers: what it relies on and what it makes of it, held against plain HTTP."""

from __future__ import annotations

import math
from typing import Any, Literal

import httpx
import pytest

from cosd_api import Fusion
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair, bundled_pair
from cosd_providers import ContextLengthError, DraftEnd, ModelChoiceError, Question, Usage
from cosd_providers.contract import Context
from cosd_providers.engines.vllm import Vllm
from support.asked import draft

MIXED = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"
TEXT = " The capital of Peru is Zürich 😀 一 and the total is 42.\n"
Strategy = Literal["echo", "list", "singles"]
STRATEGIES: tuple[Strategy, ...] = ("echo", "list", "singles")
ENDS = {"sums": "<|endoftext|>", "facts": "</s>"}
TOLERANCE = 2e-3  # of a probability, by how its place came into a batch
CUES = {"sums": "<|im_end|>\n<|im_start|>assistant\n", "facts": "[/INST]"}


@pytest.fixture
def url(vllm_pair: Pair, vllm_name: str) -> str:
    """Each of the two real servers."""
    return str(getattr(vllm_pair, vllm_name))


def post(url: str, path: str, body: Any) -> Any:
    response = httpx.post(url + path, json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def ask(url: str, prompt: Any, **fields: Any) -> Any:
    """A plain request to a real server: the one answer, or the answers to a list."""
    wanted = {"temperature": 0, "logprobs": 5, "max_tokens": 1, "return_token_ids": True}
    choices = post(url, "/v1/completions", {"prompt": prompt, **wanted, **fields})["choices"]
    return choices if len(choices) > 1 else choices[0]


def encoded(url: str, text: str, *, special: bool = True) -> list[int]:
    return list(post(url, "/tokenize", {"prompt": text, "add_special_tokens": special})["tokens"])


@pytest.fixture
def version(url: str) -> str:
    return str(httpx.get(f"{url}/version").json()["version"])


async def test_description(url: str, vllm_name: str, version: str) -> None:
    async with Vllm(url) as provider:
        info = await provider.describe()
    assert (info.engine, info.endpoint, info.model, info.context) == ("vllm", url, vllm_name, 512)
    assert info.build == version
    assert info.capabilities.token_ids
    assert info.answer_cue == CUES[vllm_name]
    async with Vllm(url, model="gpt-9") as provider:
        with pytest.raises(ModelChoiceError, match=f"no model 'gpt-9'; the server has '{vllm_name}'"):
            await provider.describe()


async def test_draft(url: str, vllm_name: str) -> None:
    usage = Usage()
    async with Vllm(url) as provider:
        tokens = await draft(provider, MIXED, limit=64, usage=usage)
        end = tokens.pop()
        plain = ask(url, MIXED, max_tokens=64)
        assert b"".join(token.data for token in tokens).decode() == plain["text"]
        assert end == DraftEnd("end")
        assert tokens[-1].end
        assert tokens[-1].name == ENDS[vllm_name]
        expected = [math.exp(value) for value in plain["logprobs"]["token_logprobs"]]
        assert [token.prob for token in tokens] == pytest.approx(expected, abs=1e-4)
        assert (usage.requests, usage.completion_tokens) == (1, len(plain["token_ids"]))
        assert usage.prompt_tokens == len(plain["prompt_token_ids"])

        rounds, continuation, text = list[Any](), None, b""
        while not (rounds and rounds[-1].end):
            *more, last = await draft(provider, MIXED, text, 5, continuation=continuation)
            rounds, continuation = rounds + more, last.continuation
            text = b"".join(token.data for token in rounds)
            if continuation is not None:
                assert list(continuation) == [*plain["prompt_token_ids"], *plain["token_ids"][: len(rounds)]]
        assert [token.data for token in rounds] == [token.data for token in tokens]


async def test_a_draft_that_is_left_is_billed(url: str) -> None:
    usage = Usage()
    async with Vllm(url) as provider:
        stream = provider.generate(Context(MIXED, b""), max_tokens=64, usage=usage)
        await anext(stream)
        await stream.aclose()
    assert usage.prompt_tokens == len(encoded(url, MIXED))
    # What the server had written by then: one token, or all of them where it was much the faster.
    assert 1 <= usage.completion_tokens <= len(ask(url, MIXED, max_tokens=64)["token_ids"])
    assert usage.busy_seconds > 0


async def test_characters_of_several_tokens(url: str) -> None:
    """The model is made to write emoji; the adapter itself never sends a bias."""
    text = "Zürich 😀 一"
    async with Vllm(url) as provider:
        pieces = await provider.tokenize(text)
        assert b"".join(piece.data for piece in pieces) == text.encode()
        assert [piece.id for piece in pieces] == encoded(url, text, special=False)
        scored = await provider.score(Context(MIXED, text.encode()), usage=Usage())
        assert "".join(token.data.decode() for token in scored) == text
        emoji = [piece.id for piece in await provider.tokenize("😀")]
    # What makes it go through a character's tokens again: behind an unfinished one the prompt's text is repeated.
    broken = ask(url, [*encoded(url, "Q"), *emoji[:-1]], logit_bias={str(emoji[-1]): 100})
    assert broken["text"] == "Q😀"
    whole = ask(url, [*encoded(url, "Q"), *emoji], max_tokens=2)
    assert not whole["text"].startswith(("Q", "😀"))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("word", [False, True])
async def test_proposals(url: str, word: bool, strategy: Strategy) -> None:
    text = TEXT.encode()
    starts = [len(TEXT[:at].encode()) for at in range(len(TEXT) + 1)]
    questions = [Question(at, (text[at : at + 4] or b"x",), word=word) for at in starts]
    async with Vllm(url, strategy=strategy) as provider:
        proposals = await provider.propose(Context(MIXED, text), questions, usage=Usage())
        everywhere = await provider.propose(Context(MIXED, text), None, usage=Usage())
    answers = ask(url, [MIXED + text[:at].decode() for at in starts], max_tokens=12)
    for plain, proposal in zip(answers, proposals, strict=True):
        assert proposal is not None
        data = b"".join(token.data for token in proposal.tokens)
        assert plain["text"].encode().startswith(data)
        shown = plain["logprobs"]["tokens"]
        parts = 1 + next((at for at, string in enumerate(shown) if string), 0)  # of a character: those before are empty
        least = min(plain["logprobs"]["token_logprobs"][:parts])
        assert proposal.tokens[0].prob == pytest.approx(math.exp(least), abs=1e-4)
        assert proposal.tokens[-1].end == (data == plain["text"].encode() and len(proposal.tokens) == _ended(plain))
    by_start = dict(zip(starts, answers, strict=True))
    assert [one.start for one in everywhere if one][-1] == len(text)
    for one in everywhere:
        assert one is not None
        assert by_start[one.start]["text"].encode().startswith(one.tokens[0].data)


def _ended(plain: Any) -> int:
    return len(plain["token_ids"]) if plain["finish_reason"] == "stop" else 0


async def test_a_chain_goes_on_from_its_own_ids(url: str) -> None:
    usage = Usage()
    plain = ask(url, MIXED, max_tokens=40)
    judged = plain["text"][:40].encode()  # one token of a draft, many of this model
    async with Vllm(url) as provider:
        [proposal] = await provider.propose(Context(MIXED, b""), [Question(0, (judged,), word=True)], usage=usage)
    assert proposal is not None
    assert b"".join(token.data for token in proposal.tokens).startswith(judged)
    count = len(proposal.tokens)
    assert [token.data.decode() for token in proposal.tokens] == plain["logprobs"]["tokens"][:count]
    assert usage.requests > 1


async def test_scores(url: str) -> None:
    text = " The capital is Lima and 15 pens."
    async with Vllm(url) as provider:
        scored = await provider.score(Context(MIXED, text.encode()), usage=Usage())
        assert b"".join(token.data for token in scored) == text.encode()
        first, *others = await provider.score(Context("", text.encode()), usage=Usage())
    ids, at = encoded(url, MIXED + text), len(encoded(url, MIXED))
    ranked = ask(url, ids, prompt_logprobs=1)["prompt_logprobs"][at:]
    expected = [math.exp(entry[str(own)]["logprob"]) for own, entry in zip(ids[at:], ranked, strict=True)]
    assert [token.prob for token in scored] == pytest.approx(expected, abs=1e-6)
    # A scored probability is the one that a generation at that place has.
    for place, prob in zip(range(at, len(ids)), expected, strict=True):
        plain = ask(url, ids[:place], logprobs=20, return_tokens_as_token_ids=True)
        found = plain["logprobs"]["top_logprobs"][0].get(f"token_id:{ids[place]}")
        if found is not None:
            assert math.exp(found) == pytest.approx(prob, abs=1e-5)
    assert (first.prob is None) == (encoded(url, "") == [])
    assert all(token.prob is not None for token in others)


async def test_long_lists_and_the_end_are_those_of_plain_requests(url: str, vllm_name: str) -> None:
    """As many alternatives as the server lists, in a draft, in proposals and in scores; by ids in plain requests."""
    text = " The capital is Lima and 15 pens."
    async with Vllm(url) as provider:
        able = (await provider.describe()).capabilities
        assert (able.top_k, able.score_top_k, able.sampling) == (19, 19, True)
        scored = await provider.score(Context(MIXED, text.encode()), alternatives=50, end=True, usage=Usage())
        starts = [len(b"".join(token.data for token in scored[:at])) for at in range(len(scored))]
        questions = [Question(start, (b"x",)) for start in starts]
        by_echo = await provider.with_strategy("echo").propose(
            Context(MIXED, text.encode()), questions, alternatives=50, usage=Usage()
        )
        by_list = await provider.with_strategy("list").propose(
            Context(MIXED, text.encode()), questions, alternatives=50, usage=Usage()
        )
        [drafted, _] = await draft(provider, MIXED, text.encode(), 1, alternatives=50)
    ids, at = encoded(url, MIXED + text), len(encoded(url, MIXED))
    assert len(scored) == len(ids) - at + 1
    for place, token, one, other in zip(range(at, len(ids) + 1), scored, by_echo, by_list, strict=True):
        plain = ask(url, ids[:place], logprobs=20, return_tokens_as_token_ids=True)["logprobs"]["top_logprobs"][0]
        probs = sorted((math.exp(value) for value in plain.values()), reverse=True)
        assert one is not None
        assert other is not None
        for listed in (token, one.tokens[0], other.tokens[0]):
            found = [listed.prob or 0.0, *(more.prob or 0.0 for more in listed.alternatives)]
            assert len(found) > 5  # what is left out is a part of a character, or looks like a special token
            assert all(min(abs(value - known) for known in probs) < TOLERANCE for value in found[1:])
            assert max(found) == pytest.approx(probs[0], abs=TOLERANCE)
    assert by_list[-1] is not None
    assert drafted.prob == pytest.approx(by_list[-1].tokens[0].prob, abs=TOLERANCE)
    end = ask(url, ids, logprobs=1, logit_bias={str(token_id(url, ENDS[vllm_name])): 100})["logprobs"][
        "token_logprobs"
    ][0]
    assert scored[-1].prob == pytest.approx(math.exp(end), rel=1e-3)  # raw, however it was forced


def token_id(url: str, name: str) -> int:
    """The id of the end of sequence."""
    body = {"prompt": name, "add_special_tokens": False, "return_token_strs": True}
    found = post(url, "/tokenize", body)
    assert found["token_strs"] == [name]
    return int(found["tokens"][0])


async def test_samples_are_those_of_plain_requests(url: str) -> None:
    """A seed is sent as it is, and the first draft of it is what the server draws by it."""
    sampled = {"temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "max_tokens": 8}
    async with Vllm(url) as provider:
        for seed in (3, 4):
            *tokens, _ = await draft(provider, "Q", limit=8, temperature=1, seed=seed)
            plain = ask(url, "Q", seed=seed, **sampled)
            text = b"".join(token.data for token in tokens).decode()
            assert text.startswith(plain["text"].rstrip("\ufffd")) or plain["text"].startswith(text)


async def test_the_context(url: str) -> None:
    async with Vllm(url) as provider:
        fits = "x y z " * 260
        while len(encoded(url, fits)) > 508:
            fits = fits[:-6]
        assert len(encoded(url, fits)) > 490
        *tokens, end = await draft(provider, fits, limit=50)
        assert end.reason in ("context", "end")
        assert len(tokens) <= 512 - len(encoded(url, fits))
        ids = tuple(encoded(url, "a") * 512)[:512]
        assert await draft(provider, "a", b"a" * 511, continuation=ids) == [DraftEnd("context")]
        too_long = "x y z " * 400
        assert await draft(provider, "Q", too_long.encode()) == [DraftEnd("context")]
        with pytest.raises(ContextLengthError, match="the server takes at most 511"):
            await draft(provider, too_long)
        with pytest.raises(ContextLengthError, match="the server takes at most 511"):
            await provider.propose(Context(MIXED, too_long.encode()), [Question(2000, (b"x",))], usage=Usage())


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_fusion_is_the_same_as_over_llama_cpp(vllm_pair: Pair, strategy: Strategy) -> None:
    prompts = [question.prompt for question in sample("mixed", 10, seed=5)]
    ours = Fusion(draft=Vllm(vllm_pair.sums), assistant=Vllm(vllm_pair.facts, strategy=strategy))
    with bundled_pair() as pair:
        async with ours, Fusion(draft=pair.sums, assistant=pair.facts) as theirs:
            for prompt in prompts:
                one, other = await ours.generate(prompt, max_tokens=48), await theirs.generate(prompt, max_tokens=48)
                assert (one.text, one.finish_reason) == (other.text, other.finish_reason)
