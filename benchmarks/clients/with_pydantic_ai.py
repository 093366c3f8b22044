"""Agents of pydantic-ai."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from typing import Any

import features as f

agents: Any = importlib.import_module("pydantic_ai")
models: Any = importlib.import_module("pydantic_ai.models.openai")
providers: Any = importlib.import_module("pydantic_ai.providers.openai")


def agent(kind: str = "OpenAIChatModel", **more: Any) -> Any:
    # Each call needs a provider of its own, because connections belong to one event loop.
    openai: Any = importlib.import_module("openai")
    client = openai.AsyncOpenAI(base_url=f.URL, api_key=f.KEY, max_retries=0)
    model = getattr(models, kind)(f.MODEL, provider=providers.OpenAIProvider(openai_client=client))
    return agents.Agent(model, retries=0, **more)


def chat(settings: Any = None, **more: Any) -> dict[str, Any]:
    found = agent(**more).run_sync(f.QUESTION, model_settings={"max_tokens": f.TOKENS, **(settings or {})})
    details = found.all_messages()[-1].provider_details or {}
    count = len(details["logprobs"]) if details.get("logprobs") else None
    return f.answer(str(found.output), _usage(found.usage), count)


def _usage(usage: Any) -> tuple[int, int]:
    usage = usage() if callable(usage) else usage
    return usage.input_tokens, usage.output_tokens


async def _stream() -> dict[str, Any]:
    async with agent().run_stream(f.QUESTION, model_settings={"max_tokens": f.TOKENS}) as found:
        text = await found.get_output()
        return f.answer(text, _usage(found.usage))


def responses() -> dict[str, Any]:
    found = agent("OpenAIResponsesModel").run_sync(f.SHORT)
    return f.answer(found.output, _usage(found.usage))


async def _responses_stream() -> dict[str, Any]:
    async with agent("OpenAIResponsesModel").run_stream(f.SHORT) as found:
        return f.answer(await found.get_output(), _usage(found.usage))


async def _leave() -> None:
    async with agent().run_stream(f.LONG, model_settings={"max_tokens": f.MANY}) as found:
        async for _ in found.stream_text():
            break
        raise asyncio.CancelledError  # as a time limit would do


def leave() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_leave())


def structured(output: Any, kind: str = "OpenAIChatModel") -> dict[str, Any]:
    found = agent(kind, output_type=output).run_sync(f.SHORT, model_settings={"max_tokens": f.MOST})
    return f.answer(found.output.model_dump_json(), _usage(found.usage))


FORCED = {"max_tokens": f.MOST, **f.FORCING}


async def _forced(*, stream: bool) -> dict[str, Any]:
    direct: Any = importlib.import_module("pydantic_ai.direct")
    messages = importlib.import_module("pydantic_ai.messages")
    tools = [agents.Tool(f.length).tool_def]
    params = importlib.import_module("pydantic_ai.models").ModelRequestParameters(
        function_tools=tools, allow_text_output=False
    )
    given = {"model_settings": FORCED, "model_request_parameters": params}
    asked = [messages.ModelRequest.user_text_prompt(f.ASKED)]
    if not stream:
        found = await direct.model_request(agent().model, asked, **given)
    else:
        async with direct.model_request_stream(agent().model, asked, **given) as events:
            async for _ in events:
                pass
            found = events.get()
    [call] = found.tool_calls
    return f.answer(f.called(call.tool_name, call.args_as_dict()))


def result(kind: str = "OpenAIChatModel") -> dict[str, Any]:
    """The loop of an agent, of which only the first step calls."""
    asking = agent(
        kind,
        tools=[f.length],
        model_settings=lambda run: {**FORCED, **({} if run.run_step == 1 else {"tool_choice": "none"})},
    )
    return f.answer(asking.run_sync(f.ASKED).output)


f.tell(
    {
        "chat": chat,
        "stream": lambda: asyncio.run(_stream()),
        "responses": responses,
        "responses, stream": lambda: asyncio.run(_responses_stream()),
        "logprobs": lambda: chat({"openai_logprobs": True}),
        "stop, seed, length": lambda: chat({"stop_sequences": ["\n\n\n"], "seed": 1}),
        "temperature": lambda: chat({"temperature": 0.7}),
        "json_schema": lambda: structured(agents.NativeOutput(f.form())),
        "json_schema, helper": lambda: structured(f.form()),
        "tools": lambda: asyncio.run(_forced(stream=False)),
        "tools, stream": lambda: asyncio.run(_forced(stream=True)),
        "tool result": result,
        "responses, json_schema": lambda: structured(agents.NativeOutput(f.form()), "OpenAIResponsesModel"),
        "responses, tool result": lambda: result("OpenAIResponsesModel"),
        "abort": lambda: f.aborted(leave),
    },
    {**f.NO_TEXTS, "models": "no list of models"},
)
