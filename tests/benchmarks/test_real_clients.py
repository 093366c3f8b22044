"""The table of clients: the marks of outcomes, and the fields that a client sends by itself."""

from __future__ import annotations

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.page import tables
from benchmarks.real_clients import Asked, Expected, _read, _recorded, judged, judged_as_repeated, tabled

REFUSAL = 'temperature is refused: "this" fusion\'s answers are text'
EXPECTED = Expected("a chat", "a text", "a response", {True: [30, 3], False: [5, 4]}, {"temperature": REFUSAL})


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
    assert judged("temperature", told, EXPECTED, REFUSAL).mark == "E"
    assert judged("temperature", {"error": "InternalServerError: 500"}, EXPECTED, REFUSAL).mark == "X"
    assert judged("temperature", answered(), EXPECTED, REFUSAL).reason == "it is not refused"
    assert judged("chat, defaults", told, EXPECTED).mark == "X", "plain HTTP was not refused"


JSON, CALL = '{"river": "Rhine"}', '["length", {"river": "Rhine"}]'
SENT = {"messages": [{"role": "tool", "tool_call_id": "a"}]}


def replied(text: str | None, calls: int = 0, end: str = "stop") -> dict[str, Any]:
    function = {"name": "length", "arguments": '{"river": "Rh' if end == "length" else JSON}
    message = {"content": text, "tool_calls": [{"function": function}] * calls}
    return {"choices": [{"message": message, "finish_reason": end}]}


@pytest.mark.parametrize(
    ("row", "text", "reply", "mark"),
    [
        ("json_schema", '{"river":"Rhine"}', replied(JSON), "W"),
        ("json_schema", '{"river": "Danube"}', replied(JSON), "X"),
        ("json_schema", '{"river": "Nile"}', replied('{"river": "Nile"}'), "X"),
        ("json_schema", '{"river": "Rh', replied('{"river": "Rh', end="length"), "X"),
        ("json_schema", JSON, replied(JSON, end="length"), "X"),
        ("json_schema", "The Rhine", replied("The Rhine"), "X"),
        ("json_schema, helper", JSON, replied(None, 1), "W"),
        ("tools", CALL, replied(None, 1), "W"),
        ("tools", JSON, replied(None, 1), "X"),
        ("tools, stream", CALL, replied(None, 1, "length"), "X"),
        ("tool result", "It is long.", replied("It is long."), "W"),
        ("tool result", "It is", replied("It is long."), "X"),
        ("tools", CALL, {"error": {"message": "refused"}}, "X"),
        ("responses, tool result", CALL, {"output": [{"type": "function_call", "name": "length", "arguments": JSON}],
                                          "status": "completed"}, "W"),
    ],
)  # fmt: skip
def test_a_schema_a_call_or_a_result_works_if_plain_http_has_the_same_whole_and_valid_value(
    row: str, text: str, reply: dict[str, Any], mark: str
) -> None:
    one = Asked({row: answered(text)}, {}, {row: SENT}, {row: _read(reply)})
    assert judged_as_repeated(row, one).mark == mark
    unsent = Asked({row: answered(text)}, {}, {row: {}}, {row: _read(reply)})
    assert judged_as_repeated(row, unsent).mark == ("X" if "result" in row else mark)
    assert judged_as_repeated(row, Asked({row: {"lacks": "none"}}, {}, {}, {})).mark == "-"
    assert judged_as_repeated(row, Asked({row: {"error": "cut"}}, {}, {}, {})).mark == "X"


