"""Verdicts by example; the properties are in methods/test_cosd.py."""

from __future__ import annotations

from typing import Any

import pytest

from cosd_api.alignment import Decision, judge
from cosd_providers.contract import Token


def fires(one: Decision) -> bool:
    assert one.p is not None and one.q is not None
    return one.p < 0.5 and one.q > 0.5 * one.p


ROME, LIMA = Token(b" Rome", 0.3), Token(b" Lima", 0.9)
END = Token(b"", 0.3, end=True)


def test_one_token_against_one_token() -> None:
    decision = judge(ROME, LIMA, fires)
    assert (decision.p, decision.q, decision.fired, decision.text) == (0.3, 0.9, True, b" Lima")


@pytest.mark.parametrize("answer", [0.9, 0.0])
def test_a_verifier_of_the_users_own_need_not_answer_by_a_bool(answer: Any) -> None:
    """A number, as of `p < 0.5 and q`, is taken for what Python takes it for, and is a bool in the record."""
    assert judge(ROME, LIMA, lambda _: answer).fired is bool(answer)


def test_a_token_that_begins_alike_is_another_token() -> None:
    assert judge(Token(b" Li", 0.3), LIMA, fires).fired


def test_the_same_token_is_an_agreement() -> None:
    decision = judge(ROME, Token(b" Rome", 0.9), fires)
    assert (decision.agreed, decision.fired, decision.text) == (True, False, b" Rome")


def test_ends_are_symbols() -> None:
    assert judge(END, END, fires).agreed
    assert judge(END, LIMA, fires).fired
    assert judge(ROME, Token(b"", 0.9, end=True), fires).fired


def test_an_unknown_probability_never_fires() -> None:
    assert not judge(Token(b" a", 0.1), Token(b"", None, end=True), fires).fired


@pytest.mark.parametrize(("p", "needs_q", "fired"), [(0.3, True, False), (0.3, False, True), (0.7, False, False)])
def test_an_assistant_that_tells_no_probability(p: float, needs_q: bool, fired: bool) -> None:
    def unsure(one: Decision) -> bool:
        return one.p is not None and one.p < 0.5

    decision = judge(Token(b" Rome", p), Token(b" Lima", None), unsure, needs_q=needs_q)
    assert (decision.fired, decision.q, decision.agreed) == (fired, None, False)


def test_a_draft_that_tells_no_probability_is_kept() -> None:
    assert not judge(Token(b" Rome", None), LIMA, lambda _: True, needs_q=False).fired
