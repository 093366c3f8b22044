"""The same answers with drafts that are started ahead of a verdict, over any two live servers."""

from __future__ import annotations

from collections.abc import Sequence

from cosd_api import Fusion, Tuning


async def hedged(draft: str, assistant: str, prompts: Sequence[str]) -> None:
    """Some of these drafts are taken over, and no text is another one.

    The models have one tokenizer. A draft that does not know a word has what the assistant says among its next choices
    now and then.
    """
    texts, hits = [], 0
    for hedge in (0, 1, 8):
        async with Fusion(draft=draft, assistant=assistant, unit="token", tuning=Tuning(hedge=hedge)) as fusion:
            results = [result async for result in fusion.map(prompts, max_tokens=48, concurrency=4)]
        texts.append([result.text for result in results])
        hits += sum(result.hedge_hits for result in results)
        assert all(result.hedge_hits <= (result.iterations or 1) - 1 for result in results)
    assert texts[0] == texts[1] == texts[2]
    assert hits > 0
