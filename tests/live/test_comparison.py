"""`compare` on real llama.cpp servers: every method answers, within the estimate, and a second run asks nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosd_api import Example, compare, fuse
from cosd_api.apps.comparison import ComparisonEstimate
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair, Three

pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.timeout(300)]

MAX_TOKENS = 40


async def test_all_methods_on_the_bundled_pair(pair: Pair, tmp_path: Path) -> None:
    asked = [one for kind, count in (("mixed", 2), ("sum", 1), ("capital", 1)) for one in sample(kind, count, 83)]
    examples = [Example(prompt=one.prompt, answer=one.answer) for one in asked]
    path = tmp_path / "answers.jsonl"
    seen: list[ComparisonEstimate] = []

    def confirm(estimate: ComparisonEstimate) -> bool:
        seen.append(estimate)
        return True

    found = await compare(
        examples,
        draft=pair.sums,
        assistant=pair.facts,
        path=path,
        max_tokens=MAX_TOKENS,
        confirm=confirm,
    )
    assert found.stopped is None
    assert all((one.answered, one.failed) == (3, 0) for one in found.standings)
    names = {one.name for one in found.standings}
    assert names >= {"cosd", "cosd, reversed", "cool", "safe", "steps", "random gate", "self-consistency", "oracle"}
    assert {one.name for one in found.left_out} >= {"defer", "average", "average-drawn"}  # two tokenizers
    assert seen[0].billed_tokens.low <= found.billed_tokens <= seen[0].billed_tokens.high
    right = {one.name: one.right for one in found.standings}
    assert max(right["draft"], right["assistant"]) <= right["oracle"] <= right["draft"] + right["assistant"]
    assert right[found.better] == max(right["draft"], right["assistant"])

    again = await compare(examples, draft=pair.sums, assistant=pair.facts, path=path, max_tokens=MAX_TOKENS)
    assert again.spent_tokens == 0
    assert [one.right for one in again.standings] == [one.right for one in found.standings]


async def test_three_models_write_what_fuse_writes(three: Three) -> None:
    asked = [one for kind, count in (("mixed", 2), ("sum", 1), ("capital", 1)) for one in sample(kind, count, 89)]
    examples = [Example(prompt=one.prompt, answer=one.answer) for one in asked]
    draft, *assistants = three["words"], three["sums"], three["facts"]
    found = await compare(
        examples,
        draft=draft,
        assistant=assistants,
        methods=["cosd", "cool"],
        both_ways=False,
        baselines=False,
        max_tokens=MAX_TOKENS,
    )
    assert found.stopped is None and [one.name for one in found.standings] == [
        *("draft", "assistant 1", "assistant 2", "oracle"),
        *("cosd", "cool"),
    ]
    assert all((one.answered, one.failed) == (4, 0) for one in found.standings)
    assert max(one.right for one in found.standings if one.kind == "alone") <= found["oracle"].right
    by_key = {one.key: one for one in examples}
    for key, answer in found.answers_of("cosd").items():
        result = await fuse(by_key[key].prompt, draft=draft, assistant=assistants, max_tokens=MAX_TOKENS)
        assert result.text == answer.text
    for key, answer in found.answers_of("cool").items():
        models = [draft, *assistants]
        result = await fuse(by_key[key].prompt, models=models, method="cool", max_tokens=MAX_TOKENS)
        assert result.text == answer.text
    assert {*found["cosd"].requests} == {"draft", "assistant 1", "assistant 2"}
