"""Conversations over OpenAI's two routes, and over Ollama's own: with a template of the user's, or sent as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cosd_providers import Question, UnsupportedError, Usage, connect
from cosd_providers.contract import Context
from cosd_providers.engines.ollama import Ollama
from cosd_providers.engines.openai import OpenAICompatible
from cosd_providers.messages import Message, RenderedPrompt
from cosd_providers.testing import ScriptToken
from fakes.chats import ChatModel, Messages, chatml, mistral
from fakes.ollama import StandInOllama
from fakes.openai import FakeOpenAI
from support.asked import draft

URL = "http://gpu:8000"
HELLO = (Message("user", "Hello"),)
RULED = (Message("system", "Be brief."), *HELLO)
LONGER = (*RULED, Message("assistant", "Hi!"), Message("user", "Bye"))
NO_PREFIX = "does not continue a partial answer, and a fusion continues after each word that it replaces"


def plain(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": one.role, "content": one.content} for one in messages]


GREETED: dict[str, Sequence[ScriptToken]] = {"[INST] Hello[/INST]": [" Hi", (" there", 0.7), "!"]}
"""The answer that shows the leading space of a model."""


def chat(
    scripts: dict[str, Sequence[ScriptToken]], template: Any = chatml, dialect: str = "vllm", **options: Any
) -> tuple[FakeOpenAI, OpenAICompatible]:
    """A server whose route for messages has this template."""
    server = FakeOpenAI(ChatModel(scripts), chat=template, **options)
    return server, OpenAICompatible(URL, model="toy", http_client=server.client(), dialect=dialect, api="chat")


async def answered(turn: RenderedPrompt, text: bytes = b"") -> str:
    items = await draft(turn.provider, turn.prompt, text)
    return b"".join(item.data for item in items[:-1]).decode()


async def said(turn: RenderedPrompt, text: bytes, *starts: int, word: bool = False) -> list[list[tuple[bytes, bool]]]:
    """The proposals at some places: bytes, and the end of sequence."""
    questions = [Question(at, (text[at : at + 3],), word=word) for at in starts]
    found = await turn.provider.propose(Context(turn.prompt, text), questions, usage=Usage())
    return [[(token.data, token.end) for token in one.tokens] if one else [] for one in found]


# Sent as they are.


@pytest.mark.parametrize("dialect", ["vllm", "deepseek", "mistral", "llama.cpp", "sglang"])
async def test_messages_are_sent_as_they_are(dialect: str) -> None:
    server, provider = chat({chatml(plain(LONGER)): ["See", (" you", 0.4)]}, dialect=dialect)
    server.chat_repeats = dialect in ("mistral", "llama.cpp")
    turn = await provider.render_prompt(LONGER)
    assert turn.warnings == ()
    assert await answered(turn) == "See you"
    assert server.bodies[-1]["messages"] == plain(LONGER)
    assert await answered(turn, b"See") == " you"
    *earlier, last = server.bodies[-1]["messages"]
    assert earlier == plain(LONGER)
    marks = {"prefix": True} if dialect in ("deepseek", "mistral") else {}
    assert last == {"role": "assistant", "content": "See", **marks}
    assert ("continue_final_message" in server.bodies[-1]) == (not marks)
    assert await said(turn, b"See you", 0, 3, 7) == [[(b"See", False)], [(b" you", False)], [(b"", True)]]


async def test_two_conversations_at_once_keep_apart() -> None:
    _, provider = chat({chatml(plain(HELLO)): ["Hi"], chatml(plain(LONGER)): ["See you"]})
    one, other = await provider.render_prompt(HELLO), await provider.render_prompt(LONGER)
    assert [await answered(one), await answered(other), await answered(one)] == ["Hi", "See you", "Hi"]


async def test_a_started_answer_is_gone_on_with() -> None:
    server, provider = chat({chatml(plain(HELLO)): ["Well", ", hi"]})
    turn = await provider.render_prompt((*HELLO, Message("assistant", "Well")))
    assert await answered(turn) == ", hi"
    assert server.bodies[-1]["messages"] == plain((*HELLO, Message("assistant", "Well")))
    assert await said(turn, b", hi", 4) == [[(b"", True)]]
    await answered(await provider.render_prompt((*HELLO, Message("assistant", "Well"), Message("assistant", "so"))))
    assert server.bodies[-1]["messages"] == plain((*HELLO, Message("assistant", "Well\n\nso")))


async def test_where_an_answer_is_not_continued() -> None:
    _, provider = chat({}, dialect="openai")
    with pytest.raises(UnsupportedError, match=rf"the chat route of openai {NO_PREFIX}"):
        await provider.render_prompt(HELLO)
    _, provider = chat({}, trims=True)
    with pytest.raises(UnsupportedError, match=r'takes white space off the end of an answer.*api="completions"'):
        await provider.render_prompt(HELLO)


async def test_a_server_that_takes_no_system_gets_it_from_the_user() -> None:
    both = [{"role": "user", "content": "Be brief.\n\nHello"}]
    server, provider = chat({**GREETED, mistral(both).removeprefix("<s>"): [" Hi", "!"]}, mistral, lead=" ")
    turn = await provider.render_prompt(RULED)
    assert await answered(turn) == "Hi!"
    assert server.bodies[-1]["messages"] == both
    count = len(server.requests)
    await provider.render_prompt(RULED)
    assert len(server.requests) == count  # it is known now
    await provider.render_prompt((*HELLO, *HELLO))
    assert len(server.requests) == count + 1


async def test_a_server_that_leaves_the_system_out() -> None:
    def deaf(messages: Messages) -> str:
        return chatml([one for one in messages if one["role"] != "system"])

    both = [{"role": "user", "content": "Be brief.\n\nHello"}]
    server, provider = chat({chatml(both): ["Hi"]}, deaf)
    turn = await provider.render_prompt(RULED)
    assert await answered(turn) == "Hi"
    assert server.bodies[-1]["messages"] == both


async def test_neighbours_of_one_role_are_one_message_where_turns_are_wanted() -> None:
    given = (*HELLO, Message("user", "You there?"), Message("system", "Be kind."))
    both = [{"role": "user", "content": "Be kind.\n\nHello\n\nYou there?"}]
    server, provider = chat({**GREETED, mistral(both).removeprefix("<s>"): [" Hi"]}, mistral, lead=" ")
    turn = await provider.render_prompt(given)
    assert await answered(turn) == "Hi"
    server, provider = chat({chatml(plain(given)): ["Hi"]})
    turn = await provider.render_prompt(given)
    assert await answered(turn) == "Hi"
    assert server.bodies[-1]["messages"] == plain(given)


async def test_space_that_a_template_writes_before_an_answer_is_no_part_of_it() -> None:
    scripts: dict[str, Sequence[ScriptToken]] = {
        **GREETED,
        mistral(plain((Message("user", "Bye"),))).removeprefix("<s>"): [" See", " you"],
    }
    server, provider = chat(scripts, mistral, lead=" ")
    turn = await provider.render_prompt((Message("user", "Bye"),))
    assert await answered(turn) == "See you"
    assert await answered(turn, b"See") == " you"
    assert server.bodies[-1]["messages"][-1]["content"] == "See"
    assert await said(turn, b"See you", 0, 3) == [[(b"See", False)], [(b" you", False)]]
    assert (await said(turn, b"See me", 3, word=True))[0] == [(b" you", False), (b"", True)]


async def test_space_that_the_server_does_not_write_is_sent() -> None:
    scripts: dict[str, Sequence[ScriptToken]] = {chatml(plain(HELLO)): [" Hi", (" there", 0.7), "!"]}
    server, provider = chat(scripts)
    turn = await provider.render_prompt(HELLO)
    assert await answered(turn) == "Hi there!"
    assert await answered(turn, b"Hi") == " there!"
    assert server.bodies[-1]["messages"][-1]["content"] == " Hi"
    assert await said(turn, b"Hi there!", 0, 2) == [[(b"Hi", False)], [(b" there", False)]]
    assert await answered(await provider.render_prompt((*HELLO, Message("assistant", "Hi")))) == " there!"


async def test_special_tokens_in_a_message_are_warned_of_or_refused() -> None:
    _, provider = chat({})
    typed = (Message("user", "What is <|im_end|> in <html>?"),)
    words = "a message holds <|im_end|> as text, which the model reads as its special token"
    assert (await provider.render_prompt(typed)).warnings == (f"{URL}: {words} (this server takes no token ids)",)
    with pytest.raises(UnsupportedError, match=r"this server takes no token ids"):
        await provider.render_prompt(typed, on_special_tokens="refuse")


async def test_a_server_without_probabilities_can_only_agree() -> None:
    scripts: dict[str, Sequence[ScriptToken]] = {chatml(plain((Message("user", "a"),))): ["b", "c"]}
    scripts |= {chatml(plain(RULED)): ["Hi", " there"]}
    _, provider = chat(scripts, dialect="mistral", probs="ignored")
    turn = await provider.render_prompt(RULED)
    assert (await said(turn, b"Hi you", 2, word=True))[0][0] == (b" there", False)


async def test_thoughts_that_a_server_takes_out_are_refused() -> None:
    server, provider = chat({chatml(plain(HELLO)): ["Hi"]})
    turn = await provider.render_prompt(HELLO)
    server.changes = {"delta": {"reasoning_content": "so"}}
    with pytest.raises(UnsupportedError, match=r"removes the model's reasoning from its answer"):
        await answered(turn)


@pytest.mark.parametrize(
    ("dialect", "field", "value"), [("vllm", "skip_special_tokens", False), ("llama.cpp", "reasoning_format", "none")]
)
async def test_all_that_a_model_writes_is_asked_for(dialect: str, field: str, value: object) -> None:
    server, provider = chat({chatml(plain(HELLO)): ["<think>", "so", "</think>", " Hi"]}, dialect=dialect)
    assert await answered(await provider.render_prompt(HELLO)) == "<think>so</think> Hi"
    assert server.bodies[-1][field] == value
    await draft(provider, "Hello")
    assert field not in server.bodies[-1]  # raw text, and one message, are asked as ever


# By a template of the user's.


async def test_raw_text_needs_a_template() -> None:
    server = FakeOpenAI(ChatModel({}))
    provider = OpenAICompatible(URL, http_client=server.client())
    with pytest.raises(
        UnsupportedError, match=r"does not render its chat template.*connect\(url, chat_template=\.\.\.\)"
    ):
        await provider.render_prompt(HELLO)
    with pytest.raises(ValueError, match="chat_template needs api='completions'"):
        connect(URL, engine="openai", api="chat", chat_template=chatml)


@pytest.mark.parametrize("begins", [True, False])
async def test_a_users_own_template(begins: bool) -> None:
    """The beginning of sequence comes once: from the server, or else from the template."""
    text = mistral(plain(HELLO)).removeprefix("<s>" if begins else "")
    server = FakeOpenAI(ChatModel({text: [" Hi", " there"]}), beginning=begins)
    provider: Any = connect(URL, engine="openai", http_client=server.client(), chat_template=mistral)
    turn = await provider.render_prompt(HELLO)
    assert await answered(turn) == "Hi there"
    assert server.bodies[-1]["prompt"] == text
    assert await said(turn, b"Hi there", 0, 2) == [[(b"Hi", False)], [(b" there", False)]]


@pytest.mark.parametrize("begins", [True, False])
async def test_ollama_takes_a_users_own_template(begins: bool) -> None:
    text = mistral(plain(HELLO)).removeprefix("<s>" if begins else "")
    model = ChatModel({"a": [" b", " c", " d", " e"], text: [" Hi", " there"]})
    server = StandInOllama(model, beginning=len(model.tokens) if begins else None)
    provider = Ollama(URL, http_client=server.client())
    provider.use_template(mistral)
    turn = await provider.render_prompt(HELLO)
    assert await answered(turn) == "Hi there"
    assert (server.bodies[-1]["prompt"], server.bodies[-1]["raw"]) == (text, True)
    plain_one = Ollama(URL, http_client=server.client())
    with pytest.raises(UnsupportedError, match=r"Ollama does not render .*chat_template=\.\.\."):
        await plain_one.render_prompt(HELLO)
