"""What the answers of all servers have in common."""

from __future__ import annotations

import math

import pytest
from pydantic import BaseModel

from cosd_providers import ResponseError
from cosd_providers.parsing import check_own, parse, prob


class Shape(BaseModel):
    number: int


@pytest.mark.parametrize(
    ("logprob", "expected"),
    [(0.0, 1.0), (-0.0, 1.0), (1e-6, 1.0), (math.log(0.25), 0.25), (-9999.0, 0.0), (-3.4e38, 0.0)],
)
def test_probabilities(logprob: float, expected: float) -> None:
    assert prob(logprob) == pytest.approx(expected)


@pytest.mark.parametrize("logprob", [None, math.nan])
def test_none_where_there_is_none(logprob: float | None) -> None:
    assert prob(logprob) is None


def test_a_logit_is_no_logarithm_of_a_probability() -> None:
    with pytest.raises(ResponseError, match=r"the logarithm of a probability is 12.5, which is above 0. vLLM shows"):
        prob(12.5)


def test_a_token_that_was_taken_has_a_probability() -> None:
    check_own(1e-30, "http://x")
    words = "http://x: the server wrote a token with no usable probability: "
    with pytest.raises(ResponseError, match=words + "how probable it is is not told. Does the model compute NaN"):
        check_own(None, "http://x")
    with pytest.raises(ResponseError, match=words + "it is said to be impossible. Does the model compute NaN"):
        check_own(0.0, "http://x")


def test_shapes() -> None:
    assert parse(Shape, {"number": 3, "more": 4}, "http://x").number == 3
    with pytest.raises(
        ResponseError, match="http://x: the answer is not as expected: number: Input should be"
    ) as caught:
        parse(Shape, {"number": "secret"}, "http://x")
    assert "secret" not in str(caught.value)
