"""OpenAI's agents, by default over the Responses API."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from typing import Any

import features as f

agents: Any = importlib.import_module("agents")
agents.set_tracing_disabled(True)


def agent(kind: str = "OpenAIChatCompletionsModel", tokens: int | None = f.TOKENS, **more: Any) -> Any:
    # Each call needs a client of its own, because connections belong to one event loop.
    openai: Any = importlib.import_module("openai")
    client = openai.AsyncOpenAI(base_url=f.URL, api_key=f.KEY, max_retries=0)
    settings = agents.ModelSettings(max_tokens=tokens, include_usage=True, **more.pop("settings", {}))
    model = getattr(agents, kind)(f.MODEL, openai_client=client)
    return agents.Agent("agent", model=model, model_settings=settings, **more)


def chat(question: str = f.QUESTION, **more: Any) -> dict[str, Any]:
    found = agents.Runner.run_sync(agent(**more), question)
    return _answer(found, str(found.final_output))


def _answer(found: Any, text: str) -> dict[str, Any]:
    usage = found.context_wrapper.usage
    return f.answer(text, (usage.input_tokens, usage.output_tokens))


async def _stream(question: str = f.QUESTION, **more: Any) -> dict[str, Any]:
    found, text = agents.Runner.run_streamed(agent(**more), question), ""
    async for one in found.stream_events():
        if one.type == "raw_response_event" and one.data.type == "response.output_text.delta":
            text += one.data.delta
    return _answer(found, text)


async def _leave() -> None:
    events = agents.Runner.run_streamed(agent(tokens=f.MANY), f.LONG).stream_events()
    async for one in events:
        if one.type == "raw_response_event" and one.data.type == "response.output_text.delta":
            break
    raise asyncio.CancelledError  # as a time limit would do


def leave() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_leave())


def structured(**more: Any) -> dict[str, Any]:
    found = agents.Runner.run_sync(agent(output_type=f.form(), tokens=f.MOST, **more), f.SHORT)
    return f.answer(found.final_output.model_dump_json())


def calling(**more: Any) -> Any:
    return agent(tools=[agents.function_tool(f.length)], settings=f.FORCING, tokens=f.MOST, **more)


def forced() -> dict[str, Any]:
    found = agents.Runner.run_sync(calling(tool_use_behavior="stop_on_first_tool"), f.ASKED)
    return _called(found)


def _called(found: Any) -> dict[str, Any]:
    call = found.new_items[0].raw_item
    return f.answer(f.called(call.name, call.arguments))


async def _forced() -> dict[str, Any]:
    found = agents.Runner.run_streamed(calling(tool_use_behavior="stop_on_first_tool"), f.ASKED)
    async for _ in found.stream_events():
        pass
    return _called(found)


def result(**more: Any) -> dict[str, Any]:
    """The loop of an agent, which forces only the first call."""
    return f.answer(agents.Runner.run_sync(calling(**more), f.ASKED, max_turns=3).final_output)


responses: dict[str, Any] = {"question": f.SHORT, "kind": "OpenAIResponsesModel", "tokens": None}
f.tell(
    {
        "chat": chat,
        "stream": lambda: asyncio.run(_stream()),
        "responses": lambda: chat(**responses),
        "responses, stream": lambda: asyncio.run(_stream(**responses)),
        "stop, seed, length": lambda: chat(settings={"extra_args": {"stop": ["\n\n\n"], "seed": 1}}),
        "temperature": lambda: chat(settings={"temperature": 0.7}),
        "json_schema, helper": structured,
        "tools": forced,
        "tools, stream": lambda: asyncio.run(_forced()),
        "tool result": result,
        "responses, json_schema": lambda: structured(kind="OpenAIResponsesModel"),
        "responses, tool result": lambda: result(kind="OpenAIResponsesModel"),
        "abort": lambda: f.aborted(leave),
    },
    {
        **f.NO_TEXTS,
        "logprobs": "log probabilities only in responses",
        "json_schema": "schemas only as models",
        "models": "no list of models",
    },
)
