"""One request: what is sent, when it may go out, and how it is counted. Knows no HTTP library."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cosd_providers.http.limits import Limiter, Slot
from cosd_providers.usage import Usage

__all__ = ["Call", "under_way"]


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    Attributes:
        method: GET or POST.
        path: the route.
        body: what is sent, as JSON.
        usage: where it is counted, if something is generated.
        headers: more than are sent with every request.
        stream: whether the answer is read as it comes.
        draft: whether the reader of the stream may wait for other requests.
        once: whether it is not tried again.
        again: whether it is itself another attempt.
        quick: whether it is given up soon.
    """

    method: str
    path: str
    body: object = None
    usage: Usage | None = None
    headers: Mapping[str, str] | None = None
    stream: bool = False
    draft: bool = False
    once: bool = False
    again: bool = False
    quick: bool = False


@asynccontextmanager
async def under_way(call: Call, limiter: Limiter) -> AsyncGenerator[Slot]:
    """The block in which a request is sent and answered: it has waited for its turn, and is counted.

    Raises:
        BudgetError: it may not be sent.
    """
    usage = call.usage
    async with limiter.slot(usage, draft=call.draft) as slot:
        if usage is None:
            yield slot
            return
        await limiter.admit(usage)
        usage.sent(time.monotonic())
        if call.again:  # what it is an attempt of was counted as a request
            usage.requests -= 1
            usage.retries += 1
        try:
            yield slot
        finally:
            usage.closed(time.monotonic())
