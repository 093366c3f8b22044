"""Answers in OpenAI's two formats, whole or as events of a stream, with facts about the fusion in the field `cosd`.

The log probability of a token comes from the model that wrote it: the draft or an assistant. A probability of 0 becomes
-9999. If the model's server reports no probability, the value is null in a completion, and -9999 in a chat answer,
because the format of chat answers requires a number.
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import uuid4

from cosd_api import FusionResult
from cosd_api.extend import DRAFT
from cosd_api.tools import CallBegun, CallReader, Part, read_answer
from cosd_api.types import FusedToken

__all__ = ["DONE", "AnswerShape", "ChatShape", "CompletionShape", "TextReader", "event", "facts", "usage"]

DONE = b"data: [DONE]\n\n"
"""Last event of a stream that ends without an error."""

_NEVER = -9999.0  # log probability for a probability that is zero or unknown, as in OpenAI's API
_FINISH = {"budget": "length"}


class TextReader:
    """Decoder for tokens that may contain parts of characters.

    A character is returned with the token that completes it. All returned pieces together are the text of the result.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def read(self, token: FusedToken) -> str:
        """Decode a token; return all characters that are now complete."""
        return self._decoder.decode(token.data)

    def rest(self) -> str:
        """Return the text of an incomplete character after the last token; usually empty."""
        return self._decoder.decode(b"", True)


def facts(result: FusionResult) -> dict[str, Any]:
    """Return the facts about a fused answer, for the field `cosd`."""
    return {
        "method": result.settings.method,
        "acceptance_rate": result.acceptance_rate,
        "replacements": result.replacements,
        "tokens": len(result.tokens),
        "unverified_tokens": result.unverified_tokens,
        "shares": {name: round(share, 4) for name, share in result.shares.items()},
        "stop_reason": result.stop_reason,
        "seconds": round(result.timings.total, 6),
        "usage": {
            name: {
                "prompt_tokens": one.prompt_tokens,
                "completion_tokens": one.completion_tokens,
                "cached_tokens": one.cached_tokens,
                "estimated_tokens": one.estimated_tokens,
                "requests": one.requests + one.retries,
            }
            for name, one in result.usage.items()
        },
    }


def usage(results: Sequence[FusionResult]) -> dict[str, Any]:
    """Return the usage as OpenAI's API defines it: the prompt's tokens, counted once, and the answers' tokens.

    The draft's server counts the prompt. The tokens that each endpoint billed are in `facts`.
    """
    read, written = sum(one.prompt_tokens or 0 for one in results), sum(len(one.tokens) for one in results)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def event(value: object) -> bytes:
    """Encode one event of a stream."""
    return f"data: {_json(value)}\n\n".encode()


_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # json.dumps makes an encoder per call


def _logprob(token: FusedToken) -> float | None:
    """Return the log probability of a token, according to the model that wrote it."""
    return _log(token.draft_prob if token.source == DRAFT else token.assistant_prob)


def _log(prob: float | None) -> float | None:
    if prob is None:
        return None
    return math.log(prob) if prob else _NEVER


def _entry(text: str, log: float | None, data: bytes) -> dict[str, Any]:
    """Return the entry for a token in the log probabilities of a chat answer."""
    return {"token": text, "logprob": _NEVER if log is None else log, "bytes": [*data]}


