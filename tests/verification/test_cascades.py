"""The rules of agreement, which is Chow's, and of differences; and a fusion with each."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import AgreementVerifier, DiffVerifier
from cosd_api.extend import Verifier
from support import virtual_time
from toys.literal_tasks import Task, check, fused, tasks
from toys.unsteady import Order, orders

PROBS = st.floats(0, 1)
MARGINS = st.floats(0, 1)


@given(st.floats(0, 4), PROBS, PROBS | st.just(math.nan))
def test_agreement_looks_at_the_drafts_probability_alone(alpha: float, p: float, q: float) -> None:
    verifier = AgreementVerifier(alpha=alpha)
    assert verifier.replaces(p, q) == verifier.contestable(p) == (p < alpha)


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
        (AgreementVerifier(), 0.4996, "0.4996 < 0.5"),
        (AgreementVerifier(), 0.5, "0.5 >= 0.5"),
        (AgreementVerifier(), 0.9998, "0.9998 >= 0.5"),
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


@given(tasks(), orders(), st.builds(AgreementVerifier, alpha=MARGINS) | st.builds(DiffVerifier, tau=MARGINS))
@pytest.mark.parametrize("anyio_backend", [virtual_time.BACKEND], ids=["virtual time"])
async def test_a_fusion_is_the_references_under_every_schedule(task: Task, order: Order, verifier: Verifier) -> None:
    task = replace(task, verifier=verifier)
    check(await fused(task, task.servers(order)), task.expected())
