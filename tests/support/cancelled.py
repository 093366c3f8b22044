"""Tokens that a real server generates after a stream has been cancelled, counted by the server itself.

llama.cpp reports the tokens in a slot (`/slots`), vLLM all tokens that it has generated (`/metrics`). A stream is ended
as a fusion ends it: its task is cancelled.
"""

from __future__ import annotations

from typing import Any

import anyio
import httpx

from cosd_providers import Provider, connect
from cosd_providers.contract import Context, Token
from cosd_providers.usage import Usage

PROMPT = "aaaaaaaaa"  # after which the bundled models write until the token limit
LONGEST = 400  # tokens requested from each stream
READ = 16  # tokens read before a stream is cancelled


class Slots:
    """The token count of a llama.cpp server, read from its slots."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def begin(self) -> None: ...

    async def generated(self, prompt: int) -> int:
        while any(slot["is_processing"] for slot in await self._slots()):  # noqa: ASYNC110
            await anyio.sleep(0.02)
        latest = max(await self._slots(), key=lambda slot: int(slot.get("id_task", -1)))
        return int(latest["n_prompt_tokens"]) - prompt + 1  # the slot contains all tokens except the last

    async def _slots(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._client.get("/slots")).json()
        return found


class Metrics:
    """The token count of a vLLM server, read from its metrics."""

    def __init__(self, client: httpx.AsyncClient, model: str) -> None:
        self._client, self._model = client, model
        self._before = self._asked = 0

    async def begin(self) -> None:
        self._before = await self._settled()

    async def generated(self, prompt: int) -> int:
        del prompt
        return await self._settled() - self._before

    async def _settled(self) -> int:
        """Wait until nothing else is generated; return the count without the tokens that this check requests.

        The metric is updated only when the engine takes a step, so each check requests a token.
        """
        counts: list[int] = []
        while len(counts) < 2 or counts[-2] != counts[-1]:
            await anyio.sleep(0.05)
            body = {"model": self._model, "prompt": "a", "max_tokens": 1}
            (await self._client.post("/v1/completions", json=body)).raise_for_status()
            self._asked += 1
            lines = (await self._client.get("/metrics")).text.splitlines()
            [value] = [line.rpartition(" ")[2] for line in lines if line.startswith("vllm:generation_tokens_total{")]
            counts.append(int(float(value)) - self._asked)
        return counts[-1]


async def leave(provider: Provider, count: Slots | Metrics, longest: int = LONGEST) -> tuple[int, int]:
    """Cancel a stream after `READ` tokens; the tokens that it had read, and those generated beyond them."""
    usage, read = Usage(), 0
    await count.begin()
    with anyio.CancelScope() as scope:
        async for item in provider.generate(Context(PROMPT, b""), max_tokens=longest, usage=usage):
            read += isinstance(item, Token)
            if read == READ:
                scope.cancel()
    read = min(read, READ)  # tokens that arrived before the cancellation are still delivered
    return read, await count.generated(usage.prompt_tokens) - read


async def check_cancelling(url: str, *, most: int = READ, seconds: float = 60) -> None:
    """Check that the count is right and that at least one cancelled stream wastes at most `most` tokens."""
    async with connect(url) as provider, httpx.AsyncClient(base_url=url, timeout=60) as client:
        info = await provider.describe()
        count = Slots(client) if info.engine == "llama.cpp" else Metrics(client, info.model)
        for longest in (1, 7, READ - 1):
            assert await leave(provider, count, longest) == (longest, 0)
        with anyio.fail_after(seconds):
            while not 0 <= (await leave(provider, count))[1] <= most:
                pass
