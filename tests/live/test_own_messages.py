"""Messages of one model on real servers: whatever the method, no other server is sent them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cosd_api import Fusion
from cosd_api.apps.demo.servers import Pair
from cosd_providers import Provider, connect
from support.drawn import partly
from support.every_method import LINES, Line
from support.visits import opened, visit
from toys.batches import input_file, run

pytestmark = pytest.mark.live

DOCUMENT = "Quetzal-Umbrella"
ASKED = [{"role": "user", "content": "In Peru a book costs 17 and a pen costs 25. Name the capital and the total."}]


PAIRS = [line for line in LINES if len(line.models) == 2 and line.name != "defer by states"]
"""All but one that needs a server with hidden states."""


class Recorded:
    """Clients of two servers, and the bodies that each was sent."""

    def __init__(self, draft: httpx.AsyncClient, assistant: httpx.AsyncClient) -> None:
        self.draft, self.assistant = draft, assistant
        self.sent: dict[str, list[str]] = {"draft": [], "assistant": []}
        for name, client in (("draft", draft), ("assistant", assistant)):

            async def note(request: httpx.Request, name: str = name) -> None:
                self.sent[name].append(request.content.decode())

            client.event_hooks["request"].append(note)


@pytest.fixture
async def recorded() -> AsyncIterator[Recorded]:
    async with httpx.AsyncClient(timeout=60) as draft, httpx.AsyncClient(timeout=60) as assistant:
        yield Recorded(draft, assistant)


async def answer(fusion: Fusion, line: Line, **own: Any) -> None:
    async with fusion:
        await fusion.generate(ASKED, max_tokens=12, **line.answer, **own)


@pytest.mark.parametrize("line", PAIRS, ids=str)
async def test_the_document_reaches_one_server_alone(line: Line, pair: Pair, recorded: Recorded) -> None:
    await check(line, "answer", pair, recorded)


@pytest.mark.parametrize("line", partly(PAIRS), ids=str)
async def test_the_document_of_a_connection_does_too(line: Line, pair: Pair, recorded: Recorded) -> None:
    await check(line, "connect", pair, recorded)


async def check(line: Line, way: str, pair: Pair, recorded: Recorded) -> None:
    """The document is in the requests to one server, and in none to the other."""
    messages: Any = {"system": f"The password is {DOCUMENT}."} if way == "connect" else {}
    draft = connect(pair[line.models[0]], http_client=recorded.draft)
    assistant = connect(pair[line.models[1]], http_client=recorded.assistant, **messages)
    providers: list[Provider] = [draft, assistant]
    own = {} if messages else {"own": {"assistant": f"The password is {DOCUMENT}."}}
    fusion = line.fusion(lambda name: providers[line.models.index(name)])
    await answer(fusion, line, **own)
    assert any(DOCUMENT in body for body in recorded.sent["assistant"])
    assert not any(DOCUMENT in body for body in recorded.sent["draft"])


def fused(pair: Pair, recorded: Recorded) -> Fusion:
    draft = connect(pair.sums, http_client=recorded.draft)
    return Fusion(draft=draft, assistant=connect(pair.facts, http_client=recorded.assistant))


@pytest.mark.parametrize("reader", ["draft", "assistant"])
async def test_a_document_of_a_gateways_client_reaches_one_server_alone(
    reader: str, pair: Pair, recorded: Recorded
) -> None:
    own = {
        reader: [{"role": "user", "content": f"The password is {DOCUMENT}."}, {"role": "assistant", "content": "Ok"}]
    }
    async with opened(fused(pair, recorded)) as app:
        body = {"model": "fused", "messages": ASKED, "own": own, "max_tokens": 12}
        for stream in (False, True):
            reply = await visit(app, "/v1/chat/completions", {**body, "stream": stream})
            assert reply.status == 200
    assert {name for name, bodies in recorded.sent.items() if DOCUMENT in str(bodies)} == {reader}


@pytest.mark.parametrize("reader", ["draft", "assistant"])
async def test_a_document_of_a_batchs_line_reaches_one_server_alone(
    reader: str, pair: Pair, recorded: Recorded, tmp_path: Path
) -> None:
    own = {reader: f"The password is {DOCUMENT}."}
    body = {"model": "m", "messages": ASKED, "own": own, "max_tokens": 12}
    framed = {"custom_id": "framed", "method": "POST", "url": "/v1/chat/completions", "body": body}
    rows = [{"messages": ASKED, "own": own, "max_tokens": 12}, framed]
    async with fused(pair, recorded) as fusion:
        found = await run(input_file(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", fusion)
    assert found.answered == 2
    assert {name for name, bodies in recorded.sent.items() if DOCUMENT in str(bodies)} == {reader}
