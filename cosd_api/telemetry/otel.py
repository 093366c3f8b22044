"""Spans recorded through OpenTelemetry's API, which no other module of `cosd_api` imports.

The names `gen_ai.*` come from OpenTelemetry's conventions for inference and workflows as of November 2026
(semantic-conventions-genai), which are still in development. The library's own names begin with `cosd.`.
"""

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
from cosd_api.telemetry import CAPTURE, FusionSpan
from cosd_api.version import __version__
from cosd_providers.errors import ProviderError
from cosd_providers.messages import Message

Attributes = dict[str, Any]  # OpenTelemetry allows text, numbers, booleans, and lists of these types

_FINISH = {"end": "stop", "limit": "length", "context": "length", "filter": "content_filter"}
"""The reasons of a `DraftEnd`, mapped to OpenTelemetry's words for them."""

_PROVIDERS = {"azure": "azure.ai.openai", "mistral": "mistral_ai"}
"""OpenTelemetry's names for services, keyed by this library's engine names, for engines whose names differ."""

_CAPTURES = ("true", "span_only", "span_and_event")
"""Values of `CAPTURE`, in lower case, with which spans contain prompts and answers."""

_PORTS = {"http": 80, "https": 443}


@contextmanager
def recorded(workflow: str, prompt: str | Sequence[Message]) -> Generator[FusionSpan]:
    """Record a fusion until the `with` block ends; see `cosd_api.telemetry.fusion_span`."""
    tracer = trace.get_tracer("cosd_api", __version__)
    known = _known(
        {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": workflow,
            "cosd.request_id": context.get_value("cosd.request_id"),
        }
    )
    with tracer.start_as_current_span(
        f"invoke_workflow {workflow}", attributes=known, record_exception=False, set_status_on_exception=False
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
            span.set_attribute("cosd.outcome", outcome)


@contextmanager
def continued(headers: Mapping[str, str], request_id: str) -> Generator[None]:
    """Continue a caller's trace until the `with` block ends; see `cosd_api.telemetry.callers_context`."""
    found = context.set_value("cosd.request_id", request_id)
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
        self._operation = "text_completion" if isinstance(prompt, str) else "chat"
        self._servers: list[Attributes] = []
        self._captures = span.is_recording() and os.environ.get(CAPTURE, "").lower() in _CAPTURES
        if self._captures:
            messages = [Message("user", prompt)] if isinstance(prompt, str) else prompt
            span.set_attribute("gen_ai.input.messages", _json([_message(one.role, one.content) for one in messages]))

    def observer(self, endpoints: Sequence[Endpoint]) -> Observer | None:
        """Return a function that opens a span for a request to one of these models; see `FusionSpan.observer`."""
        self._servers = [{"gen_ai.operation.name": self._operation, **_server(endpoint)} for endpoint in endpoints]
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
            self._span.set_attributes(
                {f"cosd.usage.{name.replace(' ', '_')}.{what}": count for what, count in counts.items()}
            )

    def answered(self, result: FusionResult) -> None:
        """Record the answer's counts, and also its text if the user has requested texts in spans."""
        if not self._span.is_recording():
            return
        kept = result.kept_tokens
        found: Attributes = {
            "gen_ai.response.finish_reasons": [result.finish_reason],
            "cosd.method": result.settings.method,
            "cosd.unit": result.settings.unit,
            "cosd.acceptance_rate": result.acceptance_rate,
            "cosd.replacements": result.replacements,
            "cosd.iterations": result.iterations,
            "cosd.answer_tokens": len(result.tokens),
            "cosd.kept_tokens": kept,
            "cosd.unverified_tokens": result.unverified_tokens,
            "cosd.replaced_tokens": result.replaced_tokens,
            "cosd.drafted_tokens": result.drafted_tokens,
            "cosd.wasted_draft_tokens": result.wasted_tokens,
            "cosd.draft_requests": result.draft_requests,
            "cosd.assistant_requests": result.assistant_requests,
            "cosd.warnings": len(result.warnings),
            "cosd.first_token_seconds": result.timings.first_token,
        }
        if self._captures:
            message = {**_message("assistant", result.text), "finish_reason": result.finish_reason}
            found["gen_ai.output.messages"] = _json([message])
        self._span.set_attributes(_known(found))

    @contextmanager
    def _request(self, sent: RequestSpan) -> Iterator[None]:
        server = self._servers[sent.who]
        with self._tracer.start_as_current_span(
            f"{self._operation} {server['gen_ai.request.model']}",
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
        "cosd.request.kind": sent.kind,
        "cosd.request.number": sent.number,
        "cosd.request.at_byte": sent.at,
        "cosd.request.outcome": sent.outcome,
        "cosd.request.places": sent.places or None,
    }
    if streams:
        found |= {
            "gen_ai.request.stream": True,
            "gen_ai.request.max_tokens": sent.max_tokens,
            "gen_ai.request.temperature": sent.temperature,
            "gen_ai.request.seed": sent.seed,
            "cosd.request.drafted_tokens": sent.tokens,
            "gen_ai.response.time_to_first_chunk": None if sent.first is None else sent.first - sent.start,
            "gen_ai.response.finish_reasons": None if finish is None else [finish],
        }
    if (usage := sent.usage) is not None:
        billed = usage.prompt_tokens or usage.completion_tokens  # a request that was refused has no usage
        found |= {
            "cosd.request.http_requests": usage.requests,
            "cosd.request.retries": usage.retries,
            "gen_ai.usage.input_tokens": usage.prompt_tokens if billed else None,
            "gen_ai.usage.output_tokens": usage.completion_tokens if billed else None,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens or None,
            "cosd.request.estimated_tokens": usage.estimated_tokens or None,
        }
    return found


def _server(endpoint: Endpoint) -> Attributes:
    """The attributes that describe an endpoint: its model, its role, and its server's address."""
    found: Attributes = {
        "gen_ai.provider.name": _PROVIDERS.get(endpoint.engine, endpoint.engine),
        "gen_ai.request.model": endpoint.model,
        "cosd.request.endpoint": endpoint.name,
        "cosd.request.role": "draft" if endpoint.name == DRAFT else "assistant",
    }
    try:
        url = urlsplit(endpoint.endpoint)
        host, port = url.hostname, url.port or _PORTS.get(url.scheme)
    except ValueError:  # a custom provider's endpoint may be any text
        return found
    return found | _known({"server.address": host, "server.port": port if host else None})


def _fail(span: Span, error: Exception) -> None:
    """Record only the class of an error, because its message may quote the server's answer, and so the prompt."""
    span.set_attribute("error.type", type(error).__name__)
    if isinstance(error, ProviderError) and error.status is not None:
        span.set_attribute("http.response.status_code", error.status)
    span.set_status(Status(StatusCode.ERROR, type(error).__name__))


def _known(found: Attributes) -> Attributes:
    return {name: value for name, value in found.items() if value is not None}


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


def _json(messages: list[dict[str, Any]]) -> str:
    return json.dumps(messages, ensure_ascii=False)
