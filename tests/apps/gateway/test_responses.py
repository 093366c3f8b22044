"""The Responses API: the same answers as those of chat completions, in OpenAI's other form, read by OpenAI's client."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

import anyio
import anyio.to_thread
import httpx
import openai
import openai.types.responses.response_create_params as params
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from cosd_api import Fusion, Message
from cosd_api.apps.gateway.api_errors import ApiError
from cosd_api.apps.gateway.bodies import read_chat, read_responses
from cosd_api.apps.gateway.config import GatewayLimits
from cosd_api.apps.gateway.fields import FIELDS
from cosd_api.apps.gateway.responses import ResponsesBody, ResponsesForm, chat_fields
from cosd_api.apps.gateway.shapes import DONE, ChatShape, event
from cosd_providers import ProviderError, RateLimitError, ServerError
from cosd_providers.testing import Fault, ScriptedProvider, TableModel
from support.on_sockets import KEY, served
from support.visits import opened, visit
from toys.lima import ASSISTANT, DRAFT, FUSED, before_error, scripted

ROUTE, CHAT = "/v1/responses", "/v1/chat/completions"
LIMITS = GatewayLimits(max_tokens=100, messages=3)
LOGPROBS: Literal["message.output_text.logprobs"] = "message.output_text.logprobs"
ASKED = "user: Q\nassistant: "
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

CHUNKS: list[Any] = [
    {"delta": {"role": "assistant", "content": "", "refusal": None}},
    {"delta": {"content": "Let me see"}},
    {
        "delta": {
            "tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]
        }
    },
    {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}]}},
    {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}},
    {
        "delta": {
            "tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}]
        }
    },
    {"delta": {}, "finish_reason": "tool_calls"},
]
"""The choices of the chunks of a chat answer with two calls."""


def fused(**options: Any) -> Fusion:
    """The pair of `toys.lima`, asked by a conversation."""
    return Fusion(draft=scripted_draft(**options), assistant=scripted(ASSISTANT, ASKED))


def scripted_draft(**options: Any) -> ScriptedProvider:
    return ScriptedProvider.from_texts({text.replace("Q:", ASKED): tokens for text, tokens in DRAFT.items()}, **options)


@asynccontextmanager
async def client_of(app: Any) -> AsyncGenerator[openai.AsyncOpenAI]:
    http: Any = httpx.AsyncClient(transport=httpx.ASGITransport(app=app))
    async with openai.AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key="none", http_client=http) as client:
        yield client


def read(**body: Any) -> Any:
    return read_responses(json.dumps({"input": "Hi", **body}).encode(), LIMITS, ())


def streamed(body: bytes) -> list[Any]:
    """The events of a stream; each has its type twice, and its number."""
    found: list[Any] = []
    for one in body.decode().removesuffix("\n\n").split("\n\n"):
        kind, data = one.removeprefix("event: ").split("\ndata: ")
        found.append(json.loads(data))
        assert (found[-1]["type"], found[-1]["sequence_number"]) == (kind, len(found) - 1)
        EVENTS.validate_python(found[-1])
    return found


def chunks_of(choices: Sequence[Any]) -> bytes:
    """The chunks of a chat answer, with its usage."""
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    full = [{"index": 0, "logprobs": None, "finish_reason": None, **choice} for choice in choices]
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    events: list[Any] = [*({"choices": [one], "usage": None} for one in full), {"choices": [], "usage": usage}]
    return b"".join(event({**head, **one}) for one in events) + DONE


# ------------------------------------------------------------------------------------------------------------- answers


async def test_openais_client_is_answered_whole() -> None:
    async with opened(fused()) as app, client_of(app) as client:
        found = await client.responses.create(model="fused", input="Q", metadata={"a": "b"}, temperature=0, store=True)
        chat = await client.chat.completions.create(model="fused", messages=[{"role": "user", "content": "Q"}])
    Response.model_validate(found.model_dump(), strict=True)
    assert (found.output_text, found.status, found.error, found.incomplete_details) == (FUSED, "completed", None, None)
    assert (found.object, found.model, found.id[:5], str(found.output[0].id)[:4]) == (
        "response",
        "fused",
        "resp_",
        "msg_",
    )
    assert (found.metadata, found.temperature, found.previous_response_id) == ({"a": "b"}, 0, None)
    assert found.model_extra is not None and chat.model_extra is not None and chat.usage is not None
    assert found.model_extra["cosd"]["replacements"] == chat.model_extra["cosd"]["replacements"] == 1
    assert found.model_extra["store"] is False  # although it was asked for
    assert found.usage is not None
    used = (found.usage.input_tokens, found.usage.output_tokens, found.usage.total_tokens)
    assert used == (chat.usage.prompt_tokens, chat.usage.completion_tokens, chat.usage.total_tokens)


async def test_events_have_the_order_of_the_specification() -> None:
    async with opened(fused()) as app:
        reply = await visit(app, ROUTE, {"input": "Q", "instructions": None, "stream": True})
        whole = (await visit(app, ROUTE, {"input": "Q"})).json
    assert (reply.status, reply.complete) == (200, True)
    events = streamed(reply.body)
    kinds = [one["type"].removeprefix("response.") for one in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert {*kinds[4:-4]} == {"output_text.delta"} and len(kinds) == 17
    assert "".join(one["delta"] for one in events[4:-4]) == events[-4]["text"] == events[-3]["part"]["text"] == FUSED
    assert events[0]["response"]["status"] == events[1]["response"]["status"] == "in_progress"
    last = events[-1]["response"]
    assert last["output"] == [events[-2]["item"]] and last["id"] == events[0]["response"]["id"]
    of_answer = ("id", "created_at", "output", "cosd")
    assert {name: one for name, one in last.items() if name not in of_answer} == {
        name: one for name, one in whole.items() if name not in of_answer
    }
    assert last["output"][0]["content"] == whole["output"][0]["content"]


def ask(url: str) -> str:
    with openai.OpenAI(base_url=url, api_key=KEY) as client:
        with client.responses.stream(model="fused", input="Q") as events:
            text = "".join(one.delta for one in events if one.type == "response.output_text.delta")
            final = events.get_final_response()
        assert final.output_text == text and final.usage is not None and final.usage.output_tokens == 10
        with pytest.raises(
            openai.NotFoundError, match="gateway keeps no answers, and only POST /v1/responses is served"
        ):
            client.responses.retrieve(final.id)
        return text


async def test_openais_client_is_answered_by_events_over_sockets() -> None:
    async with served(fused()) as (_, url):
        assert await anyio.to_thread.run_sync(ask, url) == FUSED
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
            stream = await client.responses.create(model="fused", input="Q", stream=True)
            assert "".join([one.delta async for one in stream if one.type == "response.output_text.delta"]) == FUSED
            async with client.responses.stream(model="fused", input="Q") as events:
                assert (await events.get_final_response()).output_text == FUSED


@pytest.mark.parametrize("stream", [False, True])
async def test_a_length_makes_an_answer_incomplete(stream: bool) -> None:
    async with opened(fused()) as app:
        reply = await visit(app, ROUTE, {"input": "Q", "max_output_tokens": 3, "stream": stream})
        empty = await visit(app, ROUTE, {"input": "Hi", "stream": stream})  # the models have nothing to say
    found = streamed(reply.body)[-1]["response"] if stream else reply.json
    assert not stream or streamed(reply.body)[-1]["type"] == "response.incomplete"
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    [item] = found["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", " The capital")
    [item] = (streamed(empty.body)[-1]["response"] if stream else empty.json)["output"]
    assert (item["status"], item["content"][0]["text"]) == ("completed", "")


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_are_those_of_chat(stream: bool) -> None:
    asked = {
        "input": "Q",
        "include": [LOGPROBS, "reasoning.encrypted_content"],
        "top_logprobs": 1,
    }
    async with opened(fused()) as app:
        reply = await visit(app, ROUTE, {**asked, "stream": stream})
        chat = await visit(app, CHAT, {"messages": [{"role": "user", "content": "Q"}], "logprobs": True})
    expected = chat.json["choices"][0]["logprobs"]["content"]
    assert len(expected) == 9
    if stream:
        events = streamed(reply.body)
        deltas = [one["logprobs"] for one in events if one["type"] == "response.output_text.delta"]
        assert [entry for one in deltas for entry in one] == events[-4]["logprobs"] == expected
    found = events[-1]["response"] if stream else reply.json
    assert (found["output"][0]["content"][0]["logprobs"], found["top_logprobs"]) == (expected, 1)


async def test_other_tokens_are_listed_up_to_the_number_that_the_draft_lists() -> None:
    letters = [*b"abcdefgh"]
    probs = [0.0, *(letters.index(byte) / 28 if byte in letters else 0.0 for byte in range(256))]
    model = TableModel([b"", *(bytes([byte]) for byte in range(256))], lambda _: probs, end_ids=(0,))
    messages: Any = [{"role": "user", "content": "Q"}]
    for most, expected in ((None, "hgfed"), (2, "hgf"), (0, "h")):
        models = [ScriptedProvider(model, ids=True, top_k=most) for _ in range(2)]
        asked: Any = {"model": "fused", "top_logprobs": 5}
        async with opened(Fusion(draft=models[0], assistant=models[1])) as app, client_of(app) as client:
            found = await client.responses.create(**asked, input="Q", include=[LOGPROBS], max_output_tokens=3)
            chat = await client.chat.completions.create(**asked, messages=messages, logprobs=True, max_tokens=3)
        item, of_chat = cast("Any", found.output[0]), chat.choices[0].logprobs
        assert of_chat is not None and of_chat.content is not None
        for content in (item.content[0].logprobs, of_chat.content):
            assert ["".join(other.token for other in one.top_logprobs) for one in content] == [expected] * 3, most


@given(st.lists(st.text(max_size=9) | st.sampled_from(["\n\n", "data: [DONE]", "[DONE]", "\r\n", "\x85", ""])))
def test_any_text_arrives(pieces: list[str]) -> None:
    shape = ChatShape(request_id="r", model="m", created=1, usage=True)
    chunks = [shape.opening(0), *(shape.piece(0, one, None, 0) for one in pieces)]
    form = ResponsesForm({}, "m", 1)
    end = chunks_of([{"delta": {}, "finish_reason": "stop"}])
    text = b"".join([form.events(b"".join(chunks[:2])), *map(form.events, chunks[2:]), form.events(end)])
    events = streamed(text)
    assert "".join(one["delta"] for one in events if one["type"] == "response.output_text.delta") == "".join(pieces)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "".join(pieces)


# --------------------------------------------------------------------------------------------------------------- tools


async def test_calls_are_items_of_their_own() -> None:
    """OpenAI's client reads them from the events, and from a whole answer."""
    events = ResponsesForm({}, "m", 1).events(chunks_of(CHUNKS))
    calls = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    message = {"role": "assistant", "content": "Let me see", "tool_calls": calls}
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
    whole = ResponsesForm({}, "m", 1).whole({"choices": [choice], "usage": usage, "cosd": {}})

    def answer(request: httpx.Request) -> httpx.Response:
        if json.loads(request.content).get("stream"):
            return httpx.Response(200, content=events, headers={"content-type": "text/event-stream"})
        return httpx.Response(200, json=whole)

    http: Any = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    async with openai.AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key="none", http_client=http) as client:
        async with client.responses.stream(model="m", input="Q") as stream:
            kinds = [one.type.removeprefix("response.") async for one in stream]
            final: Any = await stream.get_final_response()
        assert kinds == [
            "created", "in_progress",
            "output_item.added", "content_part.added", "output_text.delta",
            "output_text.done", "content_part.done", "output_item.done",
            "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
            "function_call_arguments.done", "output_item.done",
            "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
            "completed",
        ]  # fmt: skip
        whole_answer: Any = await client.responses.create(model="m", input="Q")
        for found in (final, whole_answer):
            text, *others = found.output
            assert (text.content[0].text, found.status, found.usage.total_tokens) == ("Let me see", "completed", 12)
            assert [(one.call_id, one.name, one.arguments, one.status) for one in others] == [
                ("a", "f", '{"x": 1}', "completed"), ("b", "g", "{}", "completed"),
            ]  # fmt: skip
    assert [one["output_index"] for one in streamed(events)[2:-1]] == [0] * 6 + [1] * 5 + [2] * 4
    only = ResponsesForm({}, "m", 1).whole({"choices": [{**choice, "message": {**message, "content": None}}]})
    assert [one["type"] for one in only["output"]] == ["function_call"] * 2


