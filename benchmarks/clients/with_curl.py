"""The command-line tool curl."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from types import SimpleNamespace
from typing import Any

from features import LONG, MANY, MODEL, URL, aborted, answer, of_chat, of_responses, of_texts, tell


def curl(path: str, *more: str, **body: Any) -> Any:
    command = ["curl", "--silent", "--show-error", "--no-buffer", *more, URL + path]
    if body:
        command += ["--json", json.dumps({"model": MODEL, **body}, default=vars)]
    text = subprocess.run(command, check=not more, capture_output=True, text=True).stdout
    lines = [line.removeprefix("data: ") for line in text.splitlines() if "data: {" in line]
    found = [json.loads(one, object_hook=lambda members: SimpleNamespace(**members)) for one in lines or [text or "{}"]]
    if hasattr(found[0], "error") and not hasattr(found[0], "output"):
        raise RuntimeError(found[0].error.message)
    return found if body.get("stream") else found[0]


def leave() -> None:
    messages = [{"role": "user", "content": LONG}]
    curl("/chat/completions", "--max-time", "1", messages=messages, stream=True, max_tokens=MANY)


tell(
    {
        **of_chat(partial(curl, "/chat/completions")),
        **of_texts(partial(curl, "/completions")),
        **of_responses(partial(curl, "/responses")),
        "models": lambda: answer(" ".join(one.id for one in curl("/models").data)),
        "abort": lambda: aborted(leave),
    },
    {"json_schema, helper": "no models of answers"},
)
