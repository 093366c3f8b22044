"""Examples and samples, in memory and in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cosd_api import Example, Message, Samples, SettingError
from cosd_api.apps.json_lines import SAMPLES, Appender, JsonLines, file_kind, read_lines
from cosd_api.apps.training.dataset import Header, SamplesFile, check_examples, read_examples, samples_line
from cosd_api.forcing.samples import ExampleSamples, Sample
from cosd_api.records import Endpoint

GIVEN: dict[str, Any] = {"prompt": "Q", "answer": " a b"}


def sample(label: Any, *, agreed: bool = False, p: float = 0.25) -> Sample:
    return Sample(p, 0.75, label, agreed, 0, " x", " y", " z")


def samples(*several: list[Sample]) -> Samples:
    examples = (
        ExampleSamples(example=Example(prompt="Q", answer=f" {at}"), samples=tuple(one), skipped=at)
        for at, one in enumerate(several)
    )
    return Samples(examples=tuple(examples))


def test_counts() -> None:
    found = samples([sample(0), sample(1), sample(None)], [sample(0, agreed=True), sample(None, agreed=True)], [])
    assert (found.positions, found.agreeing, found.labelled, found.dropped, found.skipped) == (5, 2, 2, 1, 3)
    assert found.positions == found.agreeing + found.labelled + found.dropped


def test_the_digest_is_of_what_trains() -> None:
    one = samples([sample(0)])
    other = one.model_copy(update={"warnings": ("a note",)})
    assert one.digest == other.digest
    assert len({one.digest, samples([sample(1)]).digest, samples([sample(0, p=0.26)]).digest, samples().digest}) == 4
    several = samples([sample(0)], [sample(1), sample(0)], [])
    turned = several.model_copy(update={"examples": several.examples[::-1]})
    assert turned.digest == several.digest != samples([sample(0)], [sample(0), sample(1)], []).digest


def test_through_json() -> None:
    found = samples([sample(0), sample(None)])
    assert Samples.model_validate_json(found.model_dump_json()) == found


def test_a_key_is_of_what_is_asked() -> None:
    one = Example(**GIVEN)
    assert one.key == Example(**GIVEN, target="b").key
    others = [Example(**{**GIVEN, **more}) for more in ({"prompt": "R"}, {"answer": " a c"}, {"ends": False})]
    chat = [Example(prompt=(Message("user", "Q"),), answer=" a b")]
    assert len({one.key, *(other.key for other in [*others, *chat])}) == 5


def test_messages_are_a_prompt() -> None:
    example = Example.model_validate({"prompt": [{"role": "user", "content": "Q"}], "answer": "a"})
    assert example.prompt == (Message("user", "Q"),)
    assert Example.model_validate_json(example.model_dump_json()) == example


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"prompt": ""}, "prompt: prompt is empty"),
        ({"prompt": []}, "prompt: the conversation is empty"),
        ({"prompt": 7}, "prompt must be a string or a list of messages, not int"),
        ({"answer": ""}, "answer is empty"),
        ({"answer": 7}, "answer: Input should be a valid string"),
        ({"target": ""}, "target is empty"),
        ({"ends": "yes"}, "ends: Input should be a valid boolean"),
        ({"reply": "b"}, "unknown field 'reply'; known are prompt, answer, target, ends"),
        ({"promt": "Q"}, "unknown field 'promt'; did you mean 'prompt'?"),
    ],
)
def test_examples_that_are_none(more: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=r"^examples\[1\]: ") as caught:
        check_examples([GIVEN, {**GIVEN, **more}])
    assert words in str(caught.value)
    with pytest.raises(ValidationError):
        Example.model_validate({**GIVEN, **more})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "there are no examples"),
        ("Q", "several Example or dictionaries, not str"),
        (GIVEN, "several Example or dictionaries, not dict"),
        (7, "several Example or dictionaries, not int"),
        ([{"prompt": "Q"}], r"examples\[0\]: the field 'answer' is missing"),
        (["Q"], r"examples\[0\]: "),
    ],
)
def test_no_examples(given: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        check_examples(given)


def test_equal_examples_count_once() -> None:
    found = check_examples(one for one in [GIVEN, {"prompt": "R", "answer": "b"}, {**GIVEN, "target": "b"}])
    assert [(number, one.prompt) for number, one in found.items()] == [(1, "Q"), (2, "R")]
    later = check_examples([GIVEN, GIVEN, {"prompt": "R", "answer": "b"}])
    assert [*later] == [1, 3]  # by their numbers among those that were given


def test_a_file_of_examples(tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"prompt": "Q", "answer": " \\u00e9"}\r\n\n{"prompt": "R", "answer": "\xc3\xa9", "ends": false}'
    )
    assert read_examples(path) == [Example(prompt="Q", answer=" é"), Example(prompt="R", answer="é", ends=False)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"prompt": "Q", "answer"', "line 2: invalid JSON (Expecting ':' delimiter at character 25)"),
        (b'{"prompt": "Q', "line 2: invalid JSON (Unterminated string starting at character 12)"),
        (b'["Q", "A"]', "line 2: not a JSON object: {...}"),
        (b'{"prompt": "Q", "answer": "A", "a": 1}', "line 2: unknown field 'a'; known are prompt"),
        (b'{"prompt": "\xff", "answer": "A"}', "line 2: not UTF-8 text at byte 12"),
        (b"[" * 100_000, "line 2: nested too deeply"),
        (b'{"prompt": "Q", "answer": "\\ud800"}', "line 2: answer: "),
    ],
)
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_that_is_no_example(tmp_path: Path, line: bytes, words: str, end: bytes) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_bytes(b'{"prompt": "Q", "answer": " a"}\n' + line + end)
    with pytest.raises(SettingError) as caught:
        read_examples(path)
    assert str(path) in str(caught.value) and words in str(caught.value)


def test_an_empty_file_of_examples(tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text("\n")
    with pytest.raises(SettingError, match="is empty: give lines such as"):
        read_examples(path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ('{\n  "kind": "tree",\n', "a decision tree, which cosd fuse --tree takes"),
        ('{"type":"header","kind":"cosd-trace",', "the trace of an answer, which cosd explain takes"),
        ('{"kind": "cosd-samples"}\n', "a file of samples, which cosd train-tree and cosd tune take"),
        ('\ufeff[\n  {"prompt": "Q"', "one JSON array, not an object on each line"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, content: str, what: str) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SettingError) as caught:
        read_examples(path)
    assert (
        str(caught.value) == f'{path} is {what}. Give examples: lines such as {{"prompt": "2 + 2 =", "answer": " 4"}}'
    )


def test_what_a_prompt_quotes_does_not_make_a_file_another(tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text(json.dumps({"prompt": 'What is {"kind": "tree"}?', "answer": ' It is {"kind": "tree"}'}))
    assert len(read_examples(path)) == 1


def test_as_text_it_is_what_was_counted() -> None:
    found = samples([sample(0), sample(1), sample(None)], [sample(0, agreed=True), sample(None, agreed=True)])
    told = str(found.model_copy(update={"warnings": ("a note", "is it?"), "there": 1}))
    assert told.split("\n") == [
        "2 examples, 1 of them there already",
        "5 places where both models were compared",
        "2 agreeing: both would have written the same",
        "1 labelled 0: they differ, and the draft is right",
        "1 labelled 1: they differ, and the assistant is right",
        "1 dropped: they differ, and neither is right",
        "1 skipped: places that could not be compared",
        "0 failed: examples that were left out",
        "",
        "Note: a note.",
        "",
        "Note: is it?",
    ]


# Files of samples.


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
LINES = [samples_line(one).encode() + b"\n" for one in EXAMPLES]
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
    assert (head["kind"], head["schema_version"], head["draft"]["model"]) == ("cosd-samples", 3, "small")
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


def test_what_only_graders_need_is_kept_and_changes_no_identity(tmp_path: Path) -> None:
    one = Example(**GIVEN, choices=("a", "b"), tests="assert True", group="facts")
    assert one.key == Example(**GIVEN).key
    line = samples_line(ExampleSamples(example=one, samples=()))
    assert json.loads(line)["choices"] == ["a", "b"] and "tests" in line and json.loads(line)["group"] == "facts"
    plain = samples_line(ExampleSamples(example=Example(**GIVEN), samples=()))
    assert "choices" not in plain and "group" not in plain
    for more, words in (
        ({"choices": ["a"]}, "choices: Tuple should have at least 2 items"),
        ({"choices": ["a", "\ud800"]}, "choices: not valid Unicode text at character 0"),
        ({"tests": ""}, "tests is empty"),
        ({"group": ""}, "group is empty"),
    ):
        with pytest.raises(SettingError, match=words):
            check_examples([{**GIVEN, **more}])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(WHOLE)))
def test_wherever_a_crash_cuts_it_whole_lines_stay_and_the_rest_is_put_right(tmp_path: Path, size: int) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(WHOLE[:size])
    kept = SamplesFile.read(path)
    examples = kept.examples
    whole = [one for at, one in enumerate(EXAMPLES) if size >= len(HEAD + b"".join(LINES[: at + 1])) - 1]
    assert list(examples) == whole
    assert path.read_bytes() == WHOLE[:size]  # reading changes nothing
    with Appender(path, kept.lines) as appender:
        if kept.header is None:
            appender.write(HEADER.model_dump_json())
        for one in EXAMPLES[len(whole) :]:
            appender.write(samples_line(one))
    assert path.read_bytes() == WHOLE


def test_a_cut_line_is_left_out_with_a_warning(path: Path) -> None:
    path.write_bytes(WHOLE[:-20])
    found = Samples.load(path)
    assert found.examples == EXAMPLES[:1]
    assert found.warnings == (
        f"the last line of {path} was cut and is left out; collect again to ask about its example",
    )


@pytest.mark.parametrize("content", [b"", b"\n", HEAD[:30]])
def test_there_is_nothing_to_load(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(SettingError, match="is empty: collect has written no samples to it yet"):
        Samples.load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Samples.load(tmp_path / "samples.jsonl")


ROW = json.loads(LINES[0])
SAMPLE = ROW["samples"][0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (HEAD + LINES[0][:-9] + b"\n" + LINES[1], "line 2: invalid JSON ("),
        (HEAD + b"[1, 2]\n", "line 2: not a JSON object"),
        (HEAD + HEAD, "line 2: the field 'key' is missing"),
        (HEAD + json.dumps({**ROW, "answer": " e"}).encode(), "line 2: its key does not match its prompt and answer"),
        (HEAD + json.dumps({**ROW, "samples": [{**SAMPLE, "p": 1.5}]}).encode(), "line 2: samples.0.p: "),
        (HEAD + json.dumps({**ROW, "samples": [{**SAMPLE, "q": float("nan")}]}).encode(), "line 2: samples.0.q: "),
        (HEAD + json.dumps({**ROW, "samples": [{**SAMPLE, "label": 2}]}).encode(), "line 2: samples.0.label: "),
        (HEAD.replace(b'"unit":"token"', b'"unit":"letter"'), "line 1: its header is broken: unit: "),
        (
            HEAD.replace(b'"schema_version":3', b'"schema_version":4'),
            "was written by another version of cosd-api (schema_version 4, not 3): cosd collect writes",
        ),
        (b'{"prompt": "Q", "answer": " a"}\n', "and was not changed: cosd collect writes samples to a new file, from"),
        (b'{\n  "kind": "tree",\n  "nodes": [', "(it is a decision tree, which cosd fuse --tree takes)"),
        (b'{\n  "this": "that"\n}\n', "is not a file of samples and was not changed: cosd collect writes"),
        (b'{"kind": "cosd-tr', "is not a file of samples"),
        (b'{"this": "that"}\n{"this"\n', "is not a file of samples and was not changed: cosd collect writes"),
        (b"Dear diary,\n", "is not a file of samples and was not changed"),
        (b"Dear diary", "is not a file of samples"),
    ],
)
def test_what_is_broken_or_not_ours(path: Path, content: bytes, words: str) -> None:
    path.write_bytes(content)
    with pytest.raises(SettingError) as caught:
        Samples.load(path)
    assert str(path) in str(caught.value) and words in str(caught.value)
    assert content.startswith(b'{"kind":"cosd-samples"') or "Remove the line" not in str(caught.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("line", "words"),
    [(json.dumps({**ROW, "skipped": -1}), "skipped"), (LINES[0].decode()[:-9] + "\n", "invalid JSON")],
)
def test_a_broken_line_says_what_to_do(path: Path, line: str, words: str) -> None:
    path.write_bytes(HEAD + line.encode())
    with pytest.raises(SettingError, match=rf"{words}.*\. Remove the line, and collect will ask"):
        Samples.load(path)


def test_an_example_that_is_there_twice_counts_once(path: Path) -> None:
    path.write_bytes(WHOLE + LINES[0])
    assert Samples.load(path).examples == EXAMPLES


def test_a_file_that_changes_under_way_is_left_alone(path: Path) -> None:
    lines = read_lines(path, may_be_cut=True)
    path.write_bytes(WHOLE + LINES[0])
    with pytest.raises(SettingError, match="has changed since it was read: is another run writing to it"):
        Appender(path, lines).__enter__()
    assert path.read_bytes() == WHOLE + LINES[0]


def test_a_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with Appender(path, JsonLines()) as appender:
        appender.write("{}")
        assert path.read_bytes() == b"{}\n"


def test_what_a_file_holds(path: Path) -> None:
    assert file_kind(path) == SAMPLES
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(json.loads(HEAD)).encode() + b"\r\n" + LINES[0])  # an editor's
    assert file_kind(path) == SAMPLES
    assert Samples.load(path).examples == EXAMPLES[:1]
