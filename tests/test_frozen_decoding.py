"""Answers and their costs, held against those that are kept."""

from __future__ import annotations

import json

import pytest

from support.frozen_decoding import COUNTS, KEPT, measured

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]

MORE = 1.05
"""Times the kept number that a run may ask and draft."""


def test_texts_stay_and_nothing_costs_more() -> None:
    kept, found = json.loads(KEPT.read_text(encoding="utf-8")), measured()
    assert found["texts"] == kept["texts"]
    for kind, speeds in kept["costs"].items():
        assert len({costs["units"] for costs in found["costs"][kind].values()}) == 1  # they follow from the text
        for speed, before in speeds.items():
            now = found["costs"][kind][speed]
            assert set(now) == set(COUNTS)
            assert (now["kept_tokens"], now["replacements"]) == (before["kept_tokens"], before["replacements"])
            more = {name: (now[name], before[name]) for name in COUNTS if now[name] > MORE * before[name]}
            assert not more, (kind, speed, more)
