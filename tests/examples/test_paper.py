"""`examples/paper/`: converters of published files, and each table on the bundled models, by the code a user runs."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import _layout
import _tasks
import convert
import pytest
from _layout import Table

from cosd_api import CoSD, Example
from cosd_api.apps.comparison.graders import grader_named
from cosd_api.apps.comparison.statistics import Estimated
from cosd_api.apps.demo.questions import DemoQuestion, sample
from cosd_api.apps.demo.servers import Three
from support.scripts import EXAMPLES, Ran, run_script

PAPER = EXAMPLES / "paper"
TABLES = sorted(path.stem for path in PAPER.glob("*.py") if re.match("table|fig|cool", path.stem))
README = (PAPER / "README.md").read_text(encoding="utf-8")


def table(name: str) -> Table:
    found = import_module(name).TABLE
    assert isinstance(found, Table)
    return found


# Converters: three records each, in the publishers' fields.

RECORDS: Mapping[str, Sequence[Mapping[str, Any]]] = json.loads(
    Path(__file__).with_name("records.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_records_of_a_benchmark_become_examples(name: str, tmp_path: Path) -> None:
    path = tmp_path / "published.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in RECORDS[name]), encoding="utf-8")
    ran = run_script("paper/convert", name, path)
    assert (ran.code, ran.err) == (0, "")
    made = [Example.model_validate_json(line) for line in ran.out.splitlines()]
    assert len(made) == 3
    assert all(one.prompt for one in made)


def made(name: str) -> list[Example]:
    return [Example.model_validate(convert.CONVERTERS[name](one)) for one in RECORDS[name]]


def test_what_a_question_says_and_what_is_right() -> None:
    assert [one.target for one in made("gsm8k")] == ["5", "2,400", "-3"]
    assert made("gsm8k")[0].prompt == "Question: Ann has 2 pens and buys 3. How many?\nAnswer:"
    assert made("gsm8k")[2].prompt == "Question: e\nAnswer: f\n\nQuestion: q\nAnswer:"
    assert made("mmlu")[0].prompt == "Which is a metal?\nA. air\nB. iron\nC. wood\nD. silk\nAnswer:"
    assert [one.answer for one in made("mmlu")] == [" B", " A", " D"]
    assert made("mmlu")[2].prompt == "...\nq\nAnswer:"
    assert made("hellaswag")[0].choices == ("adds salt.", "flies.", "sleeps.", "sings.")
    assert [one.answer for one in made("hellaswag")] == [" A", " B", " D"]
    assert made("coqa")[0].prompt == "Ann has a cat.\n\nQ: What has she?\n\nA: a cat\n\nQ: Who?\n\nA:"
    assert [one.target for one in made("coqa")] == ["Ann\nAnn does", "Ann\nAnn does", "Ann"]
    assert [one.target for one in made("drop")] == ["3\nthree games", "Ann, Bo\nBo\nAnn", "2 May 1901"]
    assert [one.target for one in made("triviaqa")] == ["Lima\nCity", "N'Djamena\nNdjamena", "v"]
    assert [one.target for one in made("math_algebra")] == ["2", r"\dfrac{1}{3}", r"\{1, 2\}"]
    assert [one.target for one in made("mgsm_de")] == ["2", "3", "1200"]


@pytest.mark.anyio
async def test_the_right_option_is_where_the_letter_says() -> None:
    for one, right in zip(made("truthfulqa"), ["Yes", "No", "No"], strict=True):
        assert one.choices is not None
        assert one.choices["ABC".index(one.answer.strip())] == right
        assert await grader_named("choice")(one, f" {right}")


@pytest.mark.parametrize(
    ("name", "content", "questions"),
    [
        ("test/physics_test.csv", '"Which, then?",air,iron,wood,silk,B\nq,1,2,3,4,A\n', 2),
        ("mgsm_de.tsv", 'Anna sagt "zwei". Wie viele?\t2\n', 1),
        ("qa.csv", "Type,Question,Best Answer,Incorrect Answers\nx,Do cats fly?,No,Yes; Some do\n", 1),
        ("dev.json", json.dumps({"version": "1.0", "data": RECORDS["coqa"]}), 3),
        ("qa.json", json.dumps({"Data": RECORDS["triviaqa"], "Version": 1.0}), 3),
        ("one.json", json.dumps(RECORDS["math_algebra"][0]), 1),
        ("all.json", json.dumps(RECORDS["alpacaeval"]), 3),
        (
            "drop.json",
            json.dumps({"history_1": {"passage": "p", "qa_pairs": [{**RECORDS["drop"][0], "query_id": "x"}]}}),
            1,
        ),
    ],
)
def test_files_as_they_are_published(name: str, content: str, questions: int, tmp_path: Path) -> None:
    kinds = {"test/physics_test.csv": "mmlu", "mgsm_de.tsv": "mgsm_de", "qa.csv": "truthfulqa", "dev.json": "coqa"}
    kinds |= {"qa.json": "triviaqa", "one.json": "math_algebra", "all.json": "alpacaeval", "drop.json": "drop"}
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content, encoding="utf-8")
    given = path.parent if "/" in name else path
    assert len(convert.questions(kinds[name], given)) == questions


def test_compressed_lines(tmp_path: Path) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, RECORDS["humaneval"])).encode()))
    assert convert.questions("humaneval", path) == [convert.humaneval(one) for one in RECORDS["humaneval"]]


def test_examples_before_a_question_and_messages(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in RECORDS["mgsm_de"]), encoding="utf-8")
    ran = run_script("paper/convert", "mgsm_de", path, "--shots", path, "--number", 1, "--after", 1, "--first", 1)
    shown = "Question: Anna hat 2 Stifte. Wie viele?\nAnswer: 2\n\nQuestion: Und 3?\nAnswer:"
    assert json.loads(ran.out)["prompt"] == shown
    ran = run_script("paper/convert", "mgsm_de", path, "--shots", path, "--number", 1, "--messages", "--first", 1)
    assert [one["role"] for one in json.loads(ran.out)["prompt"]] == ["user", "assistant", "user"]


def test_a_record_that_is_another_benchmarks_is_named(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text('{"text": "x"}\n', encoding="utf-8")
    ran = run_script("paper/convert", "gsm8k", path)
    assert ran.code == 1
    assert ran.err.startswith(f"error: {path}, record 1: has no field 'answer'. gsm8k has `question` and `answer`")


def test_the_page_names_converters_and_files_that_there_are() -> None:
    assert {*re.findall(r"convert\.py (\w+) ", README)} <= {*convert.CONVERTERS}
    assert {*_tasks.TASKS} == {*convert.CONVERTERS}
    for task in _tasks.TASKS:
        assert f"`{task}`" in README


# Graders and measures.


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (r"so $\boxed{\frac12}$", False),
        (r"so $\boxed{\dfrac{1}{2}}$.", True),
        (r"The answer is $\frac{1}{2}$.", True),
        (r" \frac{1}{2}.", True),
        (r"\boxed{\tfrac{1}{2}\text{ inches}}", True),
        (r"\boxed{2}", False),
        (r"\boxed{\frac{1}{2}} and \boxed{\fra", True),
    ],
)
def test_formulas_are_compared_as_they_are_spelled(answer: str, right: bool) -> None:
    example = Example(prompt="q", answer="a", target=r"\frac{1}{2}")
    assert _tasks.math_right(example, answer) is right


def test_short_answers_by_exact_match_and_f1() -> None:
    example = Example(prompt="q", answer="a", target="the white cat\nAnn's dog")
    assert _tasks.exact_match(example, " White cat!\nQ: and then?")
    assert _tasks.exact_match(example, "anns dog")
    assert not _tasks.exact_match(example, "cat")
    assert not _tasks.exact_match(Example(prompt="q", answer="A"), "")
    assert _tasks.f1(example, "a white cat") == 1
    assert _tasks.f1(example, "black cat") == 0.5  # one word of two, one of two
    assert _tasks.f1(example, "") == 0


def test_sums_have_the_joined_interval() -> None:
    found = _layout.added([Estimated(0.5, 0.2, 0.9), Estimated(0.4, 0.0, 0.7)], 0.5)
    assert found.value == pytest.approx(0.45)
    assert found.low == pytest.approx(0.45 - 0.5 * math.hypot(0.3, 0.4))
    assert found.high == pytest.approx(0.45 + 0.5 * math.hypot(0.4, 0.3))


# What is printed.


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_a_printed_figure_for_every_cell(name: str) -> None:
    found = table(name)
    assert found.name == name
    assert set(found.models) == set(found.printed)
    rows = {one.name for one in found.rows}
    for by_row in found.printed.values():
        assert set(by_row) <= rows
        for figures in by_row.values():
            assert len(figures) == len(found.columns)
            assert name in ("fig2", "table3") or None not in figures
    assert f"`python examples/paper/{name}.py`" in README
    assert f"python examples/paper/{name}.py" in (PAPER / f"{name}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["cool_table4", "cool_table5", "cool_table6"])
def test_printed_means_are_those_of_the_printed_figures(name: str) -> None:
    found = table(name)
    singles = {(one.tasks, one.measure): one.name for one in found.rows if len(one.tasks) == 1}
    printed = found.printed["cool"]
    several = [one for one in found.rows if len(one.tasks) > 1]
    assert several
    for row in several:
        parts = [printed[singles[(task,), row.measure]] for task in row.tasks]
        for figures, mean in zip(zip(*parts, strict=True), printed[row.name], strict=True):
            assert math.fsum(figure or 0 for figure in figures) * row.weight == pytest.approx(mean, abs=1.01e-4)


def test_tables_agree_where_they_print_the_same() -> None:
    trees = {row: figures[-1] for row, figures in table("table2").printed["pair 3"].items()}
    assert trees == {row: figures[-1] for row, figures in table("table4").printed["pair 3"].items()}
    assert table("table8").printed["three"]["MMLU"][:2] == table("table2").printed["pair 4"]["MMLU"][:2]


def test_the_figures_of_table_3_are_those_of_equation_3() -> None:
    found = table("table3")
    for by_row in found.printed.values():
        for figures in by_row.values():
            for column, figure in zip(found.columns, figures, strict=True):
                assert (figure is None) == column.name.endswith(", words")
    units = {one.name: one.method.unit for one in found.columns if isinstance(one.method, CoSD)}
    assert units == {"CoSD-Rule, eq. 3": "literal", "CoSD-Rule, words": "word"}
    assert found.notes[0].startswith("The paper's CoSD is equation 3, the columns eq. 3; the columns words are")


# The tables, on the bundled models.


def lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in rows), encoding="utf-8")


def with_number(one: DemoQuestion) -> dict[str, Any]:
    return {"prompt": one.prompt, "answer": one.answer, "target": str(one.number)}


def with_options(one: DemoQuestion) -> dict[str, Any]:
    assert one.fact is not None
    return {"prompt": one.prompt, "answer": " B", "choices": ["Atlantis", one.fact, "Utopia", "Arcadia"]}


@pytest.fixture(scope="module")
def folder(three: Three, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten questions for every task, and a file of pairs."""
    path = tmp_path_factory.mktemp("paper")
    data = path / "data"
    for seed, name in enumerate(_tasks.TASKS):
        lines(data / f"{name}.jsonl", [with_number(one) for one in sample("mixed-translation", 10, seed)])
    lines(data / "mmlu.jsonl", [with_options(one) for one in sample("capital", 10, 1)])
    for name in ("hellaswag", "truthfulqa"):  # tables do without
        (data / f"{name}.jsonl").unlink()
    program = {"prompt": "def add(a, b):\n", "answer": "    return a + b\n", "tests": "assert add(2, 2) == 4"}
    lines(data / "humaneval.jsonl", [{**program, "prompt": f"# {at}\n{program['prompt']}"} for at in range(10)])
    for seed, name in enumerate(("alpacaeval", "gsm8k", "humaneval", "mmlu"), 50):
        lines(data / "train" / f"{name}.jsonl", [with_number(one) for one in sample("mixed-translation", 10, seed)])
    one_tokenizer, two = (three.sums, three.words), (three.sums, three.facts)
    pairs: dict[str, tuple[str, ...]] = {"pair 1": one_tokenizer, "pair 3": one_tokenizer, "pair 5": two}
    pairs |= {"three": (three.words, three.sums, three.facts), "cool": tuple(three.values())}
    content = {name: {"models": [{"url": url, "revision": "1"} for url in urls]} for name, urls in pairs.items()}
    for server, name in zip(content["cool"]["models"], three, strict=True):
        server["tokenizer"] = str(Path(__file__).parents[1] / "models" / name)
    (path / "pair.json").write_text(json.dumps(content), encoding="utf-8")
    return path


