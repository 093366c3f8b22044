"""Spans in memory, as OpenTelemetry's own exporter for tests collects them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans(SpanProcessor):
    """The spans of a test.

    Attributes:
        tracer: for spans of the test's own.
        started: number of spans that were started.
    """

    def __init__(self) -> None:
        provider = TracerProvider()
        self._memory = InMemorySpanExporter()
        provider.add_span_processor(self)
        provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self.provider = provider
        self.tracer = provider.get_tracer("tests")
        self.started = 0

    def on_start(self, span: object, parent_context: object = None) -> None:
        self.started += 1

    @property
    def ended(self) -> tuple[ReadableSpan, ...]:
        """The spans that have ended, in this order."""
        return self._memory.get_finished_spans()

    @property
    def fusion(self) -> ReadableSpan:
        """The only span of a fusion."""
        (found,) = (span for span in self.ended if span.name.startswith("invoke_workflow "))
        return found

    @property
    def requests(self) -> list[ReadableSpan]:
        """The spans of requests, in the order in which they were started."""
        found = [span for span in self.ended if span.kind is trace.SpanKind.CLIENT]
        return sorted(found, key=lambda span: (span.start_time or 0, attributes(span)["cosd.request.number"]))


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def parent(span: ReadableSpan) -> int | None:
    """The id of its parent."""
    return span.parent.span_id if span.parent else None


def own(span: ReadableSpan) -> int:
    """Its id."""
    assert span.context is not None
    return int(span.context.span_id)


@contextmanager
def collected() -> Iterator[Spans]:
    """Collect the spans of a block; the provider of the process stays as it is."""
    spans = Spans()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "get_tracer", spans.provider.get_tracer)
        yield spans
    spans.provider.shutdown()
