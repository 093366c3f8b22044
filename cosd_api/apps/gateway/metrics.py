"""Metrics of the gateway, in Prometheus's format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from cosd_api import FusionResult
from cosd_api.apps.gateway.exchange import Exchange

__all__ = ["GatewayMetrics"]

_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_EACH = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class GatewayMetrics:
    """Metrics of one gateway, in a separate registry.

    Attributes:
        content_type: media type of the page that `page` renders.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        of, model = self._registry, ["model"]
        counter = partial(Counter, registry=of)
        self._requests = counter("cosd_requests", "Finished requests for answers.", [*model, "route", "outcome"])
        self._errors = counter("cosd_errors", "Requests that ended in an error.", [*model, "kind"])
        self._in_flight = Gauge("cosd_in_flight", "Requests for answers in progress.", model, registry=of)
        self._tokens = counter("cosd_tokens", "Tokens that endpoints billed.", [*model, "endpoint", "kind"])
        self._cached = counter(
            "cosd_cached_tokens", "Billed prompt tokens that came from a cache.", [*model, "endpoint"]
        )
        self._estimated = counter(
            "cosd_estimated_tokens",
            "Billed prompt tokens that are an estimate, because the endpoint did not report them.",
            [*model, "endpoint"],
        )
        self._written = counter("cosd_answer_tokens", "Tokens of answers.", model)
        self._kept = counter("cosd_draft_tokens_kept", "Verified draft tokens in complete answers.", model)
        self._replaced = counter(
            "cosd_draft_tokens_replaced", "Draft tokens that were replaced in complete answers.", model
        )
        self._replacements = counter("cosd_replacements", "Replacements in complete answers.", model)
        self._unverified = counter(
            "cosd_unverified_tokens", "Tokens of complete answers that a failed assistant could have changed.", model
        )
        self._shares = counter(
            "cosd_written_tokens", "Tokens of complete answers, by the model that wrote them.", [*model, "endpoint"]
        )
        self._upstream = counter("cosd_upstream_errors", "Failures of models' servers.", [*model, "endpoint", "kind"])
        self._of_keys = counter("cosd_key_requests", "Finished requests for answers, by key.", ["key", "outcome"])
        self._refused_keys = counter("cosd_key_errors", "Requests with a key that ended in an error.", ["key", "kind"])
        self._billed_keys = counter(
            "cosd_key_billed_tokens", "Tokens that endpoints billed for requests with a key.", ["key"]
        )
        self._first = Histogram(
            "cosd_first_token_seconds", "Time to the first token.", model, buckets=_FIRST, registry=of
        )
        self._each = Histogram(
            "cosd_token_seconds", "Time between two tokens of a stream.", model, buckets=_EACH, registry=of
        )

    def page(self) -> bytes:
        """Render the page for Prometheus, without the creation times of counters."""
        lines = generate_latest(self._registry).splitlines(keepends=True)
        return b"".join(line for line in lines if b"_created" not in line.partition(b"{")[0])

    @contextmanager
    def in_flight(self, model: str) -> Iterator[None]:
        """Count a request as being in progress for as long as the block runs."""
        gauge = self._in_flight.labels(model)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def upstream_failed(self, model: str, endpoint: str, kind: str) -> None:
        """Count a failure of a model's server."""
        self._upstream.labels(model, endpoint, kind).inc()

    def count(self, exchange: Exchange) -> None:
        """Count a finished request."""
        model = exchange.model
        self._requests.labels(model, exchange.path, exchange.outcome).inc()
        if exchange.error:
            self._errors.labels(model, exchange.error).inc()
        if key := exchange.client:
            self._of_keys.labels(key, exchange.outcome).inc()
            self._billed_keys.labels(key).inc(sum(one.billed_tokens for one in exchange.usage.values()))
            if exchange.error:
                self._refused_keys.labels(key, exchange.error).inc()
        for endpoint, one in exchange.usage.items():
            kinds = {"prompt": one.prompt_tokens, "completion": one.completion_tokens}
            self._estimated.labels(model, endpoint).inc(one.estimated_tokens)
            self._cached.labels(model, endpoint).inc(one.cached_tokens)
            for kind, tokens in kinds.items():
                self._tokens.labels(model, endpoint, kind).inc(tokens)
        self._written.labels(model).inc(exchange.tokens)
        each = self._each.labels(model)
        for gap in exchange.gaps:
            each.observe(gap)
        if exchange.stream and exchange.first_seconds is not None:
            self._first.labels(model).observe(exchange.first_seconds)
        for result in exchange.results:
            self._count_result(model, result, whole=not exchange.stream)

    def _count_result(self, model: str, result: FusionResult, *, whole: bool) -> None:
        if result.judged:
            self._kept.labels(model).inc(result.verified_kept_tokens)
        self._unverified.labels(model).inc(result.unverified_tokens)
        for endpoint, share in result.shares.items():
            self._shares.labels(model, endpoint).inc(round(share * len(result.tokens)))
        self._replaced.labels(model).inc(result.replaced_tokens or 0)
        self._replacements.labels(model).inc(result.replacements or 0)
        if whole and result.timings.first_token is not None:
            self._first.labels(model).observe(result.timings.first_token)
