"""Advice that its own figures contradict is not given."""

from __future__ import annotations

from typing import Any

import pytest

from cosd_api.apps.training.evaluation import DEFAULT
from cosd_api.apps.training.fit import replaces_the_sure
from cosd_api.apps.training.tuning import RuleTuning
from cosd_api.verification import RuleVerifier, TreeVerifier


def tuned(held_out: int) -> RuleTuning:
    """A tuning to (1, 0.5), which is better on all examples, with its right decisions of 100 held-out ones."""
    return RuleTuning(
        accuracy={1.0: {0.5: 0.8}, 0.9: {1.0: 0.7}, 0.5: {0.5: 0.6}},
        best=RuleVerifier(alpha=1, beta=0.5),
        default=0.7,
        paper=0.6,
        held_out=held_out / 100,
        gain_interval=(-0.1, 0.2),
        examples=27,
        seed=0,
        labelled=100,
    )


def test_a_pair_that_held_out_examples_call_worse_is_not_recommended() -> None:
    found = tuned(59)
    assert found.recommended == DEFAULT
    words = " ".join(found.advice().split())
    assert words.startswith("Recommended (by decisions): the default, alpha 0.9 and beta 1. On held-out examples 70.0%")
    assert "of its decisions are right, and with pairs that were chosen in the same way 59.0%: there are" in words


@pytest.mark.parametrize("held_out", [70, 80])
def test_a_pair_that_is_no_worse_is_recommended(held_out: int) -> None:
    found = tuned(held_out)
    assert found.recommended == found.best
    assert found.advice() == "Recommended (by decisions): alpha 1 and beta 0.5."


def tree(*nodes: dict[str, Any]) -> TreeVerifier:
    return TreeVerifier.model_validate({"nodes": nodes})


def split(feature: str, threshold: float, low: int, high: int) -> TreeVerifier:
    """A tree of one question."""
    question = {"feature": feature, "threshold": threshold, "left": 1, "right": 2}
    return tree(question, {"value": low}, {"value": high})


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (split("p", 0.67, 0, 1), "it replaces a draft of 0.83, and keeps one of 0.25, beside an assistant of 0.25"),
        (tree({"value": 1}), "it replaces a draft of 0.75 by an assistant of 0.25"),
        (split("q", 0.4, 0, 1), "it replaces a draft of 0.75 by an assistant of 0.45"),
        (split("q", 0.6, 1, 0), "it replaces a draft of 0.75 by an assistant of 0.25"),
        (split("p", 0.5, 1, 0), None),
        (split("p", 0.8, 1, 0), None),
        (split("q", 0.6, 0, 1), None),
        (tree({"value": 0}), None),
    ],
)
def test_a_tree_that_replaces_where_the_draft_is_sure(found: TreeVerifier, words: str | None) -> None:
    assert replaces_the_sure(found) == words
