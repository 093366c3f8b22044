"""The library's logs: two loggers, silent until somebody listens, without a word of prompts, answers or keys."""

from __future__ import annotations

import logging

import anyio
import httpx
import pytest

from cosd_api import connect, fuse
from cosd_providers.testing import TextModel
from fakes.llama_cpp import FakeLlamaCpp

KEY, PROMPT = "sk-very-secret", "Privately:"


@pytest.mark.parametrize("name", ["cosd_api", "cosd_providers"])
def test_nothing_is_printed_until_somebody_listens(name: str) -> None:
    assert any(isinstance(one, logging.NullHandler) for one in logging.getLogger(name).handlers)
    assert logging.getLogger(name).level == logging.NOTSET


async def test_no_prompt_answer_or_key_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sleep(_: float) -> None: ...

    monkeypatch.setattr(anyio, "sleep", sleep)
    server, failed = FakeLlamaCpp(TextModel({PROMPT: [" The", (" Rome", 0.3), "."]})), list[str]()

    def handle(request: httpx.Request) -> httpx.Response:
        if b'"stream":true' in request.content and request.url.host == "gpu1" and not failed:
            failed.append(PROMPT)
            return httpx.Response(503, json={"error": {"message": f"no room for {PROMPT!r}"}})
        return server.handle(request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        models = [connect(f"http://gpu{at}:8080", engine="llama.cpp", api_key=KEY, http_client=client) for at in (1, 2)]
        with caplog.at_level(logging.DEBUG):
            assert (await fuse(PROMPT, draft=models[0], assistant=models[1])).text == " The Rome."
    ours = [record for record in caplog.records if record.name.startswith("cosd")]
    assert {record.name for record in ours} == {"cosd_providers"}
    assert [record.getMessage() for record in ours if record.levelno > logging.DEBUG] == [
        "http://gpu1:8080: a stream is resumed after ServerError"
    ]
    for word in (KEY, "Privately", "Rome"):
        assert word not in "".join(logging.Formatter().format(record) for record in ours)
