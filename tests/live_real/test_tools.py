"""Calls of two real models through OpenAI's own client. The models choose as well as small models can; the form is
always right.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from cosd_api import Fusion
from support.on_sockets import KEY, served


def tool(name: str, description: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


UNITS = ["celsius", "fahrenheit"]
NUMBER = {"type": "integer"}
TOOLS: list[Any] = [
    tool("get_weather", "Get the weather of a city", city={"type": "string"}, unit={"enum": UNITS}),
    tool("add", "Add two whole numbers", a=NUMBER, b=NUMBER),
]
CITIES = ("Lima", "Rome", "Oslo", "Tokyo", "Paris", "Cairo", "New York", "São Paulo", "Zürich", "Québec")
SUMS = ((17, 25), (3, 4), (100, 250), (8, 9), (12, 30), (1, 1), (44, 5), (60, 7), (99, 2), (15, 15))
QUESTIONS = [f"What is the weather in {city}?" for city in CITIES] + [f"How much is {a} plus {b}?" for a, b in SUMS]


def is_right(name: str, arguments: str) -> bool:
    """True if the arguments are those of the tool."""
    given: dict[str, Any] = json.loads(arguments)
    if name == "add":
        return given.keys() == {"a", "b"} and all(type(one) is int for one in given.values())
    return name == "get_weather" and given.keys() == {"city", "unit"} and given["unit"] in UNITS


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.extended)])
async def test_forty_calls(draft: str, shorter: str, every: int) -> None:
    body: dict[str, Any] = {"model": "fused", "tools": TOOLS, "tool_choice": "required", "max_tokens": 120}
    body["parallel_tool_calls"] = False
    fusion = Fusion(draft=draft, assistant=shorter)
    async with served(fusion) as (_, url), openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
        for question in QUESTIONS[::every]:
            asked: list[Any] = [{"role": "user", "content": question}]
            whole = (await client.chat.completions.create(messages=asked, **body)).choices[0]
            assert whole.message.tool_calls and whole.finish_reason == "tool_calls"
            [call] = whole.message.tool_calls
            assert call.type == "function" and is_right(call.function.name, call.function.arguments), call
            async with client.chat.completions.stream(messages=asked, **body) as stream:
                streamed = (await stream.get_final_completion()).choices[0]
            assert streamed.message.tool_calls and streamed.finish_reason == "tool_calls"
            [same] = streamed.message.tool_calls
            assert is_right(same.function.name, same.function.arguments), same


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Lima", "Rome", "Oslo"]
    unit: Literal["celsius", "fahrenheit"]


async def test_the_helpers_of_openais_client(draft: str, shorter: str) -> None:
    """Answers and calls are parsed alike, whole and streamed, over both APIs."""
    forced: Any = {"tool_choice": "required", "parallel_tool_calls": False}
    spec: Any = openai.pydantic_function_tool(Weather)
    async with (
        served(Fusion(draft=draft, assistant=shorter)) as (_, url),
        openai.AsyncOpenAI(base_url=url, api_key=KEY) as client,
    ):
        chat, responses = client.chat.completions, client.responses
        for more in ({"response_format": Weather}, {"tools": [spec], **forced}):
            body: Any = {"model": "fused", "messages": [{"role": "user", "content": QUESTIONS[0]}], **more}
            whole: Any = (await chat.parse(**body)).choices[0].message
            async with chat.stream(**body) as stream:
                streamed: Any = (await stream.get_final_completion()).choices[0].message
            for one in (whole, streamed):
                parsed = one.tool_calls[0].function.parsed_arguments if "tools" in more else one.parsed
                assert isinstance(parsed, Weather)
        for more in ({"text_format": Weather}, {"tools": [{"type": "function", **spec["function"]}], **forced}):
            body = {"model": "fused", "input": QUESTIONS[0], **more}
            whole = await responses.parse(**body)
            async with responses.stream(**body) as events:
                streamed = await events.get_final_response()
            for one in (whole, streamed):
                parsed = one.output[0].parsed_arguments if "tools" in more else one.output_parsed
                assert isinstance(Weather.model_validate(parsed), Weather) and one.status == "completed"


async def test_question_call_result_answer(draft: str, shorter: str) -> None:
    asked: list[Any] = [{"role": "user", "content": QUESTIONS[0]}]
    fusion = Fusion(draft=draft, assistant=shorter)
    async with served(fusion) as (_, url), openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
        body: dict[str, Any] = {"model": "fused", "tools": TOOLS, "max_tokens": 120, "parallel_tool_calls": False}
        first = await client.chat.completions.create(messages=asked, tool_choice="required", **body)
        message = first.choices[0].message
        assert message.tool_calls and message.content is None
        results = [
            {"role": "tool", "tool_call_id": one.id, "content": "sunny, 24 degrees"} for one in message.tool_calls
        ]
        more: Any = [*asked, message, *results]
        second = (await client.chat.completions.create(messages=more, tool_choice="none", **body)).choices[0]
    assert second.message.content and second.message.tool_calls is None
    assert not second.message.content.startswith("<")
