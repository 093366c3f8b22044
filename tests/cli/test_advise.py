"""`cosd advise`: one paragraph, the settings file, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import Result

from commands import Scripted, cosd, words
from compared import in_turn, pair
from cosd_api import Fusion, RuleVerifier
from cosd_api.comparison import Advice
from cosd_api.training.file_lock import lock
from cosd_providers.connect import Connection


def scripted_pair(monkeypatch: pytest.MonkeyPatch, folder: Path, kinds: tuple[str, ...]) -> Path:
    """A pair whose models answer questions of these kinds in turn, behind URLs; the file of the questions."""
    asked = in_turn(kinds, 30)
    draft, assistant = pair(asked)
    found = Scripted({"http://draft": draft, "http://one": assistant})
    monkeypatch.setattr("cosd_api.cli.options.connect", found.connect)
    urls = {id(draft): "http://draft", id(assistant): "http://one"}
    monkeypatch.setattr("cosd_api.config.saving.connection_of", lambda one: Connection(urls[id(one)], {}))
    path = folder / "questions.jsonl"
    path.write_text("".join(one.model_dump_json(include={"prompt", "answer"}) + "\n" for one in asked.values()))
    return path


def advise(questions: Path, *more: str) -> Result:
    servers = ("--draft", "http://draft", "--assistant", "http://one")
    given = ("--methods", "cosd,cosd-1-1", "--one-way", "--max-tokens", "4", *more)
    return cosd("advise", str(questions), *servers, *given)


def test_a_paragraph_and_a_settings_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    questions = scripted_pair(monkeypatch, tmp_path, ("surer", "draft"))
    out = tmp_path / "fusion.yaml"
    done = advise(questions, "--yes", "--out", str(out))
    assert done.exit_code == 0, done.stderr
    begins = "Fuse them. Let the draft (small) draft and the assistant (large) assist, by cosd with the verifier rule"
    assert words(done).startswith(begins)
    assert f"wrote {out}: use it with cosd fuse --config {out}" in done.stderr
    assert "about" in done.stderr.splitlines()[0]  # the estimate
    assert "[7 of 30] 2 of 2 ways are left." in done.stderr and "[15 of 30] 2 of 2 ways are left." in done.stderr
    text = out.read_text()
    assert text.startswith("# Fuse them. ")
    assert Fusion.load(out).settings.verifier == RuleVerifier(alpha=1, beta=1)


def test_one_model_alone_and_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    questions = scripted_pair(monkeypatch, tmp_path, ("both", "spoilt", "spoilt"))
    out = tmp_path / "fusion.yaml"
    done = advise(questions, "--max-billed-tokens", "100000", "--out", str(out), "--json")
    assert done.exit_code == 0, done.stderr
    assert Advice.model_validate_json(done.stdout).decision == "alone"
    assert "fusion.yaml was not written: fusing is not advised" in words(done)
    assert not out.exists()


def test_undecided_with_options_and_notes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    questions = scripted_pair(monkeypatch, tmp_path, ("both", "neither"))
    done = advise(questions, "--yes", "--looks", "end", "--worth", "0.01", "--choosing", "0.5")
    assert done.exit_code == 0 and words(done).startswith("Undecided. Use the draft (small) alone for now. ")
    assert "--choosing is ignored, and ends with release 0.2: all questions choose and test" in words(done)
    assert "[30 of 30] 2 of 2 ways are left. " in words(done) and "questions had equal texts: not asked." in words(done)
    line = questions.read_text().splitlines()[0]
    questions.write_text(questions.read_text() + line.replace(" r", " x") + "\n")
    assert "note: 2 questions share their prompt with another one" in words(advise(questions, "--yes"))


def test_the_report_and_what_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    questions = scripted_pair(monkeypatch, tmp_path, ("fixed", "draft"))
    page = tmp_path / "report.html"
    done = advise(questions, "--yes", "--report", str(page), "--methods", "cosd,defer", "--json")
    assert done.exit_code == 2 and "'defer' has no defaults" in words(done) and not page.exists()
    done = advise(questions, "--yes", "--report", str(page), "--answers", str(tmp_path / "answers.jsonl"))
    assert done.exit_code == 0 and f"wrote {page}" in done.stderr
    text = page.read_text()
    assert "Fuse them. Let the draft (small) draft" in text and ">fuse them<" in text
    done = advise(questions, "--yes", "--answers", str(page), "--report", str(page))
    assert done.exit_code == 2 and "is an input and would be overwritten" in words(done)  # a long path is broken
    assert page.read_text() == text


def test_the_estimate_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    questions = scripted_pair(monkeypatch, tmp_path, ("fixed", "draft"))
    answers, page = tmp_path / "answers.jsonl", tmp_path / "report.html"
    done = advise(questions, "--dry-run", "--answers", str(answers), "--report", str(page))
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("120 answers to 30 questions: about ") and done.stdout.count("\n") == 1
    assert "after the first look" in done.stdout
    assert not answers.exists() and not page.exists()
    assert advise(questions, "--yes", "--answers", str(answers)).exit_code == 0
    before = answers.read_bytes()
    answers.chmod(0o444)
    with answers.open("rb") as file:
        assert lock(file)  # by another run
        done = advise(questions, "--dry-run", "--answers", str(answers), "--grader", "contains")
    assert (done.exit_code, done.stderr, answers.read_bytes()) == (0, "", before)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        ((), 2, "there is no terminal to confirm the cost: give --yes"),
        (("--yes", "--max-billed-tokens", "20"), 1, "No advice yet: max_billed_tokens=20 is reached"),
        (("--yes", "--assistant", "http://one", "--methods", "cascade"), 2, "'cascade' cannot fuse these 3 models"),
        (("--yes", "--limit", "19"), 2, "greater than or equal to 20"),
        (("--yes", "--out", "nowhere/fusion.yaml"), 2, "nowhere/fusion.yaml cannot be written"),
        (("--yes", "--methods", "csd"), 2, "there is no method 'csd'; did you mean 'cosd'?"),
    ],
)
def test_how_it_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: tuple[str, ...], code: int, said: str
) -> None:
    done = advise(scripted_pair(monkeypatch, tmp_path, ("both",)), *more)
    assert (done.exit_code, said in words(done)) == (code, True), words(done)


@pytest.mark.extended
def test_a_missing_file(tmp_path: Path) -> None:
    done = advise(tmp_path / "none.jsonl", "--yes")
    assert done.exit_code == 2 and "none.jsonl: No such file or directory" in words(done)