@dataclass(frozen=True)
class AnswerShape:
    """The format of the answers to one request.

    Attributes:
        request_id: id of the request.
        model: name of the model, as in the request.
        created: time of the answer, in seconds since 1970.
        logprobs: whether tokens are sent with their log probabilities.
        usage: whether the client requested the usage at the end of a stream.
        id: id of the answer; by default, a new id in OpenAI's format.
        ignored: fields of the request that were ignored.
        calls: the reader of an answer that may call tools.
    """

    request_id: str
    model: str
    created: int
    logprobs: bool = False
    usage: bool = False
    id: str = ""
    ignored: Sequence[str] = ()
    calls: CallReader | None = None

    id_prefix = ""
    whole_object = ""
    chunk_object = ""

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", f"{self.id_prefix}-{uuid4().hex}")

    def whole(self, results: Sequence[FusionResult]) -> dict[str, Any]:
        """Return the body of a response that contains whole answers."""
        choices = [self._whole_choice(at, one) for at, one in enumerate(results)]
        more = facts(results[0]) if len(results) == 1 else {"answers": [facts(one) for one in results]}
        cosd = {"request_id": self.request_id, **more, **self._ignored}
        return {**self._head(self.whole_object), "choices": choices, "usage": usage(results), "cosd": cosd}

    def opening(self, index: int) -> bytes:  # noqa: ARG002 - the format of chat answers uses it
        """Return the first event of an answer, before any text; empty if the format has no such event."""
        return b""

    def piece(self, index: int, text: str, token: FusedToken | None, offset: int) -> bytes:
        """Return the event for one token.

        Args:
            index: index of the answer.
            text: the characters that are complete with this token.
            token: the token; None for text that remains after the last token.
            offset: number of characters in the answer before this text.
        """
        if not self.logprobs:
            start, middle, end = self._frame
            return f"{start}{index}{middle}{_json(text)}{end}".encode()
        tokens = [] if token is None or token.end else [token]
        return self._chunk(index, self._written(text), self._logprobs(tokens, offset))

    def closing(self, index: int, result: FusionResult) -> bytes:
        """Return the last event of an answer."""
        chunk = json.loads(self._chunk(index, self._written(None), None)[6:])
        chunk["choices"][0]["finish_reason"] = self._finish(result, complete=bool(self.calls and self.calls.complete))
        chunk["cosd"] = {"request_id": self.request_id, **facts(result), **self._ignored}
        return event(chunk)

    def ending(self, results: Sequence[FusionResult]) -> bytes:
        """Return the last events of a stream that ends without an error."""
        if not self.usage:
            return DONE
        return event({**self._head(self.chunk_object), "choices": [], "usage": usage(results)}) + DONE

    @property
    def _ignored(self) -> dict[str, Any]:
        return {"ignored": [*self.ignored]} if self.ignored else {}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, index: int, written: Mapping[str, Any], logprobs: object) -> bytes:
        null: dict[str, Any] = {"usage": None} if self.usage else {}
        choice = {"index": index, **written, "logprobs": logprobs, "finish_reason": None}
        return event({**self._head(self.chunk_object), "choices": [choice], **null})

    @cached_property
    def _frame(self) -> tuple[str, str, str]:
        """The constant parts of an event: before the index, between the index and the text, and after the text."""
        mark = "\0"
        start = f'data: {_json(self._head(self.chunk_object))[:-1]},"choices":[{{"index":'
        choice = _json({**self._written(mark), "logprobs": None, "finish_reason": None})
        middle, _, end = choice.partition(_json(mark))
        usage = ',"usage":null' if self.usage else ""
        return start, f",{middle[1:]}", f"{end}]{usage}}}\n\n"

    def _whole_choice(self, index: int, result: FusionResult) -> dict[str, Any]:
        logprobs = self._logprobs([one for one in result.tokens if not one.end], 0) if self.logprobs else None
        answer, complete = self._answer(result.text)
        return {
            "index": index,
            **answer,
            "logprobs": logprobs,
            "finish_reason": self._finish(result, complete=complete),
        }

    def _finish(self, result: FusionResult, *, complete: bool) -> str:
        """Return the reason for which the answer ended; `complete` means that it ends with complete calls."""
        reason = _FINISH.get(result.finish_reason, result.finish_reason)
        return "tool_calls" if complete and reason == "stop" else reason

    def _answer(self, text: str) -> tuple[dict[str, Any], bool]:
        """Return the fields of a choice that contain a whole answer, and whether it ends with complete calls."""
        raise NotImplementedError

    def _written(self, text: str | None) -> dict[str, Any]:
        """Return the fields of an event that contain a piece of text; `text` is None in the last event."""
        raise NotImplementedError

    def _logprobs(self, tokens: Sequence[FusedToken], offset: int) -> dict[str, Any]:
        raise NotImplementedError


