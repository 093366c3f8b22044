"""Spans of fusions: how many, whose children, with which facts; and that they hold no text unless asked to."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from cosd_api import Fusion, connect, fuse, fuse_sync
from cosd_api.telemetry import CAPTURE
from cosd_providers import BudgetError, InvalidRequestError, Provider, ProviderError
from cosd_providers.testing import Fault, TextModel
from fakes.llama_cpp import FakeLlamaCpp
from support.drawn import costly
from support.method_files import AT
from support.traced import Spans, attributes, collected, own, parent
from toys.lima import FUSED, assistant, draft

PROMPT = "Q:"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with collected() as found:
        yield found


async def test_a_fusion_is_one_span_and_each_request_a_child(spans: Spans) -> None:
    result = await fuse(PROMPT, draft=draft(), assistant=assistant())
    assert len(spans.ended) == spans.started == 1 + len(result.requests) < len(result.tokens)
    fusion = spans.fusion
    assert (fusion.name, fusion.kind, parent(fusion)) == ("invoke_workflow cosd", SpanKind.INTERNAL, None)
    assert fusion.status.status_code is StatusCode.UNSET
    found = attributes(fusion)
    assert found["gen_ai.operation.name"] == "invoke_workflow"
    assert found["gen_ai.workflow.name"] == found["cosd.method"] == "cosd"
    assert found["cosd.acceptance_rate"] == result.acceptance_rate == 8 / 9
    assert (found["cosd.replacements"], found["cosd.kept_tokens"], found["cosd.replaced_tokens"]) == (1, 8, 1)
    assert found["cosd.wasted_draft_tokens"] == result.drafted_tokens - 8
    assert (found["gen_ai.response.finish_reasons"], found["cosd.outcome"]) == (("stop",), "done")
    for name, usage in result.usage.items():
        assert found[f"cosd.usage.{name}.requests"] == usage.requests
        assert found[f"cosd.usage.{name}.billed_tokens"] == usage.billed_tokens
    assert {parent(span) for span in spans.requests} == {own(fusion)}


async def test_the_span_of_a_request_has_the_facts_of_the_record(spans: Spans) -> None:
    result = await fuse(PROMPT, draft=draft(), assistant=[assistant(), assistant()])
    assert len(spans.requests) == len(result.requests)
    billed = dict.fromkeys(result.usage, 0)
    records = {(one.endpoint, str(one.kind), one.number): one for one in result.requests}
    for span in spans.requests:
        found = attributes(span)
        assert span.name == "text_completion scripted"
        which = (
            str(found["cosd.request.endpoint"]),
            str(found["cosd.request.kind"]),
            int(str(found["cosd.request.number"])),
        )
        record = records.pop(which)
        assert found["cosd.request.role"] == ("draft" if record.endpoint == "draft" else "assistant")
        assert (found["cosd.request.at_byte"], found["cosd.request.outcome"]) == (record.at, record.outcome)
        assert found.get("cosd.request.places", 0) == record.places
        assert found.get("cosd.request.drafted_tokens", 0) == record.tokens
        assert ("gen_ai.request.stream" in found) == (record.kind == "draft")
        if record.kind == "draft" and record.outcome == "done":
            assert found["gen_ai.response.finish_reasons"] == ("stop",)
            assert found["gen_ai.response.time_to_first_chunk"] == pytest.approx((record.first or 0) - record.start)
        billed[record.endpoint] += sum(
            int(str(found.get(one, 0))) for one in ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
        )
    assert not records
    assert billed == {name: usage.billed_tokens for name, usage in result.usage.items()}


async def test_servers_are_named_by_address_and_port(spans: Spans) -> None:
    messages = [{"role": "user", "content": "ab"}]
    await fuse(messages, draft=chatty("http://gpu1:8080"), assistant=chatty("https://x"), ask="all", max_tokens=4)
    places = {attributes(span)["cosd.request.role"]: attributes(span) for span in spans.requests}
    assert {role: (found["server.address"], found["server.port"]) for role, found in places.items()} == {
        "draft": ("gpu1", 8080),
        "assistant": ("x", 443),
    }
    assert {(span.name, attributes(span)["gen_ai.provider.name"]) for span in spans.requests} == {
        ("chat toy", "llama.cpp")
    }


def chatty(url: str) -> Provider:
    """A model that reads conversations, over HTTP."""
    server = FakeLlamaCpp(TextModel({"a": [(" b", 0.4), " a"]}))
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    return connect(url, engine="llama.cpp", http_client=server.client(), chat_template=template)


@pytest.mark.parametrize("method", ["rerank", "cool", AT["route"], "steps", AT["switch"], "chared", AT["adafuse"]])
async def test_every_kind_of_method_is_covered(method: str, spans: Spans) -> None:
    result = await fuse(PROMPT, draft=draft(), assistant=assistant(), method=method, max_tokens=12)
    assert len(spans.ended) == spans.started == 1 + len(result.requests)
    assert spans.fusion.name == f"invoke_workflow {result.settings.method}"
    assert "cosd.acceptance_rate" not in attributes(spans.fusion)
    assert {parent(span) for span in spans.requests} == {own(spans.fusion)}


async def test_a_log_likelihood_has_a_span_with_its_bill(spans: Spans) -> None:
    server = FakeLlamaCpp(TextModel({"a": [" b", " a"]}))
    one, other = (connect(f"http://gpu{at}:8080", http_client=server.client(), engine="llama.cpp") for at in (1, 2))
    async with Fusion(draft=one, assistant=other, unit="token") as fusion:
        found = await fusion.log_likelihood("a", "b a")
    assert spans.fusion.name == "invoke_workflow cosd log_likelihood"
    assert len(spans.requests) == len(found.requests)
    assert attributes(spans.fusion)["cosd.usage.draft.requests"] == found.usage["draft"].requests


async def test_a_log_likelihood_that_fails_has_its_bill_too(spans: Spans) -> None:
    server = FakeLlamaCpp(TextModel({"a": [" b", " a"]}))
    one, other = (connect(f"http://gpu{at}:8080", http_client=server.client(), engine="llama.cpp") for at in (1, 2))
    async with Fusion(draft=one, assistant=other, unit="token") as fusion:
        with pytest.raises(BudgetError):
            await fusion.log_likelihood("a", " b a", max_requests=1)
    found = attributes(spans.fusion)
    assert (found["cosd.outcome"], found["error.type"]) == ("failed", "BudgetError")
    assert int(str(found["cosd.usage.draft.requests"])) + int(str(found["cosd.usage.assistant.requests"])) == 1


# -------------------------------------------------------------------------------------------------- whose children


async def test_a_fusion_is_a_child_of_the_callers_span(spans: Spans) -> None:
    async with Fusion(draft=draft(), assistant=assistant()) as fusion:
        with spans.tracer.start_as_current_span("caller") as caller:
            async with fusion.stream(PROMPT) as stream:
                async for _ in stream:
                    pass
            assert parent(spans.fusion) == caller.get_span_context().span_id


async def test_so_is_one_in_a_task_of_the_callers(spans: Spans) -> None:
    async with Fusion(draft=draft(), assistant=assistant()) as fusion, anyio.create_task_group() as group:
        with spans.tracer.start_as_current_span("caller") as caller:
            group.start_soon(fusion.generate, PROMPT)
    assert parent(spans.fusion) == caller.get_span_context().span_id


def test_so_is_one_of_the_sync_face(spans: Spans) -> None:
    with spans.tracer.start_as_current_span("caller") as caller:
        assert fuse_sync(PROMPT, draft=draft(), assistant=assistant()).text == FUSED
    assert parent(spans.fusion) == caller.get_span_context().span_id
    assert {parent(span) for span in spans.requests} == {own(spans.fusion)}


async def test_so_is_each_of_many_prompts(spans: Spans) -> None:
    async with Fusion(draft=draft(), assistant=assistant()) as fusion:
        with spans.tracer.start_as_current_span("caller") as caller:
            found = [result async for result in fusion.map([PROMPT] * 5, concurrency=2)]
    fusions = [span for span in spans.ended if span.name == "invoke_workflow cosd"]
    assert len(fusions) == len(found) == 5
    assert {parent(span) for span in fusions} == {caller.get_span_context().span_id}
    assert {own(span) for span in fusions} == {parent(span) for span in spans.requests}


async def test_the_callers_span_is_current_again_afterwards(spans: Spans) -> None:
    async with Fusion(draft=draft(), assistant=assistant()) as fusion:
        with spans.tracer.start_as_current_span("caller") as caller:
            await fusion.generate(PROMPT)
            with spans.tracer.start_as_current_span("next"):
                pass
    following = next(span for span in spans.ended if span.name == "next")
    assert parent(following) == caller.get_span_context().span_id


# --------------------------------------------------------------------------------------------------- cut short


async def test_a_stream_that_is_left_ends_its_spans(spans: Spans) -> None:
    writer, asked = draft(token_delay=0.01), assistant(request_delay=60)
    async with Fusion(draft=writer, assistant=asked) as fusion, fusion.stream(PROMPT) as stream:
        async for _ in stream:
            break
    assert len(spans.ended) == spans.started >= 2
    assert attributes(spans.fusion)["cosd.outcome"] == "cancelled"
    assert attributes(spans.fusion)["cosd.usage.draft.requests"] == 1
    assert {span.status.status_code for span in spans.ended} == {StatusCode.UNSET}
    assert {attributes(span)["cosd.request.outcome"] for span in spans.requests} <= {"cancelled", "done"}


@costly(20)
@given(steps=st.integers(0, 60))
async def test_cancellation_at_any_await_ends_every_span(steps: int) -> None:
    with collected() as spans:

        async def work() -> None:
            async with Fusion(draft=draft(), assistant=assistant()) as fusion:
                await fusion.generate(PROMPT)

        task = asyncio.create_task(work())  # noqa: TID251 - to be cancelled after an exact number of steps
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert len(spans.ended) == spans.started


async def test_an_error_is_its_type_and_status_and_no_words(spans: Spans) -> None:
    refusal = InvalidRequestError("the server said: 'Q: is a bad prompt'", status=400)
    with pytest.raises(ProviderError):
        await fuse(PROMPT, draft=draft(), assistant=assistant(faults=[Fault(refusal)]))
    (asked,) = (span for span in spans.requests if attributes(span)["cosd.request.role"] == "assistant")
    for span in (asked, spans.fusion):
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)["error.type"] == span.status.description == "InvalidRequestError"
        assert attributes(span)["http.response.status_code"] == 400
    assert attributes(asked)["cosd.request.outcome"] == attributes(spans.fusion)["cosd.outcome"] == "failed"
    assert attributes(spans.fusion)["gen_ai.response.finish_reasons"] == (
        "error",
    )  # what there was of the answer counts
    assert all("bad prompt" not in span.to_json() and not span.events for span in spans.ended)


async def test_a_draft_that_failed_has_the_finish_reason_that_says_so(spans: Spans) -> None:
    refusal = InvalidRequestError("no", status=422)
    with pytest.raises(ProviderError):
        await fuse(PROMPT, draft=draft(faults=[Fault(refusal, tokens=1)]), assistant=assistant())
    (drafted,) = (span for span in spans.requests if attributes(span)["cosd.request.role"] == "draft")
    assert attributes(drafted)["gen_ai.response.finish_reasons"] == ("error",)


async def test_a_limit_of_the_callers_is_an_error_only_where_it_is_raised(spans: Spans) -> None:
    await fuse(PROMPT, draft=draft(), assistant=assistant(), max_requests=1, on_budget="end")
    assert spans.fusion.status.status_code is StatusCode.UNSET
    assert attributes(spans.fusion)["gen_ai.response.finish_reasons"] == ("budget",)
    with collected() as others, pytest.raises(BudgetError):
        await fuse(PROMPT, draft=draft(), assistant=assistant(), max_requests=1)
    assert attributes(others.fusion)["error.type"] == "BudgetError"


# ------------------------------------------------------------------------------------------------------- the text


def words_in(spans: tuple[ReadableSpan, ...]) -> str:
    return "".join(span.to_json() for span in spans)


@pytest.mark.parametrize("value", [None, "false", "no_content", "EVENT_ONLY"])
async def test_no_text_is_recorded_unasked(value: str | None, spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is not None:
        monkeypatch.setenv(CAPTURE, value)
    await fuse(PROMPT, draft=draft(), assistant=assistant(), stop=["Really"])
    recorded = words_in(spans.ended)
    assert not any(word in recorded for word in ("capital", "Lima", "Rome", "Really", PROMPT))


@pytest.mark.parametrize("value", ["true", "SPAN_ONLY", "span_and_event"])
async def test_prompt_and_answer_are_recorded_where_asked(
    value: str, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CAPTURE, value)
    await fuse(PROMPT, draft=draft(), assistant=assistant())
    found = attributes(spans.fusion)
    assert json.loads(str(found["gen_ai.input.messages"])) == [
        {"role": "user", "parts": [{"type": "text", "content": PROMPT}]}
    ]
    assert json.loads(str(found["gen_ai.output.messages"])) == [
        {"role": "assistant", "parts": [{"type": "text", "content": FUSED}], "finish_reason": "stop"}
    ]


async def test_the_messages_of_a_conversation_keep_their_roles(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CAPTURE, "true")
    told = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    await fuse(told, draft=chatty("http://gpu1:8080"), assistant=chatty("http://gpu2:8080"), max_tokens=2)
    recorded = json.loads(str(attributes(spans.fusion)["gen_ai.input.messages"]))
    assert [(one["role"], one["parts"][0]["content"]) for one in recorded] == [("system", "a"), ("user", "b")]


# --------------------------------------------------------------------------------------------------- without it

FUSES = """
import sys
{before}
sys.path.insert(0, "tests")
from cosd_api import fuse_sync
from toys.lima import assistant, draft
print(fuse_sync("Q:", draft=draft(), assistant=assistant()).text)
print([name for name in sys.modules if name.startswith("opentelemetry") and sys.modules[name]])
"""


@pytest.mark.extended
@pytest.mark.parametrize("before", ["", "sys.modules['opentelemetry'] = None"], ids=["unused", "missing"])
def test_a_fusion_imports_nothing_of_it_unless_the_application_did(before: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FUSES.format(before=before)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [FUSED, "[]"]


async def test_without_a_provider_of_spans_nothing_is_recorded_and_the_answer_is_the_same() -> None:
    assert (await fuse(PROMPT, draft=draft(), assistant=assistant())).text == FUSED
