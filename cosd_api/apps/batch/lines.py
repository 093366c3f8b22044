"""Input lines of a batch: requests in OpenAI's batch format, and plain prompts or conversations.

::

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "cosd", "messages": [...]}}
    {"prompt": "2 + 2 ="}
    {"custom_id": "b", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20}
    {"messages": [{"role": "user", "content": "Hello"}], "own": {"assistant": "The user is Ada."}}
    {"prompt": "Is snow white? ", "response_format": {"type": "choice", "choices": ["yes", "no"]}}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cosd_api import SettingError
from cosd_api.apps.json_lines import JsonLines, line_error, problem

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_WINDOW_TEXT = 16_000_000  # a window of lines is full when it has this number of characters, even if it has few lines

_CustomId = Annotated[str, Field(min_length=1)]


class _FramedLine(BaseModel):
    """A line in OpenAI's batch format."""

    model_config = ConfigDict(extra="ignore", strict=True)

    custom_id: _CustomId
    method: Literal["POST"]
    url: Literal["/v1/chat/completions", "/v1/completions"]
    body: dict[str, Any]


class _PlainLine(BaseModel):
    """A plain line. Its prompt, its messages and its limits are checked later, together with its body."""

    model_config = ConfigDict(extra="forbid", strict=True)

    custom_id: _CustomId | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    own: dict[str, Any] | None = None
    max_tokens: Any = None
    stop: Any = None
    seed: Any = None
    temperature: Any = None
    response_format: Any = None


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One input line. Its fields are valid, but its body is not checked yet.

    Attributes:
        number: the number of the line in the file, from 1.
        custom_id: the id of the line; `line-NUMBER-HASH` for a plain line without an id.
        url: the route for the body.
        body: the body of a request to this route; the body of a plain line may lack `model`.
        plain: False if the line is in OpenAI's batch format.
    """

    number: int
    custom_id: str
    url: str
    body: Mapping[str, Any]
    plain: bool

    @property
    def asked(self) -> str:
        """The prompt or the messages as one text. Lines with a common beginning have texts with a common beginning.

        Messages that only one model reads come first in this text, because that model reads them before the
        conversation.
        """
        name = "messages" if self.url == CHAT else "prompt"
        value = self.body.get(name)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        own = self.body.get("own")
        return json.dumps(own, ensure_ascii=False, sort_keys=True) + text if own else text


def read_batch(path: Path) -> Iterator[BatchLine]:
    """Read the input lines one at a time.

    Raises:
        OSError: the file cannot be read.
        SettingError: a line is invalid; the message names the file and the line.
    """
    for line in JsonLines().read(path, may_be_cut=False):
        try:
            yield line_of(line.number, line.fields)
        except SettingError as error:
            raise line_error(path, line.number, str(error)) from None


def line_of(number: int, fields: Mapping[str, Any]) -> BatchLine:
    """Create a line from its number and its fields.

    Raises:
        SettingError: the fields are invalid.
    """
    if not any(name in fields for name in _FramedLine.model_fields if name != "custom_id"):
        if not ("prompt" in fields or "messages" in fields):
            words = 'it has no prompt: give {"prompt": ...}, {"messages": [...]}, or OpenAI\'s batch format'
            raise SettingError(f"{words} ({', '.join(_FramedLine.model_fields)})")
        return plain_line(number, fields)
    try:
        found = _FramedLine.model_validate(fields)
    except ValidationError as error:
        raise SettingError(problem(error, [*_FramedLine.model_fields])) from None
    return BatchLine(number, found.custom_id, found.url, found.body, plain=False)


def plain_line(number: int, fields: Mapping[str, Any]) -> BatchLine:
    """Create a line that is not in OpenAI's batch format; see `line_of`."""
    try:
        found = _PlainLine.model_validate(fields)
    except ValidationError as error:
        raise SettingError(problem(error, [*_PlainLine.model_fields])) from None
    if (found.prompt is None) == (found.messages is None):
        raise SettingError("give prompt or messages, and not both")
    if found.own and found.messages is None:
        raise SettingError("own has messages for one model alone, but the prompt is text: give messages")
    custom_id = found.custom_id
    if custom_id is None:
        content = json.dumps(fields, sort_keys=True).encode()
        custom_id = f"line-{number}-{hashlib.sha256(content).hexdigest()[:12]}"
    url = COMPLETIONS if found.messages is None else CHAT
    body = found.model_dump(exclude_none=True, exclude={"custom_id"})
    return BatchLine(number, custom_id, url, body, plain=True)


def near_each_other(lines: Iterable[BatchLine], window: int, lanes: int) -> Iterator[BatchLine]:
    """Reorder lines so that lines with a common beginning are sent one after the other, for the servers' prefix caches.

    If lines with a common beginning were sent at the same time, all of them would miss the cache. So the lines that are
    in progress together come from different parts of the sorted window.

    Args:
        lines: the lines in the order of the file.
        window: the number of lines that are sorted together, or fewer if they are long; 1 keeps the order.
        lanes: the number of lines that are processed at the same time.
    """
    held: list[tuple[str, int, BatchLine]] = []
    size = 0
    for line in lines:
        asked = line.asked
        held.append((asked, line.number, line))
        size += len(asked)
        if len(held) >= window or size >= _WINDOW_TEXT:
            yield from _ordered(held, lanes)
            held, size = [], 0
    yield from _ordered(held, lanes)


def _ordered(held: list[tuple[str, int, BatchLine]], lanes: int) -> Iterator[BatchLine]:
    """Sort the lines, split them into `lanes` equal parts, and take one line from each part in turn."""
    held.sort(key=lambda one: one[:2])
    step = -(-len(held) // lanes)
    return (line for at in range(step) for _, _, line in held[at::step])
