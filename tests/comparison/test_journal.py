"""The journal of a comparison: what a cut file still holds, at every byte, and files that are something else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compared import examples, pair
from cosd_api import SettingError, compare
from cosd_api.comparison.journal import AnswerUsage, GradedAnswer, Journal, JournalHeader
from cosd_api.records import Endpoint


def header(**options: Any) -> JournalHeader:
    draft, assistant = (
        Endpoint(name=name, endpoint="scripted:", engine="scripted", model=model)
        for name, model in (("draft", "small"), ("assistant", "large"))
    )
    return JournalHeader(draft=draft, assistant=assistant, **options)


async def write(path: Path) -> None:
    asked = examples(("fixed", "both"), ("both",), 1 / 3)
    draft, assistant = pair(asked)
    await compare(asked.values(), draft=draft, assistant=assistant, methods=["cosd"], path=path, development=1 / 3)


def texts(lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if b'"text"' in line]


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.extended)])
async def test_a_file_that_was_cut_at_any_byte_holds_its_whole_lines(tmp_path: Path, step: int) -> None:
    path = tmp_path / "answers.jsonl"
    await write(path)
    data = b"".join(path.read_bytes().splitlines(keepends=True)[:5])
    path.write_bytes(data)
    lines = data.splitlines(keepends=True)
    with Journal(path, header()) as journal:
        whole = list(journal.answers.items())
    assert len(whole) == len(texts(lines)) and 0 < len(whole) < len(lines) - 1
    ends = [len(b"".join(lines[:at])) for at in range(len(lines) + 1)]
    places = {*range(0, len(data), step), *(end + by for end in ends for by in (-2, -1, 0, 1))}
    for size in sorted(place for place in places if 0 <= place <= len(data)):
        path.write_bytes(data[:size])
        kept = [line for line, end in zip(lines, ends[1:], strict=True) if size >= end - 1]
        with Journal(path, header()) as journal:
            there = whole[: len(texts(kept))]
            assert list(journal.answers.items()) == there, size
            assert journal.billed == sum(one.billed for _, one in there)
            assert sum(map(len, journal.grades.values())) == max(0, len(kept) - 1) - len(there)
        assert path.read_bytes() == b"".join(kept) or len(kept) == 0, size
    assert data.startswith(b'{"kind":"cosd-comparison","schema_version":2,')


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[1]\n", "does not hold the answers of a comparison and was not changed (it is one JSON array"),
        (b'{"kind":"cosd-samples"}\n', "(it is a file of samples, which cosd train-tree and cosd tune take)"),
        (b'{"a":1}\n', "does not hold the answers of a comparison and was not changed: give another folder"),
        (b'{"kind":"cosd-comparison","schema_version":3}\n', "was written by a newer cosd-api (schema_version 3)"),
        (
            b'{"kind":"cosd-comparison","schema_version":1}\n',
            "may differ from today's. Give another folder, or move this one away",
        ),
        (
            b'{"kind":"cosd-comparison","schema_version":2}\n',
            "line 1: its header is broken: the field 'draft' is missing",
        ),
        (b"HEADER{}\n", "line 2: the field 'key' is missing. Remove the line, and its question will be asked again"),
        (b"HEADERnothing\n", "line 2: invalid JSON (Expecting value at character 1). Remove the line, and its"),
    ],
)
def test_other_files_are_not_changed(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    content = content.replace(b"HEADER", header().model_dump_json().encode() + b"\n")
    path.write_bytes(content)
    with pytest.raises(SettingError) as caught, Journal(path, header()):
        pass
    assert words in str(caught.value)
    assert path.read_bytes() == content


def test_the_header_of_two_models_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    other = Endpoint(name="assistant 2", endpoint="scripted:", engine="scripted", model="other")
    for more in ((), (other,)):
        path.unlink(missing_ok=True)
        with Journal(path, header(more_assistants=more)):
            pass
        fields = json.loads(path.read_text())
        assert [*fields] == [
            "kind",
            "schema_version",
            "draft",
            "assistant",
            *["more_assistants"] * len(more),
            "library_version",
        ]
        with Journal(path, header(more_assistants=more)) as journal:
            assert journal.answers == {}


def test_one_run_at_a_time_has_the_file(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    words = f"{path} is open in another run, which writes to it: wait until that one has ended, or give another place"
    with Journal(path, header()):
        held = path.read_bytes()
        with pytest.raises(SettingError) as caught, Journal(path, header()):
            pass
        assert (str(caught.value), path.read_bytes()) == (words, held)
    with Journal(path, header()) as journal:
        assert journal.billed == 0
    assert path.read_bytes() == held


@pytest.mark.extended
def test_the_lock_of_a_killed_run_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    script = (
        "import sys, time; from pathlib import Path\n"
        "from cosd_api.json_lines import Appender, JsonLines\n"
        "with Appender(Path(sys.argv[1]), JsonLines()):\n"
        "    print('here', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline().strip() == b"here"
        with pytest.raises(SettingError, match="is open in another run"), Journal(path, header()):
            pass
        process.kill()
    with Journal(path, header()) as journal:
        assert journal.answers == {}


def line(**fields: Any) -> GradedAnswer:
    usage = {"draft": AnswerUsage(requests=1, read=7, written=3)}
    return GradedAnswer(key="k", graded="g", contestant="draft", question="q", usage=usage, **fields)


def test_every_line_is_billed_that_was_paid(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with Journal(path, header()) as journal:
        journal.add(line())
        journal.grade(line(right=True))
        journal.add(line())  # the same text, answered twice
        journal.grade(line(right=False))
        assert journal.billed == 20
    with Journal(path, header()) as journal:
        assert journal.billed == 20
        assert (journal.answers, journal.grades) == ({"k": line()}, {"k": {"g": False}})


def test_a_text_that_was_removed_from_the_file_is_graded_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with Journal(path, header()) as journal:
        journal.add(line(text="a"))
        journal.grade(line(text="a", right=True))
    head, _, grade = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(head + grade)
    with Journal(path, header()) as journal:
        assert journal.answers == {}
        journal.add(line(text="b"))
        assert journal.grades == {"k": {}}
        journal.grade(line(text="b", right=True))
    with Journal(path, header()) as journal:
        assert (journal.answers["k"].text, journal.grades) == ("b", {"k": {"g": True}})


def test_files_without_a_word_on_the_bill_are_read(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    several = [line(type="failed"), line(), line(right=True)]
    lines = [header().model_dump_json(), *(one.model_dump_json(exclude_defaults=True) for one in several)]
    path.write_text("".join(f"{one}\n" for one in lines))
    with Journal(path, header()) as journal:
        assert (journal.billed, journal.answers, journal.grades) == (20, {"k": line()}, {"k": {"g": True}})


def test_a_text_has_a_grade_for_each_question_and_another_text_has_none(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with Journal(path, header()) as journal:
        journal.add(line(text="a"))
        journal.grade(line(text="a", right=True))
        journal.grade(line(text="a", right=False).model_copy(update={"graded": "h"}))
    with Journal(path, header()) as journal:
        assert journal.grades == {"k": {"g": True, "h": False}}
    data = path.read_bytes()
    with Journal(path, header(), regrade=True) as journal:  # the grader does not keep its grades
        assert (journal.answers["k"].text, journal.grades) == ("a", {"k": {}})
        journal.grade(line(text="a", right=True))  # as it stands there
        assert journal.grades == {"k": {"g": True}} and path.read_bytes() == data
        journal.add(line(text="b"))
    with Journal(path, header()) as journal:
        assert (journal.answers["k"].text, journal.grades) == ("b", {"k": {}})
