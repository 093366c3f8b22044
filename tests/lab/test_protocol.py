"""What is decided beforehand: that cells, sizes and kept weights fit together."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from benchmarks.lab import protocol
from benchmarks.lab.protocol import CELLS, MAX_TOKENS, RECIPES, SIZES, items_seed, protocol_hash
from benchmarks.lab.tasks import TASKS


def test_names_are_used_once_and_are_there() -> None:
    cells = [cell.name for cell in CELLS]
    assert len(set(cells)) == len(cells)
    for cell in CELLS:
        assert {cell.draft, *cell.assistants, *filter(None, [cell.alone])} <= set(RECIPES), cell.name
    for size in SIZES.values():
        assert set(size.cells) <= set(cells)
        assert set(size.tasks) <= set(TASKS)
    for recipe in RECIPES.values():
        assert {*filter(None, [recipe.begins]), *(recipe.between or ())} <= set(RECIPES)
        assert sum(recipe.shares) == pytest.approx(1)


def test_every_prediction_and_every_control_is_written_down() -> None:
    assert all(cell.predicted for cell in CELLS)
    assert [cell.varied[:2] for cell in CELLS if cell.scenario == "control"] == ["N1", "N2", "N3", "N4", "N6"]
    assert set(SIZES["full"].cells) == {cell.name for cell in CELLS}


def test_every_task_has_a_limit() -> None:
    assert set(MAX_TOKENS) == set(TASKS)


def test_the_hash_is_that_of_what_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert protocol_hash() == protocol_hash()
    assert 0 <= items_seed() < 2**48
    before = protocol_hash()
    (tmp_path / "tasks").mkdir()
    for name in protocol.DECIDING:
        if (protocol.FOLDER / name).exists():
            (tmp_path / name).write_bytes((protocol.FOLDER / name).read_bytes())
    monkeypatch.setattr(protocol, "FOLDER", tmp_path)
    assert protocol_hash() == before
    source = tmp_path / "tasks" / "bio.py"
    source.write_text(source.read_text(encoding="utf-8").replace("0.6", "0.7"), encoding="utf-8")
    assert protocol_hash() != before
    assert len(protocol_hash()) == len(hashlib.sha256().hexdigest())
