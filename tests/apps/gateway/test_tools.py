"""Tools and formats of answers through OpenAI's own client: whole and streamed, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from cosd_api import Fusion, SettingError
from cosd_api.apps.gateway import Gateway
from cosd_providers import Message
from cosd_providers.testing import ScriptedProvider, ScriptToken, TableModel
from support.on_sockets import KEY, served
from support.tool_scripts import CALLED, LIMA, NOW, QUESTION, ROME, TOOLS, Watched, asked, fused
from support.visits import opened, visit

CITY_TOOL: Any = {**TOOLS[0]["function"], "strict": True}


class Person(BaseModel):
    name: str
    age: int


def imitating() -> TableModel:
    """A model that would rather call a tool, as earlier in the conversation, than say something."""
    tokens = [b"", b"<tool_call>", b"Well", *(bytes([one]) for one in range(256))]

    def following(ids: Sequence[int]) -> list[float]:
        begun = ids[-1] in (1, 2)
        return [float(begun), 0.0 if begun else 0.7, 0.0 if begun else 0.3, *[0.0] * 256]

    return TableModel(tokens, following, end_ids=(0,))


@asynccontextmanager
async def client_of(fusion: Fusion) -> AsyncGenerator[Any]:
    async with served(fusion) as (_, url), openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client.chat.completions


async def ask(fusion: Fusion, messages: Any = QUESTION, **more: Any) -> Any:
    """The answer's only choice."""
    async with client_of(fusion) as chat:
        found = await chat.create(model="fused", messages=messages, **more)
        return found.choices[0]


async def refusal(**body: Any) -> openai.BadRequestError:
    async with client_of(fused(LIMA)) as chat:
        with pytest.raises(openai.BadRequestError) as caught:
            await chat.create(model="fused", **{"messages": QUESTION, **body})
    return caught.value


@pytest.mark.parametrize("ids", [False, True], ids=["text", "ids"])
async def test_question_call_result_answer(ids: bool) -> None:
    """The models disagree about the city, in the middle of the arguments."""
    fusion = fused(ROME, LIMA, ids=ids)
    async with client_of(fusion) as chat:
        first = await chat.create(model="fused", messages=QUESTION, tools=TOOLS)
        [choice] = first.choices
        [call] = choice.message.tool_calls
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert (call.type, call.function.name, call.function.arguments) == (
            "function",
            "weather",
            '{"city": "New Lima"}',
        )
        assert first.model_extra["cosd"]["replacements"] == 1
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        second = await chat.create(model="fused", messages=[*QUESTION, choice.message, result], tools=TOOLS)
        assert second.choices[0].message.content == "It is hot."
        assert second.choices[0].message.tool_calls is None and second.choices[0].finish_reason == "stop"
    for model in (fusion.endpoints.draft, *fusion.endpoints.assistants):
        assert isinstance(model, Watched)
        told, _, said, got = model.conversations[-1]
        assert "Weather of a city" in told.content and said == Message("assistant", CALLED)
        assert got == Message("user", "Result of weather:\nsunny")


async def test_a_streamed_call() -> None:
    """The first delta of a call has its id, type and name; the others have only pieces of arguments."""
    async with client_of(fused([*LIMA, *NOW])) as chat:
        stream = await chat.create(
            model="fused", messages=QUESTION, tools=TOOLS, stream=True, stream_options={"include_usage": True}
        )
        chunks = [one async for one in stream]
        deltas = [one.choices[0].delta for one in chunks if one.choices]
        assert (deltas[0].role, deltas[0].content) == ("assistant", None) and not any(one.content for one in deltas)
        calls = [call for delta in deltas for call in delta.tool_calls or ()]
        heads = [one for one in calls if one.id]
        assert [(one.index, one.type, one.function.name, one.function.arguments) for one in heads] == [
            (0, "function", "weather", ""),
            (1, "function", "now", ""),
        ]
        assert heads[0].id != heads[1].id and all(one.id.startswith("call_") for one in heads)
        pieces = [one for one in calls if not one.id]
        assert len(pieces) > 3 and all((one.type, one.function.name) == (None, None) for one in pieces)
        arguments = ["".join(one.function.arguments for one in pieces if one.index == at) for at in (0, 1)]
        assert arguments == ['{"city": "New Lima"}', "{}"]
        assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "tool_calls"
        assert chunks[-1].usage.completion_tokens > 5


async def test_the_stream_helper_of_openais_client() -> None:
    async with (
        client_of(fused(ROME, LIMA)) as chat,
        chat.stream(model="fused", messages=QUESTION, tools=[openai.pydantic_function_tool(Person), *TOOLS]) as stream,
    ):
        kinds = [event.type async for event in stream]
        whole = (await stream.get_final_completion()).choices[0]
    assert "tool_calls.function.arguments.delta" in kinds and kinds.count("tool_calls.function.arguments.done") == 1
    assert whole.message.tool_calls[0].function.arguments == '{"city": "New Lima"}'


