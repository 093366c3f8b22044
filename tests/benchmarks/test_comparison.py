"""All methods write one text, what they cost is counted, and it is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import plot
from benchmarks.__main__ import SECTIONS, main
from benchmarks.comparison import ALONE, LIBRARY, Case, Measured, compare
from benchmarks.invented import Speech, prompt_of
from benchmarks.methods import METHODS, Answer, Method
from benchmarks.report import Table, save
from benchmarks.simulated import Counts, Simulated, Speeds, simulated
from benchmarks.tables import tables
from benchmarks.worker import Run

pytestmark = pytest.mark.extended

AT_ONCE = Speeds(0, 0, 0)
LENGTH = 40


async def written(server: Simulated, method: Method, speech: Speech) -> Answer:
    mine, theirs = (
        server.model(speech, role, method.name)
        for role in (("alone", "alone") if method.alone else ("draft", "assistant"))
    )
    async with method.open(mine, theirs) as write:
        return await write(prompt_of(40, 1), LENGTH)


async def test_all_methods_write_one_text_and_agree_about_it() -> None:
    speech = Speech(acceptance=0.8)
    async with simulated(AT_ONCE) as server:
        answers = {method.name: await written(server, method, speech) for method in METHODS}
        counted = {method.name: await server.counts("assistant", method.name) for method in METHODS}
        drafted = {method.name: await server.counts("draft", method.name) for method in METHODS}
    reference = answers[ALONE]
    assert {answer.text for answer in answers.values()} == {reference.text}
    assert {answer.tokens for answer in answers.values()} == {LENGTH}
    assert len({answer.replacements for name, answer in answers.items() if name != ALONE}) == 1
    assert answers[LIBRARY].replacements > 0
    for method in METHODS:
        answer, seen = answers[method.name], drafted[method.name]
        assert 0 < answer.first <= answer.seconds
        if method.length is not None:  # one request a round to each, and every drafted position is asked about
            assert seen.requests == counted[method.name].requests
            assert seen.completion_tokens == counted[method.name].completion_tokens == answer.drafted
    one_by_one = drafted["c: one by one"]
    assert one_by_one.requests == one_by_one.completion_tokens == LENGTH


async def test_a_comparison_runs_each_method_in_its_own_process() -> None:
    some = [method for method in METHODS if method.name in (ALONE, LIBRARY, "b: K=8")]
    [found] = await compare([Case(acceptance=0.8, round_trip=0, context=30, length=20, seeds=(1, 2))], some, AT_ONCE)
    assert {name: len(runs) for name, runs in found.runs.items()} == {method.name: 2 for method in some}
    for run in found.runs[LIBRARY]:
        assert run.cpu > 0 and run.memory > 1 << 20
        assert run.answer.tokens == 20 and run.draft.completion_tokens >= 20 - run.answer.replacements
        assert run.thrown_away == run.draft.completion_tokens - 20 + run.answer.replacements
    assert all(run.assistant == Counts() for run in found.alone())


# --- what is made of it, from figures of our own ---


def measured(case: Case) -> Measured:
    found = Measured(case, Speeds())
    for place, method in enumerate(METHODS):
        seconds = 8.6 if method.alone else 16.0 + place
        replaced = 0 if method.alone else 5
        answer = Answer("text", case.length, replaced, 0.1, seconds, 600, {})
        run = Run(
            answer, Counts(10, 5000, 600), Counts() if method.alone else Counts(20, 9000, 80), 0.2, 50 << 20, 0.001
        )
        found.runs[method.name] = [run] * (1 if method.length == 1 else len(case.seeds))
    return found


def test_the_floor_is_what_its_definition_says() -> None:
    found = measured(Case(round_trip=0.02))
    each = 0.02 + 0.06 + 0.02 + 0.05
    assert found.floor(twice=True) == pytest.approx([8.6 + 5 * each] * 3)
    assert found.floor() == pytest.approx([8.6 + 5 * (each - 1 / 60)] * 3)
    assert found.best_of_rounds() == found.seconds("b: K=8")


def test_texts_have_the_acceptance_and_the_hit_rate_that_were_asked() -> None:
    case = Case(acceptance=0.9, length=100, context=20, seeds=(0, 0, 0)).typical()
    assert len({*case.seeds}) == 3
    for seed in case.seeds:
        replaced, hits = case.speech.replaced(prompt_of(20, seed).encode(), 100)
        assert 9 <= replaced <= 11 and abs(hits - 0.7 * replaced) <= 1


def test_a_method_that_writes_another_text_is_an_error() -> None:
    found = measured(Case())
    found.check()
    runs = found.runs["b: K=16"]
    found.runs["b: K=16"] = [*runs[:2], replace(runs[2], answer=replace(runs[2].answer, text="another"))]
    with pytest.raises(AssertionError, match="b: K=16 has written a different text at seed 3"):
        found.check()


def test_tables_show_every_method_and_whether_targets_are_reached() -> None:
    shown = tables([measured(Case(acceptance=0.8)), measured(Case())])
    assert [table.title for table in shown][:2] == [
        "Simulated: wall time against the floor",
        "Targets. Acceptance 0.9, round trip 20 ms, 512 tokens of context",
    ]
    assert len(shown) == 6
    for table in (shown[0], *shown[2:]):
        names = [row[0] for row in table.rows]
        assert [method.name for method in METHODS if method.name in names] == [method.name for method in METHODS]
    assert {row[3] for row in shown[1].rows} <= {"yes", "no"}


def test_a_table_is_markdown_and_rows_have_all_columns() -> None:
    table = Table("Title", ["name", "number"], [["one", 1234], ["half", 0.5], ["none", None]], ["A note."])
    assert table.markdown().splitlines() == [
        "### Title",
        "",
        "| name | number |",
        "| ---- | -----: |",
        "| one  |  1,234 |",
        "| half |    0.5 |",
        "| none |        |",
        "",
        "A note.",
    ]
    with pytest.raises(ValueError, match="2 columns, but a row of 1"):
        Table("Title", ["name", "number"], [["one"]])


def test_results_are_kept_and_drawn(tmp_path: Path) -> None:
    cases = [measured(Case(acceptance=acceptance)) for acceptance in (0.7, 0.8, 0.9, 0.98)]
    kept = save("simulated", tables(cases), tmp_path)
    found = json.loads(kept.read_text())
    assert found["machine"]["cpus"] and found["machine"]["python"]
    assert str(Path.cwd()) not in kept.read_text()
    picture = plot.draw(kept, tmp_path / "picture.svg")
    drawn = picture.read_bytes()
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert plot.draw(kept, tmp_path / "picture.svg").read_bytes() == drawn


def test_the_command_names_its_sections(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in SECTIONS)
    with pytest.raises(SystemExit, match="2"):
        main(["nothing"])
    assert "unknown section 'nothing'" in capsys.readouterr().err
