"""TGI's adapter does what every adapter has to do, against the real model server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import httpx
import pytest

from cosd_providers import probe
from cosd_providers.engines.tgi import Tgi
from fakes.tgi import check_answer, check_request
from naive.plain_http import PlainTgi
from support.conformance import Conformance, Subject


def error(status: int, message: str) -> object:
    return {"error": message, "error_type": {422: "validation", 429: "overloaded"}.get(status, "generation")}


class TestTgi(Conformance):
    @pytest.fixture
    def given(self, plain: Mapping[str, PlainTgi]) -> Callable[[str], Subject]:
        return lambda name: Subject(partial(Tgi, plain[name].url), plain[name], error=error)


async def test_what_the_probe_reports(plain: Mapping[str, PlainTgi]) -> None:
    report = await probe(plain["sums"].url)
    assert (report.engine, report.can_draft, report.can_assist) == ("tgi", True, True)


DETAILED = {"details": True, "decoder_input_details": True, "top_n_tokens": 2, "max_new_tokens": 3}
ASKED: list[tuple[str, Any]] = [
    ("/info", None),
    ("/tokenize", {"inputs": "é"}),
    ("/chat_tokenize", {"messages": [{"role": "user", "content": "Hello"}]}),
    ("/chat_tokenize", {"messages": [{"role": "system", "content": "refused"}]}),
    ("/generate", {"inputs": "Q:", "parameters": DETAILED}),
    ("/generate", {"inputs": "Q:", "parameters": {**DETAILED, "best_of": 2, "do_sample": True}}),
    ("/generate", {"inputs": "Q:", "parameters": {"max_new_tokens": 600}}),
    ("/generate_stream", {"inputs": "Q:", "parameters": {"details": True, "max_new_tokens": 3}}),
    ("/generate_stream", {"inputs": "Q:", "parameters": DETAILED}),
]


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_the_front_keeps_to_the_document(plain: Mapping[str, PlainTgi], path: str, body: Any) -> None:
    method = "POST" if body else "GET"
    check_request(method, path, body)
    response = httpx.request(method, plain["facts"].url + path, json=body)
    kind = response.headers["content-type"]
    events = response.text.split("\n\n")[:-1] if kind == "text/event-stream" else [f"data:{response.text}"]
    assert events
    for event in events:
        check_answer(method, path, response.status_code, kind, json.loads(event.removeprefix("data:")))
