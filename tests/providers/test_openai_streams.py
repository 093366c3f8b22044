"""Streams that hide something, and the end that shows nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from cosd_providers import Usage
from cosd_providers.engines.openai import OpenAICompatible
from cosd_providers.testing import TextModel
from fakes.adapters import TOY
from fakes.openai import FakeOpenAI
from fakes.openai_servers import URL
from support.asked import draft

WRITTEN = [" a", " b", " b", " c", " 😀", " d"]
SCRIPT: list[Any] = [(text, 0.9 - at / 50) for at, text in enumerate(WRITTEN)]


def over(client: httpx.AsyncClient, **dialect: Any) -> OpenAICompatible:
    return OpenAICompatible(URL, http_client=client, dialect=replace(TOY, **dialect))


# The end of sequence.


def ending(server: FakeOpenAI, data: list[int] | None, *, at_once: bool = False) -> httpx.AsyncClient:
    """A server whose end of sequence has an entry with an empty string and these bytes, before or with its reason."""

    def handle(request: httpx.Request) -> httpx.Response:
        response = server.handle(request)
        if not response.headers["content-type"].startswith("text/event-stream"):
            return response
        events = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
        for event in events:
            for choice in event["choices"]:
                for entry in (choice["logprobs"] or {}).get("content", ()):
                    if entry["token"] == "</s>":
                        entry |= {"token": "", "bytes": data}
        if at_once:
            [own] = [event for event in events if any(one["finish_reason"] for one in event["choices"])]
            events.remove(own)
            [last] = [one for one in events if any(c["logprobs"] for c in one["choices"])][-1:]
            last["choices"][0]["finish_reason"] = "stop"
        lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        return httpx.Response(200, text=lines + "data: [DONE]\n\n", headers=response.headers)

    return httpx.AsyncClient(transport=httpx.MockTransport(handle))


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(("data", "requests"), [([], 1), (None, 2)])
async def test_an_end_without_bytes_is_no_hidden_character(
    data: list[int] | None, requests: int, at_once: bool
) -> None:
    """A token whose bytes are not told, with an empty string, may be a part of a character: the answer is repeated."""
    server, usage = FakeOpenAI(TextModel({"Q": SCRIPT}), shape="chat"), Usage()
    provider = over(ending(server, data, at_once=at_once), shows_parts=False)
    *tokens, end = await draft(provider, usage=usage)
    assert [token.data for token in tokens] == [*(text.encode() for text in WRITTEN), b""]
    assert (tokens[-1].end, end.reason) == (True, "end")
    assert (usage.requests, usage.prompt_tokens) == (requests, requests)
    assert [body["max_tokens"] for body in server.bodies] == [20] * requests


async def test_a_token_without_bytes_before_others_hides_a_character() -> None:
    """As where a server writes the bytes of a string that is empty: only what follows shows that it was no end."""
    written: list[Any] = [" a", b"\xc3", b"\xa9", " b"]

    class Empty(FakeOpenAI):
        def _named(self, *args: Any) -> dict[str, Any]:
            named = super()._named(*args)
            return named if named["token"] else {**named, "bytes": []}

    server = Empty(TextModel({"Q": [(one, 0.9) for one in written]}), shape="chat", opened="gone")
    tokens = await draft(over(server.client(), shows_parts=False))
    assert [token.data for token in tokens[:-1]] == [b" a", "é".encode(), b" b", b""]
    assert [bool(body.get("stream")) for body in server.bodies] == [True, False]
