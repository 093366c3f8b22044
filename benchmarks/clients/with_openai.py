"""OpenAI's own client for Python."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from features import (
    FORCED,
    KEY,
    LONG,
    MANY,
    MESSAGES,
    MODEL,
    MOST,
    SHORT,
    TOKENS,
    URL,
    aborted,
    answer,
    called,
    form,
    of_chat,
    of_responses,
    of_texts,
    tell,
)

openai: Any = importlib.import_module("openai")
client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)
of = of_chat(partial(client.chat.completions.create, model=MODEL))


def parsed() -> dict[str, Any]:
    found = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=form(), max_tokens=MOST)
    return answer(found.choices[0].message.parsed.model_dump_json())


def streamed() -> dict[str, Any]:
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, **FORCED) as events:
        [call] = events.get_final_completion().choices[0].message.tool_calls
    return answer(called(call.function.name, call.function.arguments))


def responses_stream() -> dict[str, Any]:
    with client.responses.stream(model=MODEL, input=SHORT) as events:
        text = "".join(one.delta for one in events if one.type == "response.output_text.delta")
        usage = events.get_final_response().usage
    return answer(text, (usage.input_tokens, usage.output_tokens))


def responses_parsed() -> dict[str, Any]:
    found = client.responses.parse(model=MODEL, input=SHORT, text_format=form(), max_output_tokens=MOST)
    return answer(found.output_parsed.model_dump_json())


def leave() -> None:
    messages = [{"role": "user", "content": LONG}]
    with client.chat.completions.create(model=MODEL, messages=messages, max_tokens=MANY, stream=True) as events:
        next(iter(events))


tell(
    {
        **of,
        **of_texts(partial(client.completions.create, model=MODEL)),
        **of_responses(partial(client.responses.create, model=MODEL)),
        "responses, stream": responses_stream,
        "json_schema, helper": parsed,
        "tools, stream": streamed,
        "responses, json_schema": responses_parsed,
        "stop, seed, length": lambda: of["chat"](
            stop=["\n\n\n"], seed=1, max_tokens=None, max_completion_tokens=TOKENS
        ),
        "models": lambda: answer(" ".join(one.id for one in client.models.list())),
        "abort": lambda: aborted(leave),
    }
)
