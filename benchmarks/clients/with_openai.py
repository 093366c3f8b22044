"""OpenAI's own client for Python."""

from __future__ import annotations

import importlib
from typing import Any

from features import KEY, LONG, MANY, MESSAGES, MODEL, QUESTION, SHORT, TOKENS, URL, aborted, answer, of_chat, tell

openai: Any = importlib.import_module("openai")
client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)


def chat(**more: Any) -> dict[str, Any]:
    found = client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, "max_tokens": TOKENS, **more})
    choice, usage = found.choices[0], found.usage
    count = len(choice.logprobs.content) if choice.logprobs else None
    return answer(choice.message.content, (usage.prompt_tokens, usage.completion_tokens), count)


def stream() -> dict[str, Any]:
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": TOKENS, "stream_options": {"include_usage": True}}
    text, usage = "", None
    for one in client.chat.completions.create(**asked, stream=True):
        text += "".join(choice.delta.content or "" for choice in one.choices)
        usage = (one.usage.prompt_tokens, one.usage.completion_tokens) if one.usage else usage
    return answer(text, usage)


def completions(**more: Any) -> dict[str, Any]:
    found = client.completions.create(model=MODEL, prompt=QUESTION, max_tokens=TOKENS, **more)
    choice, usage = found.choices[0], found.usage
    count = len(choice.logprobs.tokens) if choice.logprobs else None
    return answer(choice.text, (usage.prompt_tokens, usage.completion_tokens), count)


def responses() -> dict[str, Any]:
    found = client.responses.create(model=MODEL, input=SHORT)
    return answer(found.output_text, (found.usage.input_tokens, found.usage.output_tokens))


def responses_stream() -> dict[str, Any]:
    with client.responses.stream(model=MODEL, input=SHORT) as events:
        text = "".join(one.delta for one in events if one.type == "response.output_text.delta")
        usage = events.get_final_response().usage
    return answer(text, (usage.input_tokens, usage.output_tokens))


def leave() -> None:
    messages = [{"role": "user", "content": LONG}]
    with client.chat.completions.create(model=MODEL, messages=messages, max_tokens=MANY, stream=True) as events:
        next(iter(events))


tell(
    {
        **of_chat(chat),
        "stream": stream,
        "responses": responses,
        "responses, stream": responses_stream,
        "completions": completions,
        "completions, logprobs": lambda: completions(logprobs=1),
        "stop, seed, length": lambda: chat(stop=["\n\n\n"], seed=1, max_tokens=None, max_completion_tokens=TOKENS),
        "models": lambda: answer(" ".join(one.id for one in client.models.list())),
        "abort": lambda: aborted(leave),
    }
)
