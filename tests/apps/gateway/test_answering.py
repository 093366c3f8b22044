"""Answers of the gateway: they are the library's, and end when a client leaves, a server breaks, or time is over."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import AgreementVerifier, Fusion
from cosd_api.apps.gateway import ClientKey, Gateway, answering
from cosd_api.circuit_breaker import OPEN_SECONDS, CircuitBreaker
from cosd_api.telemetry import CAPTURE
from cosd_providers import ConnectError, InvalidRequestError, RateLimitError, ServerError
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.testing import Fault, ScriptedProvider, TableModel, TextModel
from fakes.llama_cpp import FakeLlamaCpp
from support import virtual_time
from support.drawn import costly
from support.traced import collected
from support.visits import Reply, Visit, opened, until, visit
from toys import toy_models as toys
from toys.lima import ASSISTANT, DRAFT, FUSED, assistant, draft, read, scripted

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ENDLESS = 10_000
BROKEN = ServerError("it broke", endpoint="http://secret-host:1", status=500)


def pair(draft_options: Any = None, assistant_options: Any = None) -> tuple[ScriptedProvider, ScriptedProvider]:
    return draft(**(draft_options or {})), assistant(**(assistant_options or {}))


def unsure(number: int) -> TableModel:
    """A model that never ends; at every other place it is unsure, and one of another number writes another word."""

    def following(ids: Sequence[int]) -> list[float]:
        probs = [0.0, 0.05, 0.05, 0.0]
        probs[1 + (number if len(ids) % 2 else 0)] = 0.9 if number or not len(ids) % 2 else 0.4
        return probs

    return TableModel((b"", b" a", b" b", b"Q"), following, end_ids=(0,))


def fused(models: tuple[ScriptedProvider, ScriptedProvider], **settings: Any) -> Fusion:
    return Fusion(draft=models[0], assistant=models[1], **settings)


def body(**more: Any) -> dict[str, Any]:
    return {"model": "fused", "prompt": "Q:", **more}


def endless(**options: Any) -> ScriptedProvider:
    """A model that writes as long as it may."""
    return ScriptedProvider.from_texts({"Q:": [" a"] * ENDLESS}, **options)


async def metric(app: Gateway, line: str) -> float:
    """The value of one line of the metrics."""
    page = (await visit(app, "/metrics")).body.decode()
    found = [one.rpartition(" ")[2] for one in page.splitlines() if one.startswith(line)]
    return float(found[0]) if found else 0.0


# ------------------------------------------------------------------------------------------------------------ answers


@pytest.mark.parametrize("broken", [False, True])
async def test_tokens_of_one_verdict_are_sent_at_once(broken: bool) -> None:
    """Each is an event of its own; those that are there together are one write, also before an error."""
    faults = [Fault(BROKEN, tokens=10)] if broken else []
    unsure = ScriptedProvider.from_texts({"Q:": [(" a", 0.4)] * 24}, faults=faults)
    slow = ScriptedProvider.from_texts({"Q:": [" a"] * 24}, request_delay=0.02)
    async with opened(fused((unsure, slow), unit="token")) as app:
        reply = await visit(app, TEXT, body(stream=True))
    writes = [part.count(b'"text":" a"') for part in reply.parts if b'"text":" a"' in part]
    assert max(writes) > 1
    assert len(reply.texts()) == sum(writes)
    assert ("error" in reply.events[-1]) == broken
    assert broken or sum(writes) == 24


async def test_a_verdict_on_many_tokens_is_sent_in_several_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that takes nothing is waited for, however many tokens are there: a write is little beyond its size."""
    monkeypatch.setattr(answering, "_WRITE_BYTES", 1000)
    unsure = ScriptedProvider.from_texts({"Q:": [(" a", 0.4)] * 200})
    slow = ScriptedProvider.from_texts({"Q:": [" a"] * 200}, request_delay=0.1)
    async with opened(fused((unsure, slow), unit="token")) as app:
        reply = await visit(app, TEXT, body(stream=True, max_tokens=200))
    assert len(reply.texts()) == 200
    writes = [part for part in reply.parts if b'"text":" a"' in part]
    event = max(len(one) for part in writes for one in part.split(b"\n\n") if b'"text":" a"' in one) + 2
    assert 1000 <= max(map(len, writes[:-1])) < 1000 + event


