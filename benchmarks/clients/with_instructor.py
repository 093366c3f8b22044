"""Instructor, whose clients return structured answers; without a structure, they return OpenAI's own response."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from features import ASKED, KEY, LONG, MANY, MODEL, MOST, NO_TEXTS, URL, aborted, answer, called, form, of_chat, tell

instructor: Any = importlib.import_module("instructor")
openai: Any = importlib.import_module("openai")


def client(mode: str = "TOOLS") -> Any:
    plain = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)
    return instructor.from_openai(plain, mode=instructor.Mode[mode]).chat.completions


def structured(mode: str, **more: Any) -> Any:
    messages = [{"role": "user", "content": ASKED}]
    asked = {"model": MODEL, "messages": messages, "response_model": form(), "max_tokens": MOST, "max_retries": 1}
    return client(mode).create(**asked, **more)


def stream() -> dict[str, Any]:
    *_, last = client().create_partial(
        model=MODEL, messages=[{"role": "user", "content": ASKED}], response_model=form(), max_tokens=MOST
    )
    return answer(called("PartialRiver", last.model_dump_json()))


def leave() -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": LONG}], "max_tokens": MANY, "stream": True}
    with client().create(response_model=None, **asked) as events:
        next(iter(events))


tell(
    {
        **of_chat(partial(client().create, model=MODEL, response_model=None, max_retries=1)),
        "json_schema": lambda: answer(structured("JSON_SCHEMA").model_dump_json()),
        "json_schema, helper": lambda: answer(structured("TOOLS").model_dump_json()),
        "tools": lambda: answer(called("River", structured("TOOLS_STRICT").model_dump_json())),
        "tools, stream": stream,
        "responses, json_schema": lambda: answer(called("River", structured("RESPONSES_TOOLS").model_dump_json())),
        "abort": lambda: aborted(leave),
    },
    {
        **NO_TEXTS,
        **dict.fromkeys(("responses", "responses, stream", "responses, tool result"), "only structured responses"),
        "models": "no list of models",
    },
)
