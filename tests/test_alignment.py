"""Units and verdicts by example; the properties are in decoding/test_cosd.py."""

from __future__ import annotations

from typing import Any

import pytest

from cosd_api.alignment import Decision, judge, starts_unit
from cosd_providers.contract import Token


def tokens(*parts: str | tuple[str, float]) -> list[Token]:
    """Tokens from texts, each as sure as said or else quite sure; the empty text is the end."""
    pairs = [(part, 0.9) if isinstance(part, str) else part for part in parts]
    return [Token(text.encode(), prob, end=not text) for text, prob in pairs]


def fires(one: Decision) -> bool:
    assert one.p is not None and one.q is not None
    return one.p < 0.5 and one.q > 0.5 * one.p


@pytest.mark.parametrize(
    ("before", "token", "starts"),
    [
        ([" Li"], "ma", False),
        ([" Lima"], ".", False),
        ([" Lima"], " is", True),
        ([" Lima"], "\n", True),
        (["\n"], "Then", True),
        (["x "], "y", True),
        ([" "], "4", False),
        ([" ", "4"], "2", False),
        ([" "], " x", True),
        ([" "], "東", True),
        (["\n  "], "return", False),
        (["\n\t"], "return", True),
        (["\u3000"], "x", True),
        ([" Lima"], "", True),
        (["東"], "京", True),
        (["ท"], "ี", True),
        (["한"], "국", False),
        (list("abcdefgh"), "i", True),
        (list("abcdefg"), "h", False),
    ],
)
def test_units_start_where_words_do(before: list[str], token: str, starts: bool) -> None:
    assert starts_unit("word", tokens(*before), tokens(token)[0]) is starts
    assert starts_unit("token", tokens(*before), tokens(token)[0])


def test_one_token_against_one_token() -> None:
    verdict = judge(tokens((" Rome", 0.3)), tokens(" Lima", "x"), fires, unit="token")
    assert verdict.replacement == tuple(tokens(" Lima"))
    (decision,) = verdict.decisions
    assert (decision.p, decision.q, decision.fired, decision.text) == (0.3, 0.9, True, b" Lima")


@pytest.mark.parametrize("answer", [0.9, 0.0])
def test_a_verifier_of_the_users_own_need_not_answer_by_a_bool(answer: Any) -> None:
    """A number, as of `p < 0.5 and q`, is taken for what Python takes it for, and is a bool in the record."""
    verdict = judge(tokens((" Rome", 0.3)), tokens(" Lima"), lambda _: answer, unit="token")
    assert verdict.decisions[0].fired is bool(answer)
    assert bool(verdict.replacement) is bool(answer)


def test_a_token_that_begins_alike_is_another_token() -> None:
    verdict = judge(tokens((" Li", 0.3)), tokens(" Lima"), fires, unit="token")
    assert verdict.replacement == tuple(tokens(" Lima"))


def test_the_same_word_cut_differently_is_agreement() -> None:
    verdict = judge(tokens((" Multi", 0.2), ("-tasking", 0.2)), tokens(" Multi-tasking"), fires, unit="word")
    assert verdict.replacement == ()
    assert [decision.agreed for decision in verdict.decisions] == [True]
    assert verdict.decisions[0].p == 0.2


def test_the_assistant_that_goes_on_beyond_the_unit_says_nothing_about_it() -> None:
    verdict = judge(tokens((" War", 0.2)), tokens(" War-time"), fires, unit="word")
    assert verdict.decisions == ()
    assert verdict.replacement == ()
    assert verdict.again is None


def test_a_replacement_completes_its_word_and_no_more() -> None:
    verdict = judge(tokens((" Rome", 0.3)), tokens(" L", "im", "a", ".", "x"), fires, unit="word")
    assert verdict.replacement == tuple(tokens(" L", "im", "a"))


def test_a_word_is_completed_up_to_eight_tokens() -> None:
    verdict = judge(tokens((" R", 0.3)), tokens(" L", *"abcdefghij"), fires, unit="word")
    assert len(verdict.replacement) == 8


def test_a_span_is_as_sure_as_its_least_sure_token() -> None:
    verdict = judge(tokens(" Li", ("m", 0.4), "b"), tokens((" Lima", 0.15)), fires, unit="word")
    (decision,) = verdict.decisions
    assert (decision.first, decision.last, decision.p, decision.q) == (0, 3, 0.4, 0.15)
    assert not decision.fired
    assert verdict.again is None


def test_what_agrees_before_is_kept() -> None:
    verdict = judge(tokens(" x", ("=", 0.9), ("1", 0.2)), tokens(" x=", "2", "5", ";"), fires, unit="word")
    assert [(d.first, d.last, d.agreed, d.fired) for d in verdict.decisions] == [
        (0, 2, True, False),
        (2, 3, False, True),
    ]
    assert verdict.replacement == tuple(tokens("2", "5"))


def test_after_a_disagreement_that_does_not_fire_the_assistant_is_asked_anew() -> None:
    verdict = judge(tokens(" a", ("b", 0.3)), tokens(" c"), fires, unit="word")
    assert verdict.again == 1
    assert judge(tokens(" a", ("b", 0.3)), tokens("z"), fires, unit="word", first=1).replacement == tuple(tokens("z"))


def test_a_proposal_that_gives_out_is_asked_for_behind_it() -> None:
    assert judge(tokens(" a", ("b", 0.3)), [], fires, unit="word").again == 1
    assert judge(tokens(" a", "b", "c"), tokens(" a"), fires, unit="word").again == 2
    assert judge(tokens(" a"), [], fires, unit="token").again is None


@pytest.mark.parametrize("unit", ["token", "word"])
def test_ends_are_symbols(unit: str) -> None:
    end, word = tokens(("", 0.3)), tokens((" on", 0.3))
    both = judge(end, tokens(""), fires, unit=unit)  # type: ignore[arg-type]
    assert both.decisions[0].agreed
    goes_on = judge(end, tokens(" on"), fires, unit=unit)  # type: ignore[arg-type]
    assert goes_on.replacement == tuple(tokens(" on"))
    ends = judge(word, tokens(""), fires, unit=unit)  # type: ignore[arg-type]
    assert ends.replacement == tuple(tokens(""))


def test_an_unknown_probability_never_fires() -> None:
    verdict = judge([Token(b" a", 0.1)], [Token(b"", None, end=True)], fires, unit="word")
    assert not verdict.decisions[0].fired
    assert verdict.replacement == ()


@pytest.mark.parametrize(("p", "needs_q", "fired"), [(0.3, True, False), (0.3, False, True), (0.7, False, False)])
def test_an_assistant_that_tells_no_probability(p: float, needs_q: bool, fired: bool) -> None:
    unknown = [Token(b" Lima", None)]
    judgement = judge(
        tokens((" Rome", p)), unknown, lambda one: one.p is not None and one.p < 0.5, unit="word", needs_q=needs_q
    )
    (decision,) = judgement.decisions
    assert (decision.fired, decision.q, decision.agreed) == (fired, None, False)
    assert judgement.replacement == (tuple(unknown) if fired else ())


def test_a_draft_that_tells_no_probability_is_kept() -> None:
    judgement = judge([Token(b" Rome", None)], tokens(" Lima"), lambda _: True, unit="word", needs_q=False)
    assert judgement.replacement == ()
