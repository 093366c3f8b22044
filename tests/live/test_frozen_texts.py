"""Every way to fuse on the bundled models: the texts that are kept in `frozen_texts.json`.

`python -m live.test_frozen_texts`, run in `tests`, writes them anew. Another processor may decide the closest calls
otherwise.
"""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from cosd_api.apps.demo.servers import Pair, bundled_pair
from support.every_method import LINES, MAX_TOKENS, MAY_DIFFER, PROMPTS

pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.timeout(300)]

KEPT = Path(__file__).with_name("frozen_texts.json")
WAYS = {line.name: line for line in LINES if not line.drawn and line.name != "defer by states"}
"""Drawn tokens follow from every digit of a probability, and hidden states need servers of another kind."""


async def texts(name: str, pair: Pair) -> list[list[str | int | None]]:
    """The text, the end and the number of replacements of each prompt."""
    async with WAYS[name].fusion(lambda model: pair[model]) as fusion:
        results = [result async for result in fusion.map(PROMPTS, concurrency=2, max_tokens=MAX_TOKENS)]
    return [[one.text, one.finish_reason, one.replacements] for one in results]


@pytest.mark.parametrize("name", WAYS)
async def test_the_texts_are_those_kept(name: str, pair: Pair) -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))[name]
    found = await texts(name, pair)
    assert len(found) == len(kept) == len(PROMPTS)
    differing = [(one, other) for one, other in zip(found, kept, strict=True) if one != other]
    assert len(differing) <= MAY_DIFFER, differing


async def _write() -> None:
    with bundled_pair() as pair:
        kept = {name: await texts(name, pair) for name in WAYS}
    KEPT.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    anyio.run(_write)
