"""Conversations on real servers: each model reads its own template, and both write one answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cosd_api import Fusion, FusionResult, Message, RuleVerifier
from cosd_api.apps.demo.servers import Pair
from cosd_providers import Usage, connect
from cosd_providers.chat.rendering import leading_space
from cosd_providers.engines import LlamaCpp
from naive.plain_http import CLOSE, ask, get
from support.asked import draft

pytestmark = pytest.mark.live

MIXED = "In {} a book costs 17 and a pen costs 25. Name the capital and the total."
CAPITALS = {"Peru": "Lima", "Japan": "Tokyo"}
HELLO = [Message("user", MIXED.format("Peru"))]
LONGER = [*HELLO, Message("assistant", "It is Lima."), Message("user", "What is the capital of Japan?")]


@pytest.fixture(params=["sums", "facts"])
def url(request: pytest.FixtureRequest) -> str:
    """Each of the two real servers."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
async def sent(url: str) -> AsyncIterator[tuple[LlamaCpp, list[tuple[str, Any]]]]:
    """An adapter, and what it sends."""
    seen: list[tuple[str, Any]] = []

    async def see(request: httpx.Request) -> None:
        seen.append((request.url.path, json.loads(request.content or b"null")))

    async with httpx.AsyncClient(event_hooks={"request": [see]}) as client:
        yield LlamaCpp(url, http_client=client), seen


def encoded(url: str, text: str, *, special: bool = False, parsed: bool = True) -> list[int]:
    body = {"content": text, "add_special": special, "parse_special": parsed}
    return list(httpx.post(f"{url}/tokenize", json=body, headers=CLOSE).json()["tokens"])


def decoded(url: str, ids: list[int]) -> str:
    return str(httpx.post(f"{url}/detokenize", json={"tokens": ids}, headers=CLOSE).json()["content"])


@pytest.mark.parametrize("country", CAPITALS)
async def test_both_answer_together(pair: Pair, country: str) -> None:
    for writer, knower in ((pair.sums, pair.facts), (pair.facts, pair.sums)):
        async with Fusion(draft=writer, assistant=knower) as fusion:
            result = await fusion.generate([{"role": "user", "content": MIXED.format(country)}], max_tokens=64)
        assert result.text == f"The capital of {country} is {CAPITALS[country]} and the total is 42."
        assert result.finish_reason == "stop"
        assert result.replacements
        assert result.warnings == ()
        assert FusionResult.model_validate_json(result.model_dump_json()) == result


async def test_a_template_of_the_users_own_is_rendered_as_the_server_does(url: str, tmp_path: Path) -> None:
    props = get(f"{url}/props")
    fields = {name: props[name] for name in ("chat_template", "bos_token", "eos_token")}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(fields), encoding="utf-8")
    async with connect(url) as theirs, connect(url, chat_template=tmp_path) as ours:
        for messages in (HELLO, LONGER, [*HELLO, Message("assistant", "The capital")]):
            expected = await theirs.render_prompt(messages)  # type: ignore[attr-defined]
            found = await ours.render_prompt(messages)  # type: ignore[attr-defined]
            assert (found.prompt, type(found.provider)) == (expected.prompt, type(expected.provider))


async def test_it_begins_once(url: str, sent: tuple[LlamaCpp, list[tuple[str, Any]]], tmp_path: Path) -> None:
    """Through the server's template and through a user's that writes it."""
    provider, _ = sent
    bos = get(f"{url}/props")["bos_token"]
    begins = encoded(url, "", special=True)
    source = "{{ bos_token }}" * len(begins) + "Q: {{ messages[0].content }}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": bos, "chat_template": source}))
    own: Any = connect(url, engine="llama.cpp", chat_template=tmp_path)
    async with own:
        for one in (provider, own):
            usage, found = Usage(), await one.render_prompt(HELLO)
            await draft(found.provider, found.prompt, limit=1, usage=usage)
            ids = encoded(url, found.prompt, special=True)
            assert usage.prompt_tokens == len(ids)
            assert ids[: len(begins)] == begins
            assert not begins or begins[0] not in ids[1:]


