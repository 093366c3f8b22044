"""Thresholds and trees learned for the pair from development questions.

    python -m benchmarks.real_pair.learned --seed 1

Both specialists score the reference answers (`collect`). From the places where exactly one of them is right, `tune`
chooses thresholds and `train_tree` trains a tree on the two probabilities, with each specialist in turn as the draft.
The results are kept in `results/learned-<seed>.json`, and used in the cells `learned` and `learned-reversed`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
from pydantic import TypeAdapter

from benchmarks.real_pair.kept import RESULTS
from benchmarks.real_pair.questions import questions
from cosd_api import CoSD, RuleVerifier, TreeVerifier
from cosd_api.apps.training.collect import collect
from cosd_api.apps.training.fit import train_tree
from cosd_api.apps.training.tuning import tune
from cosd_api.extend import Method

WORK = Path(__file__).parent / "work"
COUNTS = {"facts": 10, "numbers": 10, "both": 20}
"""The number of development questions by family."""
THRESHOLDS = (0.25, 0.5, 0.75, 0.9, 0.97, 1.0)
"""The values that are tried for alpha and for beta."""
LEARNED = ("cosd-tuned", "cosd-tree")
_VERIFIER: TypeAdapter[RuleVerifier | TreeVerifier] = TypeAdapter(RuleVerifier | TreeVerifier)


def path_of(seed: int) -> Path:
    """The file that contains the verifiers learned for the specialists trained with this seed."""
    return RESULTS / f"learned-{seed}.json"


def learned_ways(draft: str, seed: int) -> dict[str, Method]:
    """CoSD with the thresholds that were learned for a draft such as `products`, and CoSD with the learned tree.

    Raises:
        FileNotFoundError: no verifiers have been learned for this seed.
    """
    found = json.loads(path_of(seed).read_text(encoding="utf-8"))[draft]
    return {name: CoSD(verifier=_VERIFIER.validate_python(found[name])) for name in LEARNED}


async def learn(draft: str, assistant: str, path: Path) -> dict[str, Any]:
    """Learn verifiers from the development questions, with models given by URL; `path` stores the samples."""
    examples = questions("development", COUNTS)
    samples = await collect(examples, draft=draft, assistant=assistant, path=path, concurrency=3)
    tuned = tune(samples, alphas=THRESHOLDS, betas=THRESHOLDS)
    trained = train_tree(samples)
    print(tuned, trained, sep="\n\n")
    several: Mapping[str, RuleVerifier | TreeVerifier] = {"cosd-tuned": tuned.best, "cosd-tree": trained.tree}
    return {name: _VERIFIER.dump_python(one, mode="json") for name, one in several.items()}


def main() -> None:
    """Learn verifiers with each specialist as the draft, print both reports, and keep the verifiers."""
    from benchmarks.real_pair.cells import CELLS, served  # noqa: PLC0415 - the cells read what is learned here

    parser = argparse.ArgumentParser("python -m benchmarks.real_pair.learned", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with served(CELLS["complementary"], given.seed) as (products, numbers):
        found = {
            name: anyio.run(learn, *urls, WORK / f"samples-{name}-{given.seed}.jsonl")
            for name, urls in (("products", (products, numbers)), ("numbers", (numbers, products)))
        }
    path_of(given.seed).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
