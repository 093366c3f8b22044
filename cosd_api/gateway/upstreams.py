"""Failures of models' servers during answers: each is counted, and the operator is notified once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cosd_api import FusionResult
from cosd_api.gateway.api_errors import ABOUT_REQUESTS
from cosd_providers import ProviderError

if TYPE_CHECKING:  # metrics need the extra
    from cosd_api.gateway.metrics import GatewayMetrics

__all__ = ["Upstreams"]

_log = logging.getLogger("cosd_api.gateway")

_NAMES = frozenset(kind.__name__ for kind in ABOUT_REQUESTS)


class Upstreams:
    """Record of the models' servers that have failed and not answered since.

    An answer that continues without an assistant shows its client no error. So the log and the metrics must report
    that a fusion no longer fuses.

    Args:
        metrics: the metrics that count the failures.
    """

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._down: set[tuple[str, str]] = set()

    def down(self, model: str) -> set[str]:
        """The endpoints of a fusion that have failed and not answered since."""
        return {endpoint for fusion, endpoint in self._down if fusion == model}

    def answered(self, model: str, result: FusionResult) -> None:
        """Record, from a complete answer, the assistants that failed during it and the endpoints that answered."""
        for endpoint, kind in result.failures.items():
            if kind in _NAMES:
                continue
            new = (model, endpoint) not in self._down
            if new or result.usage[endpoint].requests:  # otherwise it was not asked, because it had failed before
                self._metrics.upstream_failed(model, endpoint, kind)
            if new:
                self._down.add((model, endpoint))
                _log.warning(
                    "%s: the %s failed (%s); answers continue without it, unverified where it could have changed them",
                    *(model, endpoint, kind),
                )
        for endpoint, used in result.usage.items():
            if endpoint not in result.failures and used.requests and (model, endpoint) in self._down:
                self._down.discard((model, endpoint))
                _log.warning("%s: the %s answers again", model, endpoint)

    def failed(self, model: str, endpoint: str, error: ProviderError) -> None:
        """Record an endpoint's error that ended an answer. The log has the error already, with the request's id."""
        if not isinstance(error, ABOUT_REQUESTS):
            self._metrics.upstream_failed(model, endpoint, type(error).__name__)
            self._down.add((model, endpoint))
