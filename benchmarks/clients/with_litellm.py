"""LiteLLM's functions, with the provider `openai/`."""

from __future__ import annotations

import importlib
from typing import Any

from features import KEY, LONG, MANY, MESSAGES, MODEL, QUESTION, SHORT, TOKENS, URL, aborted, answer, of_chat, tell

litellm: Any = importlib.import_module("litellm")
base = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": KEY, "max_retries": 0}


def chat(**more: Any) -> dict[str, Any]:
    found = litellm.completion(**base, messages=MESSAGES, max_tokens=TOKENS, **more)
    choice, usage = found.choices[0], found.usage
    logprobs = getattr(choice, "logprobs", None)
    count = len(logprobs.content) if logprobs else None
    return answer(choice.message.content, (usage.prompt_tokens, usage.completion_tokens), count)


def stream() -> dict[str, Any]:
    text, usage = "", None
    asked = {"messages": MESSAGES, "max_tokens": TOKENS, "stream_options": {"include_usage": True}}
    for one in litellm.completion(**base, **asked, stream=True):
        text += "".join(choice.delta.content or "" for choice in one.choices)
        told = getattr(one, "usage", None)
        usage = (told.prompt_tokens, told.completion_tokens) if told else usage
    return answer(text, usage)


def completions(**more: Any) -> dict[str, Any]:
    asked = base | {"model": f"text-completion-openai/{MODEL}"}
    found = litellm.text_completion(**asked, prompt=QUESTION, max_tokens=TOKENS, **more)
    choice, usage = found.choices[0], found.usage
    count = len(choice.logprobs.tokens) if choice.logprobs else None
    return answer(choice.text, (usage.prompt_tokens, usage.completion_tokens), count)


def responses() -> dict[str, Any]:
    found = litellm.responses(**base, input=SHORT)
    return answer(found.output[0].content[0].text, (found.usage.input_tokens, found.usage.output_tokens))


def responses_stream() -> dict[str, Any]:
    text, usage = "", None
    for one in litellm.responses(**base, input=SHORT, stream=True):
        text += one.delta if one.type == "response.output_text.delta" else ""
        usage = one.response.usage if one.type == "response.completed" else usage
    assert usage is not None
    return answer(text, (usage.input_tokens, usage.output_tokens))


def models() -> dict[str, Any]:
    asked = {"custom_llm_provider": "openai", "api_base": URL, "api_key": KEY}
    return answer(" ".join(litellm.get_valid_models(check_provider_endpoint=True, **asked)))


def leave() -> None:
    messages = [{"role": "user", "content": LONG}]
    events = litellm.completion(**base, messages=messages, max_tokens=MANY, stream=True)
    next(iter(events))
    events.completion_stream.close()


tell(
    {
        **of_chat(chat),
        "stream": stream,
        "responses": responses,
        "responses, stream": responses_stream,
        "completions": completions,
        "completions, logprobs": lambda: completions(logprobs=1),
        "models": models,
        'chat by `additional_drop_params=["temperature"]`': lambda: chat(
            temperature=0.7, additional_drop_params=["temperature"]
        ),
        "abort": lambda: aborted(leave),
    }
)
