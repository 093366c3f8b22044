"""Tuning by answers: every example fused with every pair, or known to come out the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import RuleVerifier, SettingError, fuse
from cosd_api.apps.training.answer_tuning import AnswerTuning, is_right, tune_answers
from cosd_api.forcing.samples import Example
from cosd_providers.errors import ProviderError
from cosd_providers.testing import Fault, ScriptedProvider
from naive import reference
from support.drawn import costly
from toys import lima
from toys import toy_models as toys

LIMA = Example(prompt="Q:", answer=lima.FUSED, target="Lima")


def example(answer: str, target: str | None = None, *, ends: bool = True) -> Example:
    return Example(prompt="Q", answer=answer, target=target, ends=ends)


@pytest.mark.parametrize(
    ("given_example", "text", "right"),
    [
        (example(" It is Lima.", "Lima"), " Lima, of course", True),
        (example(" It is Lima.", "Lima"), " Limassol", False),
        (example(" It is Lima.", "Lima"), " lima", False),
        (example(" It is 42.", "42"), " 142.", False),
        (example(" It is 42.", "42"), " (42)", True),
        (example(" x", "New  York"), " in New\nYork.", True),
        (example(" x", "a.c"), " abc", False),
        (example(" x", "caf\u00e9"), " cafe\u0301", True),
        (example(" It is Lima."), "It  is\nLima. ", True),
        (example(" It is Lima."), " It is Lima. Really.", False),
        (example(" It is Lima.", ends=False), " It is Lima. Really.", True),
        (example(" It is Lima", ends=False), " It is Limassol", False),
    ],
)
def test_what_is_right(given_example: Example, text: str, right: bool) -> None:
    assert is_right(given_example, text) is right


async def test_every_example_with_every_pair() -> None:
    told: list[tuple[int, int]] = []
    draft, assistant = lima.draft(), lima.assistant()
    tuning = await tune_answers(
        [LIMA, {"prompt": "Q: The capital is Lima", "answer": "."}],
        draft=draft,
        assistant=assistant,
        alphas=(0.5, 0.25),
        betas=(0.5, 4),
        progress=lambda *counts: told.append(counts),
    )
    # "Rome" has 0.3 and "Li" 0.8, its least sure token: replaced where 0.3 < alpha and 0.8 > beta x 0.3.
    assert tuning.accuracy == {0.25: {0.5: 0.0, 4.0: 0.0}, 0.5: {0.5: 0.5, 4.0: 0.0}, 0.9: {1.0: 0.5}}
    assert tuning.best == tuning.recommended == RuleVerifier()
    assert (tuning.best_accuracy, tuning.default, tuning.paper) == (0.5, 0.5, 0.5)
    assert tuning.examples == 2
    assert (tuning.held_out, tuning.gain_interval) == (None, None)  # two examples are too few
    assert tuning.acceptance_rate[0.25][0.5] == 1.0
    assert tuning.acceptance_rate[0.5][0.5] < 1
    # (0.5, 0.5) decides as the default does, and with (0.5, 4) the first decides differently; with alpha 0.25 nothing
    # is contested where that kept everything.
    assert tuning.fused == 3
    assert told == [(0, 10), (1, 10), (2, 10), (4, 10), (5, 10), (6, 10), (8, 10), (10, 10)]
    assert draft.open_requests == assistant.open_requests == 0
    assert AnswerTuning.model_validate_json(tuning.model_dump_json()) == tuning


async def test_what_is_right_can_be_said_by_a_function() -> None:
    seen: list[tuple[str, str]] = []

    def right(one: Example, text: str) -> bool:
        seen.append((one.answer, text))
        return "Rome" in text

    tuning = await tune_answers(
        [LIMA], draft=lima.draft(), assistant=lima.assistant(), alphas=[0.25], betas=[0.5], right=right
    )
    # The default and the paper's own pair are fused, too.
    assert (tuning.best_accuracy, tuning.default, tuning.paper) == (1.0, 0.0, 0.0)
    assert [text for _, text in seen] == [lima.FUSED, " The capital is Rome."]


async def test_conversations() -> None:
    draft = ScriptedProvider.from_texts({"user: Q\nassistant: ": [" a", (" b", 0.2)]})
    assistant = ScriptedProvider.from_texts({"user: Q\nassistant: ": [" a", (" c", 0.9)]})
    chat: Mapping[str, Any] = {"prompt": [{"role": "user", "content": "Q"}], "answer": " a c"}
    tuning = await tune_answers([chat], draft=draft, assistant=assistant, alphas=[0.1, 0.5], betas=[0.5])
    assert tuning.accuracy == {0.1: {0.5: 0.0}, 0.5: {0.5: 1.0}, 0.9: {1.0: 1.0}}  # the default is fused, too


def parity(_: object, text: str) -> bool:
    """A check that nearly every other text passes."""
    return hashlib.sha256(text.encode()).digest()[0] % 2 == 1


@pytest.mark.extended
@costly(25)
@given(
    toys.model_sets(may_hide_end=False, max_assistants=2),
    st.sampled_from(("token", "word")),
    st.integers(1, 12),
    toys.stops(),
)
async def test_what_is_not_fused_would_have_come_out_the_same(
    models: Any, unit: Any, limit: int, stop: tuple[bytes, ...]
) -> None:
    writer, asked = models
    alphas, betas = (5 / 16, 0.5, 1.0), (0.5, 8 / 7, 2.0)
    prompts = ("a b", "1 a")
    tuning = await tune_answers(
        [Example(prompt=prompt, answer=" a") for prompt in prompts],
        draft=ScriptedProvider(toys.Plain(writer)),
        assistant=[ScriptedProvider(toys.Plain(model)) for model in asked],
        alphas=alphas,
        betas=betas,
        right=parity,
        unit=unit,
        max_tokens=limit,
        stop=[one.decode() for one in stop],
    )

    async def fused(prompt: str, verifier: RuleVerifier) -> tuple[str, int]:
        """The text and its replacements; by words those of a fusion, as the reference has no safe cuts."""
        if unit == "token":
            one = reference.fuse(
                prompt.encode(), writer, asked, verifier.replaces, unit=unit, max_tokens=limit, stop=stop
            )
            return one.text.decode("utf-8", "backslashreplace"), one.replacements
        result = await fuse(
            prompt,
            draft=ScriptedProvider(toys.Plain(writer)),
            assistant=[ScriptedProvider(toys.Plain(model)) for model in asked],
            verifier=verifier,
            unit=unit,
            max_tokens=limit,
            stop=[one.decode() for one in stop],
        )
        return result.text, result.replacements or 0

    for alpha in alphas:
        for beta in betas:
            verifier = RuleVerifier(alpha=alpha, beta=beta)
            wanted = [await fused(prompt, verifier) for prompt in prompts]
            right = sum(parity(None, text) for text, _ in wanted)
            assert tuning.accuracy[alpha][beta] == right / 2
            none = not any(replacements for _, replacements in wanted)
            assert (tuning.acceptance_rate[alpha][beta] == 1) == none


async def test_a_pair_that_contests_less_tells_nothing_of_one_that_contests_more() -> None:
    draft = ScriptedProvider.from_texts({"Q": [(" a", 0.6), (" b", 0.3), "."], "Q a y": ["."]})
    assistant = ScriptedProvider.from_texts({"Q": [(" x", 0.9)], "Q a": [(" y", 0.9), "."]})
    # (1, 0.5) puts both words, as the default does; (1, 4) asks about neither, since 4 x 0.3 > 1; (0.5, 0.5) puts the
    # second alone.
    tuning = await tune_answers(
        [{"prompt": "Q", "answer": " a y."}], draft=draft, assistant=assistant, alphas=[1, 0.5], betas=[0.5, 4]
    )
    assert tuning.accuracy == {
        0.5: {0.5: 1.0, 4.0: 0.0},
        0.9: {1.0: 0.0},
        1.0: {0.5: 0.0, 4.0: 0.0},
    }


async def test_an_answer_behind_a_stop_string_tells_nothing_of_others() -> None:
    """The word that is put there holds the stop string, and is no part of the answer; another pair may not put it."""
    draft = ScriptedProvider.from_texts({"Q": [(" b", 0.2), " d"]})
    assistant = ScriptedProvider.from_texts({"Q": [(" c", 0.5)]})
    tuning = await tune_answers(
        [{"prompt": "Q", "answer": " b d"}], draft=draft, assistant=assistant, alphas=[0.5], betas=[0.5, 4], stop=" c"
    )
    assert tuning.accuracy == {0.5: {0.5: 0.0, 4.0: 1.0}, 0.9: {1.0: 0.0}}
    assert (await fuse("Q", draft=draft, assistant=assistant, stop=" c")).text == ""


async def test_an_error_ends_it_with_what_there_is_of_that_answer() -> None:
    error = ProviderError("it broke")
    draft = lima.draft(faults=[Fault(error, request=1, tokens=3)])
    with pytest.raises(ProviderError, match="it broke") as caught:
        await tune_answers([LIMA], draft=draft, assistant=lima.assistant())
    assert caught.value.partial is not None
    assert draft.open_requests == 0


async def test_an_error_of_the_check_ends_it_as_it_is() -> None:
    def right(one: Example, text: str) -> bool:
        raise ZeroDivisionError

    draft = lima.draft()
    with pytest.raises(ZeroDivisionError):
        await tune_answers([LIMA, example(" a")], draft=draft, assistant=lima.assistant(), right=right)
    assert draft.open_requests == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"examples": []}, "there are no examples"),
        ({"examples": [{"prompt": "Q"}]}, r"examples\[0\]: the field 'answer' is missing"),
        ({"alphas": [-1]}, "alphas must be non-negative numbers"),
        ({"folds": 1}, "folds must be a whole number of at least 2"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"concurrency": 0}, "concurrency must be a whole number of at least 1"),
        ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1"),
        ({"unit": "line"}, "unit must be"),
        ({"temperature": 1}, "temperature is not accepted"),
    ],
)
async def test_wrong_arguments(arguments: dict[str, Any], words: str) -> None:
    draft = lima.draft()
    with pytest.raises(SettingError, match=words):
        await tune_answers(**{"examples": [LIMA], "draft": draft, "assistant": lima.assistant(), **arguments})
    assert draft.calls == []
