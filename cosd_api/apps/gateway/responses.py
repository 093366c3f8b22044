"""The Responses API as another form of chat completions: requests are translated to chat requests, and answers back.

The reference is OpenAI's specification of `POST /v1/responses`. Nothing is kept after an answer, so the fields that
refer to earlier answers are refused (`fields.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, cast
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field

from cosd_api.apps.gateway.api_errors import ApiError
from cosd_api.apps.gateway.shapes import event

__all__ = ["AnswerForm", "ResponsesBody", "ResponsesForm", "chat_fields", "in_terms_of_responses"]

_LOGPROBS = "message.output_text.logprobs"
_Included = Literal[
    "message.output_text.logprobs", "reasoning.encrypted_content", "file_search_call.results",
    "web_search_call.results", "web_search_call.action.sources", "message.input_image.image_url",
    "computer_call_output.output.image_url", "code_interpreter_call.outputs",
]  # fmt: skip
"""Optional parts of an answer. Only the first can be in a fused answer; OpenAI's own services would add the others."""

_NAMES = {"messages": "input", "max_completion_tokens": "max_output_tokens", "response_format": "text.format"}
"""Fields of chat requests, and their names here."""

_INSTEAD = {"messages": "give input", "prompt": "the gateway keeps no prompts. Give instructions and input"}
"""Fields of other routes or servers, and the reasons for refusing them."""

_ECHOED: Mapping[str, Any] = {
    "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None}, "temperature": None, "text": {"format": {"type": "text"}},
    "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": None, "user": None,
}  # fmt: skip
"""Fields of a request that its answer repeats, with the values for requests that lack them."""

_FIRST: Mapping[str, Any] = {
    "error": None, "incomplete_details": None, "usage": None, "background": False, "previous_response_id": None,
    "store": False, "truncation": "disabled",
}  # fmt: skip
"""Fields of every answer, with their first values."""

# ------------------------------------------------------------------------------------------------------------- requests


class _TextOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    format: dict[str, Any] | None = None
    verbosity: Any = None


class ResponsesBody(BaseModel):
    """The fields of `POST /v1/responses` that differ from the fields of a chat request."""

    model_config = ConfigDict(extra="allow", strict=True, hide_input_in_errors=True)

    input: Annotated[str, Field(min_length=1)] | list[Any]
    instructions: str | None = None
    max_output_tokens: Any = None
    text: _TextOptions | None = None
    include: list[_Included] | None = None


def chat_fields(body: ResponsesBody) -> tuple[dict[str, Any], list[int]]:
    """Return the fields of the chat request that means the same, without the instructions.

    Fields that are the same in both requests are left as they are, and checked later.

    Returns:
        The fields, and for each message the index of the item in `input` with which it begins.

    Raises:
        ApiError: the body contains something that has no counterpart in a chat request.
    """
    more: dict[str, Any] = body.model_extra or {}
    for name, reason in _INSTEAD.items():
        if name in more:
            raise ApiError(f"{name} is refused: {reason}", param=name)
    logprobs = _LOGPROBS in (body.include or ())
    if more.get("top_logprobs") and not (logprobs or more.get("logprobs")):
        words = f'top_logprobs is refused: give include: ["{_LOGPROBS}"], too'
        raise ApiError(words, param="top_logprobs")
    text = body.text or _TextOptions()
    messages, items = _messages(body.input)
    changed = {
        "messages": messages,
        "max_completion_tokens": body.max_output_tokens,
        "response_format": _nested(text.format, "json_schema"),
        "verbosity": text.verbosity,
        "logprobs": logprobs or None,
        "tools": _tools(more.get("tools")),
        "tool_choice": _nested(more.get("tool_choice"), "function"),
    }
    return {**more, **{name: value for name, value in changed.items() if value is not None}}, items


def in_terms_of_responses(error: ApiError, items: Sequence[int]) -> ApiError:
    """Return an error about a chat request with the names of the request from which it was translated.

    Args:
        error: the error.
        items: for each message, the index of its item in `input`, as from `chat_fields`.
    """
    words, name = str(error), error.param or ""
    if name == "messages":
        words = re.sub(r"messages\[(\d+)\]", lambda found: f"input[{items[int(found[1])]}]", words)
    if name in _NAMES and words.startswith(name):
        words = _NAMES[name] + words.removeprefix(name)
    return ApiError(words, param=_NAMES.get(name, error.param))