async def test_text_before_a_call_and_text_instead_of_a_call() -> None:
    choice = await ask(fused(["Let me", " see", ".", " <", "b>\n", *LIMA]), tools=TOOLS)
    assert (choice.message.content, len(choice.message.tool_calls)) == ("Let me see. <b>\n", 1)
    choice = await ask(fused(["No", " <tool", "s>"]), tools=TOOLS, tool_choice="auto")
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == ("No <tools>", None, "stop")
    async with client_of(fused(["No", " <tool"])) as chat:
        stream = await chat.create(model="fused", messages=QUESTION, tools=TOOLS, stream=True)
        deltas = [one.choices[0].delta async for one in stream]
    assert "".join(one.content or "" for one in deltas) == "No <tool" and not any(one.tool_calls for one in deltas)


async def test_a_model_that_would_not_call_calls_if_it_must() -> None:
    """Its words are not in the language, and the choice of a tool is forced. So is the text around it."""
    script: list[ScriptToken] = ["Hello", "."]
    named: Any = {"type": "function", "function": {"name": "now"}}
    choice = await ask(fused(script), tools=TOOLS, tool_choice=named)
    [call] = choice.message.tool_calls
    assert (call.function.name, call.function.arguments, choice.finish_reason) == ("now", "{}", "tool_calls")
    choice = await ask(fused([*NOW[0].strip(), *NOW[1:]]), tools=TOOLS, tool_choice="required")  # type: ignore[union-attr]
    assert choice.message.tool_calls[0].function.name == "now"


async def test_no_tools_are_shown_if_none_may_be_called() -> None:
    choice = await ask(fused(LIMA), tools=TOOLS, tool_choice="none")
    assert (choice.message.content, choice.message.tool_calls) == ("Hello", None)
    models = [ScriptedProvider(imitating(), template=asked) for _ in range(2)]
    choice = await ask(Fusion(draft=models[0], assistant=models[1]), tools=TOOLS, tool_choice="none")
    assert (choice.message.content, choice.message.tool_calls) == ("Well", None)
    drawing = Fusion(
        models=[Watched.from_texts({"question:": ["Hello"]}, template=asked) for _ in range(2)], method="average"
    )
    assert (await ask(drawing, tools=TOOLS, tool_choice="none")).message.content == "Hello"


async def test_parallel_calls_only_if_allowed() -> None:
    both = [*LIMA, *NOW]
    assert len((await ask(fused(both), tools=TOOLS)).message.tool_calls) == 2
    assert len((await ask(fused(both), tools=TOOLS, parallel_tool_calls=False)).message.tool_calls) == 1
    named: Any = {"type": "function", "function": {"name": "now"}}
    twice = [NOW[0].strip(), *NOW[1:], *NOW]  # type: ignore[union-attr]
    assert len((await ask(fused(twice), tools=TOOLS, tool_choice="required")).message.tool_calls) == 2
    assert len((await ask(fused(twice), tools=TOOLS, tool_choice=named)).message.tool_calls) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_is_cut(stream: bool) -> None:
    """The answer has the call as far as it was written, and its end says why."""
    async with client_of(fused(LIMA)) as chat:
        asked: dict[str, Any] = {"model": "fused", "messages": QUESTION, "tools": TOOLS, "max_tokens": 60}
        for length in (60, 90):
            asked["max_tokens"] = length
            found = await chat.create(**asked, stream=stream)
            if stream:
                chunks = [one async for one in found]
                arguments = "".join(
                    call.function.arguments or "" for one in chunks for call in one.choices[0].delta.tool_calls or ()
                )
                reason = chunks[-1].choices[0].finish_reason
            else:
                calls, reason = found.choices[0].message.tool_calls, found.choices[0].finish_reason
                arguments = calls[0].function.arguments if calls else ""
            assert '{"city": "New Lima"}'.startswith(arguments) and reason in ("length", "tool_calls")


async def test_log_probabilities_of_a_call() -> None:
    async with client_of(fused(LIMA, ids=True)) as chat:
        whole = (await chat.create(model="fused", messages=QUESTION, tools=TOOLS, logprobs=True)).choices[0]
        stream = await chat.create(model="fused", messages=QUESTION, tools=TOOLS, logprobs=True, stream=True)
        found = [one.choices[0].logprobs async for one in stream]
    tokens = [entry.token for one in found if one and one.content for entry in one.content]
    assert tokens == [one.token for one in whole.logprobs.content] and "".join(tokens) == CALLED


