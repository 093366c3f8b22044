"""Batches over scripted models: a draft that is never sure, and an assistant that knows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cosd_api import Fusion
from cosd_api.apps.batch.job import BatchJob
from cosd_api.apps.batch.summary import BatchSummary
from cosd_providers.testing import ScriptedProvider

PROMPTS = [f"{one}:" for one in ("a", "b", "c", "d", "e", "f")]


class Nowhere(list[Any]):
    """A list that keeps nothing: calls of a provider that is asked very often."""

    def append(self, value: Any) -> None:
        """Drop it."""


def chat(prompt: str) -> str:
    """The scripted models' rendering of one message."""
    return f"user: {prompt}\nassistant: "


def pair(prompts: Sequence[str] = PROMPTS, **options: Any) -> tuple[ScriptedProvider, ScriptedProvider]:
    """The answer to "a:", and to a message "a:", is " no." from the draft, " yes." from both."""
    draft: dict[str, list[Any]] = {}
    assistant: dict[str, list[Any]] = {}
    for prompt in prompts:
        for text in (prompt, chat(prompt)):
            draft |= {text: [(" no", 0.2), "."], f"{text} yes": ["."]}
            assistant[text] = [(" yes", 0.9), "."]
    return (
        ScriptedProvider.from_texts(draft, name="small", **options),
        ScriptedProvider.from_texts(assistant, name="large"),
    )


def fusion(prompts: Sequence[str] = PROMPTS, **options: Any) -> Fusion:
    draft, assistant = pair(prompts, **options)
    return Fusion(draft=draft, assistant=assistant, unit="token")


def batch_form(custom_id: str, prompt: str, *, chat: bool = True, **more: Any) -> dict[str, Any]:
    """A line in OpenAI's batch form."""
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    url = "/v1/chat/completions" if chat else "/v1/completions"
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "any", **asked, **more}}


def input_file(path: Path, rows: Iterable[object] | None = None) -> Path:
    """An input; by default all of `PROMPTS` with their letters as ids."""
    wanted = [{"custom_id": one[0], "prompt": one} for one in PROMPTS] if rows is None else rows
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in wanted))
    return path


async def run(source: Path, target: Path, fused: Fusion | None = None, **options: Any) -> BatchSummary:
    """One run over a fusion of its own, or an open one."""
    job = BatchJob(source, target, **options)
    if fused is not None:
        return await job.run(fused)
    async with fusion() as opened:
        return await job.run(opened)


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The lines of an output by their ids, each of which is there once."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    found = {row["custom_id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def texts(path: Path) -> dict[str, str | None]:
    """The texts of a plain output."""
    return {custom_id: row["text"] for custom_id, row in read(path).items()}
