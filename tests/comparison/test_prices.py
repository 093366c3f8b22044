"""Prices of tokens: as they are written, and what they come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cosd_api import ComparisonEstimate, Price, Range, SettingError
from cosd_api.comparison.prices import prices_from


def test_tokens_from_a_cache_have_a_price_of_their_own() -> None:
    assert Price(2, 6).of(100, 10, 80) == pytest.approx((100 * 2 + 10 * 6) / 1e6)
    assert Price(2, 6, 0.5).of(100, 10, 80) == pytest.approx((20 * 2 + 80 * 0.5 + 10 * 6) / 1e6)
    assert (Price(2, 6, 0.5).least, Price(2, 6, 0.5).most) == (0.5, 6)
    assert (Price(2, 6).least, Price(2, 6).most) == (2, 6)


def test_prices_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text('{"draft": [1, 2, 0.1]}')
    found = prices_from([str(path), "assistant=3,15,0.3", "large=1,2"])
    assert found == {"draft": Price(1, 2, 0.1), "assistant": Price(3, 15, 0.3), "large": Price(1, 2)}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("draft=1", "'draft=1' is not NAME=READ,WRITTEN, as in draft=0.2,0.6"),
        ("draft=1,2,3,4", "a third number is that of tokens read from a cache"),
        ("draft=1,2,-1", "a price must be a number of at least 0, not -1"),
    ],
)
def test_what_is_no_price(given: str, words: str) -> None:
    with pytest.raises(SettingError) as caught:
        prices_from([given])
    assert words in str(caught.value)


def test_a_bound_that_says_nothing_is_not_shown_and_the_reason_is() -> None:
    def estimate(high: int, most: int | None = None) -> str:
        tokens, money = Range(low=10, expected=100, high=high), (0.1, 1.0, high / 100)
        fields: dict[str, Any] = {"questions": 6, "contestants": {}, "known": 0, "answers": 12, "requests": tokens}
        return str(ComparisonEstimate(**fields, billed_tokens=tokens, money=money, most=most))

    near = "12 answers to 6 questions: about 100 billed tokens (at least 10, at most 2,000) in about 100 requests"
    assert estimate(2000) == f"{near}; price about 1 (at least 0.1, at most 20)"
    far = "about 100 billed tokens (at least 10) in about 100 requests; price about 1 (at least 0.1); no useful bound"
    why = "above, as at worst every token is replaced, and all behind it is written and asked about again"
    assert estimate(2001).endswith(f"{far} {why}: max_billed_tokens sets one")
    assert estimate(2001, 500).endswith(f"{far} {why}; stops at 500 billed tokens")
