"""Verification by agreement alone."""

from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cosd_api import AgreementVerifier
from cosd_api.extend import Verifier

PROBS = st.floats(0, 1)


@given(st.floats(0, 4), PROBS, PROBS | st.just(math.nan))
def test_only_the_drafts_probability_counts(alpha: float, p: float, q: float) -> None:
    verifier = AgreementVerifier(alpha=alpha)
    assert verifier.replaces(p, q) == verifier.contestable(p) == (p < alpha)


@pytest.mark.parametrize(
    ("p", "words"), [(0.31, "0.31 < 0.5"), (0.4996, "0.4996 < 0.5"), (0.5, "0.5 >= 0.5"), (0.9998, "0.9998 >= 0.5")]
)
def test_the_words_are_true(p: float, words: str) -> None:
    assert AgreementVerifier().explain(p, math.nan) == words


@pytest.mark.parametrize("bad", [{"alpha": -0.1}, {"alpha": math.nan}, {"alpha": math.inf}, {"beta": 1}])
def test_bad_thresholds_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        AgreementVerifier(**bad)  # type: ignore[arg-type]


def test_there_and_back() -> None:
    verifier = AgreementVerifier(alpha=0.25)
    assert AgreementVerifier.model_validate_json(verifier.model_dump_json()) == verifier
    assert verifier.model_dump() == {"kind": "agreement", "alpha": 0.25}
    assert pickle.loads(pickle.dumps(verifier)) == verifier
    assert isinstance(verifier, Verifier)
