"""The library behind the command `llm`."""

from __future__ import annotations

import importlib
from typing import Any

from features import KEY, LONG, MANY, MODEL, QUESTION, SCHEMA, TOKENS, URL, aborted, answer, tell

llm: Any = importlib.import_module("llm")
models: Any = importlib.import_module("llm.default_plugins.openai_models")


def model(kind: str = "Chat") -> Any:
    return getattr(models, kind)(
        MODEL, key=KEY, model_name=MODEL, api_base=URL, supports_schema=True, supports_tools=True
    )


def chat(*, stream: bool = False, **more: Any) -> dict[str, Any]:
    found = model().prompt(QUESTION, stream=stream, max_tokens=TOKENS, **more)
    text = found.text()
    return answer(text, (found.input_tokens, found.output_tokens))


def completions(**more: Any) -> dict[str, Any]:
    found = model("Completion").prompt(QUESTION, stream=False, max_tokens=TOKENS, **more)
    text = found.text()
    usage, logprobs = found.response_json["usage"], found.response_json["choices"][0].get("logprobs")
    count = len(logprobs["tokens"]) if logprobs else None
    return answer(text, (usage["prompt_tokens"], usage["completion_tokens"]), count)


def river(name: str) -> str:
    """The length of a river."""
    return name


def leave() -> None:
    found = model().prompt(LONG, stream=True, max_tokens=MANY)
    events = iter(found)
    next(events)
    events.close()


tell(
    {
        "chat": chat,
        "stream": lambda: chat(stream=True),
        "completions": completions,
        "completions, logprobs": lambda: completions(logprobs=1),
        "stop, seed, length": lambda: chat(stop="\n\n\n", seed=1),
        "temperature": lambda: chat(temperature=0.7),
        "tools": lambda: chat(tools=[river]),
        "json_schema": lambda: chat(schema=SCHEMA),
        "abort": lambda: aborted(leave),
    },
    {
        **dict.fromkeys(("responses", "responses, stream"), "no Responses API"),
        "logprobs": "log probabilities only for texts",
        "models": "a list of models only from OpenAI's own address",
    },
)
