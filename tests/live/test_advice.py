"""Advice on the bundled models: the pair that needs both is fused, and a model beside itself is not."""

from __future__ import annotations

import pytest

from cosd_api import Example, compare
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair

pytestmark = [pytest.mark.live, pytest.mark.extended]

EXAMPLES = [Example(prompt=one.prompt, answer=one.answer) for one in sample("mixed", 30, 53)]


async def test_the_pair_is_fused(pair: Pair) -> None:
    asked = compare(EXAMPLES, draft=pair.sums, assistant=pair.facts, methods=["cosd"], baselines=False, max_tokens=40)
    compared = await asked
    found = compared.advice()
    assert found.decision == "fuse"  # neither answers such a question alone
    assert found.gain is not None and found.gain.low > 0 and found.way is not None
    assert compared[found.way].right > compared.questions / 2 > compared[found.model].right


async def test_a_model_and_itself_are_not_and_few_questions_do_not_show_it(pair: Pair) -> None:
    asked = compare(
        EXAMPLES,
        draft=pair.sums,
        assistant=pair.sums,
        methods=["cosd", "cosd-1-1"],
        both_ways=False,
        baselines=False,
        max_tokens=40,
    )
    found = (await asked).advice()
    assert (found.decision, found.model) == ("undecided", "draft")
    assert "at most" in str(found)
