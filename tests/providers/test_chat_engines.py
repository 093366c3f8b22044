"""Conversations over the engines that render them: the prompt of each model, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from cosd_providers import Question, UnsupportedError, Usage
from cosd_providers.contract import Context
from cosd_providers.engines.sglang import Sglang
from cosd_providers.engines.tgi import Tgi
from cosd_providers.engines.vllm import Vllm
from cosd_providers.messages import Message, RenderedPrompt
from cosd_providers.testing import ScriptToken
from fakes import tgi as stand_in_tgi
from fakes.chats import ChatModel, Messages, chatml, mistral
from fakes.sglang import StandInSglang
from fakes.tgi import StandInTgi
from fakes.vllm import FakeVllm
from support.asked import draft

URL = "http://gpu:8000"
HELLO = (Message("user", "Hello"),)
RULED = (Message("system", "Be brief."), *HELLO)
LONGER = (*RULED, Message("assistant", "Hi!"), Message("user", "Bye"))


@dataclass
class Engine:
    """An engine's adapter in front of a toy.

    Attributes:
        server: what answers.
        provider: asks it.
        beginning: the id of its beginning of sequence; None for none.
        names: the ids of its special tokens.
        rendered: the paths and bodies of what was rendered.
        exact: whether it takes ids.
    """

    server: Any
    provider: Any
    beginning: int | None
    exact: bool

    @property
    def names(self) -> dict[str, int]:
        return {name: n for n, name in self.server.model.specials.items()}

    @property
    def rendered(self) -> list[Any]:
        return [body for _, body in self.server.requests if body is not None and "messages" in body]

    def asked(self, *names: str) -> list[int]:
        """Count of each of these special tokens in the last prompt."""
        return [self.server.read[-1].count(self.names[name]) for name in names]


Make = Callable[..., Engine]


@pytest.fixture(params=["vllm", "sglang", "tgi"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes an engine whose model follows scripts, keyed by the conversation as its template writes it."""
    stand_in_tgi.VIOLATIONS.clear()

    def engine(scripts: dict[str, Sequence[ScriptToken]], template: Any = chatml, *, begins: bool = False) -> Engine:
        model = ChatModel(scripts)
        beginning = len(model.tokens) if begins else None
        if request.param == "vllm":
            server: Any = FakeVllm(model, beginning=begins)
            server.template, server.specials = template, model.specials
            return Engine(server, Vllm(URL, http_client=server.client()), beginning, True)
        kind, adapter = {"sglang": (StandInSglang, Sglang), "tgi": (StandInTgi, Tgi)}[request.param]
        server = kind(model, beginning=beginning, specials=model.specials, template=template)
        return Engine(server, adapter(URL, http_client=server.client()), beginning, request.param != "tgi")

    yield engine
    assert stand_in_tgi.VIOLATIONS == []


def script(template: Callable[[Messages], str], messages: Sequence[Message]) -> str:
    """The conversation as the model reads it, without a beginning of sequence, which a script does not see."""
    return template([{"role": one.role, "content": one.content} for one in messages]).removeprefix("<s>")


async def answered(turn: RenderedPrompt, text: bytes = b"") -> tuple[str, list[Any]]:
    """The text of a draft, and all of it."""
    items = await draft(turn.provider, turn.prompt, text)
    return b"".join(item.data for item in items[:-1]).decode(), items


async def said(turn: RenderedPrompt, text: bytes, *starts: int) -> list[list[tuple[bytes, bool]]]:
    """Proposals at some places: bytes, and whether it is the end."""
    questions = [Question(at, (text[at : at + 3],)) for at in starts]
    found = await turn.provider.propose(Context(turn.prompt, text), questions, usage=Usage())
    return [[(token.data, token.end) for token in one.tokens] if one else [] for one in found]


async def test_the_model_reads_what_its_template_writes(make: Make) -> None:
    engine = make({script(chatml, LONGER): ["See", (" you", 0.4)]})
    turn = await engine.provider.render_prompt(LONGER)
    assert (turn.prompt, turn.warnings) == (script(chatml, LONGER), ())
    text, items = await answered(turn)
    assert text == "See you"
    assert [item.prob for item in items[:2]] == pytest.approx([1.0, 0.4])
    assert engine.asked("<|im_start|>", "<|im_end|>") == [5, 4]
    assert await said(turn, b"See you", 3, 7) == [[(b" you", False)], [(b"", True)]]


async def test_later_turns_begin_with_the_earlier_ones(make: Make) -> None:
    engine = make({script(chatml, RULED): ["Hi", "!", "<|im_end|>"]})
    turn = await engine.provider.render_prompt(RULED)
    text, _ = await answered(turn)
    later = await engine.provider.render_prompt((*RULED, Message("assistant", text), Message("user", "Bye")))
    assert later.prompt.startswith(turn.prompt + text + "<|im_end|>")
    assert (await engine.provider.render_prompt(RULED)).prompt == turn.prompt


async def test_the_beginning_of_sequence_comes_once(make: Make) -> None:
    engine = make({script(mistral, HELLO): [" Hi", "!"]}, mistral, begins=True)
    turn = await engine.provider.render_prompt(HELLO)
    assert (await answered(turn))[0] == "Hi!"
    assert engine.server.read[-1][:2] == [engine.beginning, engine.names["[INST]"]]
    assert await said(turn, b"Hi!", 0, 2) == [[(b"Hi", False)], [(b"!", False)]]
    assert engine.server.read[-1].count(engine.beginning) == 1


