"""Trace context of outgoing requests: the header is that of the request's own span, and there is none without one."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from opentelemetry import baggage, context, trace

from cosd_api import connect, fuse
from cosd_providers import Usage
from cosd_providers.http.transport import Transport, trace_headers
from cosd_providers.testing import TextModel
from fakes.llama_cpp import FakeLlamaCpp
from support.traced import attributes, collected, own

URL = "http://gpu:8080"


def header_of(span: trace.Span) -> str:
    """W3C's form: version, trace, span, flags."""
    found = span.get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def watched(*statuses: int, **options: Any) -> tuple[Transport, list[httpx.Request]]:
    """A transport whose server answers with these statuses, then with success."""
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(statuses[len(seen) - 1] if len(seen) <= len(statuses) else 200, json={})

    client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    return Transport(URL, http_client=client, **options), seen


async def test_every_attempt_carries_the_current_span(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyio.sleep", no_pause)
    sender, seen = watched(503)
    with collected() as spans, spans.tracer.start_as_current_span("mine") as span:
        await sender.post("/completion", {}, usage=Usage())
        await sender.get("/props")
    assert [request.headers["traceparent"] for request in seen] == [header_of(span)] * 3


async def no_pause(seconds: float) -> None:
    assert seconds >= 0


async def test_without_a_span_there_is_no_header() -> None:
    sender, seen = watched()
    await sender.get("/props")
    assert trace_headers() == {}
    assert "traceparent" not in seen[0].headers


async def test_a_header_of_the_users_own_stays() -> None:
    sender, seen = watched(headers={"Traceparent": "00-mine"})
    with collected() as spans, spans.tracer.start_as_current_span("other"):
        await sender.get("/props")
    assert seen[0].headers.get_list("traceparent") == ["00-mine"]


async def test_other_propagators_are_heard() -> None:
    sender, seen = watched()
    with collected() as spans, spans.tracer.start_as_current_span("mine"):
        token = context.attach(baggage.set_baggage("tenant", "blue"))
        try:
            await sender.get("/props")
        finally:
            context.detach(token)
    assert seen[0].headers["baggage"] == "tenant=blue"


async def test_requests_of_a_fusion_carry_spans_of_their_own() -> None:
    seen: dict[str, list[str]] = {}

    def server(model: TextModel, name: str) -> httpx.AsyncClient:
        behind = FakeLlamaCpp(model)

        def handle(request: httpx.Request) -> httpx.Response:
            if request.url.path == "/completion":
                seen.setdefault(name, []).append(request.headers["traceparent"].split("-")[2])
            return behind.handle(request)

        return httpx.AsyncClient(transport=httpx.MockTransport(handle))

    drafts = TextModel({"Q:": [" The", (" Rome", 0.3), "."], "Q: The Lima": ["."]})
    answers = TextModel({"Q: The": [(" Lima", 0.9), "."]})
    with collected() as spans:
        result = await fuse(
            "Q:",
            draft=connect("http://gpu1", engine="llama.cpp", http_client=server(drafts, "draft")),
            assistant=connect("http://gpu2", engine="llama.cpp", http_client=server(answers, "assistant")),
        )
    assert result.text == " The Lima."
    for name, found in seen.items():
        ours = [span for span in spans.requests if attributes(span)["cosd.request.endpoint"] == name]
        assert {int(one, 16) for one in found} >= {own(span) for span in ours}
        assert len(ours) >= 1