def _nested(value: Any, kind: str) -> Any:
    """Return an object of this type, such as a tool, as in a chat request: its members are in an inner object."""
    if not isinstance(value, dict) or cast("dict[str, Any]", value).get("type") != kind or kind in value:
        return cast("object", value)
    return {"type": kind, kind: {name: one for name, one in cast("dict[str, Any]", value).items() if name != "type"}}


def _tools(given: Any) -> Any:
    """Return tools in the form of a chat request."""
    if not isinstance(given, list):
        return given
    for at, one in enumerate(cast("list[object]", given)):
        if not isinstance(one, dict) or cast("dict[str, Any]", one).get("type") != "function":
            raise ApiError(f"tools[{at}] is refused: only tools of the type function can be called", param="tools")
    return [_nested(one, "function") for one in cast("list[object]", given)]


def _messages(given: str | list[Any]) -> tuple[list[Any], list[int]]:
    """Return the messages of a chat request, and for each of them the index of its first item.

    A message of the assistant contains the calls that follow it.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}], [0]
    messages, items = list[Any](), list[int]()
    for at, one in enumerate(given):
        message = _message(one, at)
        if messages and _is_assistants(messages[-1]) and _is_assistants(message) and "tool_calls" in message:
            messages[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
        else:
            messages.append(message)
            items.append(at)
    return messages, items


def _is_assistants(message: Any) -> bool:
    return isinstance(message, dict) and cast("dict[str, Any]", message).get("role") == "assistant"


def _message(given: Any, at: int) -> Any:
    """Return the message for the item at an index of `input`; its members are checked later."""
    if not isinstance(given, dict):
        return given
    item = cast("dict[str, Any]", given)
    kind = item.get("type") or "message"
    if kind == "message":
        return {"role": item.get("role"), "content": _content(item.get("content"))}
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": _content(item.get("output"))}
    words = "only message, function_call and function_call_output are read, and the gateway keeps no answers"
    raise ApiError(f"input[{at}] is refused: {words}", param="input")


def _content(given: Any) -> Any:
    """Return the content of a message, with text parts as in a chat request."""
    if not isinstance(given, list):
        return given
    return [
        {"type": "text", "text": cast("dict[str, Any]", part).get("text")}
        if isinstance(part, dict) and cast("dict[str, Any]", part).get("type") in ("input_text", "output_text")
        else part
        for part in cast("list[object]", given)
    ]


# -------------------------------------------------------------------------------------------------------------- answers


class AnswerForm:
    """The form in which answers are sent: chat answers and completions are sent as they are."""

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a response that contains a whole answer."""
        return answer

    def events(self, data: bytes) -> bytes:
        """Return the events of a stream for some of its chunks."""
        return data

    def failure(self, error: ApiError) -> bytes:
        """Return the last events of a stream that an error ends."""
        return event(error.body)


