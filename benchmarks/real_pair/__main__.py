"""The command `python -m benchmarks.real_pair`: ask a real pair all questions in every way, and keep the answers.

The command can be killed at any moment, and resumes when it is run again. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import anyio

from benchmarks.real_pair.cells import CELLS, served
from benchmarks.real_pair.kept import ALL, keep, keep_journal, kept, restore_journal
from benchmarks.real_pair.page import written
from benchmarks.real_pair.questions import GRADER, families_of, family_of
from cosd_api import compare
from cosd_api.apps.comparison.standings import Comparison

WORK = Path(__file__).parent / "work"
MAX_TOKENS = 64
CONCURRENCY = 3
_SAY_SECONDS = 60.0


class Progress:
    """A reporter that prints the number of answers once a minute."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._said = -_SAY_SECONDS

    def __call__(self, done: int, total: int) -> None:
        """Print the number of answers, if a minute has passed."""
        now = time.monotonic()
        if now - self._said >= _SAY_SECONDS:
            self._said = now
            print(f"{self._name}: {done} of {total}", file=sys.stderr, flush=True)


async def ask(name: str, seed: int, share: float, *, baselines: bool = True) -> dict[str, Comparison]:
    """The comparisons of one cell, for all questions together and for each family; one journal lets them resume."""
    cell = CELLS[name]
    asked = cell.questions(share)
    several = {
        ALL: asked,
        **{family: [one for one in asked if family_of(one) == family] for family in families_of(asked)},
    }
    journal = WORK / f"{name}-{seed}.jsonl"
    restore_journal(journal, kept(name, seed))
    WORK.mkdir(exist_ok=True)
    found: dict[str, Comparison] = {}
    with served(cell, seed) as (draft, assistant):
        for family, some in several.items():
            found[family] = await compare(
                some,
                draft=draft,
                assistant=assistant,
                methods=cell.methods(seed),
                both_ways=cell.both_ways,
                unit=cell.unit,
                baselines=baselines and cell.baselines and family == ALL,
                grader=GRADER,
                path=journal,
                max_tokens=MAX_TOKENS,
                concurrency=CONCURRENCY,
                progress=Progress(f"{name}, seed {seed}, {family}"),
            )
    return found


def main() -> None:
    """Ask the named cells, or all of them; print each comparison and keep it."""
    parser = argparse.ArgumentParser("python -m benchmarks.real_pair", description=main.__doc__)
    parser.add_argument("cells", nargs="*", choices=[*CELLS, []], help="cells to ask (default: all)")
    parser.add_argument(
        "--seed", type=int, action="append", help="seed of the trainings (default: 1); repeat for several"
    )
    parser.add_argument("--share", type=float, default=1.0, help="share of the questions to ask, in (0, 1]")
    parser.add_argument("--no-baselines", action="store_true", help="leave out the random gate and self-consistency")
    parser.add_argument("--page", action="store_true", help="write the tables in the documents from the kept answers")
    given = parser.parse_args()
    if given.page:
        for path, text in written().items():
            path.write_text(text, encoding="utf-8")
            print(path)
        return
    for name in given.cells or CELLS:
        for seed in given.seed or [1]:
            run = partial(ask, name, seed, given.share, baselines=not given.no_baselines)
            found = anyio.run(run)
            print(found[ALL])
            keep(found, kept(name, seed))
            keep_journal(WORK / f"{name}-{seed}.jsonl", kept(name, seed))


if __name__ == "__main__":
    main()
