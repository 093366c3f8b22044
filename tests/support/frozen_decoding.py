"""Kept answers and costs: texts, questions and drafted tokens of 150 drawn tasks at two speeds.

`python tests/support/frozen_decoding.py` writes the file beside it. Whoever changes how answers are decoded runs it and
compares: a text may change only if the definition does, and each number should fall.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does

import test_own_paths
import test_same_ids
import test_text_paths
from cosd_api import FusionResult, MatchVerifier, RandomVerifier, RuleVerifier
from naive.reference_paths import DRAFT
from support import virtual_time
from toys import id_models, ngrams
from toys.ngrams import learned

KEPT = Path(__file__).with_suffix(".json")
TASKS = 50
"""Of each kind of pair."""
SPEEDS = {"quick assistant": (0.05, 0.1, 0.1), "slow assistant": (0.05, 0.1, 0.35)}
"""Seconds for a request, for a token of the draft, and for a question."""
COUNTS = ("questions", "places", "drafted_tokens", "kept_tokens", "requests", "units", "replacements")


def same_ids(chance: random.Random) -> id_models.Task:
    """A task of models with the same ids."""
    written = (*chance.sample(id_models.WRITTEN, chance.randint(3, 8)), *chance.choice(((), (id_models.END,))))
    language, count = chance.randrange(2**16), chance.choice((1, 1, 1, 2, 3))
    models = [
        id_models.IdModel(chance.randrange(2**16), language, chance.choice((6, 10, 13, 15)), written)
        for _ in range(1 + count)
    ]
    rule = RuleVerifier(alpha=chance.choice((0.3, 0.5, 0.9)), beta=chance.choice((0.2, 0.5, 1.0)))
    other = chance.choice((RandomVerifier(rate=0.3, seed=chance.randrange(99)), id_models.Always(), MatchVerifier()))
    return id_models.Task(
        prompt=chance.choice(("Q", "ab", "é:", "Q\n")),
        draft=models[0],
        assistants=tuple(models[1:]),
        verifier=chance.choice((rule, RuleVerifier(), other)),
        max_tokens=chance.randint(8, 40),
        stop=chance.choice(((), (), (), (b"\n",), ("é".encode(),))),
        tie=chance.choice((0.0, 0.02, 0.25)),
        hides=chance.choice((False, False, True)),
    )


def other_ids(chance: random.Random) -> test_own_paths.Task:
    """A task of models of different tokenizers."""
    text, count = chance.choice(ngrams.passages()), chance.choice((1, 1, 1, 2))
    at = chance.randrange(max(1, len(text) - 60))
    alpha, beta = chance.choice(((0.5, 0.5), (0.7, 0.5), (0.9, 0.2), (1.01, 0.0), (0.3, 1.0)))
    draft, *assistants = (chance.choice(test_own_paths.NAMES) for _ in range(1 + count))
    return test_own_paths.Task(
        prompt=text[at : at + chance.choice((5, 20, 60))],
        draft=learned(draft, 0, order=chance.choice((2, 3, 4))),
        assistants=tuple(learned(name, 1, order=chance.choice((2, 3, 4))) for name in assistants),
        max_tokens=chance.choice((8, 20, 40)),
        stop=chance.choice(((), (), ("\n",), (". ",))),
        alpha=alpha,
        beta=beta,
        tie=chance.choice((0.0, 0.02, 0.3)),
    )


async def fused_by_ids(chance: random.Random, delays: tuple[float, ...]) -> FusionResult:
    task = same_ids(chance)
    servers = test_same_ids.providers(task, chance.choice((1, 64)), delays)
    return await test_same_ids.fused(task, servers)


async def fused_across(chance: random.Random, delays: tuple[float, ...]) -> FusionResult:
    task = other_ids(chance)
    servers = test_own_paths.providers(task, chance.choice((1, 64)), (*delays, 0.0))
    return await test_own_paths.fused(task, servers)


async def fused_by_text(chance: random.Random, delays: tuple[float, ...]) -> FusionResult:
    task = other_ids(chance)
    text = chance.choice(([DRAFT, *range(len(task.assistants))], [DRAFT], [0]))
    servers = test_text_paths.servers(task, text, chance.choice((1, 64)), (*delays, 0.0))
    return await test_own_paths.fused(task, servers)


KINDS: dict[str, Callable[[random.Random, tuple[float, ...]], Awaitable[FusionResult]]] = {
    "same ids": fused_by_ids,
    "other ids": fused_across,
    "text": fused_by_text,
}


def counted(result: FusionResult) -> dict[str, int]:
    """The cost of an answer."""
    asked = [one for one in result.requests if one.kind in ("question", "watch")]
    numbers = {name: getattr(result, name) or 0 for name in COUNTS[2:4] + COUNTS[5:]}
    return {
        "questions": len(asked),
        "places": sum(one.places for one in asked),
        "requests": len(result.requests),
        **numbers,
    }


def digest(result: FusionResult) -> str:
    """A short name for the text, who wrote which token, and the end."""
    told = [result.text, result.finish_reason, [(one.text, one.source) for one in result.tokens]]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]


def measured() -> dict[str, Any]:
    """Texts by kind of pair, and sums by kind and speed."""
    texts, costs = dict[str, list[str]](), dict[str, dict[str, dict[str, int]]]()
    for kind, fused in KINDS.items():
        for speed, delays in SPEEDS.items():
            results = [virtual_time.run(fused, random.Random(f"{kind} {at}"), delays) for at in range(TASKS)]
            found = [digest(one) for one in results]
            if texts.setdefault(kind, found) != found:
                raise AssertionError(f"{kind}: the text depends on the speed")
            counts = [counted(one) for one in results]
            costs.setdefault(kind, {})[speed] = {name: sum(one[name] for one in counts) for name in COUNTS}
    return {"costs": costs, "texts": texts}


if __name__ == "__main__":
    KEPT.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
