"""The table of clients: the marks of outcomes, and the fields that a client sends by itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.page import tables
from benchmarks.real_clients import Asked, Expected, _sent, judged, tabled

REFUSAL = 'tools is refused: "this" fusion\'s answers are text'
EXPECTED = Expected("a chat", "a text", "a response", {True: [30, 3], False: [5, 4]}, {"tools": REFUSAL})


def answered(text: str = "a chat", usage: Any = (30, 3), logprobs: int | None = None) -> dict[str, Any]:
    return {"text": text, "usage": usage and list(usage), "logprobs": logprobs}


@pytest.mark.parametrize(
    ("row", "outcome", "mark"),
    [
        ("chat", answered(), "W"),
        ("chat", answered("a text"), "X"),
        ("completions, defaults", answered("a text"), "W"),
        ("usage", answered(), "W"),
        ("usage in the stream", answered(usage=(950, 3)), "X"),
        ("usage", answered(usage=None), "X"),
        ("logprobs", answered(logprobs=3), "W"),
        ("logprobs", answered(), "X"),
        ("completions, logprobs", answered("a text", logprobs=4), "W"),
        ("completions, logprobs", answered("a text", logprobs=3), "X"),
        ("responses, stream", answered("a response", None), "W"),
        ("responses", answered(), "X"),
        ("models", answered("cosd", None), "W"),
        ("abort", {"outcome": "disconnected", "collected": False}, "W"),
        ("abort", {"outcome": "disconnected", "collected": True}, "G"),
        ("abort", {"outcome": "ok", "collected": True}, "X"),
        ("abort", {"outcome": None, "collected": True}, "X"),
        ("chat", {"error": "ConnectError: refused"}, "X"),
        ("logprobs", {"lacks": "it has no such option"}, "-"),
    ],
)
def test_an_outcome_has_a_mark_and_a_failure_a_reason(row: str, outcome: dict[str, Any], mark: str) -> None:
    found = judged(row, outcome, EXPECTED)
    assert found.mark == mark
    assert bool(found.reason) == (mark in "X-")


@pytest.mark.parametrize("quote", [str, repr, json.dumps])
def test_a_refusal_is_one_in_the_gateways_words(quote: Any) -> None:
    told = {"error": f"BadRequestError: 400 {quote(REFUSAL)}"}
    assert judged("tools", told, EXPECTED, REFUSAL).mark == "E"
    assert judged("tools", {"error": "InternalServerError: 500"}, EXPECTED, REFUSAL).mark == "X"
    assert judged("tools", answered(), EXPECTED, REFUSAL).reason == "it is not refused"
    assert judged("chat, defaults", told, EXPECTED).mark == "X", "plain HTTP was not refused"


def asked(**more: Any) -> Asked:
    rows = {row: answered() for row in ("chat", "chat, defaults", "stream", "stop, seed, length")}
    texts = {"completions": answered("a text"), "completions, logprobs": answered("a text", logprobs=4)}
    texts |= dict.fromkeys(("responses", "responses, stream"), answered("a response"))
    refused = {row: {"error": REFUSAL} for row in ("temperature", "tools", "json_schema")}
    others = {"logprobs": answered(logprobs=3), "models": answered("cosd"), "completions, defaults": {"error": "warm"}}
    left = {"abort": {"outcome": "disconnected", "collected": False}}
    ignoring = {**rows, "completions, defaults": answered("a text"), "temperature": answered()}
    sent = {"chat, defaults": {}, "completions, defaults": {"temperature": 0.7}}
    strict = {
        **rows,
        **texts,
        **refused,
        **others,
        **left,
        "completions by `Other(heat=0)`": answered("a text"),
        **more,
    }
    return Asked(strict, ignoring, sent, {"completions, defaults": "warm"})


def test_the_table_tells_the_reason_of_each_failure_and_of_what_is_missing() -> None:
    expected = Expected(
        "a chat",
        "a text",
        "a response",
        EXPECTED.usage,
        dict.fromkeys(("temperature", "tools", "json_schema"), REFUSAL),
    )
    features, sent = tabled({"openai": asked()}, expected)
    assert features.figures["failures"] == []
    assert sent.rows == [["openai", "nothing", "`temperature: 0.7`", "`Other(heat=0)`"]]
    broken = asked(stream={"error": "ReadError: cut"}, models={"lacks": "it has no list"})
    features, _ = tabled({"openai": broken}, expected)
    marks = {str(row[0]): row[1] for row in features.rows}
    assert (marks["stream"], marks["usage in the stream"], marks["models"], marks["tools"]) == ("X", "X", "-", "E")
    assert "it has no list (openai)" in features.notes[2]
    assert "openai: ReadError: cut (stream, usage in the stream)" in features.notes[3]
    assert len(features.figures["failures"]) == 2
    with pytest.raises(KeyError):
        tabled({"openai": Asked({}, {}, {}, {})}, expected)  # a feature is asked for, or there is a reason why not


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_fields_that_a_client_sends_by_itself_are_recorded() -> None:
    assert _sent("curl", Path()) == {"chat, defaults": {}, "completions, defaults": {}}


def test_chat_streams_usage_and_log_probabilities_work_with_every_client() -> None:
    features, _ = tables("clients")
    marks = {str(row[0]): list(row[1:]) for row in features.rows}
    for row in ("chat", "stream", "usage", "usage in the stream"):
        assert set(marks[row]) == {"W"}, row
    assert all("W" in both for both in zip(marks["logprobs"], marks["completions, logprobs"], strict=True))
    assert features.figures["failures"] == []
