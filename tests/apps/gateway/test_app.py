"""Routes of the gateway, its errors in the form of the API, its log and its metrics."""

from __future__ import annotations

import json
import logging
import math
import threading
from typing import Any

import anyio
import pytest

from cosd_api import Fusion, SettingError
from cosd_api.apps.gateway import ClientKey, bodies
from cosd_api.apps.gateway.metrics import GatewayMetrics
from cosd_providers import ConnectError
from cosd_providers.testing import ScriptedProvider, TextModel
from support.visits import Visit, opened, until, visit
from toys.lima import FUSED, TellsNoPrompt, assistant, draft, fusion

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SERVED = f"{CHAT}, {TEXT}, /v1/responses and /v1/models are served"
BODY = {"model": "fused", "prompt": "Q:"}
KEY = "k" * 16


async def test_models_are_listed() -> None:
    async with opened({"a": fusion(), "b/c": fusion()}) as app:
        listed = (await visit(app, "/v1/models")).json
        assert (listed["object"], [one["id"] for one in listed["data"]]) == ("list", ["a", "b/c"])
        assert (await visit(app, "/v1/models/b/c")).json == listed["data"][1]
        for path, body in (("/v1/models/z", None), (TEXT, {"model": "z", "prompt": "Q:"})):
            reply = await visit(app, path, body)
            assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "model_not_found", "model")
            assert reply.error["message"] == "there is no model of this name; the models are: a, b/c"
        reply = await visit(app, TEXT, {"prompt": "Q:"})
        assert (reply.status, reply.error["param"]) == (400, "model")
        assert reply.error["message"] == "model is required; the models are: a, b/c"


async def test_a_request_without_a_model_asks_for_the_only_one() -> None:
    """As llama.cpp's web client sends it."""
    async with opened({"fused": fusion()}) as app:
        for body in ({"prompt": "Q:"}, {"prompt": "Q:", "model": None}, {"prompt": "Q:", "model": ""}):
            reply = await visit(app, TEXT, body)
            assert (reply.json["model"], reply.json["choices"][0]["text"]) == ("fused", FUSED)


async def test_each_model_is_a_fusion_of_its_own() -> None:
    short = fusion()
    short.limits = {"max_tokens": 1}
    async with opened({"fused": fusion(), "short": short}) as app:
        replies = [await visit(app, TEXT, {**BODY, "model": name}) for name in ("fused", "short")]
    assert [one.json["choices"][0]["text"] for one in replies] == [FUSED, " The"]


@pytest.mark.parametrize(
    ("path", "more", "status", "code"),
    [
        ("/v1/nothing", {}, 404, "not_found"),
        (TEXT, {"method": "GET"}, 405, None),
        ("/health", {"method": "DELETE"}, 405, None),
        (TEXT, {"body": BODY, "headers": {"content-type": "text/plain"}}, 415, None),
        (TEXT, {"body": {**BODY, "prompt": "x" * 5000}}, 413, "body_too_large"),
        (TEXT, {"body": b"{"}, 400, None),
        (TEXT, {"body": BODY, "headers": {"content-length": "2001"}}, 413, "body_too_large"),
        (TEXT, {"body": BODY, "headers": {"content-length": "5", "transfer-encoding": "chunked"}}, 400, None),
        (TEXT, {"body": {**BODY, "temperature": 1}}, 400, None),
    ],
)
async def test_errors_have_the_form_of_the_api(path: str, more: Any, status: int, code: str | None) -> None:
    async with opened(fusion(), body_bytes=2000) as app:
        reply = await visit(app, path, **more)
    assert (reply.status, reply.error["code"]) == (status, code)
    assert reply.error.keys() == {"message", "type", "param", "code"}
    assert reply.headers["x-request-id"].startswith("req-")
    assert reply.headers["content-type"] == "application/json"
    if status == 405:
        assert reply.headers["allow"]


