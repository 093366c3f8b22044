"""Entry to tracing: imports and does nothing unless the application itself uses OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from cosd_api.telemetry.fusion_span import FusionSpan
from cosd_providers.messages import Message

_NO_SPAN = FusionSpan()


def callers_context(headers: Mapping[str, str], request_id: str) -> AbstractContextManager[None]:
    """Context of a caller in another process: spans inside the block are children of its span. Its baggage stays out.

    Args:
        headers: of its request, such as W3C's `traceparent`; with names in lower case, or with lookup in any case.
        request_id: id of its request; the spans of fusions inside the block have it.
    """
    if "opentelemetry.trace" not in sys.modules:
        return nullcontext()
    from cosd_api.telemetry.otel import continued  # noqa: PLC0415 - needs OpenTelemetry

    return continued(headers, request_id)


def fusion_span(workflow: str, prompt: str | Sequence[Message]) -> AbstractContextManager[FusionSpan]:
    """Span of one fusion, a child of the caller's current span, which it replaces inside the block.

    An application that traces has imported `opentelemetry.trace`; without tracing, the check costs nothing.

    Args:
        workflow: name of the workflow, which is the method's name.
        prompt: recorded only if OpenTelemetry's environment variable requests it (`names.CAPTURE`).
    """
    if "opentelemetry.trace" not in sys.modules:
        return nullcontext(_NO_SPAN)
    from cosd_api.telemetry.otel import recorded  # noqa: PLC0415 - needs OpenTelemetry

    return recorded(workflow, prompt)
