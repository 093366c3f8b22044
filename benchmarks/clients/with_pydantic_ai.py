"""Agents of pydantic-ai."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from typing import Any

from features import KEY, LONG, MANY, MODEL, QUESTION, SHORT, TOKENS, URL, aborted, answer, tell

agents: Any = importlib.import_module("pydantic_ai")
models: Any = importlib.import_module("pydantic_ai.models.openai")
providers: Any = importlib.import_module("pydantic_ai.providers.openai")


def agent(kind: str = "OpenAIChatModel", **more: Any) -> Any:
    # Each call needs a provider of its own, because connections belong to one event loop.
    openai: Any = importlib.import_module("openai")
    client = openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0)
    model = getattr(models, kind)(MODEL, provider=providers.OpenAIProvider(openai_client=client))
    return agents.Agent(model, retries=0, **more)


def chat(settings: Any = None, **more: Any) -> dict[str, Any]:
    found = agent(**more).run_sync(QUESTION, model_settings={"max_tokens": TOKENS, **(settings or {})})
    details = found.all_messages()[-1].provider_details or {}
    count = len(details["logprobs"]) if details.get("logprobs") else None
    return answer(str(found.output), _usage(found.usage), count)


def _usage(usage: Any) -> tuple[int, int]:
    usage = usage() if callable(usage) else usage
    return usage.input_tokens, usage.output_tokens


async def _stream() -> dict[str, Any]:
    async with agent().run_stream(QUESTION, model_settings={"max_tokens": TOKENS}) as found:
        text = await found.get_output()
        return answer(text, _usage(found.usage))


def responses() -> dict[str, Any]:
    found = agent("OpenAIResponsesModel").run_sync(SHORT)
    return answer(found.output, _usage(found.usage))


async def _responses_stream() -> dict[str, Any]:
    async with agent("OpenAIResponsesModel").run_stream(SHORT) as found:
        return answer(await found.get_output(), _usage(found.usage))


async def _leave() -> None:
    async with agent().run_stream(LONG, model_settings={"max_tokens": MANY}) as found:
        async for _ in found.stream_text():
            break
        raise asyncio.CancelledError  # as a time limit would do


def leave() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_leave())


def river(name: str) -> str:
    """The length of a river."""
    return name


tell(
    {
        "chat": chat,
        "stream": lambda: asyncio.run(_stream()),
        "responses": responses,
        "responses, stream": lambda: asyncio.run(_responses_stream()),
        "logprobs": lambda: chat({"openai_logprobs": True}),
        "stop, seed, length": lambda: chat({"stop_sequences": ["\n\n\n"], "seed": 1}),
        "temperature": lambda: chat({"temperature": 0.7}),
        "tools": lambda: chat(tools=[river]),
        "json_schema": lambda: chat(output_type=agents.NativeOutput(dict[str, str])),
        "abort": lambda: aborted(leave),
    },
    {
        **dict.fromkeys(
            ("completions", "completions, logprobs", "completions, defaults"), "only conversations, no texts"
        ),
        "models": "no list of models",
    },
)
