"""OpenAI's own client for Python."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import features as f

openai: Any = importlib.import_module("openai")
client = openai.OpenAI(base_url=f.URL, api_key=f.KEY, max_retries=0)
of = f.of_chat(partial(client.chat.completions.create, model=f.MODEL))


def parsed() -> dict[str, Any]:
    found = client.chat.completions.parse(
        model=f.MODEL, messages=f.MESSAGES, response_format=f.form(), max_tokens=f.MOST
    )
    return f.answer(found.choices[0].message.parsed.model_dump_json())


def streamed() -> dict[str, Any]:
    with client.chat.completions.stream(model=f.MODEL, messages=f.MESSAGES, **f.FORCED) as events:
        [call] = events.get_final_completion().choices[0].message.tool_calls
    return f.answer(f.called(call.function.name, call.function.arguments))


def responses_stream() -> dict[str, Any]:
    with client.responses.stream(model=f.MODEL, input=f.SHORT) as events:
        text = "".join(one.delta for one in events if one.type == "response.output_text.delta")
        usage = events.get_final_response().usage
    return f.answer(text, (usage.input_tokens, usage.output_tokens))


def responses_parsed() -> dict[str, Any]:
    found = client.responses.parse(model=f.MODEL, input=f.SHORT, text_format=f.form(), max_output_tokens=f.MOST)
    return f.answer(found.output_parsed.model_dump_json())


def leave() -> None:
    messages = [{"role": "user", "content": f.LONG}]
    with client.chat.completions.create(model=f.MODEL, messages=messages, max_tokens=f.MANY, stream=True) as events:
        next(iter(events))


f.tell(
    {
        **of,
        **f.of_texts(partial(client.completions.create, model=f.MODEL)),
        **f.of_responses(partial(client.responses.create, model=f.MODEL)),
        "responses, stream": responses_stream,
        "json_schema, helper": parsed,
        "tools, stream": streamed,
        "responses, json_schema": responses_parsed,
        "stop, seed, length": lambda: of["chat"](
            stop=["\n\n\n"], seed=1, max_tokens=None, max_completion_tokens=f.TOKENS
        ),
        "models": lambda: f.answer(" ".join(one.id for one in client.models.list())),
        "abort": lambda: f.aborted(leave),
    }
)
