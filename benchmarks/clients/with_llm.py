"""The library behind the command `llm`."""

from __future__ import annotations

import importlib
from typing import Any

from features import (
    ASKED,
    KEY,
    LONG,
    MANY,
    MODEL,
    MOST,
    QUESTION,
    SCHEMA,
    SHORT,
    TOKENS,
    URL,
    aborted,
    answer,
    called,
    form,
    length,
    tell,
)

llm: Any = importlib.import_module("llm")
models: Any = importlib.import_module("llm.default_plugins.openai_models")


def model(kind: str = "Chat") -> Any:
    class Forcing(getattr(models, kind)):  # type: ignore[misc]
        """`llm` has no option that forces a call, and so small a model makes none of its own accord, or too many."""

        def build_kwargs(self, prompt: Any, stream: bool) -> Any:
            choice = {"tool_choice": "none" if prompt.tool_results else "required", "parallel_tool_calls": False}
            return {**super().build_kwargs(prompt, stream), **(choice if prompt.tools else {})}

    return Forcing(MODEL, key=KEY, model_name=MODEL, api_base=URL, supports_schema=True, supports_tools=True)


def chat(question: str = QUESTION, *, kind: str = "Chat", stream: bool = False, **more: Any) -> dict[str, Any]:
    found = model(kind).prompt(question, stream=stream, **{"max_tokens": TOKENS, **more})
    calls = [called(one.name, one.arguments) for one in found.tool_calls()]
    return answer("".join(calls) or found.text(), (found.input_tokens, found.output_tokens))


def result(kind: str = "Chat") -> dict[str, Any]:
    *_, last = model(kind).chain(ASKED, tools=[length], stream=False, options={"max_tokens": MOST}).responses()
    return answer(last.text())


def completions(**more: Any) -> dict[str, Any]:
    found = models.Completion(MODEL, key=KEY, model_name=MODEL, api_base=URL).prompt(
        QUESTION, stream=False, max_tokens=TOKENS, **more
    )
    text = found.text()
    usage, logprobs = found.response_json["usage"], found.response_json["choices"][0].get("logprobs")
    count = len(logprobs["tokens"]) if logprobs else None
    return answer(text, (usage["prompt_tokens"], usage["completion_tokens"]), count)


def leave() -> None:
    found = model().prompt(LONG, stream=True, max_tokens=MANY)
    events = iter(found)
    next(events)
    events.close()


tell(
    {
        "chat": chat,
        "stream": lambda: chat(stream=True),
        "responses": lambda: chat(SHORT, kind="Responses", max_tokens=None),
        "responses, stream": lambda: chat(SHORT, kind="Responses", stream=True, max_tokens=None),
        "responses, json_schema": lambda: chat(SHORT, kind="Responses", schema=form(), max_tokens=None),
        "responses, tool result": lambda: result("Responses"),
        "completions": completions,
        "completions, logprobs": lambda: completions(logprobs=1),
        "stop, seed, length": lambda: chat(stop="\n\n\n", seed=1),
        "temperature": lambda: chat(temperature=0.7),
        "json_schema": lambda: chat(SHORT, schema=SCHEMA, max_tokens=MOST),
        "json_schema, helper": lambda: chat(SHORT, schema=form(), max_tokens=MOST),
        "tools": lambda: chat(ASKED, tools=[length], max_tokens=MOST),
        "tools, stream": lambda: chat(ASKED, stream=True, tools=[length], max_tokens=MOST),
        "tool result": result,
        "abort": lambda: aborted(leave),
    },
    {
        "logprobs": "log probabilities only for texts",
        "models": "a list of models only from OpenAI's own address",
    },
)
