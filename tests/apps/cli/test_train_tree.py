"""`cosd train-tree`: from samples to a tree that `cosd fuse` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cosd_api import Example, Samples, TreeVerifier, train_tree
from fakes.commands import HEADER, SERVERS, Scripted, cosd, lines, words

#: Behind "Q" the draft of `scripted` writes " b" with p = 0.2, and the assistant " c" with q = 0.8.
EXAMPLES = [{"prompt": "Q", "answer": " a c."}, {"prompt": "Q", "answer": " a b", "ends": False}]


def row(at: int, *labels: int) -> dict[str, Any]:
    """An example: the draft is sure where it is right."""
    fields: dict[str, Any] = {"prompt": f"Q{at}", "answer": " a"}
    place = {"q": 0.7, "agreed": False, "start": 0, "draft": " a", "assistant": " b", "reference": " a"}
    places = [{**place, "p": 0.2 if label else 0.8, "label": label} for label in labels]
    return {"key": Example(**fields).key, **fields, "samples": places, "skipped": 0}


def test_from_samples_to_a_tree_that_fuses(scripted: Scripted, tmp_path: Path) -> None:
    found, tree = lines(tmp_path / "s.jsonl", HEADER, *(row(at, 0, 1) for at in range(5))), str(tmp_path / "tree.json")
    result = cosd("train-tree", found, "-o", tree)
    assert result.exit_code == 0, words(result)
    assert result.stdout == train_tree(Samples.load(found)).report() + "\n"
    assert "  p <= 0.5: replace\n  p > 0.5: keep\n" in result.stdout
    assert "\ntree                100.0%    100.0%      5         0      0         5\n" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert result.stderr.endswith(f"cosd: wrote {tree}\n")
    assert "cosd: note: on held-out examples the tree has a balanced accuracy of 100.0%, and the rule" in result.stderr
    assert "sk-secret" not in Path(tree).read_text() + result.output
    assert scripted("Q", "--tree", tree).stdout == " a c.\n"


def test_a_tree_that_replaces_where_the_draft_is_sure_is_not_written(tmp_path: Path) -> None:
    rows = [row(at, 0, 1) for at in range(5)]
    for one in rows:
        for place in one["samples"]:
            place["p"] = 1 - place["p"]
    found, tree = lines(tmp_path / "s.jsonl", HEADER, *rows), tmp_path / "tree.json"
    result = cosd("train-tree", found, "-o", str(tree))
    assert result.exit_code == 2
    assert not tree.exists()
    assert "  p <= 0.5: keep\n  p > 0.5: replace\n" in result.stdout
    assert (
        "was not written: the tree replaces words where the draft is confident (it replaces a draft of 0.75"
        in words(result)
    )
    assert "give --force to write the tree all the same" in words(result)
    assert cosd("train-tree", found, "-o", str(tree), "--force").exit_code == 0
    assert TreeVerifier.load(tree).replaces(0.8, 0.7)


def test_what_is_read_is_not_written_over(tmp_path: Path) -> None:
    samples = lines(tmp_path / "s.jsonl", HEADER, *(row(at, 0, 1) for at in range(5)))
    before = Path(samples).read_bytes()
    result = cosd("train-tree", samples, "-o", samples)
    assert result.exit_code == 2
    assert "is an input and would be overwritten: name another file" in words(result)
    assert Path(samples).read_bytes() == before


def test_few_examples_are_enough_and_a_note_says_so(scripted: Scripted, tmp_path: Path) -> None:
    examples, kept, tree = lines(tmp_path / "e.jsonl", *EXAMPLES), tmp_path / "s.jsonl", tmp_path / "tree.json"
    assert cosd("collect", examples, *SERVERS, "-o", str(kept)).exit_code == 0
    result = cosd("train-tree", str(kept), "-o", str(tree))
    assert result.exit_code == 0, words(result)
    assert "2 examples: 1 place where the draft is right" in words(result)
    assert "note: the tree's accuracy is unknown: 2 examples have a place" in words(result)
    assert TreeVerifier.load(tree).trained_on["depth"] == 2


def test_settings_go_to_the_tree(tmp_path: Path) -> None:
    found, tree = lines(tmp_path / "s.jsonl", HEADER, *(row(at, 0, 1) for at in range(3))), tmp_path / "tree.json"
    options = (
        "--depth",
        "1",
        "--min-leaf",
        "2",
        "--keep-agreeing",
        "--no-class-weights",
        "--folds",
        "3",
        "--seed",
        "7",
    )
    assert cosd("train-tree", found, "-o", str(tree), *options).exit_code == 0
    told = TreeVerifier.load(tree).trained_on
    wanted = {"depth": 1, "min_leaf": 2, "keep_agreeing": True, "class_weight": None, "folds": 3, "seed": 7}
    assert {name: told[name] for name in wanted} == wanted


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ([], (), "is empty"),
        ([HEADER], (), "there is nothing to train on: the samples have no examples"),
        ([HEADER, row(0, 1)], (), "the only labelled sample is the assistant's"),
        (EXAMPLES, (), "is not a file of samples and was not changed: cosd collect writes samples to a new file, from"),
        ([HEADER, row(0, 0, 1)], ("--samples", "x.jsonl"), "No such option: --samples"),
        ([HEADER, row(0, 0, 1)], ("--depth", "13"), "--depth"),
        ([HEADER, row(0, 0, 1)], ("--min-leaf", "0"), "--min-leaf"),
        ([HEADER, row(0, 0, 1)], ("--seed", "4294967296"), "seed must be at most 4294967295"),
        ([{"kind": "tree"}], (), "(it is a decision tree, which cosd fuse --tree takes)"),
    ],
)
def test_wrong_usage(tmp_path: Path, rows: list[Any], options: tuple[str, ...], said: str) -> None:
    tree = tmp_path / "tree.json"
    result = cosd("train-tree", lines(tmp_path / "data.jsonl", *rows), "-o", str(tree), *options)
    assert result.exit_code == 2
    assert said in words(result)
    assert result.stdout == ""
    assert not tree.exists()


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    found = lines(tmp_path / "s.jsonl", HEADER, row(0, 0, 1))
    for arguments, said in (
        ([str(tmp_path / "nowhere.jsonl"), "-o", str(tmp_path / "tree.json")], "No such file"),
        ([found, "-o", str(tmp_path / "nowhere" / "tree.json")], "cannot be written: No such file or directory"),
        ([found, "-o", str(tmp_path)], "cannot be written: Is a directory"),
        ([found], "--output"),
    ):
        result = cosd("train-tree", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in words(result)
