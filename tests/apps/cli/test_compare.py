"""`cosd compare`: what it prints, what it keeps, what it asks first, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from typer.testing import Result

from cosd_api import Example
from cosd_api.apps.comparison import Advice, Comparison
from cosd_api.apps.json_lines import lock
from fakes.commands import Scripted, cosd, start_scripted, words
from toys.compared import examples, in_turn, pair, trio

posix = pytest.mark.skipif(os.name == "nt", reason="signals and terminals of POSIX")

ASKED = examples(("both", "draft", "fixed", "sure"), ("fixed",))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    draft, assistant = pair(ASKED)
    found = Scripted({"http://draft": draft, "http://one": assistant})
    monkeypatch.setattr("cosd_api.apps.cli.options.connect", found.connect)
    return found


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    lines = [one.model_dump_json(include={"prompt", "answer"}) for one in ASKED.values()]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def compare(questions: Path, *more: str, methods: str = "cosd") -> Result:
    servers = ("--draft", "http://draft", "--assistant", "http://one")
    given = ("--methods", methods, "--one-way", "--max-tokens", "4", *more)
    return cosd("compare", str(questions), *servers, *given)


def test_the_table_and_the_folder(scripted: Scripted, questions: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    done = compare(questions, "--yes", "--out", str(folder))
    assert done.exit_code == 0, done.stderr
    assert "small as the draft, large as the assistant, graded by exact: 4 test questions, 1 to set baselines" in words(
        done
    )
    rows = {line.split("  ")[0]: line.split() for line in done.stdout.splitlines()}
    assert "2/4" in rows["draft"] and "3/4" in rows["assistant"] and "3/4" in rows["cosd"] and "4/4" in rows["oracle"]
    found = Comparison.model_validate_json((folder / "comparison.json").read_text())
    assert (found["cosd"].right, found.stopped) == (3, None)
    assert len((folder / "answers.jsonl").read_text().splitlines()) == 1 + len(found.answers)
    assert "small as the draft" in (folder / "report.html").read_text()
    assert "Undecided. Use the assistant (large) alone for now." in words(done)
    lines = done.stderr.splitlines()
    assert lines[0].startswith("cosd: 24 answers to 5 questions: about ")
    assert lines[1:] == [f"cosd: wrote {folder}"]
    sent = sum(one.requests for one in scripted.providers.values())
    again = compare(questions, "--yes", "--out", str(folder), "--json")
    assert sum(one.requests for one in scripted.providers.values()) == sent
    assert json.loads(again.stdout)["spent_tokens"] == 0


def test_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One paragraph, without baselines, that ends with the options of the advised method."""
    asked = in_turn(("surer", "draft"), 30)
    draft, assistant = pair(asked)
    monkeypatch.setattr(
        "cosd_api.apps.cli.options.connect", Scripted({"http://draft": draft, "http://one": assistant}).connect
    )
    path, folder = tmp_path / "questions.jsonl", tmp_path / "out"
    path.write_text("".join(one.model_dump_json(include={"prompt", "answer"}) + "\n" for one in asked.values()))
    done = compare(path, "--yes", "--advise", "--out", str(folder), methods="cosd,cosd-1-1")
    assert done.exit_code == 0, done.stderr
    options = "The options of cosd fuse for this method are --verifier rule --alpha 1.0 --beta 1.0."
    begins = "Fuse them. Let the draft (small) draft and the assistant (large) assist, by cosd with the verifier rule"
    assert words(done).startswith(begins) and "random gate" not in (folder / "comparison.json").read_text()
    assert options in words(done)
    again = compare(path, "--yes", "--advise", "--json", "--out", str(folder), "--worth", "0.9", methods="cosd")
    assert Advice.model_validate_json(again.stdout).decision == "alone"


