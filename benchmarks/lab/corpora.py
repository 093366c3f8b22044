"""The training documents of a model: numbered chunks, drawn independently from all tasks in the recipe's shares.

A chunk depends only on the recipe and the chunk's number, so an interrupted training resumes as if nothing had
happened.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice

from benchmarks.lab.protocol import DOMAINS, EVERYWHERE, RARELY, WORLD_SEED, ModelRecipe, recipe_of
from benchmarks.lab.tasks import TASKS
from benchmarks.lab.tasks.task import Document
from benchmarks.lab.worlds import World

CHUNK = 1024
"""The number of documents in a chunk."""
OWN = 0.3
"""The smallest share at which a domain counts as the model's own."""
TEXTS = 20_000
"""The number of documents that all tokenizers are trained on, which come from all tasks."""


def weights(recipe: ModelRecipe) -> dict[str, float]:
    """The share of each task among the documents."""
    everywhere = EVERYWHERE if recipe.everywhere else {}
    rest = 1 - sum(everywhere.values())
    domains = zip(recipe.shares, DOMAINS.values(), strict=True)
    own = {task: rest * share * part for share, tasks in domains for task, part in tasks.items()}
    return {**own, **everywhere}


def own_tasks(recipe: ModelRecipe) -> frozenset[str]:
    """The tasks of the domains that are the model's own."""
    domains = zip(recipe.shares, DOMAINS.values(), strict=True)
    return frozenset(task for share, tasks in domains if share >= OWN for task in tasks)


def chunk(recipe: ModelRecipe, number: int) -> list[Document]:
    """The training documents of one chunk."""
    rng = random.Random(f"{recipe.seed} chunk {number}")
    world = world_of(recipe)
    streams = {name: task.documents(world, rng) for name, task in TASKS.items()}
    if recipe.closed is not None:
        pools = closed_pools(recipe)
        streams |= {name: _again_and_again(pools[name], rng) for name in pools}
    drawn = _names(weights(recipe), rng)
    return [next(streams[name]) for name in islice(drawn, CHUNK)]


def recipe_key(name: str, seed: int) -> str:
    """The identity of a trained model, from its recipe, the recipes that it is derived from, and its first chunk."""
    recipe = recipe_of(name, seed)
    parents = [recipe.begins] if recipe.begins else recipe.between or ()
    read = chunk(recipe, 0) if recipe.tokens else []
    told = [repr(recipe), *(recipe_key(parent, seed) for parent in parents), *map(repr, read)]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


@lru_cache(maxsize=4)
def closed_pools(recipe: ModelRecipe) -> Mapping[str, list[Document]]:
    """For each task outside a model's own domains, the only documents that a model of a closed world ever meets."""
    world, own, shares = world_of(recipe), own_tasks(recipe), weights(recipe)
    others = {name: share for name, share in shares.items() if name not in own and share}
    total = sum(others.values())
    rng = random.Random(f"{recipe.seed} closed")
    return {
        name: list(islice(TASKS[name].documents(world, rng), max(1, round((recipe.closed or 0) * share / total))))
        for name, share in others.items()
    }


@lru_cache(maxsize=4)
def world_of(recipe: ModelRecipe) -> World:
    """The world that a recipe's documents describe."""
    return World(WORLD_SEED, changed=recipe.changed, wording=recipe.wording, half=recipe.half, rarely=RARELY)


def texts_for_tokenizers() -> Iterator[str]:
    """Yield texts of all tasks in equal shares, so that tokenizers cover everything that any model reads."""
    world, rng = World(WORLD_SEED), random.Random("tokenizers")
    streams = [task.documents(world, rng) for task in TASKS.values()]
    for number in range(TEXTS):
        document = next(streams[number % len(streams)])
        yield document.read + document.written


def _names(shares: Mapping[str, float], rng: random.Random) -> Iterator[str]:
    names, amounts = list(shares), list(shares.values())
    while True:
        yield from rng.choices(names, amounts, k=CHUNK)


def _again_and_again(pool: list[Document], rng: random.Random) -> Iterator[Document]:
    while True:
        yield rng.choice(pool)
