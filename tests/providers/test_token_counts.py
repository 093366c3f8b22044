"""The sizes of prompts that a server has not reported: known, or estimated upwards."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_providers.token_counts import Counts
from toys import toy_models as toys

PROSE = "The old man walked down to the river, sat in the sun and watched the boats. "


def test_a_counted_text_is_known() -> None:
    counts = Counts()
    counts.add(PROSE, 20)
    assert counts.upward(PROSE) == (20, False)
    assert pickle.loads(pickle.dumps(counts)).upward(PROSE)[1]  # a copy holds no prompt


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 8),  # what the server may add
        ("a" * 32, 8 + 32),
        (PROSE * 10, 8 + 32 + 374),  # letters and spaces between words: one for two
        ("0123456789" * 10, 8 + 100),
        (" " * 100, 8 + 100),
        ("東京" * 50, 8 + 300),
    ],
)
def test_what_was_never_counted_gets_a_token_for_two_letters_and_for_each_other_byte(text: str, tokens: int) -> None:
    assert Counts().upward(text) == (tokens, True)


def test_what_was_counted_makes_estimates_more_exact() -> None:
    counts, unseen = Counts(), "Another text of the same kind, which has nothing in common with the first one. " * 10
    first = counts.upward(unseen)[0]
    counts.add("a", 2)  # a beginning of sequence
    assert counts.upward(unseen)[0] == first - 6
    counts.add(PROSE * 10, 190)
    assert 180 < counts.upward(unseen)[0] < 0.7 * first
    assert counts.upward(f"{PROSE * 10}It was") == (190 + 4 + 6, True)  # what continues a counted text
    assert counts.upward(PROSE * 9) == (194, True)  # the beginning of a counted text
    dense = "zq9 " * 50
    counts.add(dense, 200)
    assert counts.upward(dense * 2)[0] >= 400


@given(data=st.data())
def test_an_estimate_is_never_below_the_truth_of_a_toy_that_was_counted(data: st.DataObject) -> None:
    """Toys have short tokens, even one for each byte; what was counted shows it."""
    model = toys.Plain(data.draw(toys.models(may_hide_end=False)))
    texts = [data.draw(toys.prompts()).decode() for _ in range(4)]
    counts = Counts()
    for text in texts:
        tokens, estimated = counts.upward(text)
        assert tokens >= len(model.encode(text.encode()))
        counts.add(text, len(model.encode(text.encode())))
        assert counts.upward(text) == (len(model.encode(text.encode())), False)
    assert estimated or texts[-1] in texts[:-1]
