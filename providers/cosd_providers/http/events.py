"""The events of a stream, each a JSON object. Knows no HTTP library."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from pydantic_core import from_json

from cosd_providers.errors import ProviderError, ResponseError
from cosd_providers.http.bodies import Measured, TooLongError
from cosd_providers.http.failures import too_long
from cosd_providers.http.limits import Slot
from cosd_providers.http.refusals import Errors, Response, event_status
from cosd_providers.usage import Usage

__all__ = ["parsed"]


async def parsed(
    source: AsyncGenerator[str], text: Measured, errors: Errors, response: Response, usage: Usage, slot: Slot
) -> AsyncGenerator[dict[str, Any]]:
    """What the events hold, up to the last one or to `[DONE]`.

    Args:
        source: the data of each event.
        text: where it comes from.
        errors: makes the errors.
        response: the answer that they belong to.
        usage: is told when the first one comes.
        slot: is paused while nobody asks for the next one.

    Raises:
        StatusError: one of them is an error.
        ResponseError: one of them is not JSON, or too long.
    """
    first = True
    try:
        async with aclosing(source):
            async for data in source:
                text.size = 0
                if not data:  # a sign of life
                    continue
                if data == "[DONE]":
                    return
                event: dict[str, Any] | None = from_json(data)
                if type(event) is not dict:  # some servers greet with null
                    continue
                if event.get("error") is not None:
                    raise errors.status_error(event_status(event), event, response)
                if first:
                    first = False
                    usage.answered(time.monotonic())
                slot.pause()
                try:
                    yield event
                finally:
                    slot.go_on()
    except TooLongError:
        raise too_long(errors, response) from None
    except ValueError as error:
        if isinstance(error, ProviderError):
            raise
        raise errors.make(ResponseError, "an event of the stream is not JSON", response) from error
