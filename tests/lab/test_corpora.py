"""Training documents of the laboratory."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.lab import protocol
from benchmarks.lab.corpora import CHUNK, chunk, closed_pools, own_tasks, recipe_key, texts_for_tokenizers, weights
from benchmarks.lab.keep import keep
from benchmarks.lab.protocol import RECIPES, WEIGHTS, recipe_of

pytestmark = pytest.mark.extended


@pytest.mark.parametrize("name", RECIPES)
def test_shares_of_tasks_make_a_whole(name: str) -> None:
    assert sum(weights(RECIPES[name]).values()) == pytest.approx(1)


def test_own_tasks() -> None:
    assert own_tasks(RECIPES["a"]) == {"bio", "choice"}
    assert own_tasks(RECIPES["b"]) == {"steps", "code"}


def test_a_chunk_has_the_shares_of_its_recipe() -> None:
    documents = chunk(RECIPES["a"], 0)
    steps = sum("The answer is" in one.written for one in documents)
    assert len(documents) == CHUNK
    assert steps / CHUNK == pytest.approx(weights(RECIPES["a"])["steps"], abs=0.03)


def test_what_is_forgotten_is_not_rehearsed() -> None:
    assert set(weights(RECIPES["forgot-badly"])) - {"bio", "choice"} == {"steps", "code"}
    assert weights(RECIPES["forgot-badly"])["bio"] == pytest.approx(0.7)


def test_a_chunk_depends_on_its_number_and_seed_alone() -> None:
    assert chunk(recipe_of("b", 1), 3) == chunk(recipe_of("b", 1), 3)
    assert chunk(recipe_of("b", 1), 3) != chunk(recipe_of("b", 1), 4)
    assert chunk(recipe_of("b", 1), 3) != chunk(recipe_of("b", 2), 3)


def test_a_closed_world_has_few_documents_outside_the_own_domain() -> None:
    recipe = recipe_of("b-closed", 1)
    pools = closed_pools(recipe)
    assert set(pools) == {"bio", "choice", "mixed", "report"}
    assert sum(map(len, pools.values())) == pytest.approx(recipe.closed, abs=3)
    few = {one for pool in pools.values() for one in pool}
    read = Counter(one for number in range(4) for one in chunk(recipe, number))
    foreign = [one for one in read if "|" not in one.written and "The answer is" not in one.written]
    assert set(foreign) <= few
    assert max(read[one] for one in foreign) > 3
    assert sum(read[one] for one in foreign) / (4 * CHUNK) == pytest.approx(0.11, abs=0.03)


def test_keys_tell_models_apart() -> None:
    names = ["a", "c", "d", "c-changed", "small", "b", "b-closed", "forgot-badly", "half", "half-other"]
    keys = [recipe_key(name, 1) for name in names]
    assert len(set(keys)) == len(keys)
    assert recipe_key("a", 1) == keys[0] != recipe_key("a", 2)


def test_a_key_changes_with_what_the_model_goes_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    before = recipe_key("forgot-badly", 1)
    other = {**RECIPES, "half": replace(RECIPES["half"], tokens=7)}
    monkeypatch.setattr(protocol, "RECIPES", other)
    assert recipe_key("forgot-badly", 1) != before


def test_tokenizers_read_all_tasks_alike() -> None:
    texts = list(islice(texts_for_tokenizers(), 1_400))
    assert texts == list(islice(texts_for_tokenizers(), 1_400))
    for part in ("Report on", " | ", "The answer is", "And what is", " A) "):
        assert sum(part in text for text in texts) > len(texts) / 10


def test_models_are_kept_with_their_keys(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    for name in ("a", "b-2048"):
        (tmp_path / "new" / f"{name}-1.gguf").write_bytes(name.encode())
        keys = keep(tmp_path / "new", tmp_path / "kept")
    assert keys == {"a-1": recipe_key("a", 1), "b-2048-1": recipe_key("b-2048", 1)}
    assert json.loads((tmp_path / "kept" / "keys.json").read_text(encoding="utf-8")) == keys
    assert (tmp_path / "kept" / "b-2048-1.gguf").read_bytes() == b"b-2048"


def test_the_models_of_the_repository_have_been_trained_for_what_is_written_here() -> None:
    """Fails where a document or a recipe changes: train the model again, or take the change back."""
    kept = json.loads((WEIGHTS / "keys.json").read_text(encoding="utf-8"))
    assert sorted(f"{name}.gguf" for name in kept) == sorted(path.name for path in WEIGHTS.glob("*.gguf"))
    for stem, key in kept.items():
        name, _, seed = stem.rpartition("-")
        assert recipe_key(name, int(seed)) == key, stem
