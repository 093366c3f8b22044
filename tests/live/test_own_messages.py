"""Messages of one model on real servers: whatever the method, no other server is sent them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from cosd_api import Fusion
from cosd_api.demo.servers import Pair
from cosd_providers import Provider, connect
from every_method import LINES, Line

pytestmark = pytest.mark.live

DOCUMENT = "Quetzal-Umbrella"
ASKED = [{"role": "user", "content": "In Peru a book costs 17 and a pen costs 25. Name the capital and the total."}]


PAIRS = [line for line in LINES if len(line.models) == 2 and line.name != "co-llm"]
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


@pytest.mark.parametrize("way", ["connect", "answer"])
@pytest.mark.parametrize("line", PAIRS, ids=str)
async def test_the_document_reaches_one_server_alone(line: Line, way: str, pair: Pair, recorded: Recorded) -> None:
    messages: Any = {"system": f"The password is {DOCUMENT}."} if way == "connect" else {}
    draft = connect(pair[line.models[0]], http_client=recorded.draft)
    assistant = connect(pair[line.models[1]], http_client=recorded.assistant, **messages)
    providers: list[Provider] = [draft, assistant]
    own = {} if messages else {"own": {"assistant": f"The password is {DOCUMENT}."}}
    fusion = line.fusion(lambda name: providers[line.models.index(name)])
    await answer(fusion, line, **own)
    assert any(DOCUMENT in body for body in recorded.sent["assistant"])
    assert not any(DOCUMENT in body for body in recorded.sent["draft"])
