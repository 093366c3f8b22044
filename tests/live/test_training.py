"""Training on real servers: what is gathered, against plain HTTP."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from cosd_api import Example, Fusion, Samples, TreeVerifier, collect, train_tree
from cosd_api.apps.demo.questions import is_right, sample
from cosd_api.apps.demo.servers import Pair
from cosd_api.apps.training.evaluation import places_of
from cosd_providers import UnsupportedError, connect
from cosd_providers.engines.ollama import Ollama
from fakes.ollama import StandInOllama
from fakes.tgi import LlamaModel
from naive.plain_http import MODELS, PlainLlamaCpp

pytestmark = pytest.mark.live


def examples(kind: str, count: int) -> list[Example]:
    return [Example(prompt=one.prompt, answer=one.answer) for one in sample(kind, count, 7, held_out=False)]


class TestCollect:
    """What two models would have written in answers that are known."""

    async def test_each_place_is_what_the_models_say_there(
        self, pair: Pair, plainly: Mapping[str, PlainLlamaCpp], tmp_path: Path
    ) -> None:
        path = tmp_path / "samples.jsonl"
        found = await collect(examples("mixed", 2), draft=pair.sums, assistant=pair.facts, path=path)
        assert Samples.load(path).digest == found.digest
        assert (found.contexts, found.unit) == ("ids", "word")
        assert found.usage["draft"].requests <= 4  # it is asked, too, how its own words would go on
        for one in found.examples:
            prompt = one.example.prompt
            assert isinstance(prompt, str)
            before, size = (prompt + one.example.answer).encode(), len(prompt.encode())
            for place in one.samples:
                text = before[: size + place.start].decode()
                for name, said, prob in (("sums", place.draft, place.p), ("facts", place.assistant, place.q)):
                    first, *_ = plainly[name].after(text, 1)
                    assert said.startswith(first.data.decode()) and first.end == (said == "")
                    assert first.prob is not None and prob <= first.prob * 1.01
                stands = before[size + place.start :].decode()
                right = [
                    stands == "" if said == "" else stands.startswith(said) for said in (place.draft, place.assistant)
                ]
                assert place.label == (0 if right[0] else 1 if right[1] else None)
                assert place.agreed == (place.draft == place.assistant)
        labels = [place.label for place in places_of(found)]
        assert 0 in labels and 1 in labels  # the fact is the assistant's, the total the draft's

    async def test_two_requests_an_example(self, pair: Pair) -> None:
        found = await collect(examples("mixed", 3), draft=pair.sums, assistant=pair.sums)
        assert {name: usage.requests for name, usage in found.usage.items()} == {"draft": 3, "assistant": 3}
        assert (found.unit, found.positions, found.skipped) == ("token", found.agreeing, 0)

    async def test_conversations(self, pair: Pair) -> None:
        chat = [
            {"prompt": [{"role": "user", "content": one.prompt[3:-3]}], "answer": one.answer.lstrip()}
            for one in sample("capital", 2, 7)
        ]
        found = await collect(chat, draft=pair.facts, assistant=pair.sums)
        assert found.warnings == ()  # the template's white space is the first part of either model's path
        assert all(sample.label == 0 for one in found.examples for sample in one.samples)  # the draft knows them
        assert found.labelled and found.examples[0].samples[0].start == 0

    async def test_a_server_that_encodes_nothing_needs_a_tokenizer_and_a_request_for_each_place(
        self, models: Mapping[str, LlamaModel], pair: Pair
    ) -> None:
        model = models["facts"]
        server = StandInOllama(model, ("facts:latest",), 512, model.beginning)
        given = examples("capital", 1)
        with server.serve() as url:
            with pytest.raises(UnsupportedError, match="neither tokenizes nor scores texts") as caught:
                await collect(given, draft=pair.sums, assistant=Ollama(url))
            assert "connect(url, tokenizer=...)" in str(caught.value)
            found = await collect(given, draft=pair.sums, assistant=Ollama(url, tokenizer=MODELS / "facts"))
        assert found.usage["draft"].requests <= 4  # it is asked, too, how its own words would go on
        places = found.usage["assistant"].strategies["singles"]
        assert found.usage["assistant"].requests >= places > 3
        assert "assistant does not report the probability of its end of sequence" in found.warnings[0]
        assert found.skipped and found.examples[0].samples[-1].reference  # its end is not known
        assert found.labelled  # what the capital is


@pytest.mark.extended
async def test_three_examples_are_enough_for_a_tree(pair: Pair, tmp_path: Path) -> None:
    """The paper's setting, ten times: few places, and what fuses then is mostly as good as the rule."""
    draft, assistant = connect(pair.sums), connect(pair.facts)
    found = await collect(examples("mixed", 30), draft=draft, assistant=assistant)
    questions, rng, good = sample("mixed", 4, 21), random.Random(0), 0
    for _ in range(10):
        training = train_tree(found.model_copy(update={"examples": tuple(rng.sample(found.examples, 3))}))
        assert (training.depth, training.chosen, training.comparison) == (2, False, None)
        assert {node.value for node in training.tree.nodes} == {None, 0, 1}
        training.tree.save(tmp_path / "tree.json")
        tree = TreeVerifier.load(tmp_path / "tree.json")
        async with Fusion(draft=draft, assistant=assistant, verifier=tree) as fusion:
            answers = [result.text async for result in fusion.map([one.prompt for one in questions])]
        good += sum(map(is_right, questions, answers)) >= 3
    assert good >= 8
