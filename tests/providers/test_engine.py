"""The base of all engines: discovery, and what is found out of several kinds of servers in the same way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from cosd_providers import ModelChoiceError, ResponseError, UnsupportedError
from cosd_providers.engine import ListedModel, Models, answer_cue, ask_only, choose
from cosd_providers.http.transport import Transport
from fakes.breaking import waiting

URL = "http://gpu:9"
LISTED = {"data": [{"id": "a", "max_model_len": 9, "owned_by": "somebody"}]}


async def served(response: Callable[[], httpx.Response]) -> Models:
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: response()))
    return await ask_only(Transport(URL, http_client=client), Models, "/v1/models", looks="an abacus", url="`abacus`")


async def broken() -> AsyncIterator[bytes]:
    yield b'{"data": ['
    raise httpx.ReadError("reset")


async def test_its_own_answer() -> None:
    assert await served(lambda: httpx.Response(200, json=LISTED)) == Models(data=[ListedModel(id="a", max_model_len=9)])


@pytest.mark.parametrize(
    "response",
    [httpx.Response(404, json={}), httpx.Response(200, text="<html>"), httpx.Response(200, json={"data": [{}]})],
    ids=["404", "no JSON", "another shape"],
)
async def test_another_servers_answer(response: httpx.Response) -> None:
    words = (
        r"this does not look like an abacus\. "
        r"Give the URL of `abacus`, without /v1; if a proxy passes only /v1, give engine='openai', and for "
        r"another kind of server its own engine or none\."
    )
    with pytest.raises(UnsupportedError, match=words) as caught:
        await served(lambda: response)
    assert caught.value.endpoint == URL


async def test_a_connection_that_broke_says_nothing_about_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting(monkeypatch)
    with pytest.raises(ResponseError, match="the connection broke in the middle of the answer") as caught:
        await served(lambda: httpx.Response(200, content=broken()))
    assert caught.value.retryable


def models(*listed: dict[str, Any]) -> list[ListedModel]:
    return [ListedModel(**one) for one in listed]


LORA = {"id": "poet", "root": "/poet", "parent": "a"}


@pytest.mark.parametrize(
    ("listed", "wanted", "chosen"),
    [
        (models({"id": "a"}), None, "a"),
        (models(LORA, {"id": "a"}), None, "a"),
        (models({"id": "a", "root": "/m"}, {"id": "b", "root": "/m"}), None, "a"),
        (models({"id": "a", "root": "/m"}, {"id": "b", "root": "/m"}), "b", "b"),
        (models({"id": "a"}, LORA), "poet", "poet"),
        (models({"id": "a", "aliases": None}, {"id": "b", "aliases": ["c"]}), "c", "b"),
        (models({"id": "a", "aliases": ["b"]}, {"id": "b", "aliases": ["a"]}), "b", "b"),
    ],
    ids=["the only one", "no adapter", "the first name", "another name", "the adapter", "an alias", "no alias"],
)
def test_the_model_to_use(listed: list[ListedModel], wanted: str | None, chosen: str) -> None:
    assert choose(listed, wanted, URL).id == chosen


@pytest.mark.parametrize(
    ("listed", "wanted", "words"),
    [
        (models({"id": "a"}, LORA), "b", r"no model 'b'; the server has 'a', 'poet'\. Give one as `model`\."),
        (models({"id": "a"}, {"id": "b"}), None, "several models, and none was named; the server has 'a', 'b'"),
        (models(LORA), None, "several models, and none was named; the server has 'poet'"),
        ([], "a", "no model 'a'; the server has none"),
    ],
)
def test_no_model_to_use(listed: list[ListedModel], wanted: str | None, words: str) -> None:
    with pytest.raises(ModelChoiceError, match=words) as caught:
        choose(listed, wanted, URL)
    assert caught.value.endpoint == URL


@pytest.mark.parametrize(
    ("template", "cue"),
    [("<user>{}</user><bot>", "</user><bot>"), ("{}: {}!", "!"), ("{}", None), ("hello", None), (None, None)],
)
async def test_what_stands_before_an_answer(template: str | None, cue: str | None) -> None:
    async def written(content: str) -> str | None:
        return template and template.replace("{}", content)

    assert await answer_cue(written) == cue
