"""`prompts_from_file.py`: answers in order, errors in their place, and nothing asked twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cosd_api.apps.demo.servers import Pair
from support.scripts import EXAMPLES, Ran, run_script

pytestmark = pytest.mark.live

QUESTION = "In {} a book costs 17 and a pen costs 25. Name the capital and the total."
RAW = f"Q: {QUESTION}\nA:"
TOO_LONG = "Q: " + 300 * "How much is it? " + "\nA:"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def start(pair: Pair, *arguments: object) -> Ran:
    return run_script("prompts_from_file", *arguments, "--draft", pair.sums, "--assistant", pair.facts)


def written(path: Path, *prompts: object) -> Path:
    path.write_text("".join(f"{json.dumps({'prompt': prompt})}\n" for prompt in prompts), encoding="utf-8")
    return path


def test_the_prompts_beside_it(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = start(pair)
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith("3 prompts, 0 of them answered already\n1 of 3, 0 failed, ")
    found = rows(tmp_path / "answers.jsonl")
    given = (EXAMPLES / "prompts.txt").read_text(encoding="utf-8").splitlines()
    assert [row["prompt"] for row in found] == [line.replace("\\n", "\n") for line in given]
    for row, words in zip(found, ["Lima and the total is 42.", "Tokyo and the total is 67.", "Cairo"], strict=True):
        assert words in row["text"]
    again = start(pair)
    assert (again.code, again.err) == (0, "3 prompts, 3 of them answered already\n")
    assert rows(tmp_path / "answers.jsonl") == found


def test_an_error_stands_in_its_place_and_is_asked_for_again(pair: Pair, tmp_path: Path) -> None:
    prompts = [RAW.format("Peru"), TOO_LONG, None, [{"role": "user", "content": QUESTION.format("Japan")}]]
    path, answers = written(tmp_path / "prompts.jsonl", *prompts), tmp_path / "answers.jsonl"
    ran = start(pair, path, answers, "--concurrency", 2)
    assert ran.code == 1
    assert ran.err.endswith(f"2 failed, see {answers}; start again to ask for them again\n")
    first, second, third, fourth = rows(answers)
    assert [row["number"] for row in rows(answers)] == [1, 2, 3, 4]
    assert "Lima" in first["text"]
    assert "tokens" in second["error"]
    assert "text" not in second
    assert second["retryable"] is False
    assert "error" in third
    assert "Tokyo" in fourth["text"]
    written(path, prompts[0], RAW.format("Egypt"), *prompts[2:])  # one of them is mended
    again = start(pair, path, answers)
    assert again.err.startswith("4 prompts, 2 of them answered already\n")
    late = rows(answers)[4:]
    assert [row["number"] for row in late] == [2, 3]
    assert "Cairo" in late[0]["text"]


def test_a_budget_stops_it_and_a_line_that_was_cut_off_is_written_anew(pair: Pair, tmp_path: Path) -> None:
    path = written(tmp_path / "prompts.jsonl", *(RAW.format(country) for country in ("Peru", "Japan", "Egypt")))
    answers = tmp_path / "answers.jsonl"
    ran = start(pair, path, answers, "--budget", 1, "--concurrency", 1)
    assert ran.code == 1
    assert ran.err.endswith("the budget is spent; start again for the 2 prompts that are left\n")
    assert [row["number"] for row in rows(answers)] == [1]
    whole = answers.read_bytes()
    answers.write_bytes(whole + b'{"number": 2, "prompt": "Q: I')
    assert start(pair, path, answers).code == 0
    assert answers.read_bytes().startswith(whole)
    assert [row["number"] for row in rows(answers)] == [1, 2, 3]
    assert all(word in row["text"] for word, row in zip(["Lima", "Tokyo", "Cairo"], rows(answers), strict=True))


def test_a_line_is_what_a_user_says(pair: Pair, tmp_path: Path) -> None:
    path, answers = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    path.write_text(f"{QUESTION.format('Peru')}\n\n{QUESTION.format('Japan')}\n", encoding="utf-8")
    assert start(pair, path, answers, "--chat").code == 0
    assert [(row["number"], row["prompt"]) for row in rows(answers)] == [
        (1, QUESTION.format("Peru")),
        (2, QUESTION.format("Japan")),
    ]
    assert "Lima and the total is 42." in rows(answers)[0]["text"]


@pytest.mark.parametrize("content", [b"Dear diary", b"Dear diary\n", b'{"name": 1}\n', b'{"name": 1}'])
def test_another_file_is_left_alone(pair: Pair, tmp_path: Path, content: bytes) -> None:
    other = tmp_path / "diary.txt"
    other.write_bytes(content)
    ran = start(pair, EXAMPLES / "prompts.txt", other)
    assert (ran.code, ran.err) == (1, f"error: {other} does not hold answers; name another file\n")
    assert other.read_bytes() == content


@pytest.mark.parametrize("line", ["Hello", '"Hello"', '{"text": "Hello"}'])
def test_a_line_without_a_prompt(pair: Pair, tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "Hello"}}\n{line}\n', encoding="utf-8")
    ran = start(pair, path, tmp_path / "answers.jsonl")
    assert (ran.code, ran.err) == (1, f'error: {path}: object 2 has no "prompt"\n')


def test_a_file_that_is_not_there(pair: Pair, tmp_path: Path) -> None:
    ran = start(pair, tmp_path / "none.txt", tmp_path / "answers.jsonl")
    assert ran.code == 1
    assert ran.err.startswith("error: ")
    assert "none.txt" in ran.err
    assert list(tmp_path.iterdir()) == []
