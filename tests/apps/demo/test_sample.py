"""The counts of the demonstration."""

import pytest

from cosd_api.apps.demo.questions import EXAMPLE, EXAMPLE_OF_THREE, is_held_out, is_right, questions
from cosd_api.apps.demo.servers import Three
from cosd_api.apps.demo.walkthrough import MAX_TOKENS, WAYS, open_setups, right_answers


def test_a_sample_has_every_kind() -> None:
    kinds = [question.kind for question in questions(6)]
    counts = {kind: kinds.count(kind) for kind in kinds}
    others = ("sum", "difference", "capital", "currency", "symbol", "translation", "mixed-all")
    assert counts == {"mixed": 6, **dict.fromkeys(others, 3)}
    assert len({question.kind for question in questions(1)}) == len(counts)
    assert questions(6) == questions(6) != questions(6, seed=1)


@pytest.mark.live
async def test_every_way_answers(three: Three) -> None:
    asked = questions(2)
    async with open_setups(three, WAYS) as setups:
        assert [setup.label for setup in setups] == [
            "sums alone",
            "facts alone",
            "words alone",
            "sums, asking facts",
            "facts, asking sums",
            "sums, asking facts and words",
        ]
        for setup in setups:
            assert len(await right_answers(setup, asked)) == len(asked)
            result = await setup.fusion.generate(EXAMPLE.prompt, max_tokens=MAX_TOKENS)
            assert result.draft.model == setup.draft
            if setup.assistants:
                names = {"draft": result.draft.model, **{one.name: one.model for one in result.assistants}}
                assert all(setup.model(token.source) == names[token.source] for token in result.tokens)
            else:
                assert (result.assistant_requests, result.acceptance_rate) == (0, 1)


@pytest.mark.live
async def test_the_examples_take_several_models(three: Three) -> None:
    async with open_setups(three, WAYS) as setups:
        for example, able in ((EXAMPLE, {"sums", "facts"}), (EXAMPLE_OF_THREE, {*three})):
            for setup in setups:
                if able < {setup.draft, *setup.assistants}:
                    continue
                answer = await setup.fusion.generate(example.prompt, max_tokens=MAX_TOKENS)
                assert is_right(example, answer.text) == (able <= {setup.draft, *setup.assistants}), setup.label
                if is_right(example, answer.text):
                    assert 1 <= (answer.replacements or 0) <= 6  # "words" replaces token by token


def test_the_example_was_not_trained_on() -> None:
    assert EXAMPLE.answer == " The capital of Peru is Lima and the total is 42."
    assert EXAMPLE_OF_THREE.answer == " The capital of Peru is Lima. The sum is 42. In French it is fromage."
    assert is_held_out(17, 25)