def test_a_request_is_translated_to_the_chat_request_that_means_the_same() -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    call = {
        "type": "function_call",
        "call_id": "a",
        "name": "f",
        "arguments": "{}",
        "id": "fc_1",
        "status": "completed",
    }
    said = {"type": "output_text", "text": "Well", "annotations": [], "logprobs": []}
    given = [
        {"role": "user", "content": [{"type": "input_text", "text": "Q"}, {"type": "input_image", "image_url": "i"}]},
        {"type": "message", "role": "assistant", "content": [said], "id": "msg_1", "status": "completed"},
        call,
        {**call, "call_id": "b"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "2"}]},
        {**call, "call_id": "c"},
    ]
    schema = {"name": "s", "schema": {"type": "object"}, "strict": True}
    text = {"format": {"type": "json_schema", **schema}, "verbosity": "low"}
    choice = {"type": "function", "name": "f"}
    body = {"tools": [{"type": "function", **function}], "tool_choice": choice, "text": text, "max_output_tokens": 7}
    found, items = chat_fields(ResponsesBody.model_validate({"input": given, "top_p": 1, **body}))
    calls = [{"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}} for one in "abc"]
    assert found == {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Q"}, {"type": "input_image", "image_url": "i"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Well"}], "tool_calls": calls[:2]},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "2"}]},
            {"role": "assistant", "content": None, "tool_calls": calls[2:]},
        ],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": schema},
        "verbosity": "low",
        "max_completion_tokens": 7,
        "top_p": 1,
    }
    assert items == [0, 1, 4, 5, 6]