async def test_a_json_schema() -> None:
    written: list[ScriptToken] = ['{"name": "', "An", 'n", "age": ', "4", "2", "}"]
    same = {"question:": written}
    fusion = Fusion(
        draft=ScriptedProvider.from_texts(same, template=asked),
        assistant=ScriptedProvider.from_texts(same, template=asked),
    )
    async with client_of(fusion) as chat:
        whole = await chat.parse(model="fused", messages=QUESTION, response_format=Person)
        assert whole.choices[0].message.parsed == Person(name="Ann", age=42)
        async with chat.stream(model="fused", messages=QUESTION, response_format=Person) as stream:
            async for _ in stream:
                pass
            assert (await stream.get_final_completion()).choices[0].message.parsed == Person(name="Ann", age=42)
        plain = await chat.create(model="fused", messages=QUESTION, response_format={"type": "json_object"})
        assert json.loads(plain.choices[0].message.content) == {"name": "Ann", "age": 42}


async def test_the_helpers_of_openais_client_over_the_responses_api() -> None:
    asked: Any = {"model": "fused", "input": "Is it hot in New Lima?", "tools": [{"type": "function", **CITY_TOOL}]}
    fusions = fused(ROME, LIMA), fused(['{"name": "', "Ann", '", "age": ', "4", "}"])
    for fusion, body in zip(fusions, (asked, {**asked, "text_format": Person}), strict=True):
        async with served(fusion) as (_, url), openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
            whole: Any = await client.responses.parse(**body)
            async with client.responses.stream(**body) as stream:
                streamed: Any = await stream.get_final_response()
        for found in (whole, streamed):
            assert len(found.output) == 1 and found.status == "completed"
            if "text_format" in body:
                assert found.output_parsed == Person(name="Ann", age=4)
            else:
                assert (found.output[0].name, found.output[0].arguments) == ("weather", '{"city": "New Lima"}')


async def test_a_json_schema_or_a_call() -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "p", "schema": Person.model_json_schema()}}
    choice = await ask(fused(LIMA), tools=TOOLS, response_format=form)
    assert choice.message.tool_calls[0].function.name == "weather"
    choice = await ask(fused(['{"name": "', "Ann", '", "age": ', "4", "}"]), tools=TOOLS, response_format=form)
    assert json.loads(choice.message.content) == {"name": "Ann", "age": 4} and not choice.message.tool_calls


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"tools": "weather"}, "tools", "tools must be a list of tools, not str"),
        ({"tools": [{"type": "function"}]}, "tools", "tools[0] must be"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "tool_choice must be 'none', 'auto', 'required' or"),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice needs tools"),
        (
            {"tools": TOOLS, "messages": [*QUESTION, {"role": "assistant", "content": "It"}]},
            "tools",
            "tools are refused: an answer that has begun, in the last message, calls none",
        ),
        ({"response_format": {"type": "xml"}}, "response_format", "response_format is refused: its type must be text"),
        ({"response_format": "json"}, "response_format", "response_format is refused: its type must be text"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "response_format of the type json_schema"),
        ({"functions": [{"name": "a"}]}, "functions", "functions is refused: give tools and tool_choice"),
        ({"guided_json": {}}, "guided_json", "guided_json is refused: give response_format"),
    ],
)
async def test_what_is_refused(body: dict[str, Any], param: str, words: str) -> None:
    more = {name: body.pop(name) for name in ("guided_json",) if name in body}
    error = await refusal(**body, **({"extra_body": more} if more else {}))
    assert error.param == param and error.body["message"].startswith(words)  # type: ignore[index]


async def test_schemas_that_cannot_be_enforced_are_refused_before_any_request() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    bad: Any = [{"type": "function", "function": {"name": "a", "parameters": schema}}]
    error = await refusal(tools=bad)
    assert error.param == "tools" and "tools[0].function.parameters: schema.properties.a" in str(error)
    form: Any = {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}
    error = await refusal(response_format=form)
    assert error.param == "response_format" and "uniqueItems" in str(error)


async def test_the_format_of_calls_can_be_set() -> None:
    fusion = fused(['{"name": "', "now", '", "arguments": ', "{}}"])
    body = {"model": "fused", "messages": QUESTION, "tools": TOOLS}
    async with opened(fusion, call_format="json") as gateway:
        reply = (await visit(gateway, "/v1/chat/completions", body)).json
    assert reply["choices"][0]["message"]["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
    with pytest.raises(SettingError, match="call_format must be one of 'hermes'"):
        Gateway({"fused": fusion}, call_format="xml")


async def test_without_the_extra_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    never: Any = [{"type": "function", "function": {"name": "never", "parameters": {"title": "not cached"}}}]
    error = await refusal(tools=never)
    assert error.param == "tools" and 'structured answers need llguidance: pip install ".[structured]"' in str(error)
