"""The options of a draft."""

from __future__ import annotations

import pytest

from cosd_providers.sampling import DraftOptions, other_seed


def test_greedy_and_sampled() -> None:
    assert not DraftOptions().sampled
    assert DraftOptions(temperature=1.0).sampled
    with pytest.raises(ValueError, match=r"temperature must be 0 or 1, not 2: 0 is greedy"):
        DraftOptions(temperature=2)


def test_each_request_of_a_draft_has_a_seed_of_its_own() -> None:
    seeds = [DraftOptions(temperature=1, seed=7).seed_after(tokens) for tokens in range(1000)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 1000
    assert all(seed is not None and 0 <= seed < 2**32 for seed in seeds)
    assert not {8, 9, 10} & set(seeds)
    assert other_seed(None, 3) is None
