"""Decision samples from vLLM: by scoring, one request for a text, and the same as from llama.cpp."""

from __future__ import annotations

import pytest

from cosd_api import Example, Trace, collect, fuse, train_tree
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair

EXAMPLES = [Example(prompt=one.prompt, answer=one.answer) for one in sample("mixed", 4, 7, held_out=False)]


@pytest.mark.parametrize(("draft", "assistant"), [("sums", "facts"), ("facts", "sums")])
async def test_samples_are_those_of_the_same_models_on_llama_cpp(
    vllm_pair: Pair, pair: Pair, draft: str, assistant: str
) -> None:
    found = await collect(EXAMPLES, draft=vllm_pair[draft], assistant=vllm_pair[assistant])
    expected = await collect(EXAMPLES, draft=pair[draft], assistant=pair[assistant])
    assert (found.unit, found.failed) == ("word", ())
    assert found.skipped == expected.skipped < found.positions / 4
    # A scoring request each, and a few about what would be written in place of the reference.
    for usage in found.usage.values():
        assert len(EXAMPLES) <= usage.requests <= 4 * len(EXAMPLES)
    for one, other in zip(found.examples, expected.examples, strict=True):
        assert [(place.start, place.label, place.agreed, place.draft) for place in one.samples] == [
            (place.start, place.label, place.agreed, place.draft) for place in other.samples
        ]
        for place, same in zip(one.samples, other.samples, strict=True):
            assert place.p == pytest.approx(same.p, abs=0.02)
            assert place.q == pytest.approx(same.q, abs=0.02)


async def test_one_tokenizer_takes_two_requests_an_example(vllm_pair: Pair) -> None:
    found = await collect(EXAMPLES, draft=vllm_pair.sums, assistant=vllm_pair.sums)
    assert {name: usage.requests for name, usage in found.usage.items()} == {"draft": 4, "assistant": 4}
    assert (found.unit, found.positions) == ("token", found.agreeing)


async def test_a_tree_decides_and_its_trace_is_the_same_judged_again(vllm_pair: Pair) -> None:
    samples = await collect(EXAMPLES, draft=vllm_pair.sums, assistant=vllm_pair.facts)
    tree = train_tree(samples).tree
    question = sample("mixed", 1, 21)[0]
    result = await fuse(question.prompt, draft=vllm_pair.sums, assistant=vllm_pair.facts, verifier=tree, ask="all")
    asked = [decision for token in result.tokens for decision in token.decisions]
    numbers = {one.number for one in result.requests if one.kind == "question"}
    assert asked and numbers
    assert {decision.strategy for decision in asked} <= {"echo", "list", "singles", None}
    assert {decision.request for decision in asked} <= numbers
    assert Trace(result).replay() == result.text
