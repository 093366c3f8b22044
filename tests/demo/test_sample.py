"""What the demonstration counts."""

import itertools

import pytest

from cosd_api import fuse
from cosd_api.demo.questions import DemoQuestion, is_held_out
from cosd_api.demo.run import EXAMPLE
from cosd_api.demo.sample import MAX_TOKENS, SampleScore, measure, open_setups, questions
from cosd_api.demo.servers import Pair
from cosd_providers.testing import ScriptedProvider


def test_a_sample_has_every_kind() -> None:
    kinds = [question.kind for question in questions(6)]
    counts = {kind: kinds.count(kind) for kind in kinds}
    assert counts == {"mixed": 6, "sum": 3, "difference": 3, "capital": 3, "currency": 3, "symbol": 3}
    assert len({question.kind for question in questions(1)}) == 6
    assert questions(6) == questions(6) != questions(6, seed=1)


async def test_score() -> None:
    draft = ScriptedProvider.from_texts({"Q": [" It is", (" 3", 0.2), "."], "R": [" It is", " 7."]})
    assistant = ScriptedProvider.from_texts({"Q": [" It is", (" 4", 0.9), "."]})
    score = SampleScore()
    for prompt, number in (("Q", 4), ("R", 8)):
        result = await fuse(prompt, draft=draft, assistant=assistant, unit="token")
        score.add(DemoQuestion("sum", prompt, "It is {number}.", number), result)
    assert score.accuracy("sum") == 0.5
    assert score.acceptance_rate == pytest.approx(5 / 6)
    assert score.requests_per_answer == 0.5


@pytest.mark.live
async def test_every_way_answers(pair: Pair) -> None:
    asked = questions(2)
    async with open_setups(pair) as setups:
        assert [(setup.draft, setup.assistant) for setup in setups] == [
            ("sums", None),
            ("facts", None),
            ("sums", "facts"),
            ("facts", "sums"),
        ]
        for setup in setups:
            counter = itertools.count()
            score = await measure(setup, asked, answered=counter.__next__)
            assert len(score.results) == len(asked) == next(counter)
            assert all(result.draft.model == setup.draft for result in score.results)
            if setup.assistant is None:
                assert score.requests_per_answer == 0
                assert score.acceptance_rate == 1


@pytest.mark.live
async def test_the_example_takes_both_models(pair: Pair) -> None:
    async with open_setups(pair) as setups:
        scores = []
        for setup in setups:
            scores.append(SampleScore())
            scores[-1].add(EXAMPLE, await setup.fusion.generate(EXAMPLE.prompt, max_tokens=MAX_TOKENS))
    alone, fused = scores[:2], scores[2:]
    assert [score.accuracy("mixed") for score in alone] == [0, 0]
    assert [score.accuracy("mixed") for score in fused] == [1, 1]
    assert all(1 <= (result.replacements or 0) <= 2 for score in fused for result in score.results)


def test_the_example_was_not_trained_on() -> None:
    assert EXAMPLE.answer == " The capital of Peru is Lima and the total is 42."
    assert is_held_out(17, 25)
