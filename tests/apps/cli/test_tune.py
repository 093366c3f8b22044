"""`cosd tune`: what it prints, from samples and with answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes.commands import HEADER, SERVERS, Scripted, cosd, lines, words

# Behind "Q" the draft of `scripted` writes " a b" and is unsure of " b" (0.2); the assistant writes " a c", 0.8.
EXAMPLES: list[dict[str, Any]] = [{"prompt": "Q", "answer": " a c."}]


def collected(tmp_path: Path, examples: Sequence[dict[str, Any]] = EXAMPLES) -> str:
    """A file of samples."""
    source, found = lines(tmp_path / "examples.jsonl", *examples), str(tmp_path / "samples.jsonl")
    assert cosd("collect", source, *SERVERS, "-o", found).exit_code == 0
    return found


@pytest.mark.usefixtures("scripted")
def test_from_samples_alone(tmp_path: Path) -> None:
    result = cosd("tune", collected(tmp_path), "--alpha", "0.5", "--alpha", "0.1", "--beta", "0.5")
    assert result.exit_code == 0, words(result)
    assert result.stdout.startswith(
        "right decisions, in % (*: best)\nbeta\n   1                  *100.0\n 0.5     0.0   100.0\n"
        "         0.1     0.5     0.9  alpha\n"
    )
    assert (
        "Best by decisions: alpha 0.9 and beta 1. With it 100.0% of the decisions are right, at 1 place of 1 "
        "example where just one of the models is right. It is the default. 1 other pair does as well."
    ) in words(result)
    assert "cosd: note: the only labelled sample is the assistant's: the draft was never right" in result.stderr
    assert "cosd: note: the gain on new examples is unknown: 1 example has a place where just one" in result.stderr
    assert result.stdout.endswith(
        "\n\nRecommended (by decisions): the default, alpha 0.9 and beta 1: none of the pairs\n"
        "that were tried is better.\n"
    )
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.usefixtures("scripted")
def test_with_answers(tmp_path: Path) -> None:
    two = [*EXAMPLES, {"prompt": "Q", "answer": " a c.", "target": "b", "ends": False}]
    options = ("--answers", "--alpha", "0.5", "--alpha", "0.1", "--beta", "1")
    result = cosd("tune", collected(tmp_path, two), *SERVERS, *options)
    assert result.exit_code == 0, words(result)
    assert (
        "\nright answers, in % (*: best)\nbeta\n   1    50.0    50.0   *50.0\n 0.5            50.0\n"
        "         0.1     0.5     0.9  alpha\n"
    ) in result.stdout
    assert "With it 50.0% of 2 answers are right, and 75% of the draft's tokens are kept." in words(result)
    assert "It is the default. 3 other pairs do as well." in words(result)
    assert "Best by decisions: alpha 0.9 and beta 1." in result.stdout
    assert "Best by answers: alpha 0.9 and beta 1." in result.stdout
    assert result.stdout.endswith(
        "\n\nRecommended (by answers): the default, alpha 0.9 and beta 1: none of the pairs\n"
        "that were tried is better.\n"
    )
    assert result.stdout.count("Recommended") == 1
    result = cosd("tune", collected(tmp_path, two), *SERVERS, *options, "--json")
    decisions, right = map(json.loads, result.stdout.splitlines())
    assert (decisions["labelled"], right["examples"], right["accuracy"]["0.5"]["1.0"]) == (2, 2, 0.5)


@pytest.mark.usefixtures("scripted")
def test_a_pair_that_is_better_than_the_default_is_recommended_with_its_options(tmp_path: Path) -> None:
    kept = {"prompt": "Q", "answer": " a c.", "target": "b", "ends": False}
    options = ("--answers", "--alpha", "0.5", "--alpha", "0.125", "--beta", "1")
    result = cosd("tune", collected(tmp_path, [kept, {**kept, "answer": " a c"}]), *SERVERS, *options)
    assert result.exit_code == 0, words(result)
    assert "Best by answers: alpha 0.125 and beta 1. With it 100.0% of 2 answers are right" in words(result)
    assert result.stdout.endswith(
        "\n\nRecommended (by answers): alpha 0.125 and beta 1.\nTo use it: cosd fuse ... --alpha 0.125 --beta 1\n"
    )


def test_the_gain_on_held_out_examples(tmp_path: Path) -> None:
    found = lines(tmp_path / "s.jsonl", HEADER, *(_row(at) for at in range(6)))
    result = cosd("tune", found, "--folds", "2")
    assert result.exit_code == 0, words(result)
    gain = "chosen in the same way gain +50.0 points against the default (alpha 0.9 and beta 1): "
    assert gain in words(result)


def _row(at: int) -> dict[str, Any]:
    from cosd_api.forcing.samples import Example

    example = {"prompt": f"Q{at}", "answer": " a"}
    sample = {"p": 0.3 if at % 2 else 0.85, "q": 0.9, "label": at % 2, "agreed": False, "start": 0}
    texts = {"draft": " a" if at % 2 == 0 else " b", "assistant": " b" if at % 2 == 0 else " a", "reference": " a"}
    return {"key": Example(**example).key, **example, "samples": [{**sample, **texts}], "skipped": 0}  # type: ignore[arg-type]


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--answers",), "Invalid value for --answers: fuses the examples: give --draft and --assistant"),
        (("--alpha", "-1"), "alphas must be non-negative numbers, such as (0.25, 0.5), not [-1.0]"),
        ((), "is not a file of samples and was not changed: cosd collect writes samples to a new file, from examples"),
        (("--png", "heat.png"), "No such option: --png"),
        (("--folds", "1"), "should be greater than or equal to 2"),
    ],
)
def test_wrong_usage(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    result = cosd("tune", lines(tmp_path / "e.jsonl", *EXAMPLES), *options)
    assert result.exit_code == 2
    assert said in words(result)


def test_a_file_that_is_not_there_or_tells_nothing(scripted: Scripted, tmp_path: Path) -> None:
    result = cosd("tune", str(tmp_path / "none.jsonl"))
    assert (result.exit_code, "No such file or directory" in words(result)) == (2, True)
    result = cosd("tune", collected(tmp_path, [{"prompt": "Q", "answer": " a"}]))
    assert result.exit_code == 2
    assert "there is nothing to tune on" in words(result)
