"""Sizes of bodies: the most bytes, by the settings or the models' contexts, the places, and the values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api.apps.gateway.body_sizes import body_limit, count_values, places
from cosd_api.apps.gateway.config import GatewayLimits


@pytest.mark.parametrize(
    ("rooms", "prompts", "size"),
    [
        ([None], 1, 4_000_000),
        ([], 1, 4_000_000),
        ([0], 1, 65_536),
        ([511], 1, 65_536 + 64 * 511),
        ([511, 8191, 100], 1, 65_536 + 64 * 8191),  # another fusion takes it
        ([511, None], 1, 4_000_000),  # that of the other one is not known yet
        ([511], 128, 4_000_000),
        ([511], 2, 65_536 + 64 * 1022),
        ([131_071], 1, 4_000_000),
    ],
)
def test_a_body_has_no_more_than_prompts_that_fit(rooms: list[int | None], prompts: int, size: int) -> None:
    assert body_limit(GatewayLimits(), rooms, prompts).bytes == size


def test_a_given_size_is_taken_as_it_is() -> None:
    for size in (1, 9_000_000):
        assert body_limit(GatewayLimits(body_bytes=size), [511], 1).bytes == size


def test_a_refusal_says_why() -> None:
    assert body_limit(GatewayLimits(body_bytes=7), [3], 1).words == (
        "the body has more than 7 bytes, the most that is taken here"
    )
    assert body_limit(GatewayLimits(), [3], 1).words == (
        "the body has more than 65728 bytes, and the models take at most 3 tokens of a prompt"
    )
    assert body_limit(GatewayLimits(), [3], 2).words.endswith("at most 3 tokens of each prompt")


@pytest.mark.parametrize(
    ("size", "taken"), [(0, 1), (65_535, 1), (65_536, 2), (400_000, 7), (4_000_000, 8), (9_000_000, 8)]
)
def test_a_body_takes_places_by_its_bytes_and_never_more_than_there_are(size: int, taken: int) -> None:
    assert places(size, 8) == taken


def counted(value: Any) -> int:
    """The values of JSON, naively."""
    within = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(counted, within))


TEXTS = st.text('a\\",[]{}:', max_size=6)
VALUES = st.recursive(
    st.one_of(TEXTS, st.none(), st.integers()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.integers(1, 30))
def test_values_are_counted_without_those_in_texts(value: Any, most: int) -> None:
    found = count_values(json.dumps(value).encode(), most)
    assert min(found, most + 1) == min(counted(value), most + 1)