async def test_a_body_is_bounded_by_the_contexts_once_they_are_known() -> None:
    large = {"model": "fused", "messages": [{"role": "user", "content": "x" * 70_000}]}
    several = {"fused": Fusion(draft=draft(context=60), assistant=assistant(context=40)), "other": fusion()}
    async with opened({"fused": several["fused"]}) as app:
        assert (await visit(app, CHAT, large)).error["code"] == "context_length_exceeded"
        reply = await visit(app, CHAT, large)
        assert (reply.status, reply.error["code"]) == (413, "body_too_large")
        words = "the body has more than 68032 bytes, and the models take at most 39 tokens of a prompt"
        assert reply.error["message"] == words
        assert (await visit(app, TEXT, {**BODY, "prompt": ["Q:" + "x" * 50_000] * 2})).status == 400  # for 128 texts
    again = Fusion(draft=draft(context=60), assistant=assistant(context=40), on_assistant_error="draft")
    async with opened({"fused": again, "other": several["other"]}) as app:
        for _ in range(2):  # what the other fusion takes is not known
            assert (await visit(app, CHAT, large)).error["code"] == "context_length_exceeded"
        assert again.endpoints.room == 59  # an answer continues without the assistant


async def test_a_long_body_is_read_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def noted(data: bytes) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return json.loads(data)

    monkeypatch.setattr(bodies, "from_json", noted)
    async with opened(fusion()) as app:
        for prompt in ("Q:", "x" * 70_000):
            await visit(app, TEXT, {**BODY, "prompt": prompt})
    assert threads == [True, False]


async def test_bodies_take_places_until_they_are_answered() -> None:
    writer = draft(token_delay=0.01)
    large = {**BODY, "user": "x" * 70_000}
    async with (
        opened(Fusion(draft=writer, assistant=assistant()), concurrency=3) as app,
        anyio.create_task_group() as group,
    ):
        first = Visit(app, TEXT, large)
        group.start_soon(first.send)
        await until(lambda: writer.open_requests == 1)
        refused = await visit(app, TEXT, large)
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert (await visit(app, TEXT, BODY)).status == 200
        await until(lambda: first.reply.complete)
        assert (await visit(app, TEXT, large)).status == 200


async def test_slow_bodies_keep_nobody_out() -> None:
    async with opened(fusion(), concurrency=2) as app, anyio.create_task_group() as group:
        slow = [Visit(app, TEXT, b"{", more_body=True) for _ in range(3)]
        for one in slow:
            group.start_soon(one.send)
        await until(lambda: slow[0].reply.complete)
        assert (slow[0].reply.status, slow[0].reply.headers["retry-after"]) == (429, "1")
        assert slow[0].reply.error["message"].startswith("too many bodies of requests are on their way, and this one")
        assert [(await visit(app, TEXT, BODY)).status for _ in range(3)] == [200] * 3
        assert [one.reply.complete for one in slow] == [True, True, False]
        group.cancel_scope.cancel()


async def test_a_client_that_leaves_while_its_body_is_read_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cosd_api.apps.gateway")
    async with opened(fusion()) as app:
        asked = Visit(app, TEXT, b"{", more_body=True)
        asked.gone.set()
        reply = await asked.send()
    assert (reply.status, reply.parts) == (0, [])
    assert '"outcome": "disconnected"' in caplog.text
    assert "unexpected" not in caplog.text


async def test_a_fault_of_a_route_has_the_form_of_the_api(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object) -> bytes:
        raise RuntimeError("private".upper())

    monkeypatch.setattr(GatewayMetrics, "page", wrong)
    async with opened(fusion()) as app:
        reply = await visit(app, "/metrics")
    assert (reply.status, reply.error["code"]) == (500, "internal")
    assert "PRIVATE" not in caplog.text


async def test_what_a_stranger_gets_wrong_first_is_said() -> None:
    async with opened(fusion()) as app:
        form = await visit(app, TEXT, BODY, headers={"content-type": "application/x-www-form-urlencoded"})
        assert form.error["message"] == "the body must be JSON, with the header content-type: application/json"
        assert (await visit(app, "/")).error["message"] == f"there is no such route; {SERVED}"
        assert b"_created" not in (await visit(app, "/metrics")).body


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", f"{CHAT} is the right one"),
        ("/v1/v1/chat/completions", f"{CHAT} is the right one"),
        ("/v1/chat/completions/", f"{CHAT} is the right one"),
        ("/v1/chat/completions/chat/completions", f"{CHAT} is the right one"),
        ("/completions", f"{TEXT} is the right one"),
        ("/v1/v1/completions", f"{TEXT} is the right one"),
        ("/v1/completions/", f"{TEXT} is the right one"),
        ("/models", "/v1/models is the right one"),
        ("/v1/v1/models", "/v1/models is the right one"),
        ("/v1/models/", "/v1/models is the right one"),
        ("/responses", "/v1/responses is the right one"),
        ("/v1/embeddings", SERVED),
    ],
)
async def test_a_wrong_path_is_answered_with_the_right_one(path: str, meant: str) -> None:
    async with opened(fusion()) as app:
        reply = await visit(app, path, None if "models" in path else BODY)
    assert (reply.status, reply.error["code"]) == (404, "not_found")
    assert reply.error["message"] == f"there is no such route; {meant}"


