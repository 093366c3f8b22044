"""Null control: a model on TGI fused with itself writes what it writes alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cosd_api import AgreementVerifier, Fusion, MatchVerifier, RuleVerifier
from cosd_api.apps.demo.questions import sample
from naive.plain_http import Plain, PlainTgi, merged
from toys import recitals

PROMPTS = [question.prompt for question in sample("mixed", 6, seed=31)]
EVERYWHERE = RuleVerifier(alpha=1, beta=1)
WAYS: dict[str, dict[str, Any]] = {
    "rule": {},
    "everywhere": {"verifier": EVERYWHERE},
    "match": {"verifier": MatchVerifier()},
    "agreement": {"verifier": AgreementVerifier(alpha=0.75)},
    "rounds": {"verifier": EVERYWHERE, "draft_length": 3},
}


def alone(plain: Plain, prompt: str, limit: int) -> str:
    """The text that the model writes without this library."""
    return b"".join(raw.data for raw in merged(plain.after(prompt, limit))).decode()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["sums", "facts", "reciter"])
async def test_a_model_with_itself_writes_what_it_writes_alone(
    plain: Mapping[str, PlainTgi], name: str, way: str
) -> None:
    prompts = list(recitals.CERTAIN) if name == "reciter" else PROMPTS
    async with Fusion(draft=plain[name].url, assistant=plain[name].url, **WAYS[way]) as fusion:
        results = [result async for result in fusion.map(prompts, max_tokens=24)]
    assert [result.replacements for result in results] == [0] * len(results)
    for prompt, result in zip(prompts, results, strict=True):
        whole = alone(plain[name], prompt, 120)
        assert result.text == whole if result.finish_reason == "stop" else whole.startswith(result.text)
        assert result.text
        assert result.trace.replay() == result.text
