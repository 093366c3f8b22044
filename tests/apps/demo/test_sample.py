"""What the demonstration counts."""

import itertools

import pytest

from cosd_api import fuse
from cosd_api.apps.demo.questions import EXAMPLE, EXAMPLE_OF_THREE, DemoQuestion, is_held_out, questions
from cosd_api.apps.demo.servers import Pair, Three
from cosd_api.apps.demo.walkthrough import MAX_TOKENS, SampleScore, measure, open_setups
from cosd_providers.testing import ScriptedProvider


def test_a_sample_has_every_kind() -> None:
    kinds = [question.kind for question in questions(6)]
    counts = {kind: kinds.count(kind) for kind in kinds}
    others = ("sum", "difference", "capital", "currency", "symbol", "translation", "mixed-all")
    assert counts == {"mixed": 6, **dict.fromkeys(others, 3)}
    assert len({question.kind for question in questions(1)}) == len(counts)
    assert questions(6) == questions(6) != questions(6, seed=1)


async def test_score() -> None:
    draft = ScriptedProvider.from_texts({"Q": [" It is", (" 3", 0.2), "."], "R": [" It is", " 7."]})
    assistant = ScriptedProvider.from_texts({"Q": [" It is", (" 4", 0.9), "."]})
    score = SampleScore()
    for prompt, number in (("Q", 4), ("R", 8)):
        result = await fuse(prompt, draft=draft, assistant=assistant, unit="token")
        score.answers.append((DemoQuestion("sum", prompt, "It is {number}.", number), result))
    assert score.accuracy("sum") == 0.5
    assert score.acceptance_rate == pytest.approx(5 / 6)
    assert score.requests_per_answer == 0.5


@pytest.mark.live
async def test_every_way_answers(pair: Pair, three: Three) -> None:
    asked = questions(2)
    async with open_setups(pair) as setups:
        assert [setup.label for setup in setups] == [
            "sums alone",
            "facts alone",
            "sums, asking facts",
            "facts, asking sums",
        ]
    async with open_setups(three) as setups:
        assert [(setup.draft, setup.assistants) for setup in setups] == [
            ("sums", ()),
            ("facts", ()),
            ("words", ()),
            ("sums", ("facts",)),
            ("facts", ("sums",)),
            ("sums", ("facts", "words")),
        ]
        assert setups[-1].label == "sums, asking facts and words"
        for setup in setups:
            counter = itertools.count()
            score = await measure(setup, asked, answered=counter.__next__)
            assert len(score.results) == len(asked) == next(counter)
            assert all(result.draft.model == setup.draft for result in score.results)
            if not setup.assistants:
                assert score.requests_per_answer == 0
                assert score.acceptance_rate == 1
                continue
            for result in score.results:
                names = {"draft": result.draft.model, **{one.name: one.model for one in result.assistants}}
                assert all(setup.model(token.source) == names[token.source] for token in result.tokens)


@pytest.mark.live
async def test_the_examples_take_several_models(three: Three) -> None:
    async with open_setups(three) as setups:
        for example, able in ((EXAMPLE, {"sums", "facts"}), (EXAMPLE_OF_THREE, {*three})):
            for setup in setups:
                if able < {setup.draft, *setup.assistants}:
                    continue
                answer = await setup.fusion.generate(example.prompt, max_tokens=MAX_TOKENS)
                score = SampleScore([(example, answer)])
                assert score.accuracy(example.kind) == (able <= {setup.draft, *setup.assistants}), setup.label
                if score.accuracy(example.kind):
                    assert 1 <= (score.results[0].replacements or 0) <= 6  # "words" replaces token by token


def test_the_example_was_not_trained_on() -> None:
    assert EXAMPLE.answer == " The capital of Peru is Lima and the total is 42."
    assert EXAMPLE_OF_THREE.answer == " The capital of Peru is Lima. The sum is 42. In French it is fromage."
    assert is_held_out(17, 25)
