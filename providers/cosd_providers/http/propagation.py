"""Trace context for requests: W3C's header `traceparent` for the current span, if the program uses OpenTelemetry."""

from __future__ import annotations

import sys

__all__ = ["trace_headers"]


def trace_headers() -> dict[str, str]:
    """Return the headers with which a server can continue the caller's trace; empty without a current span.

    OpenTelemetry's configured propagators (`OTEL_PROPAGATORS`) supply the headers. OpenTelemetry is used only if the
    application itself has imported it.
    """
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry import propagate, trace  # noqa: PLC0415 - an extra

    headers: dict[str, str] = {}
    if trace.get_current_span().get_span_context().is_valid:
        propagate.inject(headers)
    return headers
