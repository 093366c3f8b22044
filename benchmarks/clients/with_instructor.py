"""Instructor, whose clients return structured answers; without a structure, they return OpenAI's own response."""

from __future__ import annotations

import importlib
from typing import Any

from features import KEY, LONG, MANY, MESSAGES, MODEL, TOKENS, URL, aborted, answer, tell

instructor: Any = importlib.import_module("instructor")
openai: Any = importlib.import_module("openai")
pydantic: Any = importlib.import_module("pydantic")
River = pydantic.create_model("River", river=(str, ...))


def chat(mode: Any, form: Any = None, **more: Any) -> dict[str, Any]:
    client = instructor.from_openai(openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0), mode=mode)
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": TOKENS, "max_retries": 1, **more}
    found = client.chat.completions.create(response_model=form, **asked)
    if form is not None:
        return answer(str(found))
    choice, usage = found.choices[0], found.usage
    count = len(choice.logprobs.content) if choice.logprobs else None
    return answer(choice.message.content, (usage.prompt_tokens, usage.completion_tokens), count)


def stream() -> dict[str, Any]:
    client = instructor.from_openai(openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0))
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": TOKENS, "stream": True}
    text, usage = "", None
    for one in client.chat.completions.create(response_model=None, stream_options={"include_usage": True}, **asked):
        text += "".join(choice.delta.content or "" for choice in one.choices)
        usage = (one.usage.prompt_tokens, one.usage.completion_tokens) if one.usage else usage
    return answer(text, usage)


def leave() -> None:
    client = instructor.from_openai(openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0))
    asked = {"model": MODEL, "messages": [{"role": "user", "content": LONG}], "max_tokens": MANY, "stream": True}
    with client.chat.completions.create(response_model=None, **asked) as events:
        next(iter(events))


tell(
    {
        "chat": lambda: chat(instructor.Mode.TOOLS),
        "stream": stream,
        "logprobs": lambda: chat(instructor.Mode.TOOLS, logprobs=True),
        "stop, seed, length": lambda: chat(instructor.Mode.TOOLS, stop=["\n\n\n"], seed=1),
        "temperature": lambda: chat(instructor.Mode.TOOLS, temperature=0.7),
        "tools": lambda: chat(instructor.Mode.TOOLS, River),
        "json_schema": lambda: chat(instructor.Mode.JSON_SCHEMA, River),
        "abort": lambda: aborted(leave),
    },
    {
        **dict.fromkeys(
            ("completions", "completions, logprobs", "completions, defaults"), "only conversations, no texts"
        ),
        **dict.fromkeys(("responses", "responses, stream"), "no Responses API"),
        "models": "no list of models",
    },
)
