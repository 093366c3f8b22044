"""Tools of the LangChain chat model: bound, called, streamed, answered and refused."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field, ValidationError

from cosd_api import SettingError
from cosd_api.apps.langchain import ChatCoSD, CoSDLLM
from cosd_providers import Message
from support.tool_scripts import CALLED, LIMA, NOW, QUESTION, ROME, TOOLS, Watched, fused

ASKED = HumanMessage(QUESTION[0]["content"])
WEATHER = {"name": "weather", "args": {"city": "New Lima"}, "type": "tool_call"}


@tool
def weather(city: str) -> str:
    """Weather of a city"""
    return f"sunny in {city}"


@tool
def now() -> str:
    """The time."""
    return "noon"


class Weather(BaseModel):
    """Weather of a city"""

    city: str = Field(description="A city")


def model(*scripts: Any, **settings: Any) -> ChatCoSD:
    return ChatCoSD(fusion=fused(*scripts or (ROME, LIMA)), **settings)


def called(message: BaseMessage) -> list[dict[str, Any]]:
    assert isinstance(message, AIMessage)
    return [{name: one[name] for name in ("name", "args", "type")} for one in message.tool_calls]


@pytest.mark.parametrize("tools", [[weather, now], TOOLS], ids=["functions", "openai"])
async def test_question_call_result_answer(tools: Any) -> None:
    """The models disagree about the city, in the middle of the arguments."""
    bound = model().bind_tools(tools)
    first = await bound.ainvoke([ASKED])
    assert called(first) == [WEATHER] and not first.text
    assert first.response_metadata["finish_reason"] == "tool_calls"
    assert first.response_metadata["cosd"]["replacements"] == 1
    result = ToolMessage("sunny", tool_call_id=first.tool_calls[0]["id"])
    second = await bound.ainvoke([ASKED, first, result])
    assert (second.content, second.tool_calls) == ("It is hot.", [])
    assert second.response_metadata["finish_reason"] == "stop"


def test_without_an_event_loop() -> None:
    message = model().bind_tools([weather, now]).invoke([ASKED])
    assert called(message) == [WEATHER]
    assert weather.invoke(message.tool_calls[0]).content == "sunny in New Lima"


async def test_streamed_calls() -> None:
    chunks: list[Any] = [one async for one in model([*LIMA, *NOW]).bind_tools([weather, now]).astream([ASKED])]
    pieces = [piece for one in chunks for piece in one.tool_call_chunks]
    heads = [(one["index"], one["name"], bool(one["id"])) for one in pieces if one["name"]]
    assert heads == [(0, "weather", True), (1, "now", True)]
    assert len(pieces) > 5 and all(one["id"] is None for one in pieces if not one["name"])
    whole = sum(chunks[1:], chunks[0])
    assert called(whole) == [WEATHER, {"name": "now", "args": {}, "type": "tool_call"}]


@pytest.mark.parametrize("choice", ["any", True, "required", "now", "none", None])
async def test_choices(choice: Any) -> None:
    """The models say words that are no call, unless they must call."""
    fusion = fused(["Hello"])
    bound = ChatCoSD(fusion=fusion).bind_tools([now], tool_choice=choice, parallel_tool_calls=False)
    message = await bound.ainvoke([ASKED])
    if choice in ("none", None):
        assert (message.text, message.tool_calls) == ("Hello", [])
    else:
        assert (message.text, called(message)) == ("", [{"name": "now", "args": {}, "type": "tool_call"}])
    draft = fusion.endpoints.draft
    assert isinstance(draft, Watched)
    assert any('"name": "now"' in one.content for one in draft.conversations[-1]) is (choice != "none")


async def test_one_call_at_a_time() -> None:
    bound = model([*LIMA, *NOW]).bind_tools([weather, now], parallel_tool_calls=False, strict=True)
    assert called(await bound.ainvoke([ASKED])) == [WEATHER]


async def test_a_cut_call_is_not_valid() -> None:
    message = await model().bind_tools([weather, now], max_tokens=7).ainvoke([ASKED])
    assert isinstance(message, AIMessage)
    assert message.response_metadata["finish_reason"] == "length"
    again = await model().bind_tools([weather, now]).ainvoke([ASKED, message, _result(message), ASKED])
    assert again.text == "It is hot."


def _result(message: AIMessage) -> ToolMessage:
    return ToolMessage("sunny", tool_call_id=[*message.tool_calls, *message.invalid_tool_calls][0]["id"] or "")


async def test_the_format_of_calls_can_be_set() -> None:
    fusion = fused(['{"name": "now", "arguments": {}}'])
    message = await ChatCoSD(fusion=fusion, call_format="json").bind_tools([weather, now]).ainvoke([ASKED])
    assert called(message) == [{"name": "now", "args": {}, "type": "tool_call"}]
    with pytest.raises(ValidationError, match=r"call_format must be one of .*'hermes'"):
        model(call_format="herms")
    assert model(call_format="json")._identifying_params["call_format"] == "json"  # caches distinguish by these


async def test_the_parts_of_other_models_that_repeat_calls_are_left_out() -> None:
    content: list[str | dict[Any, Any]] = [
        {"type": "text", "text": "I look. "},
        {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "New Lima"}},
    ]
    past = AIMessage(content, tool_calls=[{"name": "weather", "args": {"city": "New Lima"}, "id": "1"}])
    result = ToolMessage([{"type": "text", "text": "sunny"}], tool_call_id="1")
    fusion = fused(LIMA)
    answer = await ChatCoSD(fusion=fusion).bind_tools([weather, now]).ainvoke([ASKED, past, result])
    assert answer.text == "It is hot."
    draft = fusion.endpoints.draft
    assert isinstance(draft, Watched)
    assert draft.conversations[-1][2] == Message("assistant", f"I look. \n\n{CALLED}")


def test_tokens_of_a_conversation_with_tools() -> None:
    few, more = (model().get_num_tokens_from_messages([ASKED], tools) for tools in (None, [weather]))
    assert few > 0 and more > few


@pytest.mark.parametrize(
    ("tools", "more", "words"),
    [
        ([weather], {"tool_choice": "wether"}, "tool_choice requires a tool that is not in tools"),
        ([], {"tool_choice": "any"}, "tool_choice needs tools"),
        ([weather, weather], {}, "tools has two tools with the name 'weather'"),
        ([{"type": "function", "function": {"name": "a b"}}], {}, r"tools\[0\].function.name must be"),
    ],
)
async def test_invalid_tools_are_refused(tools: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        await model().bind_tools(tools, **more).ainvoke([ASKED])


async def test_what_is_refused() -> None:
    with pytest.raises(SettingError, match="functions is obsolete: use bind_tools"):
        await model().bind(functions=TOOLS).ainvoke([ASKED])
    with pytest.raises(SettingError, match="tools are part of a conversation: use ChatCoSD instead of CoSDLLM"):
        await CoSDLLM(fusion=fused(LIMA)).bind(tools=TOOLS).ainvoke("Q:")
    with pytest.raises(SettingError, match=r"messages\[1\] is the result of a tool call that no earlier message makes"):
        await model().ainvoke([ASKED, ToolMessage("42", tool_call_id="1")])
    with pytest.raises(SettingError, match="the last message calls tools: append their results"):
        await model().ainvoke([ASKED, AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "1"}])])
    with pytest.raises(SettingError, match="tools are refused: with tools, a response_format must be JSON"):
        await model().bind_tools([weather], response_format=["yes", "no"]).ainvoke([ASKED])
    with pytest.raises(SettingError, match="tools are refused: an answer that has begun"):
        await model().bind_tools([weather]).ainvoke([ASKED, AIMessage("It")])
