"""The library behind the command `llm`."""

from __future__ import annotations

import importlib
from typing import Any

from features import KEY, MODEL, QUESTION, SCHEMA, TOKENS, URL, aborted, answer, tell

llm: Any = importlib.import_module("llm")
models: Any = importlib.import_module("llm.default_plugins.openai_models")


def model(kind: str = "Chat") -> Any:
    return getattr(models, kind)(MODEL, key=KEY, model_name=MODEL, api_base=URL, supports_schema=True)


def chat(*, stream: bool = False, **more: Any) -> dict[str, Any]:
    found = model().prompt(QUESTION, stream=stream, **{"max_tokens": TOKENS, **more})
    text = found.text()
    return answer(text, (found.input_tokens, found.output_tokens))


def leave() -> None:
    found = model().prompt(QUESTION, stream=True, max_tokens=400)
    events = iter(found)
    next(events)
    events.close()


tell(
    {
        "chat": chat,
        "stream": lambda: chat(stream=True),
        "completions": lambda: answer(model("Completion").prompt(QUESTION, stream=False, max_tokens=TOKENS).text()),
        "stop, seed, length": lambda: chat(stop="\n\n\n", seed=1),
        "temperature": lambda: chat(temperature=0.7),
        "json_schema": lambda: chat(schema=SCHEMA),
        "abort": lambda: aborted(leave),
    }
)