async def test_other_machines_need_a_key() -> None:
    async with opened(fusion()) as app:
        reply = await visit(app, "/v1/models", address="203.0.113.5")
        assert (reply.status, reply.error["code"]) == (403, "foreign_client")
        assert (await visit(app, "/health", address="203.0.113.5")).status == 200


async def test_a_key_is_asked_for_but_for_health() -> None:
    async with opened(fusion(), keys={KEY: ClientKey(name="a", env="A")}) as app:
        for path in ("/v1/models", "/metrics", "/v1/nothing"):
            reply = await visit(app, path)
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        for path in ("/health", "/ready"):
            reply = await visit(app, path)
            assert (reply.status, reply.json.keys()) == (200, {"status"})
        ready = await visit(app, "/ready", headers={"authorization": f"Bearer {KEY}"})
        assert ready.json["fusions"] == {"fused": {"draft": "ready", "assistant": "ready"}}
        assert (await visit(app, "/v1/models", headers={"authorization": f"Bearer {KEY}"})).status == 200


async def test_limits_of_a_key_hold_while_it_answers_and_after() -> None:
    keys = {KEY: ClientKey(name="a", env="A", concurrency=1, billed_tokens_per_minute=10)}
    headers = {"authorization": f"Bearer {KEY}"}
    writer = draft(token_delay=0.01)
    async with (
        opened(Fusion(draft=writer, assistant=assistant()), keys=keys) as app,
        anyio.create_task_group() as group,
    ):
        first = Visit(app, TEXT, BODY, headers=headers)
        group.start_soon(first.send)
        await until(lambda: writer.open_requests == 1)
        reply = await visit(app, TEXT, BODY, headers=headers)
        assert (reply.status, reply.error["type"], reply.headers["retry-after"]) == (429, "rate_limit_error", "1")
        await until(lambda: first.reply.complete)  # and no later: a client asks again at once
        reply = await visit(app, TEXT, BODY, headers=headers)
        assert "tokens were billed for this key in the last minute, and 10 are allowed" in reply.error["message"]


async def test_limits_in_a_minute_are_in_the_headers_of_answers() -> None:
    keys = {
        KEY: ClientKey(name="a", requests_per_minute=4, billed_tokens_per_minute=10_000),
        "o" * 16: ClientKey(name="b"),
    }
    headers = {"authorization": f"Bearer {KEY}"}
    async with opened(fusion(), keys=keys) as app:
        replies = [
            await visit(app, TEXT, body, headers=headers)
            for body in (BODY, {**BODY, "stream": True}, {**BODY, "n": 2}, b"{", BODY)
        ]
        models = await visit(app, "/v1/models", headers=headers)
        other = await visit(app, TEXT, BODY, headers={"authorization": f"Bearer {'o' * 16}"})
    assert [one.status for one in replies] == [200, 200, 400, 400, 429]
    assert [one.headers["x-ratelimit-remaining-requests"] for one in replies] == ["3", "2", "1", "0", "0"]
    assert {one.headers["x-ratelimit-limit-requests"] for one in replies} == {"4"}
    assert all(one.headers["x-ratelimit-reset-requests"].endswith("s") for one in replies)
    bills = replies[0].json["cosd"]["usage"].values()
    weighed = sum(one["prompt_tokens"] + one["completion_tokens"] - 0.9 * one["cached_tokens"] for one in bills)
    left = [int(one.headers["x-ratelimit-remaining-tokens"]) for one in replies]
    assert left[:2] == [math.floor(10_000 - weighed)] * 2  # a stream's own come after its headers
    assert left[2] < left[1]
    assert 0 < int(replies[-1].headers["retry-after"]) <= 60
    for reply in (models, other):
        assert not any("ratelimit" in name for name in reply.headers)


