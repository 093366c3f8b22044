"""The interface through which the library records a fusion's span, and its default, which records nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cosd_api.decoding.timeline import Observer
from cosd_api.records import Endpoint, EndpointUsage
from cosd_api.result import FusionResult


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
