"""LlamaIndex's `OpenAILike`, which sends a temperature of 0.1 by default."""

from __future__ import annotations

import asyncio
import importlib
import typing
from typing import Any

import features as f

like: Any = importlib.import_module("llama_index.llms.openai_like")
types: Any = importlib.import_module("llama_index.core.llms")
prompts: Any = importlib.import_module("llama_index.core.prompts")
tools: Any = importlib.import_module("llama_index.core.tools")
agents: Any = importlib.import_module("llama_index.core.agent.workflow")
messages = [types.ChatMessage(role="user", content=f.QUESTION)]


base = {"model": f.MODEL, "api_base": f.URL, "api_key": f.KEY, "max_retries": 0, "max_tokens": f.TOKENS}


def model(*, chat: bool = True, **more: Any) -> Any:
    return like.OpenAILike(**{**base, "is_chat_model": chat, "temperature": 0, **more})


def by_itself(*, chat: bool) -> Any:
    return like.OpenAILike(**base, is_chat_model=chat)


def chat(**more: Any) -> dict[str, Any]:
    return asked(model(**more))


def asked(llm: Any) -> dict[str, Any]:
    found = llm.chat(messages)
    return f.answer(found.message.content, _usage(found.raw), len(found.logprobs) if found.logprobs else None)


def _usage(raw: Any) -> tuple[int, int] | None:
    return (raw.usage.prompt_tokens, raw.usage.completion_tokens) if raw.usage else None


def stream() -> dict[str, Any]:
    llm = model(additional_kwargs={"stream_options": {"include_usage": True}})
    *_, last = llm.stream_chat(messages)
    return f.answer(last.message.content, _usage(last.raw))


def text(llm: Any) -> dict[str, Any]:
    found = llm.complete(f.QUESTION)
    return f.answer(found.text, _usage(found.raw), len(found.logprobs) if found.logprobs else None)


def structured(**more: Any) -> dict[str, Any]:
    found = model(max_tokens=f.MOST, **more).structured_predict(f.form(), prompts.PromptTemplate(f.SHORT))
    return f.answer(found.model_dump_json())


f.length.__annotations__ |= typing.get_type_hints(f.length)  # it reads no annotations that are text
tool = tools.FunctionTool.from_defaults(f.length)
calling: dict[str, Any] = {"is_function_calling_model": True, "max_tokens": f.MOST}


def calls(found: Any) -> dict[str, Any]:
    [call] = model(**calling).get_tool_calls_from_response(found)
    return f.answer(f.called(call.tool_name, call.tool_kwargs))


def forced() -> Any:
    return model(**calling).chat_with_tools([tool], user_msg=f.ASKED, tool_required=True)


def streamed() -> dict[str, Any]:
    *_, last = model(**calling).stream_chat_with_tools([tool], user_msg=f.ASKED, tool_required=True)
    return calls(last)


def result() -> dict[str, Any]:
    """The loop of LlamaIndex's own agent, which forces no call."""
    agent = agents.FunctionAgent(tools=[tool], llm=model(**calling), streaming=False, initial_tool_choice="length")

    async def ask() -> Any:
        return await agent.run(f.ASKED)

    return f.answer(str(asyncio.run(ask())))


def leave() -> None:
    events = model(max_tokens=f.MANY).stream_chat([types.ChatMessage(role="user", content=f.LONG)])
    next(events)
    events.close()


f.tell(
    {
        "chat": chat,
        "chat, defaults": lambda: asked(by_itself(chat=True)),
        "stream": stream,
        "completions": lambda: text(model(chat=False)),
        "completions, defaults": lambda: text(by_itself(chat=False)),
        "completions, logprobs": lambda: text(model(chat=False, additional_kwargs={"logprobs": 1})),
        "logprobs": lambda: chat(logprobs=True, additional_kwargs={"top_logprobs": 1}),
        "stop, seed, length": lambda: chat(additional_kwargs={"stop": ["\n\n\n"], "seed": 1}),
        "temperature": lambda: chat(temperature=0.7),
        "json_schema": lambda: structured(should_use_structured_outputs=True),
        "json_schema, helper": lambda: structured(is_function_calling_model=True),
        "tools": lambda: calls(forced()),
        "tools, stream": streamed,
        "tool result": result,
        "abort": lambda: f.aborted(leave),
    },
    {**f.NO_RESPONSES, "models": "no list of models"},
)