async def test_a_special_token_that_a_user_types(url: str, sent: tuple[LlamaCpp, list[tuple[str, Any]]]) -> None:
    provider, seen = sent
    mark = get(f"{url}/props")["eos_token"]
    [special] = encoded(url, mark)
    content = f"What is {mark} the <{mark}> of <div>?"
    found = await provider.render_prompt([Message("user", content)])
    assert found.warnings == ()
    assert content in found.prompt
    usage = Usage()
    await draft(found.provider, found.prompt, limit=1, usage=usage)
    *_, body = [body for path, body in seen if path == "/completion"]
    *ids, last = body["prompt"]
    assert special not in ids
    assert special not in encoded(url, last)
    assert encoded(url, found.prompt).count(special) == 2
    whole = encoded(url, content, parsed=False)
    assert len(whole) <= usage.prompt_tokens == len(ids) + len(encoded(url, last))
    assert (decoded(url, ids) + last).endswith(found.prompt)


async def test_an_answer_that_was_begun(pair: Pair) -> None:
    async with Fusion(draft=pair.sums, assistant=pair.facts) as fusion:
        result = await fusion.generate([*HELLO, Message("assistant", "The capital of Peru is")], max_tokens=64)
    assert result.text == " Lima and the total is 42."


async def test_a_conversation_goes_on_where_the_server_left_it(
    url: str, sent: tuple[LlamaCpp, list[tuple[str, Any]]]
) -> None:
    """The second prompt begins with the first one and its answer, byte for byte, so that it comes from the cache."""
    provider, seen = sent
    alone = RuleVerifier(alpha=0)  # an assistant that is asked may take the slot that holds the conversation
    async with Fusion(draft=provider, assistant=connect(url), verifier=alone) as fusion:
        first = await fusion.generate(HELLO, max_tokens=64)
        prompt = (await provider.render_prompt(HELLO)).prompt
        lead = await leading_space(provider.render)
        asked = [*HELLO, Message("assistant", first.text), Message("user", MIXED.format("Japan"))]
        before = len(seen)
        second = await fusion.generate(asked, max_tokens=64)
    paths = [path for path, _ in seen[before:]]
    assert paths.count("/apply-template") == 1
    assert paths.count("/tokenize") == 0
    assert (await provider.render_prompt(asked)).prompt.startswith(prompt + lead + first.text)
    assert second.usage["draft"].requests == 1
    assert second.usage["draft"].cached_tokens >= len(encoded(url, prompt, special=True)) - 1


async def test_a_system_message(pair: Pair, tmp_path: Path) -> None:
    """One model knows the role, the other one's template raises an error on it: either way it is in the prompt."""
    brief = Message("system", "Be brief.")
    for url in pair.values():
        async with connect(url) as provider:
            found = await provider.render_prompt([brief, *LONGER])  # type: ignore[attr-defined]
            assert found.prompt.index("Be brief.") < found.prompt.index(HELLO[0].content)
            late = await provider.render_prompt([*LONGER[:2], brief, *LONGER[2:]])  # type: ignore[attr-defined]
            assert "Be brief." in late.prompt
    props = get(f"{pair.facts}/props")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(props), encoding="utf-8")
    async with connect(pair.facts, chat_template=tmp_path) as provider:
        found = await provider.render_prompt([brief, *HELLO])  # type: ignore[attr-defined]
    assert found.prompt == f"[INST] Be brief.\n\n{HELLO[0].content}[/INST]"


async def test_an_answer_ends_where_a_turn_does(pair: Pair) -> None:
    """The token that ends a turn is not the one that ends a text, and is the end all the same."""
    async with connect(pair.sums) as provider:
        found = await provider.render_prompt([Message("user", "What is 17 plus 25?")])  # type: ignore[attr-defined]
        *tokens, end = await draft(found.provider, found.prompt, limit=40)
    assert b"".join(token.data for token in tokens) == b"The sum is 42."
    assert tokens[-1].end
    assert end.reason == "end"
    plain = ask(pair.sums, found.prompt, n_predict=40, return_tokens=True)
    turn, text = encoded(pair.sums, "<|im_end|>"), encoded(pair.sums, get(f"{pair.sums}/props")["eos_token"])
    assert plain["tokens"][-1:] == turn != text


async def test_white_space_before_an_answer_is_no_part_of_it(pair: Pair) -> None:
    """One model writes it, as its template does; the other one does not: they begin the same answer."""
    leads, answers = {}, {}
    for name, url in pair.items():
        async with LlamaCpp(url) as provider:
            leads[name] = await leading_space(provider.render)
            found = await provider.render_prompt([Message("user", "Hello!")])
            *tokens, _ = await draft(found.provider, found.prompt, limit=40)
            answers[name] = b"".join(token.data for token in tokens).decode()
            assert ask(url, found.prompt, n_predict=40)["content"] == leads[name] + answers[name]
    assert leads == {"sums": "", "facts": " "}
    assert answers["sums"] == answers["facts"]
