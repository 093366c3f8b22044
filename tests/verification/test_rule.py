"""Equations (5) and (6), and what follows from them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import RuleVerifier

PROBS = st.floats(0, 1)
BOUNDS = st.one_of(st.floats(0, 4), st.just(math.inf))


@given(BOUNDS, BOUNDS, PROBS, PROBS)
def test_contestable_is_exact(alpha: float, beta: float, p: float, q: float) -> None:
    rule = RuleVerifier(alpha=alpha, beta=beta)
    assert rule.contestable(p) == rule.replaces(p, 1.0)  # the rule is monotonic in q
    if rule.replaces(p, q):
        assert rule.contestable(p)


def test_the_default_and_the_paper_s() -> None:
    assert (RuleVerifier().alpha, RuleVerifier().beta) == (0.9, 1)
    assert RuleVerifier.paper() == RuleVerifier(alpha=0.5, beta=0.5)

    class Own(RuleVerifier):
        """A rule of one's own."""

    assert type(Own.paper()) is Own


def test_both_comparisons_are_strict() -> None:
    rule = RuleVerifier.paper()
    assert rule.replaces(0.4, 0.21)
    assert not rule.replaces(0.5, 1)
    assert not rule.replaces(0.4, 0.2)


@pytest.mark.parametrize(
    ("p", "q", "words"),
    [
        (0.31, 0.72, "0.31 < 0.5 and 0.72 > 0.5 x 0.31"),
        (0.31, 0.1, "0.31 < 0.5 and 0.1 <= 0.5 x 0.31"),
        (0.83, 0.9, "0.83 >= 0.5"),
        (0.4996, 0.9, "0.4996 < 0.5 and 0.9 > 0.5 x 0.4996"),
        (0.4, 0.2000001, "0.4 < 0.5 and 0.2000001 > 0.5 x 0.4"),
        (0.9998, 0.9, "0.9998 >= 0.5"),
        (0.31, 0.999996, "0.31 < 0.5 and 0.999996 > 0.5 x 0.31"),
        (0.99999999999, 0.9, "0.99999999999 >= 0.5"),
        (1.0, 0.9, "1 >= 0.5"),
    ],
)
def test_the_words_are_true(p: float, q: float, words: str) -> None:
    assert RuleVerifier.paper().explain(p, q) == words


@given(BOUNDS, BOUNDS, PROBS, PROBS)
def test_the_words_are_true_whatever_the_numbers(alpha: float, beta: float, p: float, q: float) -> None:
    rule = RuleVerifier(alpha=alpha, beta=beta)
    first, _, second = rule.explain(p, q).partition(" and ")
    mine, sign, bound = first.split(" ")
    assert (float(mine) < float(bound)) == (sign == "<") == (p < alpha)
    if second:
        theirs, sign, factor, _, again = second.split(" ")
        assert again == mine
        assert (float(theirs) > float(factor) * float(mine)) == (sign == ">") == rule.replaces(p, q)
        assert (float(theirs) == 1) == (q == 1)
    assert (float(mine) == 1) == (p == 1)
