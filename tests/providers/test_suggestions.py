"""Guesses for misspelt names: one that is near, or none."""

from __future__ import annotations

import pytest

from cosd_providers.suggestions import nearest, suggestion

KNOWN = ("model", "method", "max_tokens", "rate", "cosd", "timeout")


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("modle", "model"),
        ("max_token", "max_tokens"),
        ("cozd", "cosd"),
        ("time_out", "timeout"),
        ("promt", None),  # `rate` from 0.6 on
        ("tokens", "max_tokens"),
        ("mod", "model"),
        ("metal", None),
        ("cot", None),
        ("", None),
    ],
)
def test_a_guess_is_similar_by_seven_tenths(given: str, near: str | None) -> None:
    assert nearest(given, KNOWN) == near


def test_the_words_end_a_message() -> None:
    assert suggestion("modle", KNOWN, "there are many") == "; did you mean 'model'?"
    assert suggestion("zzz", KNOWN, "there are many") == "; there are many"
    assert suggestion("zzz", KNOWN) == ""
