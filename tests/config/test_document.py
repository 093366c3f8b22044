"""Settings files as text: what is written is read again, with its lines, and what is not meant is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import SettingError
from cosd_api.config.document import as_json, as_yaml, read_document
from support.drawn import costly

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "yes",
        "no",
        "1e-3",
        ".inf",
        "null",
        "~",
        "-",
        "a: b",
        "# x",
        "0x10",
        "2026-01-01",
        "http://gpu1:8080",
        "a/b.json",
        "1" * 101,
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


def read(folder: Path, text: str, name: str = "fusion.yaml") -> Any:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="\n")
    return read_document(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("documents")


@costly(40)
@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4))
def test_what_is_written_is_read_again(folder: Path, value: dict[str, Any]) -> None:
    assert read(folder, as_yaml(value, "a comment")).value == value
    assert read(folder, as_json(value)).value == value


@given(st.dictionaries(TEXTS, TEXTS | st.integers() | st.lists(TEXTS, max_size=2), min_size=1, max_size=4))
def test_other_readers_of_yaml_see_the_same(value: dict[str, Any]) -> None:
    assert yaml.safe_load(as_yaml(value)) == value


def test_lines(folder: Path) -> None:
    found = read(folder, "# settings\ndraft: http://a\n\nassistants:\n  - url: http://b\n    model: m\n")
    assert found.line(("draft",)) == 2
    assert found.line(("assistants", 0, "model")) == 6
    assert found.line(("assistants", 0, "modle")) == 5  # of what holds it
    assert read(folder, json.dumps({"draft": "http://a"})).line(("draft",)) is None


def test_words_are_those_of_yaml_1_2(folder: Path) -> None:
    text = 'a: yes\nb: no\nc: 1e-3\nd: true\ne: ~\nf: "1"\ng: 010\nh: .inf\n'
    value = read(folder, text).value
    assert value == {"a": "yes", "b": "no", "c": 1e-3, "d": True, "e": None, "f": "1", "g": 10, "h": float("inf")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1, 2", "line 1: not valid YAML: expected ',' or ']'"),
        ("a: 1\n b: 2", "line 2: not valid YAML: mapping values are not allowed here. Is a line indented wrongly"),
        ("a: 1\na: 2", "line 2: the field 'a' is there twice; keep one of them"),
        ("a: &x 1\nb: *x", "line 1: anchors and aliases (& and *) are not read: write the value in both places"),
        ("a: !!python/name:os.system 1", "line 1: tags (!) are not read: leave it out"),
        ("a: !own 1", "line 1: tags (!) are not read: leave it out"),
        ("[1]: 2", "line 1: the name of a field must be a word"),
        ("a: " + "[" * 600, "it is nested too deep"),
        ("a: \x00", "it has characters that YAML does not allow"),
        ('{"a": 1,}', "line 1: not valid JSON"),
        ('{"a": ' + "1" * 5000 + "}", "a number has more than 100 digits; is it text, which needs quotes?"),
        ("b: 1\na: " + "1" * 5000, "line 2: a number has more than 100 digits; is it text, which needs quotes?"),
        ('{"a": 1, "a": 2}', "the field 'a' is there twice; keep one of them"),
        ('{"a": ' + "[" * 100_000, "it is nested too deep"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(folder: Path, text: str, words: str) -> None:
    with pytest.raises(SettingError, match=re.escape(words)):
        read(folder, text)


def test_other_files_are_refused(folder: Path) -> None:
    with pytest.raises(SettingError, match="is a folder, and a settings file is one file"):
        read_document(folder)
    (folder / "large.yaml").write_bytes(b"a" * 1_000_001)
    with pytest.raises(SettingError, match="has more than 1 MB: that is not a settings file"):
        read_document(folder / "large.yaml")
    (folder / "latin.yaml").write_bytes(b"a: \xe9")
    with pytest.raises(SettingError, match="is not UTF-8 text at byte 3"):
        read_document(folder / "latin.yaml")
