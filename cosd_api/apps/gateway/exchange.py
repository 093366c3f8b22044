"""A request and its outcome, for the access log and the metrics, neither of which contains a prompt or an answer."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import uuid4

from cosd_api import FusionResult, FusionStream
from cosd_api.types import EndpointUsage

__all__ = ["ACCESS_LOG", "Exchange", "Outcome", "request_id"]

ACCESS_LOG = "cosd_api.apps.gateway.access"
"""Name of the logger to which the access log is written."""

_log = logging.getLogger(ACCESS_LOG)

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")

Outcome = Literal["ok", "error", "disconnected", "stopped"]
"""Outcome of a request: answered, failed, abandoned by its client, or aborted because the gateway stopped."""


def request_id(given: str) -> str:
    """Return the client's own request id if it matches `_ID`; otherwise, return a new id."""
    return given if _ID.fullmatch(given) else f"req-{uuid4().hex}"


@dataclass(slots=True, kw_only=True)
class Exchange:
    """A request, in progress or finished.

    Attributes:
        id: id of the request.
        method: the HTTP method.
        path: the route; empty if the gateway has no such route.
        client: the name of the client's key; empty if the client has no key.
        model: the name of the fusion that answers; empty until the body has been read.
        stream: whether the answer is sent while it is written.
        status: the HTTP status; 0 if the client disconnected before a status was sent.
        outcome: the way in which the request ended.
        error: the code of the error, or its HTTP status if it has no code; empty if there was no error.
        first_seconds: seconds from the start of the request to its first text; None if no text was written.
        tokens: number of tokens in all answers together.
        usage: requests and billed tokens of each endpoint.
        results: the complete answers.
        gaps: seconds between successive tokens of a stream.
        last: time of the most recent token of a stream; None before its first token.
        began: start of the request, as `time.perf_counter()` reported it.
    """

    id: str
    method: str
    path: str
    client: str = ""
    model: str = ""
    stream: bool = False
    status: int = 0
    outcome: Outcome = "ok"
    error: str = ""
    first_seconds: float | None = None
    tokens: int = 0
    usage: dict[str, EndpointUsage] = field(default_factory=dict[str, EndpointUsage])
    results: list[FusionResult] = field(default_factory=list[FusionResult])
    gaps: list[float] = field(default_factory=list[float])
    last: float | None = None
    began: float = field(default_factory=time.perf_counter)

    @property
    def billed(self) -> int:
        """Number of billed tokens of all endpoints."""
        return sum(one.billed_tokens for one in self.usage.values())

    def sent_text(self) -> None:
        """Record the time of the first text; later calls have no effect."""
        if self.first_seconds is None:
            self.first_seconds = time.perf_counter() - self.began

    def wrote(self) -> None:
        """Count a token of a stream, and record the time since the token before it."""
        now = time.perf_counter()
        if self.last is not None:
            self.gaps.append(now - self.last)
        self.last = now
        self.tokens += 1

    def account(self, stream: FusionStream) -> None:
        """Add the cost of an answer, however it ended."""
        _add(self.usage, stream.usage)

    def log(self) -> None:
        """Write the request's line to the access log, as a JSON object."""
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": self.id,
            "client": self.client,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "outcome": self.outcome,
            "error": self.error,
            "seconds": round(time.perf_counter() - self.began, 6),
        }
        if self.model:
            first = None if self.first_seconds is None else round(self.first_seconds, 6)
            billed = {name: one.billed_tokens for name, one in self.usage.items()}
            line |= {"model": self.model, "stream": self.stream, "first_seconds": first, "tokens": self.tokens}
            line |= {"billed": billed, "estimated": sum(one.estimated_tokens for one in self.usage.values())}
            if unverified := sum(one.unverified_tokens for one in self.results):
                line["unverified_tokens"] = unverified
            if any(one.seams for one in self.results):
                line["shares"] = shares_of(self.results)
        _log.info("%s", json.dumps({name: one for name, one in line.items() if one not in ("", None)}))


def shares_of(results: Sequence[FusionResult]) -> dict[str, float]:
    """The share of the tokens of all answers that each model wrote, by name."""
    written = max(1, sum(len(one.tokens) for one in results))
    names = dict.fromkeys(name for one in results for name in one.shares)
    return {
        name: round(sum(one.shares.get(name, 0) * len(one.tokens) for one in results) / written, 4) for name in names
    }


def _add(total: dict[str, EndpointUsage], more: Mapping[str, EndpointUsage]) -> None:
    """Add the usage of each endpoint to its total."""
    for name, one in more.items():
        known = total.get(name, EndpointUsage())
        counts = ("requests", "retries", "prompt_tokens", "completion_tokens", "cached_tokens", "estimated_tokens")
        total[name] = EndpointUsage(**{each: getattr(known, each) + getattr(one, each) for each in counts})