def test_two_assistants(questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = examples(("all", "first", "second", "misled"), ("first",))
    providers = dict(zip(("http://draft", "http://one", "http://two"), trio(asked), strict=True))
    monkeypatch.setattr("cosd_api.apps.cli.options.connect", Scripted(providers).connect)
    folder, prices = tmp_path / "out", ("--prices", "draft=1,2", "--prices", "large=3,4", "--prices", "assistant 2=5,6")
    done = compare(questions, "--assistant", "http://two", "--yes", "--out", str(folder), *prices)
    assert done.exit_code == 0, done.stderr
    assert "small as the draft, large and other as the assistants, graded by exact: 4 test questions" in words(done)
    found = Comparison.model_validate_json((folder / "comparison.json").read_text())
    assert (found["cosd"].right, found["oracle"].right, [*found.models]) == (
        3,
        4,
        ["draft", "assistant 1", "assistant 2"],
    )
    refused = compare(questions, "--assistant", "http://two", "--yes", methods="cosd,steps")
    assert refused.exit_code == 2 and "the method 'steps' cannot fuse these 3 models" in words(refused)


def test_the_estimate_alone(scripted: Scripted, questions: Path, tmp_path: Path) -> None:
    prices = ("--prices", "draft=1,2", "--prices", "large=3,4")
    done = compare(questions, "--dry-run", "--out", str(tmp_path / "out"), *prices, "--max-billed-tokens", "9000")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("24 answers to 5 questions: about ")
    assert "; price about " in done.stdout and done.stdout.endswith("; stops at 9,000 billed tokens\n")
    assert all(one.requests == 0 for one in scripted.providers.values())
    assert not (tmp_path / "out").exists()


def test_an_estimate_reads_a_folder_and_leaves_it(scripted: Scripted, questions: Path, tmp_path: Path) -> None:
    journal = tmp_path / "out" / "answers.jsonl"
    assert compare(questions, "--yes", "--out", str(journal.parent)).exit_code == 0
    journal.write_bytes(journal.read_bytes()[:-5])  # the last answer is being written
    before = journal.read_bytes()
    for path in (journal, journal.parent):
        path.chmod(path.stat().st_mode & ~0o222)
    with journal.open("rb") as file:
        assert lock(file)  # by another run
        for grader, more in (("contains", ()), ("exact", ("--max-tokens", "3"))):
            done = compare(questions, "--dry-run", "--out", str(journal.parent), "--grader", grader, *more)
            assert (done.exit_code, done.stderr) == (0, "")
            assert (" more are known): " in done.stdout) == (grader == "contains")
    journal.parent.chmod(0o755)
    assert journal.read_bytes() == before


def test_without_yes_or_a_limit_no_question_is_asked(scripted: Scripted, questions: Path) -> None:
    done = compare(questions)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("cosd: 24 answers to 5 questions: about ")
    assert done.stderr.endswith("\ncosd: no question was asked: give --yes, or a limit, --max-billed-tokens\n")
    assert all(one.requests == 0 for one in scripted.providers.values())


def test_a_finished_comparison_needs_no_yes(scripted: Scripted, questions: Path, tmp_path: Path) -> None:
    assert compare(questions, "--yes", "--out", str(tmp_path)).exit_code == 0
    done = compare(questions, "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "cosd: 0 answers to 5 questions (24 more are known): about 0 billed tokens" in done.stderr
    before = sum(one.requests for one in scripted.providers.values())
    more = compare(questions, "--out", str(tmp_path), methods="cosd,average")
    assert more.exit_code == 1 and "no question was asked" in words(more)
    assert sum(one.requests for one in scripted.providers.values()) == before


def test_a_limit_ends_it_cleanly(scripted: Scripted, questions: Path, tmp_path: Path) -> None:
    done = compare(questions, "--max-billed-tokens", "30", "--out", str(tmp_path))
    assert done.exit_code == 1
    assert "cosd: not complete: max_billed_tokens=30 is reached" in done.stderr
    assert "Not complete: max_billed_tokens=30 is reached" in done.stdout
    assert compare(questions, "--yes", "--out", str(tmp_path)).exit_code == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--methods", "cosy"), "there is no method 'cosy'; did you mean 'cosd'?"),
        (("--methods", "cosd-1"), "there is no method 'cosd-1'; did you mean 'cosd-1-1'?"),
        (
            ("--methods", "nope"),
            "cosd-1-1, cosd-paper, cosd-0.97-1, cosd-agreement, cosd-match, cosd-surprise",
        ),
        (("--grader", "command"), "the grader command needs a command, such as command='python grade.py'"),
        (("--grader", "exact", "--time-limit", "0"), "time_limit is a setting of the grader command, not of exact"),
        (("--worth", "0"), "Invalid value for '--worth': Input should be greater than or equal to 0.001"),
        (("--prices", "draft=1"), "'draft=1' is not NAME=READ,WRITTEN, as in draft=0.2,0.6"),
    ],
)
def test_wrong_usage(scripted: Scripted, questions: Path, more: tuple[str, ...], message: str) -> None:
    done = compare(questions, "--yes", *more)
    assert done.exit_code == 2
    assert message in words(done)


def test_a_folder_that_cannot_be_made(scripted: Scripted, questions: Path) -> None:
    done = compare(questions, "--yes", "--out", str(questions / "out"))
    assert done.exit_code == 2 and "Not a directory" in words(done)


def test_a_file_that_is_not_there(scripted: Scripted, tmp_path: Path) -> None:
    done = compare(tmp_path / "nowhere.jsonl", "--yes")
    assert done.exit_code == 2 and "No such file or directory" in words(done)


@posix
@pytest.mark.extended
def test_an_interrupt_says_how_to_resume(tmp_path: Path) -> None:
    path, journal = tmp_path / "questions.jsonl", tmp_path / "out" / "answers.jsonl"
    lines = [Example(prompt=f"Q{at}", answer=" a").model_dump_json(include={"prompt", "answer"}) for at in range(40)]
    path.write_text("".join(f"{line}\n" for line in lines))
    given = ("--yes", "--out", str(journal.parent), "--methods", "cosd", "--concurrency", "1")
    with start_scripted(*given, command=("compare", str(path)), draft="request_delay=0.2") as process:
        deadline = time.monotonic() + 60
        while not (journal.exists() and journal.read_bytes().count(b"\n") > 2):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        shown, errors = process.communicate(timeout=60)
    assert (process.returncode, shown) == (130, b"")
    assert f"finished answers are in {journal}: run the same command again to resume".encode() in errors