async def test_keys_are_changed_without_a_restart() -> None:
    writer = draft(token_delay=0.01)
    new = "n" * 16
    async with (
        opened(Fusion(draft=writer, assistant=assistant()), keys={KEY: ClientKey(name="a")}) as app,
        anyio.create_task_group() as group,
    ):
        asked = Visit(app, TEXT, {**BODY, "stream": True}, headers={"authorization": f"Bearer {KEY}"})
        group.start_soon(asked.send)
        await until(lambda: writer.open_requests == 1)
        with pytest.raises(SettingError, match="there would be no key any more"):
            app.change_keys({})
        app.change_keys({new: ClientKey(name="b")})
        replies = [await visit(app, "/v1/models", headers={"authorization": f"Bearer {key}"}) for key in (KEY, new)]
        assert [one.status for one in replies] == [401, 200]
        await until(lambda: asked.reply.complete)
    assert "".join(asked.reply.texts()) == FUSED


async def test_other_origins_are_answered_only_if_they_are_named() -> None:
    origin = {"origin": "https://app.example.com", "access-control-request-method": "POST"}
    for cors, allowed in (((), None), (("https://app.example.com",), "https://app.example.com")):
        async with opened(fusion(), cors=cors) as app:
            reply = await visit(app, TEXT, method="OPTIONS", headers=origin)
            assert reply.headers.get("access-control-allow-origin") == allowed
            streamed = await visit(app, TEXT, {**BODY, "stream": True}, headers=origin)
            assert streamed.headers.get("access-control-allow-origin") == allowed
            refused = await visit(app, "/v1/nothing", headers=origin)
            assert refused.headers.get("access-control-allow-origin") == allowed
            assert ("x-request-id" in refused.headers.get("access-control-expose-headers", "")) is (allowed is not None)
            assert "".join(streamed.texts()) == FUSED


async def test_a_preflight_is_told_of_the_setting() -> None:
    words = "this method is not allowed here"
    origin = {"origin": "https://app.example.com", "access-control-request-method": "POST"}
    async with opened(fusion(), keys={KEY: ClientKey(name="a")}) as app:  # browsers send no key with OPTIONS
        reply = await visit(app, CHAT, method="OPTIONS", headers=origin)
        other = await visit(app, CHAT, method="DELETE", headers={"authorization": f"Bearer {KEY}"})
    setting = "the gateway's setting cors: names the origins of web pages that may call it"
    assert (reply.status, reply.error["message"], reply.headers["allow"]) == (405, f"{words}; {setting}", "POST")
    assert (other.status, other.error["message"]) == (405, words)


async def test_a_request_keeps_its_id_if_that_is_a_word() -> None:
    async with opened(fusion()) as app:
        for given, kept in (("abc-1", True), ("a b", False), ("x" * 200, False)):
            reply = await visit(app, "/health", headers={"x-request-id": given})
            assert (reply.headers["x-request-id"] == given) is kept


async def test_the_log_has_a_line_for_each_request_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cosd_api.apps.gateway.access")
    async with opened(fusion(), keys={KEY: ClientKey(name="team", env="A")}) as app:
        headers = {"authorization": f"Bearer {KEY}", "x-request-id": "mine"}
        await visit(app, TEXT, {**BODY, "stream": True}, headers=headers)
        await visit(app, TEXT, {**BODY, "n": 2}, headers=headers)
        await visit(app, "/health")
        await visit(app, "/secret-path?key=1")
    lines = [json.loads(one.getMessage()) for one in caplog.records if one.name == "cosd_api.apps.gateway.access"]
    good, bad, unknown = lines
    assert good["billed"].keys() == {"draft", "assistant"}
    assert {**good, "time": 0, "seconds": 0, "first_seconds": 0, "billed": 0} == {
        "time": 0, "request_id": "mine", "client": "team", "method": "POST", "path": TEXT, "status": 200,
        "outcome": "ok", "seconds": 0, "model": "fused", "stream": True, "first_seconds": 0, "tokens": 10, "billed": 0,
        "estimated": 0,
    }  # fmt: skip
    assert (bad["status"], bad["outcome"], bad["error"]) == (400, "error", "400")
    assert (unknown["status"], unknown["error"], "path" in unknown) == (401, "invalid_api_key", False)
    assert not any(word in caplog.text for word in ("Q:", "Lima", "secret", KEY))