def start(name: str, folder: Path, *more: object) -> Ran:
    options = ("--pairs", folder / "pair.json", "--data", folder / "data", "--out", folder / "out")
    return run_script(f"paper/{name}", *options, "--max-tokens", 8, *more)


def result(name: str, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / f"{name}.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.live
def test_a_table_is_estimated_measured_bounded_and_resumed(folder: Path) -> None:
    asked = ("table8", folder, "--limit", 2)
    ran = start(*asked, "--dry-run")
    assert (ran.code, ran.err) == (0, "")
    assert re.search(r"three, MMLU, answers of up to 8 tokens: 10 answers to 2 questions: about", ran.out)
    assert not (folder / "out" / "table8.json").exists()
    ran = start(*asked, "--max-billed-tokens", 100)
    assert ran.code == 1
    assert "not complete: max_billed_tokens" in ran.err
    assert not result("table8", folder)["complete"]
    ran = start(*asked)
    assert ran.code == 0, ran.err
    found = result("table8", folder)
    assert found["complete"]
    assert [one["model"] for one in found["models"]["three"]] == ["words", "sums", "facts"]
    cells = found["cells"]
    assert [one["column"] for one in cells] == [one.name for one in table("table8").columns]
    assert [one["printed"] for one in cells] == [*table("table8").printed["three"]["MMLU"]]
    for one in cells:
        assert one["questions"] == 2
        assert 0 <= one["low"] <= one["ours"] <= one["high"] <= 100
    assert "2 answers: a share near one half is known to plus or minus 69.3 points" in ran.out
    assert (folder / "out" / "table8.md").read_text(encoding="utf-8").count("| three | MMLU |") == 5
    again = start(*asked)
    assert (again.code, again.out) == (0, ran.out)
    assert result("table8", folder)["billed_tokens_of_this_run"] == 0


ASKED = {"table5": 5}
LEFT_OUT = {"table2": {"Co-LLM"}}


@pytest.mark.live
@pytest.mark.extended
@pytest.mark.parametrize("name", [name for name in TABLES if name != "table8"])
def test_every_table(name: str, folder: Path) -> None:
    programs = ["--run-programs"] if name == "table3" else []
    limit = ASKED.get(name, 1)
    ran = start(name, folder, "--limit", limit, *programs)
    assert ran.code == 0, ran.err
    found, about = result(name, folder), table(name)
    pairs = [pair for pair in about.printed if pair in json.loads((folder / "pair.json").read_text(encoding="utf-8"))]
    rows = [row for pair in pairs for row in about.printed[pair] if programs or row != "HumanEval"]
    assert len(found["cells"]) == len(rows) * len(about.columns)
    for one in found["cells"]:
        tasks = next(row.tasks for row in about.rows if row.name == one["row"])
        if one["column"] in LEFT_OUT.get(name, ()):
            assert one["ours"] is None
        elif not any(f"{one['column']}: " in note or f"column {one['column']} " in note for note in found["notes"]):
            assert one["questions"] == limit * len(tasks)
            assert one["ours"] is not None
    assert about.title in ran.out


@pytest.mark.live
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--pair", "pair 9"), "has no 'pair 9'; it has pair 1, pair 3, pair 5, three, cool"),
        (("--pair", "three"), "is about 2 models, and 'three' of"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(options: tuple[str, ...], words: str, folder: Path) -> None:
    ran = start("table2", folder, *options)
    assert (ran.code, ran.out) == (1, "")
    assert words in ran.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            'pair 1: {models: [{url: "http://127.0.0.1:9", key: sk-secret}, {url: "http://127.0.0.1:9"}]}',
            "`key` is the",
        ),
        (
            'pair 1: {models: [{url: "http://127.0.0.1:9", password: sk-secret}]}',
            "pair 1.models.0.password: Extra inputs",
        ),
        ("[]", "contains no pairs"),
        ('mine: {models: [{url: "http://127.0.0.1:9"}, {url: "http://127.0.0.1:9"}]}', "name one of its own"),
    ],
)
def test_a_file_of_pairs_is_checked_and_no_key_repeated(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text(content, encoding="utf-8")
    lines(tmp_path / "mmlu.jsonl", [{"prompt": "q", "answer": " A", "choices": ["a", "b"]}])
    ran = run_script("paper/table2", "--pairs", path, "--data", tmp_path, "--out", tmp_path / "out")
    assert (ran.code, ran.out) == (1, "")
    assert words in ran.err
    assert "sk-secret" not in ran.err


def test_without_questions_no_server_is_asked(tmp_path: Path) -> None:
    ran = run_script("paper/table8", "--data", tmp_path / "data", "--out", tmp_path / "out")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "error: there is nothing to ask\n"
        f"three: the row MMLU is left out: there is no {tmp_path / 'data' / 'mmlu.jsonl'}; convert.py makes it\n"
    )


def test_the_file_of_pairs_beside_the_tables_has_all_of_them() -> None:
    found = import_module("_pairs").read_pairs(PAPER / "pair.yaml")
    for name in TABLES:
        for pair in table(name).printed:
            assert len(found[pair].models) == table(name).models_needed
