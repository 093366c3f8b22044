"""More answers at once than the servers have slots: fused tokens a second, and the draft's server alone beside it."""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path

import anyio
import httpx

from benchmarks.attacked import KEY, SLOTS, ModelServer, free_port, gateway, smollm2
from benchmarks.report import Cell, Options, Table

__all__ = ["more_answers_than_slots"]

_TOKENS = 32
_CACHE = 1024  # MiB: if the prompts of all answers do not fit, every question reads its prompt again
_LONG, _READ = 24, "The sun rose over the hills. " * 56


async def more_answers_than_slots(options: Options) -> Table:
    """Measure SmolLM2, fused with itself; the assistant's server is restarted before the last measurement."""
    model = await smollm2()
    draft, assistant = (ModelServer(name, model, free_port(), cache=_CACHE) for name in ("draft", "assistant"))
    counts = (SLOTS, 16) if options.quick else (SLOTS, 32, 64)
    rows: list[list[Cell]] = []
    try:
        await draft.start()
        await assistant.start()
        fusion = {"draft": {"url": draft.url}, "assistants": [{"url": assistant.url}]}
        with tempfile.TemporaryDirectory() as folder:
            async with gateway(Path(folder), {"fusions": {"cosd": fusion}}, draft, assistant) as on:
                await _rate(on.url, 1)
                for count in counts:
                    options.say(f"gateway: {count} answers on {SLOTS} slots")
                    if count == counts[-1]:
                        assistant.signal(signal.SIGKILL)
                        await assistant.start()
                    rows.append([count, *await _rate(on.url, count), (await _rate(draft.url, count))[0]])
                options.say(f"gateway: {_LONG} answers to long prompts")
                rates = [await _rate(url, _LONG, f"{url} {_READ}") for url in (on.url, draft.url)]  # each text is new
                rows.append([f"{_LONG}, to prompts of 400 tokens", *rates[0], rates[1][0]])
    finally:
        draft.kill()
        assistant.kill()
    note = f"SmolLM2 is fused with itself, {SLOTS} slots on each server; answers have {_TOKENS} tokens."
    columns = ["answers at once", "fused tokens a second", "failed", "the draft's server alone"]
    return Table("More answers than slots", columns, rows, [note])


async def _rate(url: str, count: int, before: str = "") -> tuple[float, int]:
    """Tokens per second of `count` answers at once, and the number of answers that failed."""
    tokens = failed = 0

    async def one(number: int) -> None:
        nonlocal tokens, failed
        body = {
            "model": "cosd",
            "prompt": f"{number}. {before}Once upon a time",
            "max_tokens": _TOKENS,
            "temperature": 0,
        }
        found = await client.post("/v1/completions", json=body)
        failed += not found.is_success
        tokens += found.json()["usage"]["completion_tokens"] if found.is_success else 0

    headers = {"authorization": f"Bearer {KEY}"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=600, limits=limits, trust_env=False) as client:
        began = time.monotonic()
        async with anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(one, number)
        return tokens / (time.monotonic() - began), failed