# ------------------------------------------------------------------------------------------------------------ requests


def test_a_request_is_read_as_a_chat_request() -> None:
    turns: list[Any] = [{"role": "developer", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    chat = read_chat(json.dumps({"messages": turns, "max_tokens": 5, "stop": "x"}).encode(), LIMITS, ())
    found = read(input=turns, max_output_tokens=5, stop="x", text={"format": {"type": "text"}}, tools=[], include=[])
    assert (found.prompts, found.options, found.chat) == (chat.prompts, chat.options, True)
    assert read(input=turns, instructions="In verse").prompts == (
        (Message("system", "In verse\n\nBe brief"), Message("user", "Hi")),
    )
    assert read(instructions="In verse").prompts == ((Message("system", "In verse"), Message("user", "Hi")),)
    assert (read(include=[LOGPROBS]).logprobs, read().logprobs) == (True, False)
    assert read(top_logprobs=3, include=[LOGPROBS]).options == {"alternatives": 2}


def test_the_fields_of_openais_client_are_known() -> None:
    assert params.ResponseCreateParamsBase.__annotations__.keys() <= FIELDS.keys()


async def test_openais_client_may_send_all_of_its_fields() -> None:
    more: Any = {
        "background": False, "context_management": [], "conversation": None, "include": [], "max_tool_calls": 3,
        "metadata": {"a": "b"}, "parallel_tool_calls": False, "previous_response_id": None, "prompt": None,
        "prompt_cache_key": "k", "prompt_cache_retention": "24h", "reasoning": {"effort": None},
        "safety_identifier": "s", "service_tier": "auto",
        "store": False, "stream_options": {"include_obfuscation": False}, "temperature": 0.7,
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "tool_choice": "auto", "tools": [],
        "top_logprobs": 0, "top_p": 1, "truncation": "disabled", "user": "u",
    }  # fmt: skip
    async with opened(fused(), ignore=("temperature",)) as app, client_of(app) as client:
        found = await client.responses.create(model="fused", input="Q", instructions="", max_output_tokens=50, **more)
    assert (found.output_text, found.parallel_tool_calls, found.user) == (FUSED, False, "u")
    assert found.model_extra is not None and found.model_extra["cosd"]["ignored"] == ["temperature"]


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,"}
STATELESS = "the gateway keeps no answers"
READ = f"only message, function_call and function_call_output are read, and {STATELESS}"


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({"input": None}, "input", "input is required"),
        ({"input": ""}, "input", "input is refused: it must be text, or a list of messages and other items"),
        ({"input": 3}, "input", "input is refused: it must be text, or a list of messages and other items"),
        ({"input": []}, "input", "the conversation is empty: there is nothing to answer"),
        ({"input": [3]}, "input", 'input[0] must be a Message or {"role": ..., "content": ...}, not int'),
        ({"input": [{"role": "user", "content": "a"}] * 4}, "input", "input has 4 messages, and at most 3"),
        ({"input": [{"role": "critic", "content": "a"}]}, "input", "input[0] has the role 'critic'; known are"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input", "input[0] has a part of the type 'input_image'"),
        ({"input": [{"type": "item_reference"}]}, "input", f"input[0] is refused: {READ}"),
        ({"input": [{"role": "user", "content": "a"}, {"type": 3}]}, "input", f"input[1] is refused: {READ}"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", f"previous_response_id is refused: {STATELESS}"),
        ({"conversation": "c"}, "conversation", f"conversation is refused: {STATELESS}: send the whole conversat"),
        ({"background": True}, "background", f"background is refused: {STATELESS}"),
        ({"prompt": {"id": "p"}}, "prompt", "prompt is refused: the gateway keeps no prompts. Give instructions and"),
        ({"messages": []}, "messages", "messages is refused: give input"),
        ({"truncation": "auto"}, "truncation", "truncation is refused: each model reads the whole prompt"),
        ({"reasoning": {"effort": "low"}}, "reasoning", "reasoning is refused: it is not sent to the models"),
        ({"temperature": 3}, "temperature", "temperature is refused: give 0, or leave it out"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens: input should be greater than or"),
        ({"max_output_tokens": 101}, "max_output_tokens", "max_output_tokens is more than the 100 that are"),
        ({"include": ["all"]}, "include", "include: input should be 'message.output_text.logprobs', 'reasoning.encryp"),
        ({"text": {"style": "terse"}}, "text", "text: extra inputs are not permitted"),
        ({"top_logprobs": 3}, "top_logprobs", f'top_logprobs is refused: give include: ["{LOGPROBS}"], too'),
        ({"instruction": "a"}, "instruction", "unknown field 'instruction'; whoever runs the"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools[0] is refused: only tools of the type function"),
        ({"n": 2}, "n", "n is refused: "),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_with_the_reason(given: Any, param: str, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(**given)
    assert str(caught.value).startswith(words)
    assert (caught.value.param, caught.value.status, caught.value.kind) == (param, 400, "invalid_request_error")


async def test_a_field_of_this_route_is_refused_elsewhere_with_its_name() -> None:
    async with opened(fused()) as app:
        reply = await visit(app, CHAT, {"messages": [{"role": "user", "content": "Q"}], "instructions": "a"})
        assert reply.error["message"] == "instructions is refused: it is a field of /v1/responses"
        for path in (f"{ROUTE}/resp_1", f"{ROUTE}/resp_1/cancel"):
            reply = await visit(app, path, {} if "cancel" in path else None)
            words = "there is no such route; the gateway keeps no answers, and only POST /v1/responses is served"
            assert (reply.status, reply.error["message"]) == (404, words)


# -------------------------------------------------------------------------------------------------------------- errors

BROKEN = ServerError("it broke", endpoint="http://secret-host:1", status=500)


async def test_an_error_before_the_first_token_has_a_status_of_its_own() -> None:
    for stream in (False, True):
        async with opened(fused(faults=[Fault(BROKEN)])) as app:
            reply = await visit(app, ROUTE, {"input": "Q", "stream": stream})
        assert (reply.status, reply.error["code"], reply.error["type"]) == (503, "upstream_failed", "upstream_error")


LIMITED = RateLimitError("slow down", endpoint="http://secret-host:1", status=429)


@pytest.mark.parametrize(
    ("error", "code", "of_response"),
    [(BROKEN, "upstream_failed", "server_error"), (LIMITED, "rate_limit_exceeded", "rate_limit_exceeded")],
)
async def test_an_error_in_a_stream_fails_the_response_and_is_raised(
    error: ProviderError, code: str, of_response: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with opened(fused(faults=[Fault(error, tokens=3)])) as app, client_of(app) as client:
        reply = await visit(app, ROUTE, {"input": "Q", "stream": True})
        *_, failed, last = streamed(reply.body)
    async with opened(fused(faults=[Fault(error, tokens=3)])) as app, client_of(app) as client:
        stream = await client.responses.create(model="fused", input="Q", stream=True)
        seen, raised = await before_error(stream, openai.APIError, last["message"])
    assert (failed["type"], last["type"]) == ("response.failed", "error")
    assert "response.failed" in seen[-1] and raised.code == code
    response = failed["response"]
    assert (response["status"], response["error"]) == ("failed", {"code": of_response, "message": last["message"]})
    assert response["output"][0]["status"] == "incomplete"
    assert FUSED.startswith(response["output"][0]["content"][0]["text"] or "?")
    assert last["code"] == last["error"]["code"] == code
    assert "secret" not in reply.body.decode()
    assert f'"path": "{ROUTE}"' in caplog.text and f'"error": "{code}"' in caplog.text


async def test_an_error_after_a_heartbeat_is_an_event() -> None:
    fusion = fused(faults=[Fault(None)])
    async with opened(fusion, first_token_timeout=0.2, heartbeat_seconds=0.01) as app:
        reply = await visit(app, ROUTE, {"input": "Q", "stream": True})
    kinds = [one["type"] for one in streamed(reply.body.replace(b": waiting\n\n", b""))]
    assert kinds == ["response.created", "response.in_progress", "response.failed", "error"]


async def test_requests_are_counted_and_bodies_bounded_as_those_of_chat() -> None:
    async with opened(fused(context=60)) as app:
        assert (await visit(app, ROUTE, {"input": "Q"})).status == 200
        for path, body in ((ROUTE, {"input": "x" * 70_000}), (CHAT, {"messages": ["x" * 70_000]})):
            reply = await visit(app, path, body)
            assert (reply.status, reply.error["code"]) == (413, "body_too_large"), path
        page = (await visit(app, "/metrics")).body.decode()
    assert f'cosd_requests_total{{model="fused",outcome="ok",route="{ROUTE}"}} 1.0' in page
