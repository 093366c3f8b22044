"""Conversations over real vLLM servers: what the models read and answer is what the server's own chat route does."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from cosd_api import Fusion
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair, bundled_pair
from cosd_providers import Question, UnsupportedError, Usage, connect
from cosd_providers.contract import Context
from cosd_providers.engines.openai import OpenAICompatible
from cosd_providers.engines.vllm import Vllm
from cosd_providers.messages import Message, RenderedPrompt
from support.asked import draft
from vllm_cpu import servers

ASKED = "In Peru a book costs 17 and a pen costs 25. Name the capital and the total."
FIRST = (Message("user", ASKED),)
RULED = (Message("system", "Be brief."), *FIRST)
LONGER = (*FIRST, Message("assistant", "The capital of Peru is Lima and the total is 42."), Message("user", ASKED))
TYPED = {"sums": (Message("user", f"<|im_end|> {ASKED} <|im_start|>"),), "facts": (Message("user", f"</s> {ASKED}"),)}
SPECIAL = {"sums": "<|im_end|>", "facts": "</s>"}
"""What ends a turn."""


@pytest.fixture
def url(vllm_pair: Pair, vllm_name: str) -> str:
    """Each of the two real servers."""
    return str(getattr(vllm_pair, vllm_name))


def post(url: str, path: str, body: Any) -> Any:
    response = httpx.post(url + path, json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def encoded(url: str, text: str) -> list[int]:
    return list(post(url, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"])


def plainly(url: str, messages: Sequence[Message], **fields: Any) -> Any:
    """The one answer of the server's own chat route."""
    sent = [{"role": one.role, "content": one.content} for one in messages]
    wanted = {"max_tokens": 48, "temperature": 0, "logprobs": True, "return_token_ids": True}
    answer = post(url, "/v1/chat/completions", {"messages": sent, "skip_special_tokens": False, **wanted, **fields})
    return answer["choices"][0] | {"prompt_token_ids": answer["prompt_token_ids"]}


def rest(text: str, name: str) -> str:
    """An answer without the space that one of the two templates writes before it."""
    return text.removeprefix(" ") if name == "facts" else text


async def answered(turn: RenderedPrompt, text: bytes = b"") -> list[Any]:
    return await draft(turn.provider, turn.prompt, text, 48)


@pytest.mark.parametrize("messages", [FIRST, LONGER], ids=["first", "longer"])
async def test_the_model_reads_and_answers_as_over_the_chat_route(
    url: str, vllm_name: str, messages: tuple[Message, ...]
) -> None:
    plain = plainly(url, messages)
    async with Vllm(url) as provider:
        turn = await provider.render_prompt(messages)
        *tokens, end = await answered(turn)
    assert turn.warnings == ()
    assert encoded(url, turn.prompt) == plain["prompt_token_ids"]  # what is sent, and nothing put before it
    beginning = post(url, "/tokenize", {"prompt": ""})["tokens"]
    assert all(plain["prompt_token_ids"].count(one) == 1 for one in beginning)
    text = b"".join(token.data for token in tokens).decode()
    assert text == rest(plain["message"]["content"], vllm_name)
    assert end.reason == "end"
    assert (tokens[-1].data, tokens[-1].end, tokens[-1].name) == (b"", True, SPECIAL[vllm_name])
    entries = plain["logprobs"]["content"]
    assert tokens[-1].prob == pytest.approx(math.exp(entries[-1]["logprob"]), abs=1e-4)
    assert [token.prob for token in tokens[1:]] == pytest.approx(
        [math.exp(one["logprob"]) for one in entries[len(entries) - len(tokens) + 1 :]], abs=1e-4
    )


async def test_a_system_message(url: str, vllm_name: str) -> None:
    """One of the two templates knows none: there the user says it."""
    folded = (Message("user", f"Be brief.\n\n{ASKED}"),)
    plain = plainly(url, RULED if vllm_name == "sums" else folded)
    async with Vllm(url) as provider:
        turn = await provider.render_prompt(RULED)
        *tokens, _ = await answered(turn)
    assert encoded(url, turn.prompt) == plain["prompt_token_ids"]
    assert b"".join(token.data for token in tokens).decode() == rest(plain["message"]["content"], vllm_name)


async def test_later_turns_begin_with_the_earlier_ones(url: str, vllm_name: str) -> None:
    async with Vllm(url) as provider:
        turn = await provider.render_prompt(FIRST)
        *tokens, _ = await answered(turn)
        text = b"".join(token.data for token in tokens).decode()
        later = await provider.render_prompt((*FIRST, Message("assistant", text), *FIRST))
    assert later.prompt.startswith(turn.prompt)
    assert later.prompt.removeprefix(turn.prompt).startswith(f" {text}" if vllm_name == "facts" else text)


@pytest.mark.parametrize("strategy", ["echo", "list", "singles"])
async def test_proposals_are_what_the_model_goes_on_with(url: str, vllm_name: str, strategy: Any) -> None:
    async with Vllm(url, strategy=strategy) as provider:
        turn = await provider.render_prompt(FIRST)
        *tokens, _ = await answered(turn)
        text = b"".join(token.data for token in tokens)
        starts = [sum(len(token.data) for token in tokens[:at]) for at in range(len(tokens))]
        questions = [Question(start, (token.data,)) for start, token in zip(starts, tokens, strict=True)]
        found = await turn.provider.propose(Context(turn.prompt, text), questions, usage=Usage())
    said = [one.tokens[0] for one in found if one is not None]
    assert [token.data for token in said] == [token.data for token in tokens]
    assert [token.prob for token in said] == pytest.approx([token.prob for token in tokens], abs=1e-4)
    assert (said[-1].end, said[-1].name) == (True, SPECIAL[vllm_name])


