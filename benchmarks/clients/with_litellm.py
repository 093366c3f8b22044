"""LiteLLM's functions, with the provider `openai/`."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from features import (
    KEY,
    LONG,
    MANY,
    MESSAGES,
    MODEL,
    MOST,
    URL,
    aborted,
    answer,
    form,
    of_chat,
    of_responses,
    of_texts,
    tell,
)

litellm: Any = importlib.import_module("litellm")
base = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": KEY, "max_retries": 0}


chat = of_chat(partial(litellm.completion, **base))


def parsed() -> dict[str, Any]:
    found = litellm.completion(**base, messages=MESSAGES, max_tokens=MOST, response_format=form())
    return answer(found.choices[0].message.content)


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
        **chat,
        **of_texts(partial(litellm.text_completion, **base | {"model": f"text-completion-openai/{MODEL}"})),
        **of_responses(partial(litellm.responses, **base)),
        "json_schema, helper": parsed,
        "models": models,
        'chat by `additional_drop_params=["temperature"]`': lambda: chat["chat"](
            temperature=0.7, additional_drop_params=["temperature"]
        ),
        "abort": lambda: aborted(leave),
    }
)
