"""LlamaIndex's `OpenAILike`, which sends a temperature of 0.1 unasked."""

from __future__ import annotations

import importlib
from typing import Any

from features import KEY, MODEL, QUESTION, TOKENS, TOOL, URL, aborted, answer, tell

like: Any = importlib.import_module("llama_index.llms.openai_like")
types: Any = importlib.import_module("llama_index.core.llms")
messages = [types.ChatMessage(role="user", content=QUESTION)]


def model(*, chat: bool = True, tokens: int = TOKENS, **more: Any) -> Any:
    base = {"model": MODEL, "api_base": URL, "api_key": KEY, "max_retries": 0, "is_chat_model": chat}
    return like.OpenAILike(**base, max_tokens=tokens, **{"temperature": 0, **more})


def chat(**more: Any) -> dict[str, Any]:
    found = model(**more).chat(messages)
    return answer(found.message.content, _usage(found.raw), len(found.logprobs) if found.logprobs else None)


def _usage(raw: Any) -> tuple[int, int] | None:
    return (raw.usage.prompt_tokens, raw.usage.completion_tokens) if raw.usage else None


def stream() -> dict[str, Any]:
    asked = model(additional_kwargs={"stream_options": {"include_usage": True}})
    *_, last = asked.stream_chat(messages)
    return answer(last.message.content, _usage(last.raw))


def leave() -> None:
    events = model(tokens=400).stream_chat(messages)
    next(events)
    events.close()


tell(
    {
        "chat": chat,
        "chat, unasked": lambda: chat(temperature=0.1),
        "stream": stream,
        "completions": lambda: answer(model(chat=False).complete(QUESTION).text),
        "logprobs": lambda: chat(logprobs=True, additional_kwargs={"top_logprobs": 1}),
        "stop, seed, length": lambda: chat(additional_kwargs={"stop": ["\n\n\n"], "seed": 1}),
        "temperature": lambda: chat(temperature=0.7),
        "tools": lambda: chat(additional_kwargs={"tools": [TOOL]}),
        "abort": lambda: aborted(leave),
    }
)
