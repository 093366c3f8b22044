"""LangChain's models for OpenAI: the chat model, and the text model, which sends a temperature of 0.7 by default."""

from __future__ import annotations

import importlib
import json
from typing import Any

import features as f

langchain: Any = importlib.import_module("langchain_openai")
base = {"model": f.MODEL, "base_url": f.URL, "api_key": f.KEY, "max_retries": 0}


def model(**more: Any) -> Any:
    return langchain.ChatOpenAI(**{**base, "max_tokens": f.TOKENS, **more})


def chat(**more: Any) -> dict[str, Any]:
    return told(model(**more).invoke(f.QUESTION))


def told(message: Any) -> dict[str, Any]:
    calls, usage = [f.called(one["name"], one["args"]) for one in message.tool_calls], message.usage_metadata
    logprobs = message.response_metadata.get("logprobs")
    count = len(logprobs["content"]) if logprobs else None
    return f.answer("".join(calls) or message.text, (usage["input_tokens"], usage["output_tokens"]), count)


def stream(model: Any, question: str) -> dict[str, Any]:
    whole: Any = None
    for one in model.stream(question):
        whole = one if whole is None else whole + one
    return told(whole)


def with_tool(**more: Any) -> Any:
    tool: Any = importlib.import_module("langchain_core.tools").tool(f.length)
    asking = model(max_tokens=f.MOST, **more)
    return tool, asking.bind_tools([tool], **f.FORCING), asking.bind_tools([tool])


def result(**more: Any) -> dict[str, Any]:
    tool, forced, free = with_tool(**more)
    first = forced.invoke(f.ASKED)
    return told(free.invoke([("user", f.ASKED), first, *(tool.invoke(call) for call in first.tool_calls)]))


def structured(schema: Any, **more: Any) -> dict[str, Any]:
    found = model(max_tokens=f.MOST, **more).with_structured_output(schema, method="json_schema").invoke(f.SHORT)
    return f.answer(json.dumps(dict(found)))


def text(**more: Any) -> dict[str, Any]:
    found = langchain.OpenAI(**base, max_tokens=f.TOKENS, **more).generate([f.QUESTION])
    [[one]], usage = found.generations, found.llm_output["token_usage"]
    logprobs = one.generation_info["logprobs"]
    count = len(logprobs["tokens"]) if logprobs else None
    return f.answer(one.text, (usage["prompt_tokens"], usage["completion_tokens"]), count)


def leave() -> None:
    events = langchain.ChatOpenAI(**base, max_tokens=f.MANY).stream(f.LONG)
    next(events)
    events.close()


of_responses = {"use_responses_api": True, "max_tokens": None}
f.tell(
    {
        "chat": chat,
        "stream": lambda: stream(model(stream_usage=True), f.QUESTION),
        "responses": lambda: told(model(**of_responses).invoke(f.SHORT)),
        "responses, stream": lambda: stream(model(**of_responses), f.SHORT),
        "completions": lambda: text(temperature=0),
        "completions, defaults": text,
        "completions, logprobs": lambda: text(temperature=0, logprobs=1),
        "logprobs": lambda: chat(logprobs=True),
        "stop, seed, length": lambda: chat(stop=["\n\n\n"], seed=1),
        "temperature": lambda: chat(temperature=0.7),
        "json_schema": lambda: structured(f.SCHEMA),
        "json_schema, helper": lambda: structured(f.form()),
        "tools": lambda: told(with_tool()[1].invoke(f.ASKED)),
        "tools, stream": lambda: stream(with_tool(stream_usage=True)[1], f.ASKED),
        "tool result": result,
        "responses, json_schema": lambda: structured(f.form(), use_responses_api=True),
        "responses, tool result": lambda: result(use_responses_api=True),
        "abort": lambda: f.aborted(leave),
    },
    {"models": "no list of models"},
)
