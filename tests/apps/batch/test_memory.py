"""Memory of a batch: it does not grow with the number of lines."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from cosd_api import Fusion
from cosd_api.apps.batch.lines import BatchLine
from cosd_api.apps.batch.reply import Reply
from cosd_api.apps.batch.summary import LineUsage
from toys.batches import fusion, run

LINES = 5_000


async def answer(fused: Fusion, line: BatchLine, allowed: int | None) -> Reply:
    """An answer that costs nothing to make: what answers need is the fusion's."""
    usage = {"draft": LineUsage(prompt_tokens=3, completion_tokens=2, requests=1)}
    return Reply(asked=line, content={"text": line.body["prompt"] * 3, "finish_reason": "stop"}, usage=usage)


@pytest.mark.extended
async def test_memory_is_flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosd_api.apps.batch.job.answer", answer)
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    with source.open("w") as file:
        for at in range(LINES):
            file.write(f'{{"custom_id": "line {at:06}", "prompt": "{at:06} {"text " * 20}"}}\n')
    peaks: dict[int, int] = {}

    def look(done: int, lines: int) -> None:
        if done % 500 == 499 and done not in peaks:
            peaks[done] = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()

    options: dict[str, Any] = {"progress": look, "max_billed_tokens": 10**9}
    async with fusion() as fused:
        gc.collect()
        tracemalloc.start()
        try:
            found = await run(source, target, fused, **options)
            again = await run(source, target, fused, **options)  # it only reads both files
            last = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (found.answered, again.known) == (LINES, LINES)
    first, *rest = peaks.values()
    assert len(rest) >= 8
    assert max(*rest, last) < first + 100_000  # an id for each line would take more than 450,000 bytes
