"""The command-line tool curl."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from features import LONG, MANY, MESSAGES, MODEL, QUESTION, SHORT, TOKENS, URL, aborted, answer, of_chat, tell


def curl(path: str, body: Any = None, *more: str) -> str:
    command = ["curl", "--silent", "--show-error", "--no-buffer", *more, URL + path]
    if body is not None:
        command += ["--json", json.dumps({"model": MODEL, "max_tokens": TOKENS, **body})]
    return subprocess.run(command, check=not more, capture_output=True, text=True).stdout


def chat(**more: Any) -> dict[str, Any]:
    found = json.loads(curl("/chat/completions", {"messages": MESSAGES, **more}))
    if "error" in found:
        raise RuntimeError(found["error"]["message"])
    [choice] = found["choices"]
    count = len(choice["logprobs"]["content"]) if choice.get("logprobs") else None
    return answer(choice["message"]["content"], _usage(found["usage"]), count)


def _usage(usage: Any) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"]


def stream() -> dict[str, Any]:
    body = {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
    lines = [line.removeprefix("data: ") for line in curl("/chat/completions", body).splitlines() if "data: {" in line]
    events = [json.loads(line) for line in lines]
    text = "".join(choice["delta"].get("content") or "" for one in events for choice in one["choices"])
    return answer(text, _usage(events[-1]["usage"]))


def completions(**more: Any) -> dict[str, Any]:
    found = json.loads(curl("/completions", {"prompt": QUESTION, **more}))
    [choice] = found["choices"]
    count = len(choice["logprobs"]["tokens"]) if choice.get("logprobs") else None
    return answer(choice["text"], _usage(found["usage"]), count)


def responses() -> dict[str, Any]:
    found = json.loads(curl("/responses", {"input": SHORT, "max_tokens": None}))
    usage = found["usage"]["input_tokens"], found["usage"]["output_tokens"]
    return answer(found["output"][0]["content"][0]["text"], usage)


def responses_stream() -> dict[str, Any]:
    lines = curl("/responses", {"input": SHORT, "max_tokens": None, "stream": True}).splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    usage = events[-1]["response"]["usage"]
    text = "".join(one["delta"] for one in events if one["type"] == "response.output_text.delta")
    return answer(text, (usage["input_tokens"], usage["output_tokens"]))


def leave() -> None:
    messages = [{"role": "user", "content": LONG}]
    curl("/chat/completions", {"messages": messages, "stream": True, "max_tokens": MANY}, "--max-time", "1")


tell(
    {
        **of_chat(chat),
        "stream": stream,
        "responses": responses,
        "responses, stream": responses_stream,
        "completions": completions,
        "completions, logprobs": lambda: completions(logprobs=1),
        "models": lambda: answer(" ".join(one["id"] for one in json.loads(curl("/models"))["data"])),
        "abort": lambda: aborted(leave),
    }
)
