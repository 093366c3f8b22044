"""Examples and samples: what they count, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cosd_api import Example, Message, Samples, SettingError
from cosd_api.training.examples import checked_examples, read_examples
from cosd_api.training.samples import ExampleSamples, Sample

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


def test_what_trains() -> None:
    found = samples([sample(None), sample(0, p=0.5)], [sample(0, agreed=True), sample(None, agreed=True)], [sample(1)])
    one = found.decisive()
    assert (one.p, one.q, one.label, one.group) == ([0.5, 0.25], [0.75, 0.75], [0, 1], [0, 2])
    assert len(one) == 2
    more = found.decisive(keep_agreeing=True)
    assert (more.label, more.group) == ([0, 0, 1], [0, 1, 2])


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
        checked_examples([GIVEN, {**GIVEN, **more}])
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
        ([{"prompt": "Q"}], r"examples\[0\]: it lacks 'answer'"),
        (["Q"], r"examples\[0\]: "),
    ],
)
def test_no_examples(given: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        checked_examples(given)


def test_an_example_that_is_there_twice_counts_once() -> None:
    found = checked_examples(one for one in [GIVEN, {"prompt": "R", "answer": "b"}, {**GIVEN, "target": "b"}])
    assert [(number, one.prompt) for number, one in found.items()] == [(1, "Q"), (2, "R")]
    later = checked_examples([GIVEN, GIVEN, {"prompt": "R", "answer": "b"}])
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
        (b'{"prompt": "Q", "answer"', "line 2: it is no JSON (Expecting ':' delimiter at character 25)"),
        (b'{"prompt": "Q', "line 2: it is no JSON (Unterminated string starting at character 12)"),
        (b'["Q", "A"]', "line 2: it is no JSON object: {...}"),
        (b'{"prompt": "Q"}', "line 2: it lacks 'answer'"),
        (b'{"promt": "Q", "answer": "A"}', "line 2: it has the unknown field 'promt'; did you mean 'prompt'?"),
        (b'{"prompt": "Q", "answer": ""}', "line 2: answer is empty"),
        (b'{"prompt": "Q", "answer": "A", "a": 1}', "line 2: it has the unknown field 'a'; known are prompt"),
        (b'{"prompt": "\xff", "answer": "A"}', "line 2: it is not UTF-8 text at byte 12"),
        (b"[" * 100_000, "line 2: it is nested too deeply"),
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
        ('{"schema_version":1,"text":"a"', "the result of a fusion, as cosd fuse --json prints it"),
        ('\ufeff[\n  {"prompt": "Q"', "one JSON array, and not an object on each line"),
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
