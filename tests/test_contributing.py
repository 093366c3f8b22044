"""The recipe of CONTRIBUTING.md for a method: what it prints does what it says, and needs nothing more."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import contests
import reference
from contests import Task
from cosd_api import Fusion, FusionResult, SettingError
from cosd_api.methods.base import Method
from cosd_providers import ConnectError
from cosd_providers.testing import Fault, ScriptedProvider
from drawn import examples

PAGE = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"
(BLOCK,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
NAMES: dict[str, Any] = {"__name__": "contributing"}
exec(compile(BLOCK, str(PAGE), "exec", dont_inherit=True), NAMES)
Longest: Any = NAMES["Longest"]


def naive(task: Task) -> tuple[int, reference.Fused]:
    """The longest answer of a model alone, and which one wrote it."""
    found: list[reference.Fused] = []
    for at, model in enumerate(task.models):
        answer: list[reference.Out] = []
        for token in reference.generate(model, task.prompt):
            answer.append(reference.Out(token.data, at, token.end))
            if done := reference.finished(answer, task.stop, task.max_tokens):
                found.append(done)
                break
    best = max(found, key=lambda one: len(one.text))
    return found.index(best), best


@examples(10)
@given(contests.tasks(), contests.delays())
async def test_it_is_the_longest_answer(task: Task, delays: list[float]) -> None:
    result = await contests.fused(task, Longest(), delays=delays)
    model, wanted = naive(task)
    names = [result.draft.name, *(one.name for one in result.assistants)]
    assert [(one.data, one.end) for one in result.tokens] == [(one.data, one.end) for one in wanted.tokens]
    assert {one.source for one in result.tokens} <= {names[model]}
    assert result.finish_reason == wanted.finish_reason
    [segment] = result.segments
    assert segment.candidates[segment.winner].end == bool(wanted.tokens and wanted.tokens[-1].end)
    assert result.trace.replay() == result.text
    assert FusionResult.model_validate_json(result.model_dump_json()) == result


def models(**faulty: Any) -> list[ScriptedProvider]:
    first = ScriptedProvider.from_texts({"Q": [" short", "."]})
    return [first, ScriptedProvider.from_texts({"Q": [" quite", " long", "."]}, **faulty)]


async def test_what_surrounds_it() -> None:
    async with Fusion(models=models(), method=Longest()) as fusion:
        estimate = await fusion.estimate("Q", max_tokens=5)
        result = await fusion.generate("Q", max_tokens=5)
        stopped = await fusion.generate("Q", max_tokens=5, stop=[" long"])
        cut = await fusion.generate("Q", max_tokens=1)
    assert (result.text, result.segments[0].reason) == (" quite long.", "12 bytes, the most")
    assert (stopped.text, stopped.finish_reason) == (" short.", "stop")
    assert (cut.text, cut.finish_reason) == (" short", "length")
    for name, usage in result.usage.items():
        assert estimate.endpoints[name].requests.low <= usage.requests <= estimate.endpoints[name].requests.high
    assert isinstance(Longest(), Method)
    with pytest.raises(SettingError, match="draft_length means nothing to the method 'longest'"):
        Fusion(models=models(), method=Longest(), draft_length=3)


async def test_a_model_that_fails() -> None:
    down = models(faults=[Fault(ConnectError("gone"))])
    async with Fusion(models=down, method=Longest(), on_assistant_error="draft") as fusion:
        assert (await fusion.generate("Q")).text == " short."


def test_it_is_short() -> None:
    lines: Sequence[str] = BLOCK.splitlines()
    assert len(lines) <= 52
