"""Rows answered on a cluster, one node of which somebody kills in the middle; prints the answers as JSON.

    python killed.py ADDRESS ROWS

A third of the rows are answered when it prints `third`; the node may then be killed. Run by a Python that has Ray.
"""

from __future__ import annotations

import json
import sys

import ray

from cosd_api import Fusion
from cosd_api.apps.batch import FusionActor
from toys.batches import fusion

ACTORS, AT_ONCE = 2, 4


def prompts(rows: int) -> list[str]:
    return [f"{at:04}:" for at in range(rows)]


class Made:
    """Makes the fusion where the actor is."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __call__(self) -> Fusion:
        return fusion(prompts(self.rows), token_delay=0.1)


def answers(rows: int) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    given = ray.data.from_items([{"prompt": one} for one in prompts(rows)], override_num_blocks=rows // AT_ONCE)
    actors = {"fn_constructor_args": [Made(rows)], "concurrency": ACTORS, "batch_size": AT_ONCE}
    for row in given.map_batches(FusionActor, **actors).iter_rows():
        found.append((row["prompt"], row["text"], row["error"]))
        if len(found) == rows // 3:
            sys.stdout.write("third\n")
            sys.stdout.flush()
    return found


def main(address: str, rows: str) -> None:
    ray.init(address=address, log_to_driver=False)
    try:
        sys.stdout.write(f"{json.dumps({'answers': answers(int(rows))})}\n")
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
