"""Advice where the answer is known: what was kept is what is known, and what is asked is held out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.advice import ADVISED, CASES, COPY, FRESH, NOISY, Case, asked
from benchmarks.noisy import write_noisy
from benchmarks.page import tables
from cosd_api.demo.questions import is_held_out
from cosd_api.demo.servers import BUNDLED, MODELS


def test_every_direction_and_the_pairs_that_must_not_be_fused() -> None:
    assert {(one.draft, one.assistant) for one in CASES if one.fuse} == {
        (draft, other) for draft in BUNDLED for other in BUNDLED if draft != other
    }
    assert {one.draft for one in CASES if not one.fuse} | {one.assistant for one in CASES if not one.fuse} == {
        "sums",
        COPY,
        NOISY,
    }


def test_the_advice_that_was_kept_is_what_is_known() -> None:
    advised, compared = tables("advice")
    assert [(row[0], row[1]) for row in advised.rows] == [(one.draft, one.assistant) for one in CASES]
    for case, row, new in zip(CASES, advised.rows, compared.rows, strict=True):
        said = dict(zip(advised.columns, row, strict=True))
        found = dict(zip(compared.columns, new, strict=True))
        assert said["advice"] == ("fuse them" if case.fuse else "sums alone"), case
        assert (str(found["p"]) == "< 0.001" and str(found["difference"])[0] == "+") or not case.fuse
        assert case.fuse or int(str(found["difference"])) <= 0
        figures = advised.figures[f"{case.draft}, {case.assistant}"]
        tokens = figures["estimate"]["billed_tokens"]
        assert tokens["low"] <= figures["billed_tokens"] <= tokens["high"]


@pytest.mark.parametrize("case", CASES, ids=lambda one: f"{one.draft} {one.assistant}")
def test_questions_are_held_out_and_asked_once(case: Case) -> None:
    questions, others = asked(case.kinds, ADVISED), asked(case.kinds, FRESH, after=ADVISED)
    prompts = [str(example.prompt) for example, _ in [*questions, *others]]
    assert len({*prompts}) == ADVISED + FRESH
    for prompt in prompts:
        numbers = [int(one) for one in re.findall(r"\d+", prompt)]
        assert not numbers or is_held_out(*numbers)
    example, right = questions[0]
    assert right(example.answer) and not right(" no")


def test_noise_changes_matrices_alone(tmp_path: Path) -> None:
    model, copy, same = MODELS / "sums.gguf", tmp_path / "noisy.gguf", tmp_path / "same.gguf"
    write_noisy(model, same, 0.0)
    assert same.read_bytes() == model.read_bytes()
    write_noisy(model, copy, 0.3)
    first, second = model.read_bytes(), copy.read_bytes()
    assert len(first) == len(second) and first[:14_000] == second[:14_000]  # the header
    differing = sum(one != other for one, other in zip(first, second, strict=True))
    assert differing > len(first) / 2
