"""The features that every client is tested for, and the form of their outcomes. Uses only the standard library.

Each client's script has one function per feature. The function returns the answer as the client presents it, or
raises the client's error. For each feature that the client lacks, the script states the reason.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import sys
import time
import traceback
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Literal

URL = os.environ["COSD_CLIENT_URL"]
"""The gateway's URL, with `/v1`."""

NOTED = os.environ.get("COSD_CLIENT_NOTED", "")
"""The URL that is told, before each feature, its name; empty without a recording server."""

MODEL, KEY = "cosd", "none"
QUESTION = "Name three rivers of Europe."
TOKENS = 16
MESSAGES = [{"role": "user", "content": QUESTION}]
SHORT = "Name one river of Europe."
"""A question with an answer that ends by itself, because some clients raise an error for an incomplete response."""

LONG, MANY = "Write a long story about a river.", 400
"""A question and a token limit for answers that take several seconds to write."""

RIVERS, MOST = ("Danube", "Rhine"), 100
"""The values that a structured answer or a call may contain, and the token limit for them, which none reaches."""

SCHEMA = {
    "title": "River",
    "type": "object",
    "properties": {"river": {"type": "string", "enum": RIVERS}},
    "required": ["river"],
    "additionalProperties": False,
}
FORM: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "River", "schema": SCHEMA, "strict": True}}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "length", "description": "Length of a river.", "parameters": SCHEMA},
}
FORCING: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
FORCED: dict[str, Any] = {"tools": [TOOL], "max_tokens": MOST, **FORCING}
ASKED = "Write one sentence about the Danube."
"""The question of the features with tools."""


def length(river: Literal["Danube", "Rhine"]) -> str:
    """Length of a river."""
    return f"The {river} is 1230 km long."


def form() -> Any:
    """The schema as a model of pydantic, which clients depend on."""
    return importlib.import_module("pydantic").create_model("River", river=(Literal["Danube", "Rhine"], ...))


def called(name: str, arguments: Any) -> str:
    """The text that stands for a call."""
    return json.dumps([name, json.loads(arguments) if isinstance(arguments, str) else arguments])


NO_TEXTS = dict.fromkeys(
    ("completions", "completions, logprobs", "completions, defaults"), "only conversations, no texts"
)
NO_RESPONSES = dict.fromkeys(
    ("responses", "responses, stream", "responses, json_schema", "responses, tool result"), "no Responses API"
)


def answer(text: str | None, usage: Any = None, logprobs: int | None = None) -> dict[str, Any]:
    """The outcome of a feature: the text, the numbers of prompt and answer tokens, and of log probabilities."""
    return {"text": text, "usage": usage and [usage[0], usage[1]], "logprobs": logprobs}


def aborted(leave: Callable[[], Any]) -> dict[str, Any]:
    """Begin a long stream, abort it, and return the outcome that the gateway records for the request.

    If the gateway does not notice the abort within two seconds, the client still holds the connection. In that case,
    Python's garbage is collected, and `collected` is true in the outcome.
    """
    before = _ended()
    leave()
    outcome = _end(before, 2)
    if outcome is not None:
        return {"outcome": outcome, "collected": False}
    gc.collect()
    return {"outcome": _end(before, 60), "collected": True}


def _end(before: Mapping[str, float], seconds: float) -> str | None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for outcome, count in _ended().items():
            if count > before.get(outcome, 0):
                return outcome
        time.sleep(0.05)
    return None


def of_chat(create: Callable[..., Any]) -> dict[str, Callable[..., dict[str, Any]]]:
    """The chat features of a client that accepts OpenAI's fields and returns OpenAI's objects."""

    def ask(**more: Any) -> Any:
        return create(**{"messages": MESSAGES, "max_tokens": TOKENS, **more})

    def chat(**more: Any) -> dict[str, Any]:
        found = ask(**more)
        [choice], usage = found.choices, found.usage
        calls = [called(call.function.name, call.function.arguments) for call in _calls(choice.message)]
        count = len(choice.logprobs.content) if getattr(choice, "logprobs", None) else None
        return answer("".join(calls) or choice.message.content, (usage.prompt_tokens, usage.completion_tokens), count)

    def stream(**more: Any) -> dict[str, Any]:
        text, name, arguments, usage = "", "", "", None
        for one in ask(stream=True, stream_options={"include_usage": True}, **more):
            for choice in one.choices:
                text += getattr(choice.delta, "content", None) or ""
                for call in _calls(choice.delta):
                    name += getattr(call.function, "name", None) or ""
                    arguments += call.function.arguments or ""
            told = getattr(one, "usage", None)
            usage = (told.prompt_tokens, told.completion_tokens) if told else usage
        return answer(called(name, arguments) if name else text, usage)

    def result() -> dict[str, Any]:
        question = {"role": "user", "content": ASKED}
        message = ask(messages=[question], **FORCED).choices[0].message
        said = message.model_dump() if hasattr(message, "model_dump") else message
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": length(**json.loads(call.function.arguments))}
            for call in _calls(message)
        ]
        return chat(messages=[question, said, *results], tools=[TOOL], max_tokens=MOST)

    return {
        "chat": chat,
        "stream": stream,
        "logprobs": lambda: chat(logprobs=True),
        "stop, seed, length": lambda: chat(stop=["\n\n\n"], seed=1),
        "temperature": lambda: chat(temperature=0.7),
        "json_schema": lambda: chat(response_format=FORM, max_tokens=MOST),
        "tools": lambda: chat(**FORCED),
        "tools, stream": lambda: stream(**FORCED),
        "tool result": result,
    }


