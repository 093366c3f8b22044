"""Advice on the bundled models: the pair that needs both is fused, and a model beside itself is not."""

from __future__ import annotations

import pytest

from cosd_api import Example, advise
from cosd_api.demo.questions import sample
from cosd_api.demo.servers import Pair

pytestmark = [pytest.mark.live, pytest.mark.extended]

EXAMPLES = [Example(prompt=one.prompt, answer=one.answer) for one in sample("mixed", 30, 53)]


async def test_the_pair_is_fused(pair: Pair) -> None:
    found = await advise(EXAMPLES, draft=pair.sums, assistant=pair.facts, methods=["cosd"], max_tokens=40)
    assert found.decision == "fuse"  # neither answers such a question alone
    assert found.gain is not None and found.gain.low > 0
    assert found.right["fused"] > found.tested / 2 > found.right[found.model]


async def test_a_model_and_itself_are_not_and_few_questions_do_not_show_it(pair: Pair) -> None:
    both = {"draft": pair.sums, "assistant": pair.sums}
    found = await advise(EXAMPLES, **both, methods=["cosd", "cosd-1-1"], both_ways=False, max_tokens=40)  # type: ignore[arg-type]
    assert (found.decision, found.model, found.tested) == ("undecided", "draft", 30)
    assert "at most" in str(found)
