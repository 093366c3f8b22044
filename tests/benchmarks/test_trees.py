"""The paper's own tree, as the benchmark grows it beside ours."""

from __future__ import annotations

import pytest

from benchmarks.trees import OTHER_KINDS, Learned, _drawings, our_tree, papers_tree
from cosd_api.forcing.samples import Example, ExampleSamples, Sample
from cosd_api.training.dataset import Samples
from cosd_api.training.tuning import tune
from cosd_api.types import Endpoint

pytestmark = pytest.mark.extended

ENDPOINT = Endpoint(name="draft", endpoint="http://a", engine="llama.cpp", model="m", build="b", context=512)


def samples(count: int, *found: Sample, name: str = "Q") -> Samples:
    examples = [
        ExampleSamples(example=Example(prompt=f"{name}{at}", answer=" a"), samples=found, skipped=0)
        for at in range(count)
    ]
    return Samples(examples=tuple(examples), draft=ENDPOINT, assistant=ENDPOINT, unit="word")


def sample(p: float, q: float, label: int, *, agreed: bool = False) -> Sample:
    return Sample(p, q, label, agreed, 0, "a", "b", "a")  # type: ignore[arg-type]


def test_the_papers_tree_keeps_agreements() -> None:
    """Where the draft is unsure and both agree, only the paper's tree has learned to keep its word."""
    data = samples(3, sample(0.9, 0.9, 0), sample(0.5, 0.9, 1), sample(0.3, 0.9, 0, agreed=True))
    assert our_tree(data).replaces(0.3, 0.9)
    assert not papers_tree(data).replaces(0.3, 0.9)
    assert all(papers_tree(data).replaces(0.5, q) for q in (0.1, 0.9))


def test_draws_have_places_for_both_answers() -> None:
    neither, both = samples(5, sample(0.9, 0.9, 0)), samples(5, sample(0.9, 0.9, 0), sample(0.5, 0.9, 1), name="R")
    mixed = samples(10, sample(0.9, 0.9, 0), sample(0.5, 0.9, 1))
    kinds = {kind: both if kind == "capital" else neither for kind in OTHER_KINDS}
    learned = Learned({10: mixed}, {}, {}, kinds, tune(mixed))
    few = next(_drawings("other", 3, learned))
    assert len(few.examples) == 3
    assert any(str(one.example.prompt).startswith("R") for one in few.examples)
    assert next(_drawings("mixed", 3, learned)).examples != next(_drawings("mixed", 10, learned)).examples
    with pytest.raises(RuntimeError, match="hardly any draw"):
        next(_drawings("other", 3, Learned({}, {}, {}, dict.fromkeys(OTHER_KINDS, neither), tune(mixed))))
