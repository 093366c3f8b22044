"""The file of samples: what is read, what is refused, and what is put right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cosd_api import Example, Samples, SettingError
from cosd_api.records import Endpoint
from cosd_api.training.data import Appender, Lines, lines_of
from cosd_api.training.kept import Header, Kept, holds_samples, line_of
from cosd_api.training.samples import ExampleSamples, Sample

HEADER = Header(
    draft=Endpoint(name="draft", endpoint="http://a", engine="e", model="small"),
    assistant=Endpoint(name="assistant", endpoint="http://b", engine="e", model="large"),
    unit="token",
)
EXAMPLES = (
    ExampleSamples(
        example=Example(prompt="Q", answer=" é\u2028", target="é"),
        samples=(Sample(0.1, 0.2, 1, False, 0, " x", " é", " é"), Sample(0.5, 0.5, None, True, 3, "", "", "\u2028")),
        skipped=1,
    ),
    ExampleSamples(
        example=Example.model_validate({"prompt": [{"role": "user", "content": "Q"}], "answer": "a", "ends": False}),
        samples=(),
    ),
)
HEAD = HEADER.model_dump_json().encode() + b"\n"
LINES = [line_of(one).encode() + b"\n" for one in EXAMPLES]
WHOLE = HEAD + b"".join(LINES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "samples.jsonl"
    found.write_bytes(WHOLE)
    return found


def test_a_file_is_what_was_written(path: Path) -> None:
    found = Samples.load(path)
    assert found == Samples(examples=EXAMPLES, draft=HEADER.draft, assistant=HEADER.assistant, unit="token")
    assert Samples.load(str(path)).digest == found.digest


def test_the_form_of_a_file() -> None:
    head, first, _ = (json.loads(line) for line in WHOLE.decode().split("\n")[:-1])
    assert (head["kind"], head["schema_version"], head["draft"]["model"]) == ("cosd-samples", 1, "small")
    assert list(first) == ["key", "prompt", "answer", "target", "ends", "samples", "skipped"]
    assert first["samples"][0] == {
        "p": 0.1,
        "q": 0.2,
        "label": 1,
        "agreed": False,
        "start": 0,
        "draft": " x",
        "assistant": " é",
        "reference": " é",
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(WHOLE)))
def test_wherever_a_crash_cuts_it_whole_lines_stay_and_the_rest_is_put_right(tmp_path: Path, size: int) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(WHOLE[:size])
    kept = Kept.read(path)
    examples = kept.examples if isinstance(kept, Kept) else ()
    whole = [one for at, one in enumerate(EXAMPLES) if size >= len(HEAD + b"".join(LINES[: at + 1])) - 1]
    assert list(examples) == whole
    assert path.read_bytes() == WHOLE[:size]  # reading changes nothing
    with Appender(path, kept.lines if isinstance(kept, Kept) else kept) as appender:
        if not isinstance(kept, Kept):
            appender.write(HEADER.model_dump_json())
        for one in EXAMPLES[len(whole) :]:
            appender.write(line_of(one))
    assert path.read_bytes() == WHOLE


def test_a_cut_line_is_left_out_with_a_warning(path: Path) -> None:
    path.write_bytes(WHOLE[:-20])
    found = Samples.load(path)
    assert found.examples == EXAMPLES[:1]
    assert found.warnings == (f"the last line of {path} was cut, and is left out: collect again asks about it",)


@pytest.mark.parametrize("content", [b"", b"\n", HEAD[:30]])
def test_there_is_nothing_to_load(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(SettingError, match="is empty: collect has kept nothing in it yet"):
        Samples.load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Samples.load(tmp_path / "samples.jsonl")


ROW = json.loads(LINES[0])
SAMPLE = ROW["samples"][0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (HEAD + LINES[0][:-9] + b"\n" + LINES[1], "line 2: it is no JSON ("),
        (HEAD + b"[1, 2]\n", "line 2: it is no JSON object"),
        (HEAD + b"12", "line 2: it is no JSON object"),
        (HEAD + b"\xff\n", "line 2: it is not UTF-8 text at byte 0"),
        (HEAD + HEAD, "line 2: it lacks 'key'"),
        (HEAD + json.dumps({**ROW, "answer": " e"}).encode(), "line 2: its key is not that of its prompt and answer"),
        (HEAD + json.dumps({**ROW, "samples": [{**SAMPLE, "p": 1.5}]}).encode(), "line 2: samples.0.p: "),
        (HEAD + json.dumps({**ROW, "samples": [{**SAMPLE, "q": float("nan")}]}).encode(), "line 2: samples.0.q: "),
        (HEAD + json.dumps({**ROW, "samples": [{**SAMPLE, "label": 2}]}).encode(), "line 2: samples.0.label: "),
        (HEAD + json.dumps({**ROW, "answer": ""}).encode(), "line 2: answer is empty"),
        (HEAD.replace(b'"unit":"token"', b'"unit":"letter"'), "line 1: its header is broken: unit: "),
        (
            HEAD.replace(b'"schema_version":1', b'"schema_version":2'),
            "is of a newer cosd-api (schema_version 2)",
        ),
        (
            b'{"prompt": "Q", "answer": " a"}\n',
            "as it is (it is a file of examples, which cosd collect takes)",
        ),
        (b'{"kind": "cosd-trace"}\n', "(it is the trace of an answer, which cosd explain takes)"),
        (b'{\n  "kind": "tree",\n  "nodes": [', "(it is a decision tree, which cosd fuse --tree takes)"),
        (b'{"schema_version":1,"text":"a"}\n', "(it is the result of a fusion, as cosd fuse --json prints it)"),
        (b'[\n  {"prompt": "Q"', "(it is one JSON array, and not an object on each line)"),
        (b'{\n  "this": "that"\n}\n', "is no file of samples, and is left as it is: give collect another"),
        (b'{"kind": "cosd-tr', "is no file of samples"),
        (b'{"this": "that"}\n{"this"\n', "is no file of samples, and is left as it is: give collect another"),
        (b"Dear diary,\n", "is no file of samples, and is left as it is"),
        (b"Dear diary", "is no file of samples"),
    ],
)
def test_what_is_broken_or_not_ours(path: Path, content: bytes, words: str) -> None:
    path.write_bytes(content)
    with pytest.raises(SettingError) as caught:
        Samples.load(path)
    assert str(path) in str(caught.value) and words in str(caught.value)
    assert content.startswith(b'{"kind":"cosd-samples"') or "Take the line out" not in str(caught.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("line", "words"), [(json.dumps({**ROW, "skipped": -1}), "skipped"), (LINES[0].decode()[:-9] + "\n", "no JSON")]
)
def test_a_broken_line_says_what_to_do(path: Path, line: str, words: str) -> None:
    path.write_bytes(HEAD + line.encode())
    with pytest.raises(SettingError, match=rf"{words}.*\. Take the line out: its example is asked about again"):
        Samples.load(path)


def test_an_example_that_is_there_twice_counts_once(path: Path) -> None:
    path.write_bytes(WHOLE + LINES[0])
    assert Samples.load(path).examples == EXAMPLES


def test_a_file_that_changes_under_way_is_left_alone(path: Path) -> None:
    lines = lines_of(path, may_be_cut=True)
    path.write_bytes(WHOLE + LINES[0])
    with pytest.raises(SettingError, match="has changed since it was read: is another run writing to it"):
        Appender(path, lines).__enter__()
    assert path.read_bytes() == WHOLE + LINES[0]


def test_a_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with Appender(path, Lines()) as appender:
        appender.write("{}")
        assert path.read_bytes() == b"{}\n"


def test_what_a_file_holds(path: Path, tmp_path: Path) -> None:
    assert holds_samples(path)
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(json.loads(HEAD)).encode() + b"\r\n" + LINES[0])  # an editor's
    assert holds_samples(path)
    assert Samples.load(path).examples == EXAMPLES[:1]
    (tmp_path / "other").write_text('{"prompt": "Q"}')
    assert not holds_samples(tmp_path / "other")
