"""The training of the laboratory's models; runs only where torch and gguf are installed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lab import corpora, protocol
from benchmarks.lab.protocol import RECIPES, ModelRecipe, TokenizerRecipe
from benchmarks.lab.tasks.task import Document

torch = pytest.importorskip("torch")
training = pytest.importorskip("benchmarks.lab.training")

pytestmark = pytest.mark.extended

TINY = replace(RECIPES["a"], width=32, layers=1, hidden=32, tokens=200_000, tokenizer=TokenizerRecipe(300, "single"))
TINIES = {
    "tiny": TINY,
    "longer": replace(TINY, tokens=40_000, begins="tiny"),
    "mean": replace(TINY, tokens=0, between=("tiny", "longer")),
    "flat": replace(TINY, tokens=0, begins="tiny", temperature=2.0),
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "RECIPES", TINIES)
    monkeypatch.setattr(corpora, "TEXTS", 700)
    torch.set_num_threads(1)


def test_a_training_that_is_stopped_goes_on_to_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = training.train("tiny", 1, tmp_path / "whole").read_bytes()
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", -1)
    asked, chunk = list[int](), corpora.chunk

    def dying(recipe: ModelRecipe, number: int) -> list[Document]:
        asked.append(number)
        if number == 2 and asked.count(2) == 1:
            raise KeyboardInterrupt
        return chunk(recipe, number)

    monkeypatch.setattr(training, "chunk", dying)
    with pytest.raises(KeyboardInterrupt):
        training.train("tiny", 1, tmp_path / "cut")
    assert not (tmp_path / "cut" / "tiny-1.gguf").exists()
    assert training.train("tiny", 1, tmp_path / "cut").read_bytes() == whole
    assert asked[:4] == [0, 1, 2, 2]  # nothing is learned twice
    assert [path.name for path in (tmp_path / "cut").iterdir()] == ["tiny-1.gguf"]


def weights(path: Path) -> Iterator[tuple[str, Any]]:
    yield from training.read_weights(path, TINY).state_dict().items()


def test_models_made_of_others(tmp_path: Path) -> None:
    files = {name: training.train(name, 1, tmp_path) for name in TINIES}
    tiny, longer, mean, flat = (dict(weights(path)) for path in files.values())
    for key, value in tiny.items():
        assert torch.allclose(mean[key], (value + longer[key]) / 2, atol=2e-3), key
        assert torch.allclose(flat[key], value / 2 if key == "output.weight" else value, atol=1e-4), key
    assert any(not torch.equal(value, longer[key]) for key, value in tiny.items())


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "tiny-1.gguf").write_bytes(b"trained")
    assert training.train("tiny", 1, tmp_path).read_bytes() == b"trained"