async def test_metrics_count_what_was_answered() -> None:
    async with opened(fusion()) as app:
        whole = (await visit(app, TEXT, BODY)).json
        await visit(app, TEXT, {**BODY, "stream": True})
        await visit(app, TEXT, {**BODY, "n": 2})
        reply = await visit(app, "/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    values = dict(line.rsplit(" ", 1) for line in reply.body.decode().splitlines() if not line.startswith("#"))
    cosd = whole["cosd"]
    expected = {
        'cosd_requests_total{model="fused",outcome="ok",route="/v1/completions"}': 2,
        'cosd_requests_total{model="",outcome="error",route="/v1/completions"}': 1,
        'cosd_errors_total{kind="400",model=""}': 1,
        'cosd_in_flight{model="fused"}': 0,
        'cosd_replacements_total{model="fused"}': 2,
        'cosd_answer_tokens_total{model="fused"}': 2 * cosd["tokens"],
        'cosd_first_token_seconds_count{model="fused"}': 2,
        'cosd_token_seconds_count{model="fused"}': cosd["tokens"] - 1,
        'cosd_cached_tokens_total{endpoint="draft",model="fused"}': 0,
        'cosd_tokens_total{endpoint="assistant",kind="prompt",model="fused"}': None,
    }
    for line, value in expected.items():
        assert line in values
        assert value is None or float(values[line]) == value
    kept, replaced = (float(values[f'cosd_draft_tokens_{one}_total{{model="fused"}}']) for one in ("kept", "replaced"))
    assert kept / (kept + replaced) == pytest.approx(cosd["acceptance_rate"])


async def test_estimated_tokens_count_for_keys_and_are_shown() -> None:
    keys = {KEY: ClientKey(name="a", billed_tokens_per_minute=200)}
    more: dict[str, Any] = {"headers": {"authorization": f"Bearer {KEY}"}}
    prompt = "Q" * 400
    writer, other = (
        TellsNoPrompt(TextModel({prompt: [" a", " b"]})),
        ScriptedProvider(TextModel({prompt: [" a", " b"]})),
    )
    async with opened(Fusion(draft=writer, assistant=other, ask="contestable"), keys=keys) as app:
        first = await visit(app, TEXT, {**BODY, "prompt": prompt}, **more)
        second = await visit(app, TEXT, {**BODY, "prompt": prompt}, **more)
        metrics = (await visit(app, "/metrics", **more)).body.decode()
    usage = first.json["cosd"]["usage"]["draft"]
    assert usage["prompt_tokens"] == usage["estimated_tokens"] == 200
    assert "203 tokens were billed for this key in the last minute, and 200 are allowed" in second.error["message"]
    assert 'cosd_estimated_tokens_total{endpoint="draft",model="fused"} 200.0' in metrics
    assert 'cosd_key_billed_tokens_total{key="a"} 203.0' in metrics


class Down(ScriptedProvider):
    """A server that went away after it was known."""

    async def check_alive(self) -> None:
        raise ConnectError("refused")


async def test_it_is_ready_when_every_model_answers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cosd_api.apps.gateway")
    async with opened(fusion()) as app:
        reply = await visit(app, "/ready")
    assert (reply.status, reply.json["fusions"]) == (200, {"fused": {"draft": "ready", "assistant": "ready"}})
    for spares, status, state in (("raise", 503, "not ready"), ("draft", 200, "degraded")):
        broken = Fusion(draft=draft(), assistant=Down(assistant().model), on_assistant_error=spares)  # type: ignore[arg-type]
        async with opened(broken) as app:
            reply = await visit(app, "/ready")
        assert (reply.status, reply.json["status"]) == (status, state)
        assert reply.json["fusions"] == {"fused": {"draft": "ready", "assistant": "ConnectError"}}
    assert caplog.text.count('"outcome": "error", "error": "not_ready"') == 1
