"""The rule of differences, and a fusion with it; and Chow's rule, which is that of agreement."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import schedules
from cosd_api import AgreementVerifier, DiffVerifier
from cosd_api.extend import Verifier
from cosd_api.verification import needs_of
from scheduled import check, choosers, expected, tasks

PROBS = st.floats(0, 1)
MARGINS = st.floats(0, 1)


@given(MARGINS, PROBS, PROBS | st.just(math.nan))
def test_chow_looks_at_the_drafts_probability_alone(tau: float, p: float, q: float) -> None:
    verifier = AgreementVerifier(alpha=1 - tau)
    assert verifier.replaces(p, q) == verifier.contestable(p) == (p < 1 - tau)


@given(MARGINS, PROBS, PROBS)
def test_contestable_by_diff_means_that_some_q_replaces(tau: float, p: float, q: float) -> None:
    verifier = DiffVerifier(tau=tau)
    assert verifier.contestable(p) == verifier.replaces(p, 1.0)  # it is monotonic in q
    assert verifier.contestable(p) >= verifier.replaces(p, q)
    assert verifier.replaces(p, q) == (q > p + tau)


def test_the_comparisons_are_strict() -> None:
    assert AgreementVerifier(alpha=0.5).replaces(0.4999, 0)
    assert not AgreementVerifier(alpha=0.5).replaces(0.5, 1)
    assert DiffVerifier(tau=0.25).replaces(0.5, 0.7501)
    assert not DiffVerifier(tau=0.25).replaces(0.5, 0.75)
    assert not DiffVerifier(tau=0.5).contestable(0.5)


@pytest.mark.parametrize("verifier", [AgreementVerifier(alpha=0), DiffVerifier(tau=1)])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_at_the_greatest_price_nothing_is_replaced(verifier: Verifier, p: float) -> None:
    assert not verifier.contestable(p)


@pytest.mark.parametrize(
    ("verifier", "p", "words"),
    [
        (AgreementVerifier(), 0.31, "0.31 < 0.5"),
        (AgreementVerifier(alpha=0.3), 0.31, "0.31 >= 0.3"),
        (AgreementVerifier(alpha=0.5), 0.49996, "0.49996 < 0.5"),
        (AgreementVerifier(alpha=1), 1.0, "1 >= 1"),
        (AgreementVerifier(alpha=1), 0.99999, "0.99999 < 1"),
        (DiffVerifier(), 0.31, "0.72 > 0.31 + 0"),
        (DiffVerifier(tau=0.5), 0.31, "0.72 <= 0.31 + 0.5"),
        (DiffVerifier(tau=0.2), 0.519999, "0.72 > 0.519999 + 0.2"),
    ],
)
def test_the_words_are_true(verifier: Verifier, p: float, words: str) -> None:
    assert verifier.explain(p, 0.72) == words


@given(MARGINS, PROBS, PROBS)
def test_the_words_are_true_whatever_the_numbers(tau: float, p: float, q: float) -> None:
    mine, sign, alpha = AgreementVerifier(alpha=1 - tau).explain(p, q).split(" ")
    assert (float(mine) < float(alpha)) == (sign == "<") == (p < 1 - tau)
    theirs, sign, mine, _, margin = DiffVerifier(tau=tau).explain(p, q).split(" ")
    assert (float(theirs) > float(mine) + float(margin)) == (sign == ">") == (q > p + tau)


@pytest.mark.parametrize("bad", [{"tau": -0.1}, {"tau": 1.1}, {"tau": math.nan}, {"alpha": 0.5}])
def test_bad_margins_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DiffVerifier(**bad)


@pytest.mark.parametrize("verifier", [AgreementVerifier(alpha=0.75), DiffVerifier(tau=0.25)])
def test_there_and_back(verifier: AgreementVerifier | DiffVerifier) -> None:
    assert type(verifier).model_validate_json(verifier.model_dump_json()) == verifier
    assert pickle.loads(pickle.dumps(verifier)) == verifier
    assert isinstance(verifier, Verifier)
    assert needs_of(verifier).q == isinstance(verifier, DiffVerifier)


@given(tasks(), choosers(), st.builds(AgreementVerifier, alpha=MARGINS) | st.builds(DiffVerifier, tau=MARGINS))
def test_a_fusion_is_the_references_under_every_schedule(
    task: dict[str, Any], choose: schedules.Choose, verifier: Verifier
) -> None:
    task["verifier"] = verifier
    check(schedules.run(**task, choose=choose), expected(task))
