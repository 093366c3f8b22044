"""A batch on a cluster, one node of which somebody kills in the middle; prints what came of it as JSON.

    python killed.py ADDRESS LINES FOLDER

A third of the lines are answered when it prints `third`; the node may then be killed. Run by a Python that has Ray.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio
import ray

from batches import fusion, input_file
from cosd_api import Fusion
from cosd_api.batch.job import BatchJob
from cosd_api.batch.on_ray import RayAnswering
from cosd_api.batch.summary import BatchTally

ACTORS, AT_ONCE = 2, 8


def prompts(lines: int) -> list[str]:
    return [f"{at:04}:" for at in range(lines)]


class Made:
    """Makes the fusion where the actor is."""

    def __init__(self, lines: int) -> None:
        self.lines = lines

    def __call__(self) -> Fusion:
        return fusion(prompts(self.lines), token_delay=0.1)


async def batch(lines: int, folder: Path) -> dict[str, object]:
    source = input_file(folder / "in.jsonl", [{"custom_id": one, "prompt": one} for one in prompts(lines)])
    told: list[int] = []

    def look(tally: BatchTally) -> None:
        if tally.answered >= lines // 3 and not told:
            told.append(tally.answered)
            sys.stdout.write("third\n")
            sys.stdout.flush()

    job = BatchJob(source, folder / "out.jsonl", concurrency=AT_ONCE, progress=look)
    actors = RayAnswering([Made(lines)] * ACTORS, AT_ONCE)
    async with Made(lines)() as local:
        found = await job.run(local, actors)
    return {"summary": found.model_dump(mode="json"), "lost": actors.lost}


def main(address: str, lines: str, folder: str) -> None:
    ray.init(address=address, log_to_driver=False)
    try:
        sys.stdout.write(f"{json.dumps(anyio.run(batch, int(lines), Path(folder)))}\n")
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
