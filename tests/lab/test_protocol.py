"""The laboratory's protocol: cells, sizes and kept weights fit together."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lab import protocol
from benchmarks.lab.graph import code_digest
from benchmarks.lab.likelihoods import SCORED
from benchmarks.lab.protocol import CELLS, MAX_TOKENS, RECIPES, SIZES, items_seed, protocol_hash
from benchmarks.lab.tasks import TASKS
from benchmarks.lab.ways import WAYS
from cosd_api import CoSD, RuleVerifier


def test_names_are_used_once_and_are_there() -> None:
    cells = [cell.name for cell in CELLS]
    assert len(set(cells)) == len(cells)
    for cell in CELLS:
        assert {cell.draft, *cell.assistants} <= set(RECIPES), cell.name
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


@pytest.mark.extended
def test_the_hash_is_that_of_the_code_that_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = protocol_hash.__wrapped__
    before = hashed()
    assert 0 <= items_seed() < 2**48
    for name in filter(lambda name: (protocol.FOLDER / name).exists(), protocol.DECIDING):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((protocol.FOLDER / name).read_bytes())
    monkeypatch.setattr(protocol, "FOLDER", tmp_path)
    assert hashed() == before
    source = tmp_path / "tasks" / "bio.py"
    text = source.read_text(encoding="utf-8")
    source.write_text(f"# A comment.\n{text}", encoding="utf-8")
    assert hashed() == before
    source.write_text(text.replace("0.6", "0.7"), encoding="utf-8")
    assert hashed() != before


def test_the_paper_s_rule_is_cosd_here_and_that_is_the_protocol_that_was_registered() -> None:
    assert WAYS["cosd"] == CoSD(verifier=RuleVerifier.paper()) != CoSD()
    assert SCORED["cosd"][1] == RuleVerifier.paper()
    assert SCORED["draft"][1] == SCORED["assistant"][1] == RuleVerifier(alpha=0, beta=0.5)
    assert protocol_hash() == "78a29a439737910f9054b2892f2a2d483318291cab36ccaa51e38014b5229ef5"


@pytest.mark.parametrize("name", ["ways.py", "likelihoods.py"])
def test_a_further_change_of_a_source_that_counts_as_registered_is_one_of_the_protocol(
    name: str, tmp_path: Path
) -> None:
    source = protocol.FOLDER / name
    text = source.read_text(encoding="utf-8")
    (tmp_path / name).write_text(f"# A comment.\n{text}", encoding="utf-8")
    assert code_digest(tmp_path / name) == code_digest(source)
    (tmp_path / name).write_text(text.replace("RuleVerifier.paper()", "RuleVerifier()"), encoding="utf-8")
    assert code_digest(tmp_path / name) != code_digest(source)
