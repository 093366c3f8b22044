"""LangChain's models for OpenAI: the chat model, and the text model, which sends a temperature of 0.7 by default."""

from __future__ import annotations

import importlib
from typing import Any

from features import KEY, LONG, MANY, MODEL, QUESTION, SCHEMA, SHORT, TOKENS, TOOL, URL, aborted, answer, tell

langchain: Any = importlib.import_module("langchain_openai")
base = {"model": MODEL, "base_url": URL, "api_key": KEY, "max_retries": 0}


def chat(bound: Any = None, **more: Any) -> dict[str, Any]:
    model = langchain.ChatOpenAI(**base, max_tokens=TOKENS, **more)
    found = model.bind(**bound).invoke(QUESTION) if bound else model.invoke(QUESTION)
    return answer(found.content, _usage(found), _count(found))


def _usage(message: Any) -> tuple[int, int]:
    return message.usage_metadata["input_tokens"], message.usage_metadata["output_tokens"]


def _count(message: Any) -> int | None:
    found = message.response_metadata.get("logprobs")
    return len(found["content"]) if found else None


def stream() -> dict[str, Any]:
    whole: Any = None
    for one in langchain.ChatOpenAI(**base, max_tokens=TOKENS, stream_usage=True).stream(QUESTION):
        whole = one if whole is None else whole + one
    return answer(whole.content, _usage(whole))


def responses() -> dict[str, Any]:
    found = langchain.ChatOpenAI(**base, use_responses_api=True).invoke(SHORT)
    return answer(found.text, _usage(found))


def responses_stream() -> dict[str, Any]:
    whole: Any = None
    for one in langchain.ChatOpenAI(**base, use_responses_api=True).stream(SHORT):
        whole = one if whole is None else whole + one
    return answer(whole.text, _usage(whole))


def text(**more: Any) -> dict[str, Any]:
    found = langchain.OpenAI(**base, max_tokens=TOKENS, **more).generate([QUESTION])
    [[one]], usage = found.generations, found.llm_output["token_usage"]
    logprobs = one.generation_info["logprobs"]
    count = len(logprobs["tokens"]) if logprobs else None
    return answer(one.text, (usage["prompt_tokens"], usage["completion_tokens"]), count)


def leave() -> None:
    events = langchain.ChatOpenAI(**base, max_tokens=MANY).stream(LONG)
    next(events)
    events.close()


def structured() -> dict[str, Any]:
    schema = {"title": "river", **SCHEMA}
    model = langchain.ChatOpenAI(**base, max_tokens=TOKENS)
    return answer(str(model.with_structured_output(schema, method="json_schema").invoke(QUESTION)))


tell(
    {
        "chat": chat,
        "stream": stream,
        "responses": responses,
        "responses, stream": responses_stream,
        "completions": lambda: text(temperature=0),
        "completions, defaults": text,
        "completions, logprobs": lambda: text(temperature=0, logprobs=1),
        "completions by `OpenAI(temperature=0)`": lambda: text(temperature=0),
        "logprobs": lambda: chat(logprobs=True),
        "stop, seed, length": lambda: chat(stop=["\n\n\n"], seed=1),
        "temperature": lambda: chat(temperature=0.7),
        "tools": lambda: chat({"tools": [TOOL]}),
        "json_schema": structured,
        "abort": lambda: aborted(leave),
    },
    {"models": "no list of models"},
)
