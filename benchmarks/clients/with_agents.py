"""OpenAI's agents, by default over the Responses API."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from typing import Any

from features import KEY, LONG, MANY, MODEL, QUESTION, SCHEMA, SHORT, TOKENS, URL, aborted, answer, tell

agents: Any = importlib.import_module("agents")
pydantic: Any = importlib.import_module("pydantic")
agents.set_tracing_disabled(True)
River = pydantic.create_model("River", **dict.fromkeys(SCHEMA["properties"], (str, ...)))


def agent(kind: str = "OpenAIChatCompletionsModel", tokens: int | None = TOKENS, **more: Any) -> Any:
    # Each call needs a client of its own, because connections belong to one event loop.
    openai: Any = importlib.import_module("openai")
    client = openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0)
    settings = agents.ModelSettings(max_tokens=tokens, include_usage=True, **more.pop("settings", {}))
    model = getattr(agents, kind)(MODEL, openai_client=client)
    return agents.Agent("agent", model=model, model_settings=settings, **more)


def chat(question: str = QUESTION, **more: Any) -> dict[str, Any]:
    found = agents.Runner.run_sync(agent(**more), question)
    return _answer(found, str(found.final_output))


def _answer(found: Any, text: str) -> dict[str, Any]:
    usage = found.context_wrapper.usage
    return answer(text, (usage.input_tokens, usage.output_tokens))


async def _stream(question: str = QUESTION, **more: Any) -> dict[str, Any]:
    found, text = agents.Runner.run_streamed(agent(**more), question), ""
    async for one in found.stream_events():
        if one.type == "raw_response_event" and one.data.type == "response.output_text.delta":
            text += one.data.delta
    return _answer(found, text)


async def _leave() -> None:
    events = agents.Runner.run_streamed(agent(tokens=MANY), LONG).stream_events()
    async for one in events:
        if one.type == "raw_response_event" and one.data.type == "response.output_text.delta":
            break
    raise asyncio.CancelledError  # as a time limit would do


def leave() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_leave())


def river(name: str) -> str:
    """The length of a river."""
    return name


responses: dict[str, Any] = {"question": SHORT, "kind": "OpenAIResponsesModel", "tokens": None}
tell(
    {
        "chat": chat,
        "stream": lambda: asyncio.run(_stream()),
        "responses": lambda: chat(**responses),
        "responses, stream": lambda: asyncio.run(_stream(**responses)),
        "stop, seed, length": lambda: chat(settings={"extra_args": {"stop": ["\n\n\n"], "seed": 1}}),
        "temperature": lambda: chat(settings={"temperature": 0.7}),
        "tools": lambda: chat(tools=[agents.function_tool(river)]),
        "json_schema": lambda: chat(output_type=River),
        "abort": lambda: aborted(leave),
    },
    {
        **dict.fromkeys(
            ("completions", "completions, logprobs", "completions, defaults"), "only conversations, no texts"
        ),
        "logprobs": "log probabilities only in responses",
        "models": "no list of models",
    },
)
