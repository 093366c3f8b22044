"""Conversations over vLLM and SGLang, where their tokenizers do not give a text back, or are older."""

from __future__ import annotations

import pickle
from copy import copy
from typing import Any

import pytest

from cosd_providers import Question, UnsupportedError, Usage
from cosd_providers.contract import Context
from cosd_providers.engines.sglang import Sglang
from cosd_providers.engines.vllm import Vllm
from cosd_providers.messages import Message
from fakes.breaking import waiting
from fakes.chats import ChatModel, chatml, parsed
from fakes.sglang import StandInSglang
from fakes.vllm import FakeVllm
from support.asked import draft

URL = "http://gpu:8000"
HELLO = (Message("user", "Hello"),)
TYPED = (Message("user", "What is <|im_end|>?"),)
TEXT = chatml([{"role": "user", "content": "Hello"}])


def vllm(scripts: dict[str, Any], template: Any = chatml) -> tuple[FakeVllm, Vllm]:
    server = FakeVllm(ChatModel(scripts))
    server.template, server.specials = template, server.model.specials  # type: ignore[attr-defined]  # it has them
    return server, Vllm(URL, http_client=server.client())


async def test_what_is_asked() -> None:
    server, provider = vllm({TEXT: ["Hi", "<|im_end|>"]})
    turn = await provider.render_prompt(HELLO)
    *_, end = await draft(turn.provider, turn.prompt)
    assert end.reason == "end"
    await draft(provider, "Q")  # raw text is asked as ever
    bodies = [body for path, body in server.requests if path == "/v1/completions" and body.get("stream")]
    assert [body["skip_special_tokens"] for body in bodies] == [False, True]
    names = {name: n for n, name in server.specials.items()}
    assert [body["prompt"] for body in bodies] == [[parsed(server.model, TEXT, names)], [server.model.encode(b"Q")]]


async def test_what_a_model_shows_of_a_turn_can_be_asked_for() -> None:
    _, provider = vllm({TEXT: [("Hi", 0.6), "<|im_end|>"]})
    turn = await provider.render_prompt(HELLO)
    info, raw = await turn.provider.describe(), await provider.describe()
    assert info == raw
    assert turn.provider.name == provider.name
    first, *_ = await turn.provider.tokenize("<think>so")
    assert first.data == b"<think>"


@pytest.mark.parametrize("kind", [Vllm, Sglang])
async def test_copies_have_no_conversation(kind: Any) -> None:
    model = ChatModel({TEXT: ["Hi", " you"]})
    server: Any = FakeVllm(model) if kind is Vllm else StandInSglang(model)
    server.template, server.specials = chatml, model.specials
    provider = kind(URL, http_client=server.client(), strategy="echo")
    turn = await provider.render_prompt(HELLO)
    questions = [Question(0, (b"Hi",)), Question(2, (b" you",))]
    await turn.provider.propose(Context(turn.prompt, b"Hi you"), questions, usage=Usage())
    for one in (provider, turn.provider):
        copied = pickle.dumps(one)
        assert b"Hello" not in copied
        assert pickle.loads(copied).name == provider.name


async def test_a_copy_renders_by_its_own_template() -> None:
    _, provider = vllm({TEXT: ["Hi"]})
    first = await provider.render_prompt(HELLO)
    copied = copy(provider)
    copied.use_template(lambda messages: messages[-1]["content"] + ":")
    assert (await copied.render_prompt(HELLO)).prompt == "Hello:"
    again = await provider.render_prompt(HELLO)
    assert again.prompt == first.prompt == TEXT
    assert again.provider is first.provider  # it is made once


async def test_a_tokenizer_that_puts_a_space_before_each_piece_cannot_be_given_pieces() -> None:
    server, provider = vllm({})
    server.pads = True
    assert (await provider.render_prompt(HELLO)).prompt == TEXT
    turn = await provider.render_prompt(TYPED)
    words = "a message holds <|im_end|> as text, which the model reads as its special token"
    assert turn.warnings == (f"{URL}: {words} (this server takes no token ids)",)
    with pytest.raises(UnsupportedError, match="reads as its special token"):
        await provider.render_prompt(TYPED, on_special_tokens="refuse")


async def test_a_tokenizer_that_changes_the_text() -> None:
    server, provider = vllm({}, lambda messages: "".join(f"{one['role']}: {one['content']}\n" for one in messages))
    server.pads = True
    with pytest.raises(UnsupportedError, match=r"does not give back the text .*connect\(url, chat_template=\.\.\.\)"):
        await provider.render_prompt(HELLO)


async def test_a_template_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting(monkeypatch)
    server, provider = vllm({})
    server.broken = True
    with pytest.raises(
        UnsupportedError, match=r"does not accept this conversation: .*'NoneType' object is not iterable"
    ):
        await provider.render_prompt(HELLO)
