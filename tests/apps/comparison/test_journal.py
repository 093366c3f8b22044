"""The journal of a comparison: what a cut file still holds, at every byte, and files that are something else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cosd_api import SettingError, compare
from cosd_api.apps.comparison.journal import AnswerUsage, GradedAnswer, Journal, JournalHeader
from cosd_api.records import Endpoint
from toys.compared import examples, pair


def header(**options: Any) -> JournalHeader:
    draft, assistant = (
        Endpoint(name=name, endpoint="scripted:", engine="scripted", model=model)
        for name, model in (("draft", "small"), ("assistant", "large"))
    )
    return JournalHeader(draft=draft, assistant=assistant, **options)


async def write(path: Path) -> None:
    asked = examples(("fixed", "both"), ("both",))
    draft, assistant = pair(asked)
    await compare(asked.values(), draft=draft, assistant=assistant, methods=["cosd"], path=path)


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.extended)])
async def test_a_file_that_was_cut_at_any_byte_holds_its_whole_lines(tmp_path: Path, step: int) -> None:
    path = tmp_path / "answers.jsonl"
    await write(path)
    data = b"".join(path.read_bytes().splitlines(keepends=True)[:4])
    path.write_bytes(data)
    lines = data.splitlines(keepends=True)
    with Journal(path, header()) as journal:
        whole = list(journal.answers.items())
    assert len(whole) == len(lines) - 1
    ends = [len(b"".join(lines[:at])) for at in range(len(lines) + 1)]
    places = {*range(0, len(data), step), *(end + by for end in ends for by in (-2, -1, 0, 1))}
    for size in sorted(place for place in places if 0 <= place <= len(data)):
        path.write_bytes(data[:size])
        kept = [line for line, end in zip(lines, ends[1:], strict=True) if size >= end - 1]
        with Journal(path, header()) as journal:
            there = whole[: max(0, len(kept) - 1)]
            assert list(journal.answers.items()) == there, size
            assert journal.billed == sum(one.billed for _, one in there)
        assert path.read_bytes() == b"".join(kept) or len(kept) == 0, size
    assert data.startswith(b'{"kind":"cosd-comparison","schema_version":2,')


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[1]\n", "does not hold the answers of a comparison and was not changed (it is one JSON array"),
        (b'{"kind":"cosd-samples"}\n', "(it is a file of samples, which cosd train-tree and cosd tune take)"),
        (b'{"a":1}\n', "does not hold the answers of a comparison and was not changed: give another folder"),
        (
            b'{"kind":"cosd-comparison","schema_version":3}\n',
            "was written by another version of cosd-api (schema_version 3, not 2): give another",
        ),
        (
            b'{"kind":"cosd-comparison","schema_version":1}\n',
            "was written by another version of cosd-api (schema_version 1, not 2)",
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
        "from cosd_api.apps.json_lines import Appender, JsonLines\n"
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
    return GradedAnswer(key="k", contestant="draft", question="q", usage=usage, **fields)


def test_every_line_is_billed_that_was_paid(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with Journal(path, header()) as journal:
        journal.add(line())
        journal.add(line())  # the same text, answered twice
        journal.add(line(type="failed"))
        assert journal.billed == 30
    with Journal(path, header()) as journal:
        assert (journal.billed, journal.answers, journal.failed) == (30, {"k": line()}, {"k"})
