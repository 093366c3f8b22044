"""Entry points of tracing, which do nothing and import nothing unless the application itself uses OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from cosd_api.telemetry.fusion_span import FusionSpan
from cosd_providers.messages import Message

_NO_SPAN = FusionSpan()


def callers_context(headers: Mapping[str, str], request_id: str) -> AbstractContextManager[None]:
    """Set the context of a caller in another process: spans inside the block are children of the caller's span.

    The caller's baggage is not included.

    Args:
        headers: headers of the caller's request, such as W3C's `traceparent`. Their names are in lower case, or the
            mapping ignores case.
        request_id: id of the caller's request, which is recorded in the spans of fusions inside the block.
    """
    if "opentelemetry.trace" not in sys.modules:
        return nullcontext()
    from cosd_api.telemetry.otel import continued  # noqa: PLC0415 - needs OpenTelemetry

    return continued(headers, request_id)


def fusion_span(workflow: str, prompt: str | Sequence[Message]) -> AbstractContextManager[FusionSpan]:
    """Open the span of one fusion. It is a child of the current span, and is itself current inside the block.

    If the application traces, it has imported `opentelemetry.trace`. If it does not, this check costs nothing.

    Args:
        workflow: name of the workflow, which is the method's name.
        prompt: the prompt, which is recorded only if OpenTelemetry's environment variable requests it
            (`names.CAPTURE`).
    """
    if "opentelemetry.trace" not in sys.modules:
        return nullcontext(_NO_SPAN)
    from cosd_api.telemetry.otel import recorded  # noqa: PLC0415 - needs OpenTelemetry

    return recorded(workflow, prompt)
