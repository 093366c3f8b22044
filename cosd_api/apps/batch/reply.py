"""The reply to one line of a batch, in the same format as the line."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from cosd_api import Fusion, FusionResult, SettingError
from cosd_api.apps.batch.lines import CHAT, BatchLine
from cosd_api.apps.batch.summary import LineUsage, Usages, billed_tokens, together_cost
from cosd_api.apps.gateway.api_errors import ApiError, api_error
from cosd_api.apps.gateway.bodies import Asked, read_chat, read_completion
from cosd_api.apps.gateway.config import GatewayLimits
from cosd_api.apps.gateway.shapes import AnswerShape, ChatShape, CompletionShape, facts
from cosd_api.settings import AnswerOptions
from cosd_api.structured import ResponseFormat
from cosd_api.tools import CallReader
from cosd_providers import (
    BudgetError,
    BudgetTimeoutError,
    ContextLengthError,
    InvalidRequestError,
    ProviderError,
    UnsupportedError,
)

CUT = "max_billed_tokens"
"""The error code of a line that was ended by the limit for the whole batch."""

SCHEMA = 2
"""The version of output lines. In version 1, lines had no number, and models that share the same token ids were sent
text instead of ids."""

_INVALID = "invalid_request_error"
_OF_LINES = (ContextLengthError, InvalidRequestError, UnsupportedError, BudgetError)
"""Errors that a single line causes, except for time limits, which count as the server's fault."""
_LARGE = 10**9
_UNLIMITED = GatewayLimits(messages=_LARGE, prompts=_LARGE, max_tokens=_LARGE, timeout=_LARGE)
"""Limits that are too high to have an effect, because a user's own file needs no limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The outcome of one line.

    Attributes:
        asked: the input line.
        content: the fields of the output line, except the fields that every output line has.
        facts: the entries about the answer in the field `cosd`, except the cost.
        usage: the cost of the line, by endpoint.
        error: the code, the message, and whether a retry may succeed; None if there is an answer.
        cut: whether the line was ended because its share of the batch's limit was used up.
        server_failed: whether other lines are likely to fail in the same way.
        tokens: the number of tokens in the line's answers.
        kept: the number of verified draft tokens that were kept in the answers.
        replaced: the number of draft tokens that were replaced.
    """

    asked: BatchLine
    content: Mapping[str, Any] = field(default_factory=dict[str, Any])
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    usage: Usages = field(default_factory=dict[str, Any])
    error: Mapping[str, Any] | None = None
    cut: bool = False
    server_failed: bool = False
    tokens: int = 0
    kept: int = 0
    replaced: int = 0

    @property
    def billed_tokens(self) -> int:
        """The number of tokens that all endpoints read and wrote for this line."""
        return billed_tokens(self.usage)

    def line(self, method: str, models: Sequence[str], earlier: Sequence[Usages]) -> dict[str, Any]:
        """Return the output line. Its cost includes the costs of `earlier` attempts."""
        usage = {name: one.model_dump() for name, one in together_cost([self.usage, *earlier]).items()}
        own = {"schema_version": SCHEMA, "line": self.asked.number, "method": method, "models": [*models]}
        own |= {**self.facts, "usage": usage}
        return {"custom_id": self.asked.custom_id, **self.content, "error": self.error, "cosd": own}


async def answer(fusion: Fusion, line: BatchLine, allowed: int | None) -> Reply:
    """Answer one line of a batch. Errors are not raised, but returned as replies.

    Args:
        fusion: an open fusion; its `limits` apply to every answer.
        line: the line.
        allowed: the largest number of tokens that may be billed for the line; None for no limit.
    """
    done: list[FusionResult] = []
    own_limit = True
    try:
        asked = _asked(line)
        options = asked.options_for(fusion, _UNLIMITED)
        calls = None
        for index in range(len(asked.prompts)):
            left = None if allowed is None else allowed - sum(map(_billed, done))
            options, own_limit = _within(options, left)
            prompt, calls = await asked.prepared(index, fusion, options)
            done.append(await fusion.generate(prompt, **options))
    except ApiError as error:
        return _refused(line, done, error, {"code": _INVALID, "message": str(error), "param": error.param})
    except SettingError as error:
        return _refused(line, done, error, {"code": _INVALID, "message": str(error)})
    except ProviderError as error:
        if isinstance(error.partial, FusionResult):
            done.append(error.partial)
        found = {"code": type(error).__name__, "message": str(error), "retryable": error.retryable}
        cut = isinstance(error, BudgetError) and not own_limit and error.limit == "max_billed_tokens"
        # If an error is a server's fault, other lines are likely to fail in the same way.
        server_failed = isinstance(error, BudgetTimeoutError) or not isinstance(error, _OF_LINES)
        return _failed(line, done, found, cut=cut, server_failed=server_failed)
    if nothing := next((one for one in done if one.finish_reason == "budget" and not one.tokens), None):
        words = f"the limit {nothing.stop_reason} of one answer ended it before its first token: allow more"
        return _failed(line, done, {"code": BudgetError.__name__, "message": words, "retryable": False})
    return _answered(line, asked, done, calls)


