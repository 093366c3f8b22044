"""Thresholds and trees that are learned for the pair, from development questions.

    python -m benchmarks.real_pair.learned --seed 1

Both specialists are held to the reference answers (`collect`), and the places where one of them is right decide: `tune`
chooses thresholds, and `train_tree` trains a tree of the two probabilities, each for either specialist as the draft.
`results/learned-<seed>.json` keeps them, and the cells `learned` and `learned-reversed` answer with them.
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
from cosd_api.demo.real import ADAPTERS, fetched
from cosd_api.extend import Method
from cosd_api.training.collect import collect
from cosd_api.training.fit import train_tree
from cosd_api.training.tuning import tune

WORK = Path(__file__).parent / "work"
COUNTS = {"facts": 10, "numbers": 10, "both": 20}
"""Development questions of each family."""
THRESHOLDS = (0.25, 0.5, 0.75, 0.9, 0.97, 1.0)
"""Values of alpha that are tried, and of beta."""
LEARNED = ("cosd-tuned", "cosd-tree")
_VERIFIER: TypeAdapter[RuleVerifier | TreeVerifier] = TypeAdapter(RuleVerifier | TreeVerifier)


def path_of(seed: int) -> Path:
    """The file with what was learned from the specialists of a training."""
    return RESULTS / f"learned-{seed}.json"


def learned_ways(draft: str, seed: int) -> dict[str, Method]:
    """CoSD with the thresholds and with the tree that were learned for a draft, such as `products`.

    Raises:
        FileNotFoundError: nothing was learned yet.
    """
    found = json.loads(path_of(seed).read_text(encoding="utf-8"))[draft]
    return {name: CoSD(verifier=_VERIFIER.validate_python(found[name])) for name in LEARNED}


async def learn(draft: str, assistant: str, path: Path) -> dict[str, Any]:
    """Verifiers that the development questions teach, with the draft's URL first; a file keeps the samples."""
    examples = questions("development", COUNTS)
    samples = await collect(examples, draft=draft, assistant=assistant, path=path, concurrency=3)
    tuned = tune(samples, alphas=THRESHOLDS, betas=THRESHOLDS)
    trained = train_tree(samples)
    print(tuned, trained, sep="\n\n")
    several: Mapping[str, RuleVerifier | TreeVerifier] = {"cosd-tuned": tuned.best, "cosd-tree": trained.tree}
    return {name: _VERIFIER.dump_python(one, mode="json") for name, one in several.items()}


def main() -> None:
    """Learn for either specialist as the draft, print both reports, and keep what was learned."""
    from benchmarks.real_pair.cells import CELLS, served  # noqa: PLC0415 - the cells read what is learned here

    parser = argparse.ArgumentParser("python -m benchmarks.real_pair.learned", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--adapters", type=Path, default=ADAPTERS)
    given = parser.parse_args()
    with served(fetched(), given.adapters, CELLS["complementary"], given.seed) as (products, numbers):
        found = {
            name: anyio.run(learn, *urls, WORK / f"samples-{name}-{given.seed}.jsonl")
            for name, urls in (("products", (products, numbers)), ("numbers", (numbers, products)))
        }
    path_of(given.seed).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
