"""The whole laboratory at toy size, on live servers: from models and questions to the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.lab import __main__ as lab
from benchmarks.lab import models, plan
from benchmarks.lab.analysis import difference, itself
from benchmarks.lab.answers import comparison_in
from benchmarks.lab.claims import CONTROLS, decided, scenarios
from benchmarks.lab.graph import Graph, Step
from benchmarks.lab.likelihoods import SCORED, likelihoods_in
from benchmarks.lab.models import model_step
from benchmarks.lab.page import page, tables
from benchmarks.lab.plan import asked, scored
from benchmarks.lab.protocol import CONTROLS as CONTROL_CELLS
from benchmarks.lab.protocol import FULL, HEADLINE, QUICK, TOY, WEIGHTS, Cell
from benchmarks.lab.runs import ALONE, BEST, of_cell
from benchmarks.lab.studies import STUDIES
from cosd_api.comparison.contestants import ORACLE

pytestmark = pytest.mark.usefixtures("few_draws")


@pytest.mark.live
@pytest.mark.extended
def test_texts_are_scored(tmp_path: Path) -> None:
    size = replace(TOY, tasks=("choice", "held"), items=2)
    steps = scored(size)
    assert [one.task for one in steps] == ["choice", "held"]
    graph = Graph(tmp_path)
    for one in steps:
        found = likelihoods_in(graph.finish(one.step))
        assert {*found} == {*SCORED}
        assert all(way["questions"] == 2 and 0 <= way["right"] <= 2 for way in found.values())
        for name, least in (("perplexity", 1), ("ratio", 0)):
            assert all(least < low <= value <= high for value, low, high in (way[name] for way in found.values()))
        assert min(found[model]["ratio"] for model in ALONE) == [1, 1, 1]
    words = tables(lab.finished(size, steps, graph))
    assert words.count("| c-d, held, seed 1 ") == len(SCORED)


@pytest.mark.live
def test_the_whole_laboratory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft of all cells knows no sums and is unsure of them, so that every control has something to fail at."""
    monkeypatch.setattr("benchmarks.lab.plan.items_seed", lambda: 5)  # the same questions whatever the protocol
    size = replace(TOY, tasks=("steps",), items=10, methods=("cosd-1-1",))
    began: list[str] = []
    graph = Graph(tmp_path, began.append)
    several = asked(size)
    for one in several:
        graph.finish(one.step)
    file = lab.finished(size, several, graph)
    assert {one.cell for one in file.runs} == {*TOY.cells}
    assert all(one.comparison.stopped is None and not one.comparison.failures for one in file.runs)
    # N1: a model with itself writes its own text, and nothing is replaced; but for ties that rounding decides.
    alike = itself(of_cell(file.runs, "n1"))
    assert alike.answers and not alike.unexplained
    # The same with another model replaces much: near ties are not what explains every replacement.
    assert itself(of_cell(file.runs, "c-d")).unexplained
    # N6: an assistant that reads another question does not win; the same assistant does that reads the right one.
    found = scenarios(file.runs)
    *_, n6 = [one for one in decided(CONTROLS, found) if one.claim.source == "N6"]
    assert n6.evidence.effect is not None and n6.evidence.effect.value > -0.1 and n6.verdict != "reversed"
    assert difference(found["c-d"], "cosd-1-1", "draft").value > 0.1
    assert "| N1 " in page(file)

    # What is finished is not made again; what was killed within goes on from the answers that it has.
    began.clear()
    for one in asked(size):
        graph.finish(one.step)
    assert began == []
    assert lab.finished(size, several, graph).runs == file.runs
    [step] = [one.step for one in several if one.cell == "c-d"]
    before = comparison_in(graph.path(step))
    _cut(graph.path(step))
    assert graph.state(step) == "begun"
    assert len(lab.finished(size, several, graph).runs) == len(several) - 1
    after = comparison_in(graph.finish(step))
    assert [line.split(":")[0] for line in began] == ["goes on"]
    assert 0 < after.spent_tokens < before.spent_tokens
    assert {one.question for one in after.answers} == {one.question for one in before.answers}
    assert len(after.answers) == len(before.answers)