class ResponsesForm(AnswerForm):
    """The form of the answers of `/v1/responses`, translated from a chat answer or its chunks.

    Args:
        request: the body of the request.
        model: name of the model.
        created: time of the answer, in seconds since 1970.
    """

    def __init__(self, request: Mapping[str, Any], model: str, created: int) -> None:
        self._response: dict[str, Any] = {
            "id": f"resp_{uuid4().hex}",
            "object": "response",
            "created_at": created,
            "status": "in_progress",
            "model": model,
            "output": [],
            **_FIRST,
            **{name: value if request.get(name) is None else request[name] for name, value in _ECHOED.items()},
        }
        self._number = 0  # of the next event
        self._item: dict[str, Any] = {}  # the item in progress; empty between items
        self._pieces: list[str] = []
        self._logprobs: list[Any] = []

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the response for a whole chat answer."""
        [choice] = answer["choices"]
        for _ in (*self._read({**answer, "choices": [{**choice, "delta": choice["message"]}]}), *self._end()):
            pass
        return self._response

    def events(self, data: bytes) -> bytes:
        """Return the events for some chunks of a chat answer."""
        return b"".join(map(self._encoded, self._translated(data)))

    def failure(self, error: ApiError) -> bytes:
        """Return the events for an error: the response with the text so far, and the error itself.

        OpenAI's client raises the second as an exception.
        """
        return b"".join(map(self._encoded, self._failed(error)))

    def _encoded(self, found: dict[str, Any]) -> bytes:
        numbered = {"type": found["type"], "sequence_number": self._number, **found}
        self._number += 1
        return f"event: {found['type']}\n".encode() + event(numbered)

    def _translated(self, data: bytes) -> Iterator[dict[str, Any]]:
        for chunk in data.decode().split("\n\n"):
            text = chunk.removeprefix("data: ")
            if text == "[DONE]":
                yield from self._end()
            elif text:
                yield from self._read(json.loads(text))

    def _begin(self) -> Iterator[dict[str, Any]]:
        for kind in () if self._number else ("response.created", "response.in_progress"):
            yield {"type": kind, "response": self._response}

    def _read(self, chunk: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._begin()
        if "cosd" in chunk:
            self._response["cosd"] = chunk["cosd"]
        if used := chunk.get("usage"):
            self._response["usage"] = {
                "input_tokens": used["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": used["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": used["total_tokens"],
            }
        for choice in chunk["choices"]:
            logprobs: list[Any] = choice["logprobs"]["content"] or [] if choice["logprobs"] else []
            if (text := choice["delta"].get("content") or "") or logprobs:
                yield from self._wrote(text, logprobs)
            for call in choice["delta"].get("tool_calls") or ():
                yield from self._called(call)
            if choice["finish_reason"] == "length":
                self._response["incomplete_details"] = {"reason": "max_output_tokens"}

    def _wrote(self, text: str, logprobs: Sequence[Any]) -> Iterator[dict[str, Any]]:
        if self._item.get("type") != "message":
            yield from self._open_message()
        self._pieces.append(text)
        self._logprobs += logprobs
        yield self._of_item("response.output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _called(self, call: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Translate a piece of a call; only the first piece needs the call's id and name."""
        function: Mapping[str, Any] = call["function"]
        if call.get("id") not in (None, self._item.get("call_id")):
            yield from self._close()
            yield self._open("fc", type="function_call", call_id=call["id"], name=function["name"], arguments="")
        if text := function.get("arguments"):
            self._pieces.append(text)
            yield self._of_item("response.function_call_arguments.delta", delta=text)

    def _open_message(self) -> Iterator[dict[str, Any]]:
        yield from self._close()
        yield self._open("msg", type="message", role="assistant", content=[])
        yield self._of_item("response.content_part.added", content_index=0, part=_part("", []))

    def _open(self, prefix: str, **members: Any) -> dict[str, Any]:
        self._item = {"id": f"{prefix}_{uuid4().hex}", "status": "in_progress", **members}
        self._pieces, self._logprobs = [], []
        return self._indexed("response.output_item.added", item=self._item)

    def _of_item(self, kind: str, **members: Any) -> dict[str, Any]:
        return self._indexed(kind, item_id=self._item["id"], **members)

    def _indexed(self, kind: str, **members: Any) -> dict[str, Any]:
        return {"type": kind, "output_index": len(self._response["output"]), **members}

    def _close(self, status: str = "completed") -> Iterator[dict[str, Any]]:
        """Complete the item in progress, if any."""
        item, text = self._item, "".join(self._pieces)
        if not item:
            return
        if item["type"] == "message":
            item["content"] = [_part(text, self._logprobs)]
            yield self._of_item("response.output_text.done", content_index=0, text=text, logprobs=self._logprobs)
            yield self._of_item("response.content_part.done", content_index=0, part=item["content"][0])
        else:
            item["arguments"] = text
            yield self._of_item("response.function_call_arguments.done", name=item["name"], arguments=text)
        item["status"] = status
        yield self._indexed("response.output_item.done", item=item)
        self._response["output"].append(item)
        self._item = {}

    def _end(self) -> Iterator[dict[str, Any]]:
        if not (self._item or self._response["output"]):
            yield from self._open_message()  # an answer without text
        status = "incomplete" if self._response["incomplete_details"] else "completed"
        yield from self._close(status)
        self._response["status"] = status
        yield {"type": f"response.{status}", "response": self._response}

    def _failed(self, error: ApiError) -> Iterator[dict[str, Any]]:
        yield from self._begin()
        for _ in self._close("incomplete"):
            pass
        told = error.body["error"]
        code = error.code if error.code == "rate_limit_exceeded" else "server_error"  # the specification lists codes
        self._response |= {"status": "failed", "error": {"code": code, "message": told["message"]}}
        yield {"type": "response.failed", "response": self._response}
        yield {"type": "error", **{name: told[name] for name in ("code", "message", "param")}, **error.body}


def _part(text: str, logprobs: Sequence[Any]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