@pytest.mark.parametrize("stream", [False, True])
async def test_a_text_is_continued(stream: bool) -> None:
    async with opened(fused(pair())) as app:
        reply = await visit(app, TEXT, body(stream=stream))
    assert reply.status == 200
    if stream:
        *chunks, last, done = reply.events
        assert "".join(reply.texts()) == FUSED
        assert (last["choices"][0]["finish_reason"], last["choices"][0]["text"], done) == ("stop", "", "[DONE]")
        assert all(one["choices"][0]["finish_reason"] is None and "cosd" not in one for one in chunks)
        cosd = last["cosd"]
    else:
        whole = reply.json
        assert whole["choices"] == [{"index": 0, "text": FUSED, "logprobs": None, "finish_reason": "stop"}]
        used = whole["cosd"]["usage"].values()
        bill = sum(one["prompt_tokens"] + one["completion_tokens"] for one in used)
        assert whole["usage"]["completion_tokens"] == whole["cosd"]["tokens"] == 10
        assert whole["usage"]["total_tokens"] == whole["usage"]["prompt_tokens"] + 10 < bill
        assert reply.headers["cosd-replacements"] == "1"
        assert float(reply.headers["cosd-acceptance-rate"]) == pytest.approx(whole["cosd"]["acceptance_rate"], abs=1e-4)
        assert (int(reply.headers["cosd-billed-tokens"]), reply.headers["cosd-unverified-tokens"]) == (bill, "0")
        cosd = whole["cosd"]
    assert cosd["request_id"] == reply.headers["x-request-id"]
    assert (cosd["replacements"], cosd["method"], cosd["unverified_tokens"]) == (1, "cosd", 0)
    assert 0 < cosd["acceptance_rate"] < 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_is_answered(stream: bool) -> None:
    models = [ScriptedProvider.from_texts({"user: Hi\nassistant: ": ["Hel", "lo", "."]}) for _ in range(2)]
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    async with opened(Fusion(draft=models[0], assistant=models[1])) as app:
        reply = await visit(app, CHAT, {"model": "fused", "messages": messages, "stream": stream})
    if not stream:
        message = {"role": "assistant", "content": "Hello.", "refusal": None}
        expected = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        assert reply.json["choices"] == [expected]
        return
    first, *_, last, done = reply.events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert reply.texts() == ["Hel", "lo", "."]
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"], done) == ({}, "stop", "[DONE]")