def stopped(line: BatchLine, words: str) -> Reply:
    """Create the reply to a line that billed tokens before it was ended by the limit for the whole batch."""
    return _failed(line, (), {"code": CUT, "message": words, "retryable": True}, cut=True)


def _asked(line: BatchLine) -> Asked:
    """Read the request in a line.

    Raises:
        ApiError: the body is invalid, or requests something that no fusion can do.
        SettingError: the format of a plain line's answer is invalid.
    """
    body = {**({"model": "cosd"} if line.plain else {}), **line.body}
    given = body.pop("response_format", None) if line.plain else None  # may have more forms than in a gateway's body
    data = json.dumps(body).encode()
    asked = read_chat(data, _UNLIMITED) if line.url == CHAT else read_completion(data, _UNLIMITED)
    if asked.stream:
        raise ApiError("stream is refused: a batch returns whole answers", param="stream")
    if given is not None:
        asked.options["response_format"] = ResponseFormat.of(given)
    return asked


def _within(options: AnswerOptions, left: int | None) -> tuple[AnswerOptions, bool]:
    """Set the limit on billed tokens to the line's own limit or to the rest of its share, whichever is lower.

    Args:
        options: the options of the line.
        left: the rest of the line's share, in tokens; None for no limit.

    Returns:
        The options, and whether the line's own limit applies.
    """
    own = options.get("max_billed_tokens")
    if left is None or (own is not None and own <= left):
        return options, True
    return {**options, "max_billed_tokens": max(1, left), "on_budget": "raise"}, False


def _billed(result: FusionResult) -> int:
    return sum(one.billed_tokens for one in result.usage.values())


def _refused(line: BatchLine, done: Sequence[FusionResult], refused: Exception, error: Mapping[str, Any]) -> Reply:
    """Create the reply to an invalid line. In OpenAI's format, the reply has a response as well as the error."""
    reply = _failed(line, done, error)
    if line.plain:
        return reply
    known = api_error(refused)
    response = {"status_code": known.status, "request_id": f"req_{uuid4().hex}", "body": known.body}
    return replace(reply, content={**reply.content, "response": response})


def _failed(
    line: BatchLine,
    done: Sequence[FusionResult],
    error: Mapping[str, Any],
    *,
    cut: bool = False,
    server_failed: bool = False,
) -> Reply:
    content = {"text": None} if line.plain else {"id": f"batch_req_{uuid4().hex}", "response": None}
    return Reply(asked=line, content=content, usage=_usage(done), error=error, cut=cut, server_failed=server_failed)


def _usage(done: Sequence[FusionResult]) -> dict[str, LineUsage]:
    return together_cost([{name: LineUsage.of(one) for name, one in result.usage.items()} for result in done])


def _answered(line: BatchLine, asked: Asked, done: Sequence[FusionResult], calls: CallReader | None) -> Reply:
    counted: dict[str, Any] = {
        "usage": _usage(done),
        "tokens": sum(len(one.tokens) for one in done),
        "kept": sum(one.verified_kept_tokens for one in done),
        "replaced": sum(one.replaced_tokens or 0 for one in done),
    }
    if line.plain:
        (one,) = done
        content = {"text": one.text, "finish_reason": one.finish_reason}
        if asked.options.get("response_format") is not None:
            content["parsed"] = one.parsed
        return Reply(asked=line, content=content, facts=facts(one), **counted)
    shape, unique = ChatShape if asked.chat else CompletionShape, uuid4().hex
    options: dict[str, Any] = {"logprobs": asked.logprobs, "calls": calls}
    form: AnswerShape = shape(f"req_{unique}", asked.model, int(time.time()), **options)
    response = {"status_code": 200, "request_id": form.request_id, "body": form.whole(done)}
    return Reply(asked=line, content={"id": f"batch_req_{unique}", "response": response}, **counted)
