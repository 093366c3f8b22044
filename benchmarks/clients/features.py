"""The features that every client is tested for, and the form of their outcomes. Uses only the standard library.

Each client's script has one function per feature. The function returns the answer as the client presents it, or
raises the client's error. For each feature that the client lacks, the script states the reason. The features `chat by
...` and `completions by ...` are alternative calls, for users whose usual call the gateway refuses.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

URL = os.environ["COSD_CLIENT_URL"]
"""The gateway's URL, with `/v1`."""

MODEL, KEY = "cosd", "none"
QUESTION = "Name three rivers of Europe."
TOKENS = 16
MESSAGES = [{"role": "user", "content": QUESTION}]
SHORT = "Name one river of Europe."
"""A question with an answer that ends by itself, because some clients raise an error for an incomplete response."""

LONG, MANY = "Write a long story about a river.", 400
"""A question and a token limit for answers that take several seconds to write."""

TOOL = {
    "type": "function",
    "function": {
        "name": "river",
        "description": "The length of a river.",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}
SCHEMA = {"type": "object", "properties": {"river": {"type": "string"}}, "required": ["river"]}


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


def of_chat(chat: Callable[..., dict[str, Any]]) -> dict[str, Callable[[], dict[str, Any]]]:
    """The chat features of a client that accepts OpenAI's fields unchanged."""
    form = {"type": "json_schema", "json_schema": {"name": "river", "schema": SCHEMA}}
    return {
        "chat": chat,
        "logprobs": lambda: chat(logprobs=True),
        "stop, seed, length": lambda: chat(stop=["\n\n\n"], seed=1),
        "temperature": lambda: chat(temperature=0.7),
        "tools": lambda: chat(tools=[TOOL]),
        "json_schema": lambda: chat(response_format=form),
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
        try:
            found[name] = ask()
        except Exception as error:  # noqa: BLE001 - of any client
            traceback.print_exc()
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write("\n" + json.dumps(found) + "\n")
