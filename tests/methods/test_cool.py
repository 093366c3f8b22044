"""Cool-Fusion: the naive transcription under every order of answers, and what surrounds it."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import contests
import naive_cool
from cosd_api import CoolFusion
from cosd_providers.errors import ConnectError
from cosd_providers.testing import Fault
from drawn import costly


def _by(pattern: str) -> naive_cool.Split:
    return lambda text: re.findall(pattern, text, re.DOTALL)


SPLITS: tuple[naive_cool.Split, ...] = (naive_cool.words, _by("."), _by(".[^a ]*"), _by(".[^b1]*"), _by("..?"))


@costly(300)
@given(contests.tasks(longest=24), contests.NORMALISATIONS, contests.delays())
async def test_the_answer_is_the_naive_one_whatever_the_order(
    task: contests.Task, normalisation: Any, delays: list[float]
) -> None:
    wanted = naive_cool.cool(
        task.prompt, task.models, max_tokens=task.max_tokens, stop=task.stop, normalisation=normalisation
    )
    contests.check(await contests.fused(task, CoolFusion(normalisation=normalisation), delays=delays), wanted)


@costly(300)
@given(contests.tasks(longest=24), st.lists(st.sampled_from(SPLITS), min_size=4, max_size=4), st.booleans())
async def test_segments_end_with_words_of_all_tokenizers_or_of_ones_own(
    task: contests.Task, splits: list[naive_cool.Split], align: bool
) -> None:
    wanted = naive_cool.cool(
        task.prompt, task.models, max_tokens=task.max_tokens, stop=task.stop, align=align, splits=splits
    )
    contests.check(await contests.fused(task, CoolFusion(align=align), splits=splits), wanted)


@costly(200)
@given(contests.tasks(longest=24), st.data())
async def test_a_model_that_fails_is_left_out_from_there_on(task: contests.Task, data: st.DataObject) -> None:
    fails = data.draw(st.dictionaries(st.integers(1, len(task.models) - 1), st.integers(1, 12)))
    faults = {at: Fault(ConnectError("gone"), request=number) for at, number in fails.items()}
    result = await contests.fused(task, CoolFusion(), faults=faults, on_assistant_error="draft")
    wanted = naive_cool.cool(task.prompt, task.models, max_tokens=task.max_tokens, stop=task.stop, fails=fails)
    contests.check(result, wanted)


@costly(200)
@given(contests.tasks(), contests.NORMALISATIONS)
async def test_its_answer_among_those_of_the_models(task: contests.Task, normalisation: Any) -> None:
    wanted = naive_cool.cool_and_rerank(
        task.prompt, task.models, max_tokens=task.max_tokens, stop=task.stop, normalisation=normalisation
    )
    contests.check(await contests.fused(task, CoolFusion(normalisation=normalisation, rerank=True)), wanted)
