"""The interface of a fusion's span for the rest of the library; the class here records nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cosd_api.decoding.timeline import Observer
from cosd_api.records import Endpoint, EndpointUsage
from cosd_api.result import FusionResult


class FusionSpan:
    """Span of one fusion that records nothing; `otel.RecordedSpan` does."""

    def observer(self, endpoints: Sequence[Endpoint]) -> Observer | None:  # noqa: ARG002 - a hook
        """Return a function that makes a context manager for each request to these models; None if none is needed.

        The draft is the first of the models.
        """
        return None

    def billed(self, usage: Mapping[str, EndpointUsage]) -> None:
        """Record the final usage of the endpoints, by their names."""

    def answered(self, result: FusionResult) -> None:
        """Record the answer, or the part that was written before an error."""