@pytest.mark.parametrize("writes", [True, False])
async def test_a_users_own_template(make: Make, writes: bool) -> None:
    """The beginning of sequence comes once, whether or not the template writes it."""
    engine = make({script(mistral, HELLO): [" Hi"]}, None, begins=True)
    engine.provider.use_template(lambda messages: mistral(messages).removeprefix("" if writes else "<s>"))
    turn = await engine.provider.render_prompt(HELLO)
    assert (await answered(turn))[0] == "Hi"
    assert engine.server.read[-1][:2] == [engine.beginning, engine.names["[INST]"]]
    rendered = {message["content"] for body in engine.rendered for message in body["messages"]}
    assert HELLO[0].content not in rendered


async def test_space_that_a_template_writes_before_an_answer_is_no_part_of_it(make: Make) -> None:
    longer = (*HELLO, Message("assistant", "Hi!"), Message("user", "Bye"))
    engine = make({script(mistral, longer): [" See", " you"]}, mistral, begins=True)
    turn = await engine.provider.render_prompt(longer)
    assert (await answered(turn))[0] == "See you"
    assert (await answered(turn, b"See"))[0] == " you"
    assert await said(turn, b"See you", 0, 3) == [[(b"See", False)], [(b" you", False)]]


async def test_a_template_without_a_system_gets_what_it_says_from_the_user(make: Make) -> None:
    both = (Message("user", "Be brief.\n\nHello"),)
    engine = make({script(mistral, both): [" Hi"]}, mistral, begins=True)
    turn = await engine.provider.render_prompt(RULED)
    assert turn.prompt.removeprefix("<s>") == script(mistral, both)
    assert (await answered(turn))[0] == "Hi"
    count = len(engine.rendered)
    await engine.provider.render_prompt(RULED)
    assert [body["messages"] for body in engine.rendered[count:]] == [[{"role": "user", "content": both[0].content}]]


async def test_a_template_that_takes_a_conversation_in_no_form(make: Make) -> None:
    def refuses(messages: Messages) -> str:
        return mistral([{"role": "system", "content": ""}, *messages])

    engine = make({}, refuses)
    with pytest.raises(
        UnsupportedError, match=r"does not accept this conversation: .*roles must alternate.*chat_template"
    ):
        await engine.provider.render_prompt(HELLO)


async def test_both_ends_end_an_answer(make: Make) -> None:
    engine = make({script(chatml, HELLO): ["Hi", ("<|im_end|>", 0.6)], script(chatml, RULED): ["Hi", ("", 0.7)]})
    for messages, prob, name in ((HELLO, 0.6, "<|im_end|>"), (RULED, 0.7, "</s>")):
        turn = await engine.provider.render_prompt(messages)
        text, items = await answered(turn)
        assert (text, items[-2].end, items[-1].reason) == ("Hi", True, "end")
        assert items[-2].name in (name, None)  # SGLang tells no names of ends
        assert items[-2].prob == pytest.approx(prob)
        [[(data, end)]] = await said(turn, b"Hi", 2)
        assert (data, end) == (b"", True)


async def test_thoughts_pass_through(make: Make) -> None:
    thought = ["<think>", "so", "</think>", " Hi"]
    engine = make({script(chatml, HELLO): thought})
    turn = await engine.provider.render_prompt(HELLO)
    text, items = await answered(turn)
    assert text == "<think>so</think> Hi"
    assert [item.data.decode() for item in items[:4]] == thought
    assert await said(turn, text.encode(), 0, 9, 17) == [
        [(b"<think>", False)],
        [(b"</think>", False)],
        [(b" Hi", False)],
    ]
    again, _ = await answered(turn, b"<think>so")
    assert again == "</think> Hi"
    assert engine.asked("<think>", "</think>") == [1, 0]


async def test_a_started_answer_is_gone_on_with(make: Make) -> None:
    engine = make({script(mistral, HELLO): [" Well", ", hi"]}, mistral, begins=True)
    turn = await engine.provider.render_prompt((*HELLO, Message("assistant", "Well")))
    assert (await answered(turn))[0] == ", hi"
    assert await said(turn, b", hi", 4) == [[(b"", True)]]


async def test_special_tokens_that_a_user_types_stay_text(make: Make) -> None:
    typed = (Message("user", "What is <|im_end|> or <think>?"),)
    engine = make({script(chatml, typed): ["An", " end"]})
    turn = await engine.provider.render_prompt(typed)
    assert turn.prompt == script(chatml, typed)
    assert (await answered(turn))[0] == "An end"
    assert engine.asked("<|im_end|>", "<think>") == ([1, 0] if engine.exact else [2, 1])
    if not engine.exact:
        words = "a message holds <think>, <|im_end|> as text, which the model reads as its special token"
        assert turn.warnings == (f"{URL}: {words} (this server takes no token ids)",)
        with pytest.raises(UnsupportedError, match=r"takes no token ids.*on_special_tokens='warn'"):
            await engine.provider.render_prompt(typed, on_special_tokens="refuse")
        return
    assert turn.warnings == ()
    for strategy in ("echo", "list", "singles"):
        provider = type(engine.provider)(URL, http_client=engine.server.client(), strategy=strategy)
        turn = await provider.render_prompt(typed, on_special_tokens="refuse")
        count = len(engine.server.read)
        assert await said(turn, b"An end", 0, 2, 6) == [[(b"An", False)], [(b" end", False)], [(b"", True)]]
        ids = [read for read in engine.server.read[count:] if engine.names["<|im_start|>"] in read]
        assert ids
        assert {read.count(engine.names["<|im_end|>"]) for read in ids} == {1}
    scored = await turn.provider.score(Context(turn.prompt, b"An end"), usage=Usage())
    assert [(token.data, token.prob) for token in scored] == [(b"An", 1.0), (b" end", 1.0)]


async def test_a_model_without_a_template(make: Make) -> None:
    engine = make({}, None)
    with pytest.raises(UnsupportedError, match=r"chat_template=\.\.\."):
        await engine.provider.render_prompt(HELLO)
