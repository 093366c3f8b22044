"""The requests of Open WebUI 0.12.4, as its `routers/openai.py` sends them to a server of OpenAI's protocol.

Its tasks have no field for a format: they ask for JSON in words. `tool_choice` and `parallel_tool_calls` are custom
parameters in its settings.
"""

from __future__ import annotations

import json
import urllib.request
from types import SimpleNamespace
from typing import Any

from features import ASKED, FORCED, MESSAGES, TOOL, URL, length, of_chat, tell


def ask(path: str, **body: Any) -> Any:
    given = {name: value for name, value in body.items() if value is not None}
    request = urllib.request.Request(URL + path, json.dumps(given).encode() if given else None)  # noqa: S310 - http
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request) as found:  # noqa: S310 - http
        text = found.read().decode()
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    read = [json.loads(one, object_hook=lambda members: SimpleNamespace(**members)) for one in lines or [text]]
    return read if given.get("stream") else read[0]


def completion(**body: Any) -> Any:
    [model] = ask("/models").data
    return ask("/chat/completions", model=model.id, **body)


of = of_chat(completion)


def task(words: str, **more: Any) -> Any:
    text = f"### Task:\n{words}\n### Chat History:\n<chat_history>\nUSER: {MESSAGES[0]['content']}\n</chat_history>"
    return lambda: of["chat"](
        **{"messages": [{"role": "user", "content": text}], "stream": False, "max_tokens": None, **more}
    )


def result() -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": "length", "arguments": '{"river": "Danube"}'}}
    messages = [
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": length("Danube")},
    ]
    return of["stream"](messages=messages, tools=[TOOL], max_tokens=None)


tell(
    {
        "a conversation": lambda: of["stream"](max_tokens=None),
        "a title": task("Generate a title of 2-4 words, as JSON.", max_tokens=1000),
        "tags": task("Generate 1-3 broad tags, as JSON."),
        "follow-ups": task("Predict 3 useful next messages of the user, as JSON."),
        "native tools": lambda: of["stream"](**{**FORCED, "max_tokens": None}),
        "the result of a tool": result,
    }
)