@pytest.mark.parametrize("stream", [False, True])
async def test_own_messages_reach_one_model_alone(
    stream: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in no answer, log, metric or span, even where spans hold conversations."""
    caplog.set_level("DEBUG")
    monkeypatch.setenv(CAPTURE, "true")
    document, asked = "SECRET-4711", "user: Hi\nassistant: "
    models = scripted(DRAFT, asked), scripted(ASSISTANT, f"system: {document}\n{asked}")
    messages = [{"role": "user", "content": "Hi"}]
    sent = {"model": "fused", "messages": messages, "own": {"assistant": document}, "stream": stream}
    with collected() as spans:
        async with opened(fused(models)) as app:
            reply = await visit(app, CHAT, sent)
            refused = await visit(app, CHAT, {**sent, "own": {"judge": document}})
            page = (await visit(app, "/metrics")).body.decode()
    text = "".join(reply.texts()) if stream else reply.json["choices"][0]["message"]["content"]
    assert text == FUSED
    assert document in read(models[1]) and document not in read(models[0])
    words = "own has messages for 'judge', and the models are draft, assistant"
    assert (refused.status, refused.error["param"], refused.error["message"]) == (400, "own", words)
    recorded = "".join(span.to_json() for span in spans.ended)
    assert caplog.text.count('"outcome": "ok"') == 1 and "Hi" in recorded
    assert not any(document in one for one in (caplog.text, recorded, page, str(reply.parts), str(refused.parts)))


@pytest.mark.parametrize("disagree", [False, True])
@pytest.mark.parametrize("max_tokens", [5, 16])
async def test_usage_is_that_of_one_conversation(disagree: bool, max_tokens: int) -> None:
    """The prompt once, and the tokens of the answer, however often the models read it: as a server alone counts."""
    models = [ScriptedProvider(unsure(number * disagree)) for number in range(2)]
    async with opened(Fusion(draft=models[0], assistant=models[1])) as app:
        reply = await visit(app, TEXT, {"model": "fused", "prompt": "Q" * 7, "max_tokens": max_tokens})
    usage, cosd = reply.json["usage"], reply.json["cosd"]
    assert (cosd["replacements"] > 0) == disagree
    assert usage == {"prompt_tokens": 7, "completion_tokens": max_tokens, "total_tokens": 7 + max_tokens}
    assert cosd["usage"]["assistant"]["prompt_tokens"] > 7


async def test_usage_comes_at_the_end_of_a_stream_if_it_is_asked_for() -> None:
    async with opened(fused(pair())) as app:
        whole = await visit(app, TEXT, body())
        reply = await visit(app, TEXT, body(stream=True, stream_options={"include_usage": True}))
    *chunks, usage, done = reply.events
    assert (usage["choices"], usage["usage"]["prompt_tokens"] > 0, done) == ([], True, "[DONE]")
    assert usage["usage"].keys() == whole.json["usage"].keys()
    assert all(one["usage"] is None for one in chunks[:-1])
    assert "".join(reply.texts()) == FUSED


@pytest.mark.parametrize("stream", [False, True])
async def test_several_texts_are_continued_together(stream: bool) -> None:
    prompts = ["Q:", "Q: The capital is Lima", "Q: The"] * 5  # more than are written at a time
    async with opened(fused(pair({"token_delay": 0.0005}))) as app:
        reply = await visit(app, TEXT, body(prompt=prompts, stream=stream))
        singles = [(await visit(app, TEXT, body(prompt=one))).json["choices"][0]["text"] for one in prompts[:3]]
    if stream:
        found = ["".join(reply.texts(index)) for index in range(15)]
        assert reply.events[-1] == "[DONE]"
    else:
        found = [one["text"] for one in reply.json["choices"]]
        assert len(reply.json["cosd"]["answers"]) == 15
    assert found == singles * 5


async def test_a_length_is_a_length_and_so_is_a_limit() -> None:
    async with opened({"fused": fused(pair())}, max_tokens=3) as app:
        for asked in ({"max_tokens": 3}, {}):
            choice = (await visit(app, TEXT, body(**asked))).json["choices"][0]
            assert (choice["text"], choice["finish_reason"]) == (" The capital", "length")
    fusion = fused(pair())
    fusion.limits = {"max_requests": 1, "on_budget": "end"}
    async with opened(fusion) as app:
        reply = await visit(app, TEXT, body())
    assert reply.json["choices"][0]["finish_reason"] == "length"
    assert reply.json["cosd"]["stop_reason"] == "max_requests"


async def test_stop_strings_end_an_answer_before_them() -> None:
    async with opened(fused(pair())) as app:
        reply = await visit(app, TEXT, body(stop=[" is", "?"], stream=True))
    assert "".join(reply.texts()) == " The capital"
    assert reply.events[-2]["cosd"]["stop_reason"] == " is"


@given(models=toys.model_sets(), prompt=st.sampled_from(["a", "b a", "1, "]))
@costly(15)
def test_a_stream_is_the_librarys_text(models: Any, prompt: str) -> None:
    """Also where tokens hold parts of characters, and bytes that are none."""

    async def run() -> None:
        writer, asked = models
        settings: dict[str, Any] = {"draft": ScriptedProvider(toys.Plain(writer)), "unit": "word"}
        settings["assistant"] = [ScriptedProvider(toys.Plain(one)) for one in asked]
        async with Fusion(**settings) as fusion:
            result = await fusion.generate(prompt, max_tokens=12)
        async with opened(Fusion(**settings)) as app:
            for logprobs in (None, 1):
                asked_for = body(prompt=prompt, max_tokens=12, stream=True, logprobs=logprobs)
                assert "".join((await visit(app, TEXT, asked_for)).texts()) == result.text

    anyio.run(run)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_ignored_is_named(stream: bool) -> None:
    given = {"temperature": 0.7, "reasoning_effort": "high", "top_p": 1}
    async with opened(fused(pair()), ignore=("temperature", "reasoning_effort", "top_p", "min_p")) as app:
        reply = await visit(app, TEXT, body(stream=stream, **given))
        plain = await visit(app, TEXT, body(stream=stream, top_p=1, temperature=0))
        several = await visit(app, TEXT, body(stream=stream, prompt=["Q:", "Q: The"], **given))
    names = ["temperature", "reasoning_effort"]
    last = [one.events[-2] if stream else one.json for one in (reply, plain, several)]
    assert [one["cosd"].get("ignored") for one in last] == [names, None, names]
    assert [one.headers.get("cosd-ignored") for one in (reply, plain, several)] == [
        "temperature, reasoning_effort", None, "temperature, reasoning_effort",
    ]  # fmt: skip
    assert ("".join(reply.texts()) if stream else reply.json["choices"][0]["text"]) == FUSED


# ------------------------------------------------------------------------------------------------------ probabilities


@pytest.mark.parametrize("stream", [False, True])
async def test_the_probability_of_a_token_is_its_writers(stream: bool) -> None:
    async with Fusion(draft=draft(), assistant=assistant()) as fusion:
        tokens = [one for one in (await fusion.generate("Q:")).tokens if not one.end]
    probs = [one.draft_prob if one.source == "draft" else one.assistant_prob for one in tokens]
    expected = [math.log(prob) for prob in probs if prob]
    assert {one.source for one in tokens} == {"draft", "assistant"}
    async with opened(fused(pair())) as app:
        reply = await visit(app, TEXT, body(logprobs=1, stream=stream))
        whole = await visit(app, TEXT, body(logprobs=0))
    if stream:
        found = [one["choices"][0]["logprobs"] for one in reply.events[:-2]]
        logs = {name: [one[name][0] for one in found] for name in found[0]}
    else:
        logs = reply.json["choices"][0]["logprobs"]
    assert logs["tokens"] == [one.text for one in tokens]
    assert logs["token_logprobs"] == pytest.approx(expected)
    assert [*logs["top_logprobs"][0]] == [" The"]
    assert logs["text_offset"] == [len("".join(logs["tokens"][:at])) for at in range(len(tokens))]
    assert whole.json["choices"][0]["logprobs"]["tokens"] == logs["tokens"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_probability_that_is_not_known_is_a_number_in_a_conversation(stream: bool) -> None:
    writer = ScriptedProvider.from_texts({"user: Hi\nassistant: ": [" Ol", (" e", 0.3), " !"]})
    silent = ScriptedProvider.from_texts({"user: Hi\nassistant: ": [" Ol", " á", " !"]}, probs=False)
    asked = {"model": "fused", "messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "stream": stream}
    fusion = Fusion(draft=writer, assistant=silent, verifier=AgreementVerifier(alpha=0.5), unit="word")
    async with opened(fusion) as app:
        reply = await visit(app, CHAT, asked)
    if stream:
        content = [one["choices"][0]["logprobs"]["content"][0] for one in reply.events[1:3]]
    else:
        content = reply.json["choices"][0]["logprobs"]["content"]
    entry = {"token": " á", "logprob": -9999.0, "bytes": [*" á".encode()]}
    assert content[:2] == [content[0], {**entry, "top_logprobs": [entry]}]
    assert content[0]["logprob"] == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_other_tokens_are_listed_with_each_where_models_have_the_same_ids(stream: bool) -> None:
    def bytewise(written: bytes, sure: float) -> TableModel:
        """A model that writes one byte after another, and lists another beside it."""

        def following(ids: Sequence[int]) -> list[float]:
            probs = [0.0] * 257
            probs[1 + written[len(ids) % len(written)]], probs[1 + ord("x")] = sure, 1 - sure
            return probs

        return TableModel([b"", *(bytes([byte]) for byte in range(256))], following, end_ids=(0,))

    models = (
        ScriptedProvider(bytewise(b"abc", 0.375), ids=True),
        ScriptedProvider(bytewise(b"abd", 0.875), ids=True),
    )
    async with fused(models) as fusion:
        result = await fusion.generate("Q", alternatives=2, max_tokens=12)
    expected = [one for one in result.tokens if not one.end]
    assert any(one.alternatives for one in expected)
    async with opened(fused(models)) as app:
        reply = await visit(
            app, TEXT, {"model": "fused", "prompt": "Q", "logprobs": 3, "max_tokens": 12, "stream": stream}
        )
    found = [one["choices"][0]["logprobs"] for one in (reply.events[:-2] if stream else [reply.json])]
    tops = [top for one in found for top in one["top_logprobs"]]
    assert [[*top] for top in tops] == [
        [*dict.fromkeys([one.text, *(other.text for other in one.alternatives)])] for one in expected
    ]
    assert [[*top.values()][1:] for top in tops] == [
        pytest.approx([math.log(other.prob or 0) for other in one.alternatives]) for one in expected
    ]


async def test_other_tokens_are_refused_where_nobody_lists_them() -> None:
    async with opened(fused(pair())) as app:
        reply = await visit(app, TEXT, body(logprobs=3))
    assert (reply.status, reply.error["code"]) == (400, "unsupported")
    words = "other tokens of each place (alternatives, top_logprobs) are not listed here (from space to space): "
    assert words + "that needs models with the same token ids" in reply.error["message"]


# ------------------------------------------------------------------------------------------------------------- errors


async def test_an_error_before_the_first_token_has_a_status_of_its_own() -> None:
    limited = RateLimitError("slow down", endpoint="http://secret-host:1", status=429)
    limited.retry_after = 7.2
    errors = {"rate_limit_exceeded": (limited, 429), "upstream_failed": (BROKEN, 503)}
    for code, (error, status) in errors.items():
        for stream in (False, True):
            async with opened(fused(pair({"faults": [Fault(error)]}))) as app:
                reply = await visit(app, TEXT, body(stream=stream))
                assert (reply.status, reply.error["code"], reply.error["type"]) == (status, code, "upstream_error")
                assert "secret" not in str(reply.error)
                assert reply.headers.get("retry-after") == ("8" if error is limited else None)
                assert reply.headers["x-should-retry"] == "true"
                line = f'cosd_errors_total{{kind="{code}",model="fused"}}'
                assert await metric(app, line) == 1


@pytest.mark.parametrize(("header", "wait"), [({"retry-after": "50"}, 50.0), ({}, OPEN_SECONDS)])
async def test_an_assistant_that_limits_its_rate_is_left_at_once_if_it_can_be_spared(
    header: dict[str, str], wait: float
) -> None:
    """It is asked again as soon as it allows."""
    server, refused, limits, now = FakeLlamaCpp(TextModel(ASSISTANT)), list[httpx.Request](), True, 0.0

    async def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/completion" or not limits:
            return server.handle(request)
        refused.append(request)
        return httpx.Response(429, headers=header)

    counts: list[tuple[int, int]] = []
    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        limited = LlamaCpp("http://secret-host:1", http_client=client)
        fusion = Fusion(draft=draft(), assistant=limited, on_assistant_error="draft", unit="word")
        async with opened(fusion) as app:
            fusion.endpoints.breaker = CircuitBreaker(lambda: now)
            for now in (0.0, wait - 1, wait, 2 * wait):
                limits = now < 2 * wait
                with anyio.fail_after(20):
                    reply = await visit(app, TEXT, body())
                counts.append((reply.json["cosd"]["unverified_tokens"], len(refused)))
                refused.clear()
    assert counts == [(1, 1), (1, 0), (1, 1), (0, 0)]


async def test_a_rate_limit_beyond_the_gateways_own_limit_is_passed_on_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "cosd_api.apps.gateway")
    server = FakeLlamaCpp(TextModel(DRAFT))

    def handle(request: httpx.Request) -> httpx.Response:
        limited = request.url.path == "/completion"
        return httpx.Response(429, headers={"retry-after": "50"}) if limited else server.handle(request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        limited = LlamaCpp("http://secret-host:1", http_client=client)
        async with opened(Fusion(draft=limited, assistant=assistant(), unit="word"), first_token_timeout=40) as app:
            with anyio.fail_after(20):
                reply = await visit(app, TEXT, body())
    assert (reply.status, reply.headers["retry-after"], reply.error["code"]) == (429, "50", "rate_limit_exceeded")
    assert "the server asks to wait 50 s, which is more than the 40 s that a retry waits for" in caplog.text


@pytest.mark.parametrize("limits", [{"timeout": 1.0}, {"first_token_timeout": 1.0}])
@pytest.mark.parametrize(
    ("status", "header", "expected", "code"),
    [
        (429, {"retry-after": "3600"}, (429, "3600"), "rate_limit_exceeded"),
        (429, {"retry-after": "0.1"}, (429, "1"), "rate_limit_exceeded"),
        (503, {}, (503, None), "upstream_failed"),
    ],
)
async def test_no_time_limit_hides_why_a_server_refused(
    status: int, header: dict[str, str], expected: object, code: str, limits: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The server refuses, and does not answer the retry, if there is one, in time."""
    server, refused = FakeLlamaCpp(TextModel(DRAFT)), list[httpx.Request]()

    async def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/completion" or not request.content.count(b'"stream":true'):
            return server.handle(request)
        refused.append(request)
        if len(refused) > 1:
            await anyio.sleep_forever()
        return httpx.Response(status, headers=header, json={"error": {"message": "quota used up"}})

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        limited = LlamaCpp("http://secret-host:1", http_client=client)
        async with opened(Fusion(draft=limited, assistant=assistant(), unit="word"), **limits) as app:
            reply = await visit(app, TEXT, body())
            assert await metric(app, f'cosd_errors_total{{kind="{code}",model="fused"}}') == 1
    assert ((reply.status, reply.headers.get("retry-after")), reply.error["code"]) == (expected, code)
    assert reply.headers["x-should-retry"] == "true"
    assert "secret" not in str(reply.error)
    assert len(refused) == (1 if header.get("retry-after") == "3600" else 2)
    assert f"Error of http://secret-host:1, status {status}" in caplog.text


async def test_a_server_that_breaks_in_midstream_ends_in_an_error_and_not_in_an_end() -> None:
    async with opened(fused(pair({"faults": [Fault(BROKEN, tokens=3)]}))) as app:
        reply = await visit(app, TEXT, body(stream=True))
    assert (reply.status, reply.complete) == (200, True)
    sent = "".join(reply.texts())
    assert sent and FUSED.startswith(sent)  # what was verified; nothing is taken back
    *chunks, last = reply.events
    assert last["error"]["code"] == "upstream_failed"
    assert all(one["choices"][0]["finish_reason"] is None for one in chunks)


async def test_the_first_error_of_several_answers_ends_them_all() -> None:
    models = endless(token_delay=0.0005, faults=[Fault(ConnectError("refused"), request=2)]), endless()
    for stream in (False, True):
        models[0].requests = 0
        async with opened(Fusion(draft=models[0], assistant=models[1])) as app:
            reply = await visit(app, TEXT, body(prompt=["Q:"] * 30, stream=stream, max_tokens=8000))
            assert reply.error["code"] == "upstream_unreachable"
            written = 'cosd_tokens_total{endpoint="draft",kind="completion",model="fused"}'
            assert await metric(app, written) < 2000  # and not 30 times 8000
        assert [one.open_requests for one in models] == [0, 0]


async def test_several_answers_have_the_time_of_one() -> None:
    for stream in (False, True):
        async with opened(Fusion(draft=endless(token_delay=0.002), assistant=endless()), timeout=0.3) as app:
            reply = await visit(app, TEXT, body(prompt=["Q:"] * 30, stream=stream, max_tokens=8000))
            assert reply.error["code"] == "timeout"
            assert reply.complete


async def test_neither_answers_nor_logs_tell_what_a_server_said(caplog: pytest.LogCaptureFixture) -> None:
    said = InvalidRequestError("invalid value: PRIVATE TEXT", endpoint="http://secret-host:1", status=400)
    for spares in ("raise", "draft"):
        models = pair({}, {"faults": [Fault(said)]})
        async with opened(fused(models, on_assistant_error=spares)) as app:
            reply = await visit(app, TEXT, body())
        assert (reply.status == 200) is (spares == "draft")
        if spares == "draft":
            assert reply.json["cosd"]["unverified_tokens"] > 0
        assert b"secret-host" not in reply.body and b"PRIVATE" not in reply.body
    assert "InvalidRequestError of http://secret-host:1, status 400" in caplog.text
    assert "PRIVATE" not in caplog.text


async def test_a_fusion_that_does_not_fuse_any_more_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Its answers are good ones for their clients: the operator learns it once, and when the assistant is back."""
    gone, now = assistant(faults=[Fault(BROKEN)]), 0.0
    fusion = fused((draft(), gone), on_assistant_error="draft")
    async with opened(fusion) as app:
        fusion.endpoints.breaker = CircuitBreaker(lambda: now)
        replies = [await visit(app, TEXT, body()) for _ in range(2)]
        kept = await metric(app, 'cosd_draft_tokens_kept_total{model="fused"}')
        unready = await visit(app, "/ready")
        now = OPEN_SECONDS
        replies += [await visit(app, TEXT, body()) for _ in range(2)]
        ready = await visit(app, "/ready")
        unverified = await metric(app, 'cosd_unverified_tokens_total{model="fused"}')
        line = 'cosd_upstream_errors_total{endpoint="assistant",kind="ServerError",model="fused"}'
        assert await metric(app, line) == 1
    counts = [one.json["cosd"]["unverified_tokens"] for one in replies]
    assert counts == [1, 1, 0, 0] == [int(one.headers["cosd-unverified-tokens"]) for one in replies]
    assert unverified == 2
    assert kept == sum(one.json["cosd"]["tokens"] - 1 for one in replies[:2])
    told = [one.getMessage() for one in caplog.records if one.name == "cosd_api.apps.gateway"]
    failed = "fused: the assistant failed (ServerError); answers continue without it, unverified where it could have"
    assert told == [f"{failed} changed them", "fused: the assistant answers again"]
    assert (unready.status, unready.json["status"]) == (200, "degraded")
    assert (ready.status, ready.json["status"]) == (200, "ready")


async def test_the_acceptance_rate_leaves_out_tokens_that_nobody_verified() -> None:
    script: dict[str, Any] = {"Q:": [(" a", 0.4), (" b", 0.4)]}
    gone = ScriptedProvider.from_texts({}, faults=[Fault(BROKEN)])
    async with opened(fused((ScriptedProvider.from_texts(script), gone), on_assistant_error="draft")) as app:
        reply = await visit(app, TEXT, body(max_tokens=2))
    assert (reply.json["cosd"]["unverified_tokens"], reply.json["cosd"]["acceptance_rate"]) == (2, None)
    assert "cosd-acceptance-rate" not in reply.headers
    assert (reply.headers["cosd-unverified-tokens"], reply.headers["cosd-replacements"]) == ("2", "0")


@pytest.mark.parametrize("at", ["draft", "assistant"])
async def test_the_server_that_ends_an_answer_is_counted(at: str) -> None:
    broken = ServerError("it broke", status=500)  # a provider's own name is added
    faulty = {"faults": [Fault(broken)]}
    models = draft(name="a", **faulty if at == "draft" else {}), assistant(name="b", **faulty if at != "draft" else {})
    async with opened(fused(models)) as app:
        replies = [await visit(app, TEXT, body()) for _ in range(2)]
        line = f'cosd_upstream_errors_total{{endpoint="{at}",kind="ServerError",model="fused"}}'
        assert await metric(app, line) == 1
    assert [one.status for one in replies] == [503, 200]


async def test_requests_are_counted_by_key() -> None:
    keys = {"k" * 16: ClientKey(name="team", env="TEAM"), "l" * 16: ClientKey(name="other", env="OTHER")}
    async with opened(fused(pair()), keys=keys) as app:
        headers = {"authorization": f"Bearer {'k' * 16}"}
        replies = [await visit(app, TEXT, one, headers=headers) for one in (body(), body(n=2))]
        page = (await visit(app, "/metrics", headers=headers)).body.decode()
    assert [one.status for one in replies] == [200, 400]
    lines = [line for line in page.splitlines() if line.startswith("cosd_key_")]
    assert sorted(lines) == [
        f'cosd_key_billed_tokens_total{{key="team"}} {float(replies[0].headers["cosd-billed-tokens"])}',
        'cosd_key_errors_total{key="team",kind="400"} 1.0',
        'cosd_key_requests_total{key="team",outcome="error"} 1.0',
        'cosd_key_requests_total{key="team",outcome="ok"} 1.0',
    ]


async def test_any_id_and_any_model_name_leave_the_events_whole() -> None:
    for name in ("987654321", "a\u00e9"):
        async with opened({name: fused(pair())}) as app:
            headers = {"x-request-id": "987654321.content"}
            reply = await visit(app, TEXT, body(stream=True) | {"model": name}, headers=headers)
        [id] = {one["id"] for one in reply.events[:-1]}
        assert (id[:5], reply.events[-2]["cosd"]["request_id"]) == ("cmpl-", "987654321.content")
        assert {one["choices"][0]["index"] for one in reply.events[:-1]} == {0}
        assert "".join(reply.texts()) == FUSED


async def test_a_fault_in_our_own_code_is_told_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    private = "SECRET".lower()

    class Wrong(ScriptedProvider):
        async def propose(self, *args: Any, **more: Any) -> Any:
            raise RuntimeError(private)

    async with opened(Fusion(draft=draft(), assistant=Wrong(assistant().model))) as app:
        reply = await visit(app, TEXT, body())
    assert (reply.status, reply.error["code"]) == (500, "internal")
    assert "unexpected RuntimeError raised at" in caplog.text
    assert "secret" not in caplog.text + str(reply.error)


async def test_time_is_limited() -> None:
    async with opened(fused(pair({"faults": [Fault(None)]})), timeout=0.05) as app:
        reply = await visit(app, TEXT, body())
        assert (reply.status, reply.error["code"]) == (504, "timeout")
    async with opened(fused(pair({"faults": [Fault(None, tokens=3)]})), timeout=0.2) as app:
        reply = await visit(app, TEXT, body(stream=True))
        assert reply.error["code"] == "timeout"


# ------------------------------------------------------------------------------------------------------------- silence


@pytest.mark.parametrize(("faulty", "tokens"), [("draft", 0), ("draft", 3), ("assistant", 0)])
async def test_a_silent_stream_has_a_heartbeat(faulty: str, tokens: int) -> None:
    """Before its first token, too, and then an error is an event."""
    hangs = {"faults": [Fault(None, tokens=tokens)]}
    models = pair(hangs, {}) if faulty == "draft" else pair({}, hangs)
    async with (
        opened(fused(models, ask="all"), heartbeat_seconds=0.01) as app,
        anyio.create_task_group() as group,
    ):
        asked = Visit(app, TEXT, body(stream=True))
        group.start_soon(asked.send)
        await until(lambda: asked.reply.heartbeats > 2)
        assert (asked.reply.status, asked.reply.complete) == (200, False)
        app.end_requests()
        await until(lambda: asked.reply.complete)
    assert asked.reply.error["code"] == "stopped"
    assert FUSED.startswith("".join(asked.reply.texts()))
    assert [one.open_requests for one in models] == [0, 0]


async def test_a_stream_that_is_not_silent_has_no_heartbeat() -> None:
    async with opened(fused(pair())) as app:
        reply = await visit(app, TEXT, body(stream=True))
    assert (reply.heartbeats, "".join(reply.texts())) == (0, FUSED)
    async with opened(fused(pair({"token_delay": 0.02})), heartbeat_seconds=0.005) as app:
        reply = await visit(app, TEXT, body(stream=True))
        assert reply.heartbeats > 0
        assert ("".join(reply.texts()), reply.events[-1], reply.complete) == (FUSED, "[DONE]", True)
    async with opened(fused(pair({"token_delay": 0.02})), heartbeat_seconds=None) as app:
        assert (await visit(app, TEXT, body(stream=True))).heartbeats == 0


async def test_a_client_that_takes_nothing_is_sent_one_heartbeat_at_most() -> None:
    taken = anyio.Event()

    async def pause(reply: Reply) -> None:
        if reply.parts:
            await taken.wait()

    async with (
        opened(fused(pair()), heartbeat_seconds=0.001, idle_timeout=0.001) as app,
        anyio.create_task_group() as group,
    ):
        asked = Visit(app, TEXT, body(stream=True), pause=pause)
        group.start_soon(asked.send)
        await until(lambda: bool(asked.reply.parts))
        await anyio.sleep(0.05)
        taken.set()
        await until(lambda: asked.reply.complete)
    assert "".join(asked.reply.texts()) == FUSED
    assert asked.reply.heartbeats <= 1 + len(asked.reply.parts) // 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("tokens", "limits", "code"),
    [
        (0, {"first_token_timeout": 0.05}, "first_token_timeout"),
        (3, {"idle_timeout": 0.2}, "idle_timeout"),
        (3, {"idle_timeout": 0.2, "first_token_timeout": 20}, "idle_timeout"),
    ],
)
async def test_the_time_without_a_token_is_limited(stream: bool, tokens: int, limits: Any, code: str) -> None:
    models = pair({"faults": [Fault(None, tokens=tokens)]})
    async with opened(fused(models, ask="all", unit="token"), **limits) as app:
        reply = await visit(app, TEXT, body(stream=stream))
        assert (reply.error["code"], reply.error["type"]) == (code, "timeout_error")
        assert reply.status == (200 if stream and tokens else 504)
        assert [one.open_requests for one in models] == [0, 0]
        assert await metric(app, f'cosd_errors_total{{kind="{code}",model="fused"}}') == 1
        assert await metric(app, 'cosd_requests_total{model="fused",outcome="error",route="/v1/completions"}') == 1


async def test_an_error_after_a_heartbeat_is_an_event() -> None:
    models = pair({"faults": [Fault(None)]})
    async with opened(fused(models), first_token_timeout=0.2, heartbeat_seconds=0.01) as app:
        reply = await visit(app, TEXT, body(stream=True))
    assert (reply.status, reply.complete, reply.error["code"]) == (200, True, "first_token_timeout")
    assert reply.error["message"] == "no token came within 0.2 seconds"


@pytest.mark.parametrize("stream", [False, True])
def test_slow_tokens_are_no_silence(stream: bool) -> None:
    """In virtual time: each pause is shorter than the limit, and all together are longer."""

    async def ask() -> Reply:
        models = endless(token_delay=35), endless()
        async with opened(fused(models), timeout=6000) as app:
            return await visit(app, TEXT, body(stream=stream, max_tokens=10))

    reply = virtual_time.run(ask)
    assert ("".join(reply.texts()) if stream else reply.json["choices"][0]["text"]) == " a" * 10
    assert (reply.heartbeats >= 30) is stream  # three in each pause


# --------------------------------------------------------------------------------------------------- clients that leave


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("which", ["draft", "assistant"])
async def test_a_client_that_leaves_before_the_first_token_cancels_both_streams(stream: bool, which: str) -> None:
    models = pair({"faults": [Fault(None)]} if which == "draft" else {}, {"faults": [Fault(None)]})
    waiting = models[which == "assistant"]
    async with opened(fused(models, ask="all")) as app, anyio.create_task_group() as group:
        asked = Visit(app, TEXT, body(stream=stream))
        group.start_soon(asked.send)
        await until(lambda: waiting.open_requests == 1)
        asked.gone.set()
        await until(lambda: not any(one.open_requests for one in models))
        line = 'cosd_requests_total{model="fused",outcome="disconnected",route="/v1/completions"}'
        await until_metric(app, line)
        assert asked.reply.parts == []
        assert await metric(app, 'cosd_in_flight{model="fused"}') == 0
        drafted = 'cosd_tokens_total{endpoint="draft",kind="prompt",model="fused"}'
        assert await metric(app, drafted) > 0  # its usage is counted


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_later_cancels_both_streams(stream: bool) -> None:
    models = endless(token_delay=0.0005), endless()
    fusion = Fusion(draft=models[0], assistant=models[1], ask="all")
    async with opened(fusion, max_tokens=ENDLESS) as app, anyio.create_task_group() as group:
        asked = Visit(app, TEXT, body(stream=stream, max_tokens=ENDLESS))
        group.start_soon(asked.send)
        await until(lambda: models[1].requests > 3)
        asked.gone.set()
        await until_metric(app, 'cosd_requests_total{model="fused",outcome="disconnected",route="/v1/completions"}')
        assert [one.open_requests for one in models] == [0, 0]
        written = await metric(app, 'cosd_tokens_total{endpoint="draft",kind="completion",model="fused"}')
        assert 3 < written < ENDLESS


async def until_metric(app: Gateway, line: str) -> None:
    with anyio.fail_after(20):
        while await metric(app, line) != 1:  # noqa: ASYNC110 - no event tells
            await anyio.sleep(0.001)


async def test_a_server_that_raises_where_the_client_has_left_ends_quietly(caplog: pytest.LogCaptureFixture) -> None:
    models = endless(), endless()

    async def gone(reply: Reply) -> None:
        if len(reply.parts) > 3:
            raise BrokenPipeError

    async with opened(Fusion(draft=models[0], assistant=models[1])) as app:
        await Visit(app, TEXT, body(stream=True, max_tokens=5000), pause=gone).send()
        line = 'cosd_requests_total{model="fused",outcome="disconnected",route="/v1/completions"}'
        assert await metric(app, line) == 1
    assert [one.open_requests for one in models] == [0, 0]
    assert "unexpected" not in caplog.text


async def test_a_slow_client_pauses_the_draft() -> None:
    models = endless(), endless()
    fusion = Fusion(draft=models[0], assistant=models[1])
    slow = anyio.Event()

    async def pause(reply: Reply) -> None:
        if len(reply.parts) > 5:
            await slow.wait()

    async with opened(fusion, unread_tokens=10, max_tokens=ENDLESS) as app, anyio.create_task_group() as group:
        asked = Visit(app, TEXT, body(stream=True, max_tokens=400), pause=pause)
        group.start_soon(asked.send)
        await until(lambda: len(asked.reply.parts) > 5)
        before = -1
        while before != (before := sum(len(one.calls) + one.requests for one in models) + len(asked.reply.parts)):
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
        result = models[0]
        assert result.open_requests == 1  # it waits with its stream open
        slow.set()
        await until(lambda: asked.reply.complete)
    assert "".join(asked.reply.texts()) == " a" * 400


async def test_a_gateway_that_stops_ends_what_is_in_progress_by_an_error() -> None:
    models = endless(token_delay=0.0005), endless()
    async with opened(Fusion(draft=models[0], assistant=models[1])) as app, anyio.create_task_group() as group:
        streamed = Visit(app, TEXT, body(stream=True, max_tokens=ENDLESS // 2))
        whole = Visit(app, TEXT, body(max_tokens=ENDLESS // 2))
        group.start_soon(streamed.send)
        group.start_soon(whole.send)
        await until(lambda: len(streamed.reply.parts) > 3)
        app.stopping()
        assert (await visit(app, "/ready")).json["status"] == "stopping"
        refused = await visit(app, TEXT, body())
        assert (refused.status, refused.error["code"]) == (503, "stopping")
        app.end_requests()
        await until(lambda: streamed.reply.complete and whole.reply.complete)
        assert (await visit(app, TEXT, body(max_tokens=ENDLESS // 2))).error["code"] == "stopping"
    assert streamed.reply.error["code"] == whole.reply.error["code"] == "stopped"
    assert [one.open_requests for one in models] == [0, 0]


async def test_an_answer_outlives_its_draft(caplog: pytest.LogCaptureFixture) -> None:
    """The assistant writes on alone: the header, the body, the log and the metrics say what each model wrote."""
    caplog.set_level("INFO")
    scripts = {"Q:": [" The", " capital", " is", " Li", "ma", "!"]}
    broken = ScriptedProvider.from_texts(scripts, faults=[Fault(BROKEN, tokens=3)])
    fusion = Fusion(draft=broken, assistant=ScriptedProvider.from_texts(scripts), on_draft_error="assistant")
    async with opened(fusion) as app:
        reply = await visit(app, TEXT, body())
        written = await metric(app, 'cosd_written_tokens_total{endpoint="assistant",model="fused"}')
    shares = reply.json["cosd"]["shares"]
    assert (reply.status, reply.json["choices"][0]["text"]) == (200, " The capital is Lima!")
    assert reply.headers["cosd-shares"] == f"draft={shares['draft']:g}, assistant={shares['assistant']:g}"
    assert shares["draft"] > 0 and written == round(7 * shares["assistant"])
    assert f'"shares": {{"draft": {shares["draft"]}' in caplog.text
    assert "fused: the draft failed (ServerError); answers continue without it" in caplog.text
