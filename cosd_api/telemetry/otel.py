"""Spans recorded through OpenTelemetry's API, which no other module of `cosd_api` imports."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import context, propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from cosd_api.decoding.timeline import Observer, RequestSpan
from cosd_api.records import DRAFT, Endpoint, EndpointUsage
from cosd_api.result import FusionResult
from cosd_api.telemetry import FusionSpan, names
from cosd_api.version import __version__
from cosd_providers.errors import ProviderError
from cosd_providers.messages import Message

Attributes = dict[str, Any]  # OpenTelemetry allows text, numbers, booleans, and lists of these types

_FINISH = {"end": "stop", "limit": "length", "context": "length", "filter": "content_filter"}
"""The reasons of a `DraftEnd`, mapped to OpenTelemetry's words for them."""

_PORTS = {"http": 80, "https": 443}


@contextmanager
def recorded(workflow: str, prompt: str | Sequence[Message]) -> Generator[FusionSpan]:
    """Record a fusion until the `with` block ends; see `cosd_api.telemetry.fusion_span`."""
    tracer = trace.get_tracer("cosd_api", __version__)
    known = _known(
        {names.OPERATION: names.FUSE, names.WORKFLOW: workflow, names.REQUEST_ID: context.get_value(names.REQUEST_ID)}
    )
    with tracer.start_as_current_span(
        f"{names.FUSE} {workflow}", attributes=known, record_exception=False, set_status_on_exception=False
    ) as span:
        outcome = "cancelled"
        try:
            yield RecordedSpan(tracer, span, prompt)
            outcome = "done"
        except Exception as error:
            outcome = "failed"
            _fail(span, error)
            raise
        finally:
            span.set_attribute(names.OUTCOME, outcome)


@contextmanager
def continued(headers: Mapping[str, str], request_id: str) -> Generator[None]:
    """Continue a caller's trace until the `with` block ends; see `cosd_api.telemetry.callers_context`."""
    found = context.set_value(names.REQUEST_ID, request_id)
    if not trace.get_current_span().get_span_context().is_valid:  # else the server's instrumentation has continued it
        caller = trace.get_current_span(propagate.extract(headers))
        found = trace.set_span_in_context(caller, found)  # no baggage: the models' servers must not see it
    token = context.attach(found)
    try:
        yield
    finally:
        context.detach(token)