class ChatShape(AnswerShape):
    """The format of answers from `/v1/chat/completions`."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, index: int) -> bytes:
        """Return the event that names the role of the answer's author."""
        null: dict[str, Any] = {"usage": None} if self.usage else {}
        delta = {"role": "assistant", "content": "" if self.calls is None else None, "refusal": None}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return event({**self._head(self.chunk_object), "choices": [choice], **null})

    def piece(self, index: int, text: str, token: FusedToken | None, offset: int) -> bytes:
        """Return the events for one token. A token of a call may have none, and one that ends a marker has several."""
        if self.calls is None:
            return super().piece(index, text, token, offset)
        deltas = [_delta(part) for part in self.calls.read(text)]
        logprobs = self._logprobs([token], offset) if self.logprobs and token and not token.end else None
        written = deltas or ([{}] if logprobs else [])
        several = zip(written, [logprobs, *[None] * len(written)], strict=False)
        return b"".join(self._chunk(index, {"delta": delta}, found) for delta, found in several)

    def closing(self, index: int, result: FusionResult) -> bytes:
        """Return the last events of an answer, with text that was held back because a call might have begun there."""
        rest = self.calls.rest() if self.calls else ""
        held = self._chunk(index, self._written(rest), None) if rest else b""
        return held + super().closing(index, result)

    def _answer(self, text: str) -> tuple[dict[str, Any], bool]:
        if self.calls is None:
            return {"message": {"role": "assistant", "content": text, "refusal": None}}, False
        content, calls, complete = read_answer(text, self.calls.form)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            made = [_call(call.id, call.name, call.arguments) for call in calls]
            message |= {"content": content if content.strip() else None, "tool_calls": made}
        return {"message": message}, complete

    def _written(self, text: str | None) -> dict[str, Any]:
        return {"delta": {} if text is None else {"content": text}}

    def _logprobs(self, tokens: Sequence[FusedToken], offset: int) -> dict[str, Any]:  # noqa: ARG002
        entries: list[dict[str, Any]] = []
        for one in tokens:
            entry = _entry(one.text, _logprob(one), one.data)
            others = [_entry(listed.text, _log(listed.prob), listed.data) for listed in one.alternatives]
            entries.append({**entry, "top_logprobs": [entry, *others]})
        return {"content": entries, "refusal": None}


class CompletionShape(AnswerShape):
    """The format of answers from `/v1/completions`."""

    id_prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def _answer(self, text: str) -> tuple[dict[str, Any], bool]:
        return {"text": text}, False

    def _written(self, text: str | None) -> dict[str, Any]:
        return {"text": text or ""}

    def _logprobs(self, tokens: Sequence[FusedToken], offset: int) -> dict[str, Any]:
        texts, logs, starts = [one.text for one in tokens], [_logprob(one) for one in tokens], list[int]()
        reader, at = TextReader(), offset
        for one in tokens:
            starts.append(at)
            at += len(reader.read(one))
        top = [
            {text: log} | {other.text: _log(other.prob) for other in one.alternatives if other.text != text}
            for one, text, log in zip(tokens, texts, logs, strict=True)
        ]
        return {"tokens": texts, "token_logprobs": logs, "top_logprobs": top, "text_offset": starts}


def _delta(part: Part) -> dict[str, Any]:
    """Return the delta for a part of an answer that may call tools."""
    if isinstance(part, str):
        return {"content": part}
    if isinstance(part, CallBegun):
        return {"tool_calls": [{"index": part.index, **_call(part.id, part.name, "")}]}
    return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
