"""Every model alone on every task, through llama.cpp: `python -m benchmarks.lab.alone a.gguf b.gguf --items 100`.

In addition to the share of right answers, the command counts the confidently wrong answers. In such an answer, each
token has a probability of at least 0.5, so a rule with alpha = 0.5 would never have asked the assistant.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from benchmarks.lab.protocol import WORLD_SEED
from benchmarks.lab.tasks import TASKS
from benchmarks.lab.worlds import World
from cosd_api import Fusion, FusionResult, RuleVerifier
from cosd_api.demo.servers import serve
from cosd_api.forcing.samples import Example

MAX_TOKENS = 320
SURE = 0.5


async def answers(url: str, items: list[Example]) -> list[FusionResult]:
    """The answers of one model, obtained by fusing it with itself under a rule that never asks the assistant."""
    async with Fusion(draft=url, assistant=url, verifier=RuleVerifier(alpha=0)) as fusion:
        found = fusion.map([item.prompt for item in items], concurrency=4, max_tokens=MAX_TOKENS)
        return [result async for result in found]


def surely(result: FusionResult) -> bool:
    """True if the model was confident of every token that it wrote."""
    return all((token.draft_prob or 0) >= SURE for token in result.tokens)


async def measured(url: str, task: str, count: int) -> str:
    """The printed line for one model and one task, with the first wrong answer."""
    items = TASKS[task].items(World(WORLD_SEED), seed=0, count=count, split="development")
    results = await answers(url, items)
    wrong = list[tuple[Example, FusionResult]]()
    for item, result in zip(items, results, strict=True):
        if not await TASKS[task].GRADER(item, result.text):
            wrong.append((item, result))
    line = f"{task:7} {100 - 100 * len(wrong) / len(items):5.1f} % right"
    if not wrong:
        return line
    sure = sum(surely(result) for _, result in wrong)
    item, result = wrong[0]
    example = f"{item.prompt!r} {result.text.strip()!r} and not {item.answer.strip()!r}"
    return f"{line}, {sure} of {len(wrong)} wrong ones surely; {example}"


def main() -> None:
    """Print a line for each model and task, measured on development questions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--items", type=int, default=100)
    args = parser.parse_args()
    for model in args.models:
        with serve(model) as server:
            for task in TASKS:
                if task != "held":
                    print(f"{model.stem:9} {asyncio.run(measured(server.url, task, args.items))}", flush=True)


if __name__ == "__main__":
    main()