def asked(**more: Any) -> Asked:
    rows = {row: answered() for row in ("chat", "chat, defaults", "stream", "stop, seed, length")}
    texts = {"completions": answered("a text"), "completions, logprobs": answered("a text", logprobs=4)}
    texts |= dict.fromkeys(("responses", "responses, stream"), answered("a response"))
    others = {"logprobs": answered(logprobs=3), "models": answered("cosd"), "completions, defaults": {"error": "warm"}}
    others |= {"abort": {"outcome": "disconnected", "collected": False}, "temperature": {"error": REFUSAL}}
    ignoring = {**rows, "completions, defaults": answered("a text"), "temperature": answered()}
    repeated = ("json_schema", "json_schema, helper", "tools", "tools, stream", "tool result")
    values = dict.fromkeys((*repeated, "responses, json_schema", "responses, tool result"), answered(JSON))
    sent: dict[str, Any] = {
        "chat, defaults": {"model": "cosd"},
        "completions, defaults": {"temperature": 0.7},
        **dict.fromkeys(values, SENT),
    }
    again: dict[str, Any] = {
        **{key: {"text": JSON, "cut": False} for key in values},
        "completions, defaults": {"error": "warm"},
    }
    return Asked({**rows, **texts, **others, **values, **more}, ignoring, sent, again)


def test_the_table_tells_the_reason_of_each_failure_and_of_what_is_missing() -> None:
    program = Asked({"a title": answered("Rivers")}, {}, {"a title": {}}, {"a title": {"text": "Rivers", "cut": True}})
    features, sent, programs = tabled({"openai": asked()}, EXPECTED, {"open-webui": program})
    assert features.figures["failures"] == []
    assert sent.rows == [["openai", "nothing", "`temperature: 0.7`"]]
    assert [row[1:] for row in programs.rows] == [["a title", "W"]]
    broken = asked(stream={"error": "ReadError: cut"}, models={"lacks": "it has no list"}, tools=answered(CALL))
    features, *_ = tabled({"openai": broken}, EXPECTED, {"open-webui": Asked({"tags": {"error": "lost"}}, {}, {}, {})})
    marks = {str(row[0]): row[1] for row in features.rows}
    assert (marks["stream"], marks["usage in the stream"], marks["models"], marks["tools"]) == ("X", "X", "-", "X")
    assert marks["temperature"] == "E"
    assert "it has no list (openai)" in features.notes[2]
    assert "openai: ReadError: cut (stream, usage in the stream)" in features.notes[3]
    assert [one.split(":")[0] for one in features.figures["failures"]] == [*["openai"] * 3, "open-webui"]
    with pytest.raises(KeyError):
        tabled({"openai": Asked({}, {}, {}, {})}, EXPECTED, {})  # a feature is asked for, or there is a reason why not


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_what_a_client_sends_is_recorded_passed_on_and_repeated() -> None:
    class Gateway(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer = json.dumps({"error": {"message": f"{body['messages'][0]['role']} at {self.path}"}}).encode()
            self.send_response(400)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        outcomes, sent, repeated = _recorded("curl", Path(), url, ["chat, defaults", "tools, stream"])
        server.shutdown()
    words = "user at /v1/chat/completions"
    assert [one["error"] for one in outcomes.values() if "error" in one] == [f"RuntimeError: {words}"] * 2
    assert repeated == {row: {"error": words} for row in sent}
    assert sent["chat, defaults"].keys() == {"model", "messages", "max_tokens"}
    assert sent["tools, stream"]["tool_choice"] == "required" and sent["tools, stream"]["stream"] is True


def test_chat_streams_schemas_and_tools_work_with_every_client_and_program() -> None:
    features, _, programs = tables("clients")
    marks = {str(row[0]): list(row[1:]) for row in features.rows}
    for row in ("chat", "stream", "usage", "usage in the stream", "json_schema, helper", "tools", "tool result"):
        lacking = {"-"} if row == "json_schema, helper" else set()  # curl has no models of answers
        assert set(marks[row]) - lacking == {"W"}, row
    both = zip(features.columns[1:], marks["logprobs"], marks["completions, logprobs"], strict=True)
    assert [name.split()[0] for name, *several in both if "W" not in several] == ["agents"]  # they ask in responses
    assert {row[2] for row in programs.rows} == {"W"} and len(programs.rows) == 7
    assert features.figures["failures"] == []
