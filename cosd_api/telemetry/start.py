"""Entry to tracing: nothing is imported, and nothing done, unless the application itself uses OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from cosd_api.telemetry.fusion_span import FusionSpan
from cosd_providers.messages import Message

_NO_SPAN = FusionSpan()


def fusion_span(workflow: str, prompt: str | Sequence[Message]) -> AbstractContextManager[FusionSpan]:
    """Span of one fusion, a child of the caller's current span, which it replaces inside the block.

    An application that traces has imported `opentelemetry.trace`; looking there costs nothing where none does.

    Args:
        workflow: its name: the method's.
        prompt: recorded only if OpenTelemetry's environment variable asks for it (`names.CAPTURE`).
    """
    if "opentelemetry.trace" not in sys.modules:
        return nullcontext(_NO_SPAN)
    from cosd_api.telemetry.otel import recorded  # noqa: PLC0415 - needs OpenTelemetry

    return recorded(workflow, prompt)