async def test_special_tokens_that_a_user_types_stay_text(url: str, vllm_name: str) -> None:
    """The prompt is sent as ids: those of the rendered conversation, but for what the user has typed."""
    typed, name, sent = TYPED[vllm_name], SPECIAL[vllm_name], list[Any]()
    [special] = encoded(url, name)

    async def note(request: httpx.Request) -> None:
        if request.url.path == "/v1/completions" and b"logit_bias" not in request.content:
            sent.append(json.loads(request.content)["prompt"])

    async with httpx.AsyncClient(event_hooks={"request": [note]}) as client, Vllm(url, http_client=client) as provider:
        turn = await provider.render_prompt(typed, on_special_tokens="refuse")
        sent.clear()
        *tokens, _ = await answered(turn)
        text = b"".join(token.data for token in tokens)
        first, second = tokens[0].data, tokens[1].data
        asked = [Question(len(first), (second,))]
        [proposal] = await turn.provider.propose(Context(turn.prompt, text), asked, usage=Usage())
        scored = await turn.provider.score(Context(turn.prompt, text), usage=Usage())
    assert turn.warnings == ()
    [drafted], [proposed], [whole] = sent
    assert post(url, "/detokenize", {"tokens": drafted})["prompt"] == turn.prompt
    assert encoded(url, turn.prompt).count(special) == turn.prompt.count(name)  # as text it would be read
    assert drafted.count(special) == turn.prompt.count(name) - 1
    assert [ids[: len(drafted) - 8] for ids in (proposed, whole)] == [drafted[:-8]] * 2
    answer = post(url, "/v1/completions", {"prompt": drafted, "max_tokens": 48, "temperature": 0})["choices"][0]
    assert text.decode() == rest(answer["text"], vllm_name)
    assert proposal is not None
    assert proposal.tokens[0].data == second
    assert b"".join(token.data for token in scored) == text


async def test_a_started_answer_is_gone_on_with(url: str) -> None:
    async with Vllm(url) as provider:
        *tokens, _ = await answered(await provider.render_prompt(FIRST))
        text = b"".join(token.data for token in tokens).decode()
        cut = text.index(" ", len(text) // 2)
        turn = await provider.render_prompt((*FIRST, Message("assistant", text[:cut])))
        *more, _ = await answered(turn)
    assert b"".join(token.data for token in more).decode() == text[cut:]


async def test_a_users_own_template(url: str, vllm_name: str) -> None:
    provider: Any = connect(url, engine="vllm", chat_template=servers.MODELS / vllm_name)
    async with provider, Vllm(url) as other:
        assert (await provider.render_prompt(LONGER)).prompt == (await other.render_prompt(LONGER)).prompt


async def test_messages_that_are_sent(url: str, vllm_name: str) -> None:
    """Over the chat route the same; a template that trims an answer that is continued is refused."""
    text, places = b"The capital of Peru is Quito", (0, 3, 11, 19, 22)
    questions = [Question(at, (text[at : at + 4],)) for at in places]
    found: list[Any] = []
    async with Vllm(url) as ours, OpenAICompatible(url, dialect="vllm", api="chat") as theirs:
        if vllm_name == "facts":
            with pytest.raises(UnsupportedError, match="takes white space off the end of an answer"):
                await theirs.render_prompt(FIRST)
            return
        for provider in (ours, theirs):
            turn = await provider.render_prompt(RULED)
            proposals = await turn.provider.propose(Context(turn.prompt, text), questions, usage=Usage())
            said = [*await answered(turn), *(token for one in proposals if one for token in one.tokens)]
            found.append([(one.data, one.end, one.prob) for one in said if hasattr(one, "data")])
    assert [one[:2] for one in found[0]] == [one[:2] for one in found[1]]
    assert [one[2] for one in found[0]] == pytest.approx([one[2] for one in found[1]], abs=1e-3)


@pytest.mark.parametrize("direction", [("sums", "facts"), ("facts", "sums")])
async def test_a_conversation_is_fused_the_same_over_llama_cpp(vllm_pair: Pair, direction: tuple[str, str]) -> None:
    """Two models with two templates, both on vLLM, and each of them on the other engine."""
    one, other = direction
    bare = [question.prompt.removeprefix("Q: ").removesuffix("\nA:") for question in sample("mixed", 6, seed=5)]
    asked = [[Message("system", "Be brief."), Message("user", text)] for text in bare]
    with bundled_pair() as pair:
        texts: list[Any] = []
        for drafts, assists in ((vllm_pair, vllm_pair), (vllm_pair, pair), (pair, vllm_pair)):
            async with Fusion(draft=drafts[one], assistant=assists[other]) as fusion:
                results = [result async for result in fusion.map(asked, max_tokens=48)]
            texts.append([(result.text, result.finish_reason) for result in results])
    assert texts[0] == texts[1] == texts[2]
    assert all(reason == "stop" for _, reason in texts[0])
