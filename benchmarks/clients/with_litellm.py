"""LiteLLM's functions, with the provider `openai/`."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import features as f

litellm: Any = importlib.import_module("litellm")
base = {"model": f"openai/{f.MODEL}", "api_base": f.URL, "api_key": f.KEY, "max_retries": 0}


chat = f.of_chat(partial(litellm.completion, **base))


def parsed() -> dict[str, Any]:
    found = litellm.completion(**base, messages=f.MESSAGES, max_tokens=f.MOST, response_format=f.form())
    return f.answer(found.choices[0].message.content)


def models() -> dict[str, Any]:
    asked = {"custom_llm_provider": "openai", "api_base": f.URL, "api_key": f.KEY}
    return f.answer(" ".join(litellm.get_valid_models(check_provider_endpoint=True, **asked)))


def leave() -> None:
    messages = [{"role": "user", "content": f.LONG}]
    events = litellm.completion(**base, messages=messages, max_tokens=f.MANY, stream=True)
    next(iter(events))
    events.completion_stream.close()


f.tell(
    {
        **chat,
        **f.of_texts(partial(litellm.text_completion, **base | {"model": f"text-completion-openai/{f.MODEL}"})),
        **f.of_responses(partial(litellm.responses, **base)),
        "json_schema, helper": parsed,
        "models": models,
        "abort": lambda: f.aborted(leave),
    }
)