class RecordedSpan(FusionSpan):
    """Span of one fusion. It is the parent of the spans of all its requests, whichever task sends them.

    Args:
        tracer: tracer that creates the spans of the requests.
        span: the span of the fusion.
        prompt: the prompt that the fusion answers.
    """

    def __init__(self, tracer: Tracer, span: Span, prompt: str | Sequence[Message]) -> None:
        self._tracer = tracer
        self._span = span
        self._context = trace.set_span_in_context(span)
        self._operation = names.COMPLETE if isinstance(prompt, str) else names.CHAT
        self._servers: list[Attributes] = []
        self._captures = span.is_recording() and os.environ.get(names.CAPTURE, "").lower() in names.CAPTURES
        if self._captures:
            messages = [Message("user", prompt)] if isinstance(prompt, str) else prompt
            span.set_attribute(names.INPUT_MESSAGES, _json([_message(one.role, one.content) for one in messages]))

    def observer(self, endpoints: Sequence[Endpoint]) -> Observer | None:
        """Return a function that opens a span for a request to one of these models; see `FusionSpan.observer`."""
        self._servers = [{names.OPERATION: self._operation, **_server(endpoint)} for endpoint in endpoints]
        return self._request

    def billed(self, usage: Mapping[str, EndpointUsage]) -> None:
        """Record the requests and tokens of each endpoint."""
        if not self._span.is_recording():
            return
        for name, one in usage.items():
            counts = {
                "requests": one.requests,
                "retries": one.retries,
                "input_tokens": one.prompt_tokens,
                "output_tokens": one.completion_tokens,
                "cached_tokens": one.cached_tokens,
                "estimated_tokens": one.estimated_tokens,
                "billed_tokens": one.billed_tokens,
            }
            self._span.set_attributes({names.usage_of(name, what): count for what, count in counts.items()})

    def answered(self, result: FusionResult) -> None:
        """Record the answer's counts, and also its text if the user has requested texts in spans."""
        if not self._span.is_recording():
            return
        kept = result.kept_tokens
        found: Attributes = {
            names.FINISH_REASONS: [result.finish_reason],
            names.METHOD: result.settings.method,
            names.UNIT: result.settings.unit,
            names.ACCEPTANCE: result.acceptance_rate,
            names.REPLACEMENTS: result.replacements,
            names.ITERATIONS: result.iterations,
            names.ANSWER_TOKENS: len(result.tokens),
            names.KEPT: kept,
            names.UNVERIFIED: result.unverified_tokens,
            names.REPLACED: result.replaced_tokens,
            names.DRAFTED: result.drafted_tokens,
            names.WASTED: result.wasted_tokens,
            names.DRAFTS: result.draft_requests,
            names.ASKED: result.assistant_requests,
            names.WARNINGS: len(result.warnings),
            names.FIRST_TOKEN: result.timings.first_token,
        }
        if self._captures:
            message = {**_message("assistant", result.text), "finish_reason": result.finish_reason}
            found[names.OUTPUT_MESSAGES] = _json([message])
        self._span.set_attributes(_known(found))

    @contextmanager
    def _request(self, sent: RequestSpan) -> Iterator[None]:
        server = self._servers[sent.who]
        with self._tracer.start_as_current_span(
            f"{self._operation} {server[names.MODEL]}",
            context=self._context,  # the current span may belong to another request
            kind=SpanKind.CLIENT,
            attributes=server,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                _fail(span, error)
                raise
            finally:
                if span.is_recording():
                    span.set_attributes(_known(_facts(sent)))


def _facts(sent: RequestSpan) -> Attributes:
    """The attributes of a finished request's span."""
    streams = sent.kind in ("draft", "watch")
    finish = "error" if sent.outcome == "failed" else _FINISH.get(sent.finish or "")
    found: Attributes = {
        names.KIND: sent.kind,
        names.NUMBER: sent.number,
        names.AT: sent.at,
        names.REQUEST_OUTCOME: sent.outcome,
        names.PLACES: sent.places or None,
    }
    if streams:
        found |= {
            names.STREAM: True,
            names.MAX_TOKENS: sent.max_tokens,
            names.TEMPERATURE: sent.temperature,
            names.SEED: sent.seed,
            names.REQUEST_DRAFTED: sent.tokens,
            names.FIRST_CHUNK: None if sent.first is None else sent.first - sent.start,
            names.FINISH_REASONS: None if finish is None else [finish],
        }
    if (usage := sent.usage) is not None:
        billed = usage.prompt_tokens or usage.completion_tokens  # a request that was refused has no usage
        found |= {
            names.HTTP_REQUESTS: usage.requests,
            names.RETRIES: usage.retries,
            names.INPUT_TOKENS: usage.prompt_tokens if billed else None,
            names.OUTPUT_TOKENS: usage.completion_tokens if billed else None,
            names.CACHED_TOKENS: usage.cached_tokens or None,
            names.ESTIMATED: usage.estimated_tokens or None,
        }
    return found


def _server(endpoint: Endpoint) -> Attributes:
    """The attributes that describe an endpoint: its model, its role, and its server's address."""
    found: Attributes = {
        names.PROVIDER: names.PROVIDERS.get(endpoint.engine, endpoint.engine),
        names.MODEL: endpoint.model,
        names.ENDPOINT: endpoint.name,
        names.ROLE: "draft" if endpoint.name == DRAFT else "assistant",
    }
    try:
        url = urlsplit(endpoint.endpoint)
        host, port = url.hostname, url.port or _PORTS.get(url.scheme)
    except ValueError:  # a custom provider's endpoint may be any text
        return found
    return found | _known({names.SERVER: host, names.PORT: port if host else None})


def _fail(span: Span, error: Exception) -> None:
    """Record only the class of an error, because its message may quote the server's answer, and so the prompt."""
    span.set_attribute(names.ERROR, type(error).__name__)
    if isinstance(error, ProviderError) and error.status is not None:
        span.set_attribute(names.STATUS, error.status)
    span.set_status(Status(StatusCode.ERROR, type(error).__name__))


def _known(found: Attributes) -> Attributes:
    return {name: value for name, value in found.items() if value is not None}


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


def _json(messages: list[dict[str, Any]]) -> str:
    return json.dumps(messages, ensure_ascii=False)
