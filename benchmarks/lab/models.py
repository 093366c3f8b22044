"""Steps that provide a model: from the weights kept in the repository, or by training."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.lab.corpora import recipe_key
from benchmarks.lab.graph import Step, digest
from benchmarks.lab.protocol import DOMAINS, EVERYWHERE, FOLDER, WEIGHTS, WORLD_SEED, recipe_of

__all__ = ["MODEL", "kept", "kept_model", "model_step", "trained_model"]

MODEL = "model.gguf"
"""The name of a model's file in the folder of its step."""

_CODE = [FOLDER / name for name in ("training.py", "corpora.py", "worlds.py")] + sorted((FOLDER / "tasks").glob("*.py"))
_CODE += sorted((FOLDER.parents[1] / "examples").glob("small_llama*.py"))
_TOKENS_A_SECOND = 7000.0
"""Approximate training speed for a model of the usual size on two cores, in tokens per second."""


def kept(name: str, seed: int) -> Path | None:
    """The kept weights of a recipe; None if there are none, or if they belong to another version of the recipe."""
    keys, path = WEIGHTS / "keys.json", WEIGHTS / f"{name}-{seed}.gguf"
    if not (keys.exists() and path.exists()):
        return None
    return path if json.loads(keys.read_text(encoding="utf-8")).get(path.stem) == recipe_key(name, seed) else None


@cache
def model_step(name: str, seed: int) -> Step:
    """The step that provides a model."""
    if (path := kept(name, seed)) is not None:
        settings = {
            "weights": path.name,
            "key": recipe_key(name, seed),
            "content": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        return Step(f"model {name}, seed {seed}, as it is kept", kept_model, settings)
    recipe = recipe_of(name, seed)
    before = [recipe.begins] if recipe.begins else recipe.between or ()
    return Step(
        f"model {name}, seed {seed}",
        trained_model,
        {"recipe": name, "seed": seed, "settings": digest([asdict(recipe), DOMAINS, EVERYWHERE, WORLD_SEED])},
        {f"model_{at}": model_step(one, seed) for at, one in enumerate(before)},
        _CODE,
        recipe.tokens * (recipe.width / 128) ** 2 / _TOKENS_A_SECOND,
    )


def kept_model(folder: Path, settings: Mapping[str, Any]) -> None:
    """Copy weights that are kept in the repository."""
    shutil.copyfile(WEIGHTS / settings["weights"], folder / MODEL)


def trained_model(folder: Path, settings: Mapping[str, Any], **before: Path) -> None:
    """Train a recipe; the input steps provide the models that it starts from.

    Raises:
        ModuleNotFoundError: torch is not installed.
    """
    from benchmarks.lab.training import train  # noqa: PLC0415 - needs torch, which nothing else here does

    name, seed = settings["recipe"], settings["seed"]
    recipe = recipe_of(name, seed)
    for parent, path in zip([recipe.begins] if recipe.begins else recipe.between or (), before.values(), strict=True):
        shutil.copyfile(path / MODEL, folder / f"{parent}-{seed}.gguf")
    shutil.copyfile(train(name, seed, folder), folder / MODEL)
