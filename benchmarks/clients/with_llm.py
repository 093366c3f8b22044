"""The library behind the command `llm`."""

from __future__ import annotations

import importlib
from typing import Any

import features as f

llm: Any = importlib.import_module("llm")
models: Any = importlib.import_module("llm.default_plugins.openai_models")


def model(kind: str = "Chat") -> Any:
    class Forcing(getattr(models, kind)):  # type: ignore[misc]
        """`llm` has no option that forces a call, and so small a model makes none of its own accord, or too many."""

        def build_kwargs(self, prompt: Any, stream: bool) -> Any:
            return super().build_kwargs(prompt, stream) | choice(prompt)

        def _build_responses_kwargs(self, prompt: Any, stream: bool) -> Any:
            return super()._build_responses_kwargs(prompt, stream) | choice(prompt)

    def choice(prompt: Any) -> dict[str, Any]:
        chosen = {"tool_choice": "none" if prompt.tool_results else "required", "parallel_tool_calls": False}
        return chosen if prompt.tools else {}

    return Forcing(f.MODEL, key=f.KEY, model_name=f.MODEL, api_base=f.URL, supports_schema=True, supports_tools=True)


def chat(question: str = f.QUESTION, *, kind: str = "Chat", stream: bool = False, **more: Any) -> dict[str, Any]:
    found = model(kind).prompt(question, stream=stream, **{"max_tokens": f.TOKENS, **more})
    calls = [f.called(one.name, one.arguments) for one in found.tool_calls()]
    return f.answer("".join(calls) or found.text(), (found.input_tokens, found.output_tokens))


def result(kind: str = "Chat") -> dict[str, Any]:
    *_, last = model(kind).chain(f.ASKED, tools=[f.length], stream=False, options={"max_tokens": f.MOST}).responses()
    return f.answer(last.text())


def completions(**more: Any) -> dict[str, Any]:
    found = models.Completion(f.MODEL, key=f.KEY, model_name=f.MODEL, api_base=f.URL).prompt(
        f.QUESTION, stream=False, max_tokens=f.TOKENS, **more
    )
    text = found.text()
    usage, logprobs = found.response_json["usage"], found.response_json["choices"][0].get("logprobs")
    count = len(logprobs["tokens"]) if logprobs else None
    return f.answer(text, (usage["prompt_tokens"], usage["completion_tokens"]), count)


def leave() -> None:
    found = model().prompt(f.LONG, stream=True, max_tokens=f.MANY)
    events = iter(found)
    next(events)
    events.close()


f.tell(
    {
        "chat": chat,
        "stream": lambda: chat(stream=True),
        "responses": lambda: chat(f.SHORT, kind="Responses", max_tokens=None),
        "responses, stream": lambda: chat(f.SHORT, kind="Responses", stream=True, max_tokens=None),
        "responses, json_schema": lambda: chat(f.SHORT, kind="Responses", schema=f.form(), max_tokens=None),
        "responses, tool result": lambda: result("Responses"),
        "completions": completions,
        "completions, logprobs": lambda: completions(logprobs=1),
        "stop, seed, length": lambda: chat(stop="\n\n\n", seed=1),
        "temperature": lambda: chat(temperature=0.7),
        "json_schema": lambda: chat(f.SHORT, schema=f.SCHEMA, max_tokens=f.MOST),
        "json_schema, helper": lambda: chat(f.SHORT, schema=f.form(), max_tokens=f.MOST),
        "tools": lambda: chat(f.ASKED, tools=[f.length], max_tokens=f.MOST),
        "tools, stream": lambda: chat(f.ASKED, stream=True, tools=[f.length], max_tokens=f.MOST),
        "tool result": result,
        "abort": lambda: f.aborted(leave),
    },
    {
        "logprobs": "log probabilities only for texts",
        "models": "a list of models only from OpenAI's own address",
    },
)