def _calls(message: Any) -> Any:
    return getattr(message, "tool_calls", None) or ()


def of_texts(create: Callable[..., Any]) -> dict[str, Callable[..., dict[str, Any]]]:
    """The features of texts, likewise."""

    def text(**more: Any) -> dict[str, Any]:
        found = create(prompt=QUESTION, max_tokens=TOKENS, **more)
        [choice], usage = found.choices, found.usage
        count = len(choice.logprobs.tokens) if choice.logprobs else None
        return answer(choice.text, (usage.prompt_tokens, usage.completion_tokens), count)

    return {"completions": text, "completions, logprobs": lambda: text(logprobs=1)}


def of_responses(create: Callable[..., Any]) -> dict[str, Callable[..., dict[str, Any]]]:
    """The features of the Responses API, likewise."""

    def whole(**more: Any) -> dict[str, Any]:
        found = create(**{"input": SHORT, **more})
        item, usage = found.output[0], found.usage
        text = item.content[0].text if item.type == "message" else called(item.name, item.arguments)
        return answer(text, (usage.input_tokens, usage.output_tokens))

    def stream() -> dict[str, Any]:
        text, usage = "", None
        for one in create(input=SHORT, stream=True):
            text += one.delta if one.type == "response.output_text.delta" else ""
            usage = one.response.usage if one.type == "response.completed" else usage
        assert usage is not None
        return answer(text, (usage.input_tokens, usage.output_tokens))

    def result() -> dict[str, Any]:
        tools = {"tools": [{"type": "function", **TOOL["function"]}], "max_output_tokens": MOST}
        found = create(input=ASKED, **FORCING, **tools)
        items: list[Any] = [{"role": "user", "content": ASKED}]
        for call in found.output:
            told = length(**json.loads(call.arguments))
            output = {"type": "function_call_output", "call_id": call.call_id, "output": told}
            items += [call, output]
        return whole(input=items, **tools)

    return {
        "responses": whole,
        "responses, stream": stream,
        "responses, json_schema": lambda: whole(
            text={"format": {"type": "json_schema", **FORM["json_schema"]}}, max_output_tokens=MOST
        ),
        "responses, tool result": result,
    }


def _ended() -> dict[str, float]:
    """The number of requests that the gateway has finished, by outcome."""
    with urllib.request.urlopen(URL.removesuffix("/v1") + "/metrics") as page:  # noqa: S310 - http
        text = page.read().decode()
    found: dict[str, float] = {}
    for outcome, count in re.findall(r'^cosd_requests_total\{.*outcome="(\w+)".*\} (.+)$', text, re.MULTILINE):
        found[outcome] = found.get(outcome, 0) + float(count)
    return found


def tell(features: Mapping[str, Callable[[], dict[str, Any]]], lacks: Mapping[str, str] | None = None) -> None:
    """Try each feature, or only those named in `COSD_CLIENT_ONLY`, and print the outcomes as JSON.

    Args:
        features: functions by feature. If `chat, defaults` or `completions, defaults` is missing, the function of
            `chat` or `completions` is used for it.
        lacks: for each feature that the client lacks, the reason.
    """
    only = [name for name in os.environ.get("COSD_CLIENT_ONLY", "").split(";") if name]
    found: dict[str, Any] = {name: {"lacks": reason} for name, reason in (lacks or {}).items()}
    plain = {f"{name}, defaults": features[name] for name in ("chat", "completions") if name in features}
    for name, ask in {**plain, **features}.items():
        if only and name not in only:
            continue
        if NOTED:
            urllib.request.urlopen(NOTED + urllib.parse.quote(name)).close()  # noqa: S310 - http
        try:
            found[name] = ask()
        except Exception as error:  # noqa: BLE001 - of any client
            traceback.print_exc()
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write("\n" + json.dumps(found) + "\n")