@pytest.mark.live
@pytest.mark.extended
def test_three_models_are_asked_as_two_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("three", "three models", "c", ("d", "small"), "the draft", "two assistants gain more than either")
    monkeypatch.setattr(plan, "CELLS", (cell,))
    size = replace(TOY, cells=("three",), tasks=("bio",), methods=("cosd", "cosd-tree"))
    graph, several = Graph(tmp_path), asked(size)
    [step] = [one.step for one in several]
    graph.finish(step)
    file = lab.finished(size, several, graph)
    [run] = file.runs
    assert run.alone == ("draft", "assistant 1", "assistant 2")
    assert {*run.ways} >= {*run.alone, BEST, ORACLE, "cosd", "cosd-tree"}
    right = [run.right(model) for model in run.alone]
    assert run.right(ORACLE) == {key: any(one[key] for one in right) for key in right[0]}
    assert run.right(BEST) in right
    assert "| three " in page(file) and "three: facts drafting, sums and code asked" in tables(file)


def _cut(folder: Path) -> None:
    """Leave what a process would have left that was killed in the middle of a line."""
    (folder / "step.json").unlink()
    (folder / "comparison.json").unlink()
    journal = folder / "answers.jsonl"
    journal.write_bytes(journal.read_bytes()[: journal.stat().st_size * 2 // 3])


def test_keys_change_with_what_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys() -> dict[str, str]:
        return {one.step.name: one.step.key for one in asked(QUICK)}

    first = keys()
    assert first == keys()
    assert len({*first.values()}) == len(first)
    monkeypatch.setattr("benchmarks.lab.plan._library", lambda: "another")
    assert not {*first.values()} & {*keys().values()}
    monkeypatch.undo()
    monkeypatch.setattr("benchmarks.lab.plan._library", lambda: "the library")
    monkeypatch.setattr("benchmarks.lab.plan.items_seed", lambda: 1)  # other questions
    assert not {*first.values()} & {*keys().values()}


@pytest.mark.extended
def test_the_library_is_known_by_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert len(plan._library()) == 64
    monkeypatch.setattr(plan, "code_digest", lambda path: str(path.name))
    names = plan._library.__wrapped__()
    assert names != plan._library()


def test_the_content_of_kept_weights_is_part_of_their_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = model_step("a", 1).key
    for path in WEIGHTS.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    content = bytearray((tmp_path / "a-1.gguf").read_bytes())
    content[-1] ^= 1
    (tmp_path / "a-1.gguf").write_bytes(content)
    monkeypatch.setattr(models, "WEIGHTS", tmp_path)
    assert model_step.__wrapped__("a", 1).key != before


def test_the_list_shows_every_step_with_its_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.main(["--quick", "--list", "--work", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert any("model a, seed 1" in line for line in lines)
    assert any("closed, reversed: steps, seed 1" in line for line in lines)
    assert lines[-1].startswith("to come: about ") and lines[-1].endswith(" hours")
    lab.main(["--quick", "--list", "--work", str(tmp_path), "n1"])
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) < len(lines) and any(" n1: " in line for line in shown)
    lab.main(["--quick", "--list", "--work", str(tmp_path), "n1", "--seed", "2", "--seed", "3"])
    other = capsys.readouterr().out.splitlines()
    assert any("model c, seed 2" in line for line in other) and not any("seed 1" in line for line in other)
    with pytest.raises(SystemExit):
        lab.main(["--quick", "--list", "n7"])
    assert "there is no cell n7 in this size, but a-b," in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_the_full_size_asks_every_cell() -> None:
    several = asked(FULL)
    cells = {one.cell for one in several}
    assert {"half", "forgot-badly, reversed", "a-b-bytes", "epochs-16", "n2", "n4"} <= cells
    assert {"three", "three-weak"} <= cells
    assert {one.task for one in several if one.cell == "lengths"} == {"report 128", "report 256", "report 512"}
    assert {one.cell for one in several} >= {study.name for study in STUDIES}
    for cell in ("a-b", "c-d", "half"):
        assert {one.seed for one in several if one.cell == cell} == {*FULL.seeds}
    assert {one.seed for one in several if one.cell in ("n2", "trees")} == {1}
    assert {one.cell for one in several if one.step.alone} == {"latency", "network"}


def test_the_quick_size_is_done_in_half_an_hour_on_two_cores() -> None:
    """By the estimates of `--list`; controls are asked every task of the headline."""
    several = [*asked(QUICK), *scored(QUICK)]
    assert sum(one.step.seconds for one in several) < 1800
    for control in CONTROL_CELLS:
        assert {one.task for one in several if one.cell == control} == {*HEADLINE}


def test_a_model_that_begins_with_another_has_it_as_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    step = model_step("between-badly", 1)
    names = [one.name for one in step.inputs.values()]
    assert names == ["model half, seed 1", "model forgot-badly, seed 1"]
    [half] = step.inputs["model_1"].inputs.values()
    assert isinstance(half, Step) and half.key == step.inputs["model_0"].key
