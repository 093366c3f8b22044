"""Features that every client is asked for, and the outcome of each as its script tells it. Standard library only.

A script has a function for each feature that its client has. It returns what the client made of the answer, or lets the
client's error through.
"""

from __future__ import annotations

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
"""The gateway's, with /v1."""

MODEL, KEY = "cosd", "none"
QUESTION = "Name three rivers of Europe."
TOKENS = 16
MESSAGES = [{"role": "user", "content": QUESTION}]
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
    """The outcome of a feature: the text, tokens of prompt and answer, and the number of log probabilities."""
    return {"text": text, "usage": usage and [usage[0], usage[1]], "logprobs": logprobs}


def aborted(leave: Callable[[], Any]) -> dict[str, Any]:
    """Begin a stream and leave it; true if the gateway then notices, and cancels what it asked for."""
    before = _left()
    leave()
    until = time.monotonic() + 20
    while _left() == before and time.monotonic() < until:
        time.sleep(0.1)
    return {"cancelled": _left() > before}


def of_chat(chat: Callable[..., dict[str, Any]]) -> dict[str, Callable[[], dict[str, Any]]]:
    """The features of conversations, of a client that takes OpenAI's fields as they are."""
    form = {"type": "json_schema", "json_schema": {"name": "river", "schema": SCHEMA}}
    return {
        "chat": chat,
        "logprobs": lambda: chat(logprobs=True),
        "stop, seed, length": lambda: chat(stop=["\n\n\n"], seed=1),
        "temperature": lambda: chat(temperature=0.7),
        "tools": lambda: chat(tools=[TOOL]),
        "json_schema": lambda: chat(response_format=form),
    }


def _left() -> float:
    with urllib.request.urlopen(URL.removesuffix("/v1") + "/metrics") as page:  # noqa: S310 - http
        text = page.read().decode()
    found = re.findall(r'^cosd_requests_total\{.*outcome="disconnected".*\} (.+)$', text, re.MULTILINE)
    return sum(map(float, found))


def tell(features: Mapping[str, Callable[[], dict[str, Any]]]) -> None:
    """Try each, or those that are named, and print what became of it as JSON."""
    only = [name for name in os.environ.get("COSD_CLIENT_ONLY", "").split(";") if name]
    found: dict[str, Any] = {}
    for name, ask in features.items():
        if only and name not in only:
            continue
        try:
            found[name] = ask()
        except Exception as error:  # noqa: BLE001 - of any client
            traceback.print_exc()
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write("\n" + json.dumps(found) + "\n")
