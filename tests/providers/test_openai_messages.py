"""Routes for messages that continue no partial answer: `api="messages"`, for methods that ask by messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from cosd_api import Fusion, Steps
from cosd_providers import Question, ResponseError, UnsupportedError, Usage, connect
from cosd_providers.contract import Context
from cosd_providers.engines import OpenAICompatible
from cosd_providers.messages import Message
from cosd_providers.testing import ScriptToken, TableModel
from fakes.breaking import Break, Breaking
from fakes.chats import ChatModel, chatml
from fakes.openai import FakeOpenAI
from support.asked import draft

URL = "http://gpu:8000"
HELLO = (Message("user", "Hello"),)


def plain(*said: str) -> str:
    """A conversation of a user, who begins, and an assistant."""
    return chatml([{"role": ("user", "assistant")[at % 2], "content": one} for at, one in enumerate(said)])


def over(scripts: dict[str, Sequence[ScriptToken]], **options: Any) -> tuple[FakeOpenAI, OpenAICompatible]:
    server = FakeOpenAI(ChatModel(scripts), chat=chatml, **options)
    provider = connect(URL, engine="openai", model="toy", api="messages", http_client=server.client())
    assert isinstance(provider, OpenAICompatible)
    return server, provider


@pytest.mark.parametrize("probs", ["yes", "ignored", "refused"])
async def test_it_answers_conversations(probs: Any) -> None:
    server, provider = over({plain("Hello"): [" Hi", " there", "!"]}, probs=probs)
    info = await provider.describe()
    able = info.capabilities
    assert (able.continues, able.probs, able.score, able.top_k) == (False, False, False, 0)
    turn = await provider.render_prompt(HELLO)
    *tokens, end = await draft(turn.provider, turn.prompt, limit=2)
    assert ([token.data for token in tokens], end.reason) == ([b" Hi", b" there"], "limit")
    assert all(token.prob is None for token in tokens)
    *tokens, end = await draft(turn.provider, turn.prompt)
    assert (tokens[-1].end, end.reason) == (True, "end")
    assert all(message["role"] == "user" for body in server.bodies for message in body["messages"])
    assert provider.connect_options()["api"] == "messages"


async def test_it_continues_nothing() -> None:
    server, provider = over({plain("Hello"): ["Hi"]})
    turn = await provider.render_prompt(HELLO)
    asked = len(server.bodies)
    with pytest.raises(UnsupportedError, match="a partial answer is not continued"):
        await draft(turn.provider, turn.prompt, b"H")
    with pytest.raises(UnsupportedError, match="a partial answer is not continued"):
        await turn.provider.propose(Context(turn.prompt, b""), [Question(0, (b"H",))], usage=Usage())
    with pytest.raises(UnsupportedError, match="End the conversation with a user message"):
        await provider.render_prompt([*HELLO, Message("assistant", "H")])
    assert len(server.bodies) == asked


@pytest.mark.parametrize("per_event", [(2,), (3, 1), (99,)])
async def test_a_limit_of_tokens_is_reached_without_a_partial_answer(per_event: Any) -> None:
    server, provider = over({plain("Hello"): list("abcdef")}, probs="ignored", per_event=per_event)
    turn = await provider.render_prompt(HELLO)
    *tokens, _ = await draft(turn.provider, turn.prompt, limit=3)
    assert b"abcdef".startswith(b"".join(token.data for token in tokens))
    assert all(message["role"] == "user" for body in server.bodies for message in body["messages"])


class Careless(FakeOpenAI):
    """Draws other tokens each time, whatever the seed."""

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.content and b'"seed"' in request.content:
            body = json.loads(request.content)
            request = httpx.Request("POST", request.url, json={**body, "seed": len(self.requests)})
        return super().handle(request)


UNSURE = TableModel([b"", b"Q", *(bytes([one]) for one in b"abcd")], lambda ids: [0, 0] + [0.25] * 4, end_ids=(0,))


@pytest.mark.parametrize("per_event", [(1,), (2,), (3, 1)])
async def test_a_drawn_answer_ends_at_the_servers_own_number_of_tokens(per_event: Any) -> None:
    """The same request would draw another answer."""
    server = Careless(UNSURE, per_event=per_event)
    provider = OpenAICompatible(URL, http_client=server.client(), api="messages")
    *tokens, end = await draft(provider, "Q", limit=6, temperature=1, seed=3)
    assert [body["max_tokens"] for body in server.bodies] == [6]
    assert (b"".join(token.data for token in tokens), end.reason) == (server.drawn[-1], "limit")


@pytest.mark.usefixtures("no_waiting")
async def test_a_drawn_answer_that_breaks_off_is_not_mixed_with_another() -> None:
    server = Careless(UNSURE)
    breaking = Breaking(server.handle, Break("breaks", 1500))
    provider = OpenAICompatible(URL, http_client=breaking.client(), api="messages")
    with pytest.raises(ResponseError, match="the server drew another answer to the repeated request"):
        await draft(provider, "Q", limit=20, temperature=1, seed=3)
    obeys = FakeOpenAI(UNSURE)
    breaking = Breaking(obeys.handle, Break("breaks", 1500))
    provider = OpenAICompatible(URL, http_client=breaking.client(), api="messages")
    *tokens, _ = await draft(provider, "Q", limit=20, temperature=1, seed=3)
    assert breaking.happened and b"".join(token.data for token in tokens) == obeys.drawn[-1]


async def test_steps_over_two_of_them() -> None:
    question, again = "Score?", "Go on."
    steps = ["One.\n\n", "2?", "Two.", "\n\n", "Three."]
    _, small = over(
        {
            plain("Hello"): [steps[0], "X"],
            plain("Hello", "One.\n\n", again): [steps[1], "\n\n"],
            plain("Hello", "One.\n\nTwo.\n\n", again): [steps[4]],
        },
        probs="ignored",
    )
    _, large = over(
        {
            plain("Hello", "One.", question): ["8"],
            plain("Hello", "One.\n\n2?", question): ["3"],
            plain("Hello", "One.\n\n", again): [*steps[2:4], "More"],
            plain("Hello", "One.\n\nTwo.\n\nThree.", question): ["9"],
        },
        probs="refused",
    )
    async with Fusion(draft=small, assistant=large, method=Steps(question=question, again=again)) as fusion:
        result = await fusion.generate(HELLO)
        assert result.text == "One.\n\nTwo.\n\nThree."
        assert [segment.winner for segment in result.segments] == [0, 1, 0]
        assert (await fusion.generate("Hello")).text == result.text  # one message of a user's
    async with Fusion(draft=small, assistant=large) as fusion:
        with pytest.raises(UnsupportedError, match="takes messages only, and does not continue a partial answer"):
            await fusion.generate(HELLO)
