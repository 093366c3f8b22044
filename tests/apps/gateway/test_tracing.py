"""Spans of answers through the gateway: they belong to the trace of the client that asked."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import httpx
import pytest
from opentelemetry import trace

from cosd_api import Fusion, connect
from cosd_providers.testing import TextModel
from fakes.llama_cpp import FakeLlamaCpp
from support.traced import Spans, attributes, collected, own, parent
from support.visits import Visit, opened, until, visit
from toys.lima import FUSED, assistant, draft, fusion

BODY = {"model": "fused", "prompt": "Q:"}
PATH = "/v1/completions"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with collected() as found:
        yield found


def traceparent(number: int) -> dict[str, str]:
    """The header of a client whose trace and span have this number."""
    return {"traceparent": f"00-{number:032x}-{number:016x}-01"}


def of_trace(spans: Spans, number: int) -> list[str]:
    return sorted(span.name for span in spans.ended if span.context is not None and span.context.trace_id == number)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_belongs_to_the_trace_of_its_client(stream: bool, spans: Spans) -> None:
    async with opened(fusion()) as app:
        reply = await visit(app, PATH, {**BODY, "stream": stream}, headers=traceparent(0xABC))
    assert reply.status == 200
    assert attributes(spans.fusion)["cosd.request_id"] == reply.headers["x-request-id"]
    assert parent(spans.fusion) == 0xABC
    assert {parent(span) for span in spans.requests} == {own(spans.fusion)}
    assert len(of_trace(spans, 0xABC)) == len(spans.ended) == spans.started >= 3


async def test_clients_at_the_same_time_have_traces_of_their_own(spans: Spans) -> None:
    async with opened(fusion()) as app, anyio.create_task_group() as group:
        for number in (1, 2, 3):
            group.start_soon(visit, app, PATH, BODY)
            group.start_soon(Visit(app, PATH, BODY, headers=traceparent(number)).send)
    found = [of_trace(spans, number) for number in (1, 2, 3)]
    assert [one.count("invoke_workflow cosd") for one in found] == [1, 1, 1]
    assert sum(parent(span) is None for span in spans.ended) == 3


async def test_all_texts_of_one_request_belong_to_one_trace(spans: Spans) -> None:
    async with opened(fusion()) as app:
        await visit(app, PATH, {**BODY, "prompt": ["Q:", "Q:"]}, headers=traceparent(7))
    assert of_trace(spans, 7).count("invoke_workflow cosd") == 2
    assert not [span for span in spans.ended if parent(span) is None]


@pytest.mark.parametrize("header", [{}, {"traceparent": "no trace"}, {"traceparent": f"00-{0:032x}-{0:016x}-01"}])
async def test_without_a_valid_header_an_answer_has_a_trace_of_its_own(header: dict[str, str], spans: Spans) -> None:
    async with opened(fusion()) as app:
        assert (await visit(app, PATH, BODY, headers=header)).json["choices"][0]["text"] == FUSED
    assert parent(spans.fusion) is None


async def test_the_span_of_a_server_that_is_instrumented_itself_stays_the_parent(spans: Spans) -> None:
    async with opened(fusion()) as app:
        with spans.tracer.start_as_current_span("POST /v1/completions") as outer:
            await visit(app, PATH, BODY, headers=traceparent(9))
    assert parent(spans.fusion) == outer.get_span_context().span_id
    assert "cosd.request_id" in attributes(spans.fusion)


async def test_the_models_servers_get_the_trace_of_an_answer_and_nothing_else_of_a_client(spans: Spans) -> None:
    behind, seen = FakeLlamaCpp(TextModel({"Q:": [" The", "."]})), list[httpx.Request]()

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return behind.handle(request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        models = [connect(f"http://gpu{at}", engine="llama.cpp", http_client=client) for at in (1, 2)]
        headers = {**traceparent(0xABC), "baggage": "user=alice"}
        async with opened(Fusion(draft=models[0], assistant=models[1])) as app:
            await visit(app, "/ready", headers=headers)
            asked_before = len(seen)
            assert (await visit(app, PATH, BODY, headers=headers)).status == 200
    assert not [one for one in seen if "baggage" in one.headers]
    assert asked_before
    assert not [one for one in seen[:asked_before] if "traceparent" in one.headers]
    traces = {one.headers["traceparent"].split("-")[1] for one in seen[asked_before:]}
    assert traces == {f"{0xABC:032x}"}


async def test_a_client_that_leaves_ends_the_spans(spans: Spans) -> None:
    async with opened(Fusion(draft=draft(token_delay=0.01), assistant=assistant(request_delay=60))) as app:
        client = Visit(app, PATH, {**BODY, "stream": True}, headers=traceparent(5))
        async with anyio.create_task_group() as group:
            group.start_soon(client.send)
            await until(lambda: spans.started >= 2)
            client.gone.set()
    assert len(spans.ended) == spans.started
    assert attributes(spans.fusion)["cosd.outcome"] == "cancelled"
    assert not trace.get_current_span().get_span_context().is_valid
