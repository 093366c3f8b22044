"""Runs of the laboratory whose outcomes are known, by the scripted models of `compared`."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.lab.runs import Run
from compared import examples, pair
from cosd_api import compare

TEST = ["both", "draft", "fixed", "fixed", "spoilt", "sure", "surer", "neither"]


async def run(cell: str = "a-b", task: str = "bio", seed: int = 1, test: Sequence[str] = TEST) -> Run:
    """One comparison, in which the draft is the better model on the development questions."""
    asked = examples(test, ["draft"] * max(1, len(test) // 4))
    draft, assistant = pair(asked)
    found = await compare(
        [*asked.values()], draft=draft, assistant=assistant, methods=["cosd", "cosd-1-1"], both_ways=False
    )
    return Run(cell, task, seed, found)
