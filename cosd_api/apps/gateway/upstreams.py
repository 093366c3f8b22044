"""Failures of models' servers during answers: each failure is counted, and the first one of a server is logged."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cosd_api import FusionResult
from cosd_api.apps.gateway.api_errors import ABOUT_REQUESTS
from cosd_providers import ProviderError

if TYPE_CHECKING:  # metrics need the extra
    from cosd_api.apps.gateway.metrics import GatewayMetrics

__all__ = ["Upstreams"]

_log = logging.getLogger("cosd_api.apps.gateway")

_NAMES = frozenset(kind.__name__ for kind in ABOUT_REQUESTS)


class Upstreams:
    """Record of the models' servers that have failed and have not answered since.

    If an answer continues without an assistant, its client sees no error. Therefore, the log and the metrics must
    report that the fusion no longer fuses.

    Args:
        metrics: the metrics that count the failures.
    """

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._down: set[tuple[str, str]] = set()

    def down(self, model: str) -> set[str]:
        """Return the endpoints of a fusion that have failed and have not answered since."""
        return {endpoint for fusion, endpoint in self._down if fusion == model}

    def answered(self, model: str, result: FusionResult) -> None:
        """Record which assistants failed during a complete answer, and which endpoints answered."""
        for endpoint, kind in result.failures.items():
            if kind in _NAMES:
                continue
            new = (model, endpoint) not in self._down
            if new or result.usage[endpoint].requests:  # no requests: skipped after an earlier failure
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
        """Record an endpoint's error that ended an answer. The caller has already logged it, with the request's id."""
        if not isinstance(error, ABOUT_REQUESTS):
            self._metrics.upstream_failed(model, endpoint, type(error).__name__)
            self._down.add((model, endpoint))
