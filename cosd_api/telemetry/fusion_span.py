"""The span of one fusion, as the rest of the library sees it, without any recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cosd_api.decoding.timeline import Observer
from cosd_api.records import Endpoint, EndpointUsage
from cosd_api.result import FusionResult


class FusionSpan:
    """Span of one fusion that does nothing; `otel.RecordedSpan` records."""

    def observer(self, endpoints: Sequence[Endpoint]) -> Observer | None:  # noqa: ARG002 - a hook
        """Context manager around each request to one of these models, the draft first; None if there is no need."""
        return None

    def billed(self, usage: Mapping[str, EndpointUsage]) -> None:
        """Note what the endpoints, by name, have billed in the end."""

    def answered(self, result: FusionResult) -> None:
        """Note the answer, or the part of an answer that an error ended."""
