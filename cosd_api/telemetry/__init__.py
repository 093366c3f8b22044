"""Tracing with OpenTelemetry: one span for each fusion, and one for each of its requests.

The functions do nothing and import nothing unless the application itself uses OpenTelemetry.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from cosd_api.decoding.timeline import Observer
from cosd_api.records import Endpoint, EndpointUsage
from cosd_api.result import FusionResult
from cosd_providers.messages import Message

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Environment variable with which users request that spans contain prompts and answers."""


class FusionSpan:
    """Span of one fusion. This class records nothing; its subclass `otel.RecordedSpan` records the fusion."""

    def observer(self, endpoints: Sequence[Endpoint]) -> Observer | None:  # noqa: ARG002 - a hook
        """Return a function that makes a context manager for each request to these models; None to observe no requests.

        The first model is the draft.
        """
        return None

    def billed(self, usage: Mapping[str, EndpointUsage]) -> None:
        """Record the final usage of the endpoints, keyed by their names."""

    def answered(self, result: FusionResult) -> None:
        """Record the answer, or the part of it that was written before an error."""


_NO_SPAN = FusionSpan()


def callers_context(headers: Mapping[str, str], request_id: str) -> AbstractContextManager[None]:
    """Continue a trace from another process: spans inside the `with` block become children of the caller's span.

    The caller's baggage is ignored.

    Args:
        headers: headers of the caller's request, such as W3C's `traceparent`. Their names must be in lower case, unless
            the mapping ignores case.
        request_id: id of the caller's request; it is recorded in the spans of fusions inside the block.
    """
    if "opentelemetry.trace" not in sys.modules:
        return nullcontext()
    from cosd_api.telemetry.otel import continued  # noqa: PLC0415 - needs OpenTelemetry

    return continued(headers, request_id)


def fusion_span(workflow: str, prompt: str | Sequence[Message]) -> AbstractContextManager[FusionSpan]:
    """Open the span of one fusion. It is a child of the current span, and is itself current inside the `with` block.

    An application that uses tracing has already imported `opentelemetry.trace`. If it has not been imported, no span is
    opened, and the check costs nothing.

    Args:
        workflow: name of the workflow, which is the method's name.
        prompt: the prompt; it is recorded only if OpenTelemetry's environment variable `CAPTURE` requests it.
    """
    if "opentelemetry.trace" not in sys.modules:
        return nullcontext(_NO_SPAN)
    from cosd_api.telemetry.otel import recorded  # noqa: PLC0415 - needs OpenTelemetry

    return recorded(workflow, prompt)
