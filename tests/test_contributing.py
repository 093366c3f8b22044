"""The recipes of CONTRIBUTING.md: what they print does what it says, and needs nothing more."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Fusion, FusionResult, SettingError, fuse
from cosd_api.extend import Verifier
from cosd_api.methods.base import Method
from cosd_api.types import CustomVerifier
from cosd_api.verification import condition_of
from cosd_providers import ConnectError, Provider
from cosd_providers.testing import Fault, ScriptedProvider, TextModel
from naive import reference
from support.drawn import examples
from support.printed import executed, programs, section
from toys import contests, lima
from toys.contests import Task

PAGE = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"
ENGINE, METHOD, VERIFIER = (
    programs(section(PAGE, f"How to add {thing}")) for thing in ("an engine", "a method", "a verifier")
)
METHODS = executed(*METHOD)
Longest: Any = METHODS["Longest"]
Foreseen: Any = METHODS["Foreseen"]
Stepwise: Any = executed(*ENGINE)["Stepwise"]
OddsVerifier: Any = executed(*VERIFIER)["OddsVerifier"]

# A method.


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
        assert not (await fusion.estimate("Q", max_tokens=5)).forecast
    async with Fusion(models=models(), method=Foreseen()) as fusion:
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


# An engine.


class Server:
    """`POST /step` as the text describes it, in front of a model."""

    def __init__(self, model: TextModel) -> None:
        self.model = model

    def engine(self) -> Any:
        return Stepwise("http://steps:1", http_client=httpx.AsyncClient(transport=httpx.MockTransport(self.handle)))

    def handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        assert request.url.path == "/step"
        ids: list[int] = []
        for part in body["prompt"]:
            ids += [part] if isinstance(part, int) else self.model.encode(part.encode())
        probs = self.model.next(tuple(ids))
        best = sorted(range(len(probs)), key=lambda n: -probs[n])[: body["top"]]
        listed = [
            {"id": n, "text": self.model.tokens[n].decode(), "prob": probs[n], "end": n in self.model.end_ids}
            for n in best
        ]
        return httpx.Response(200, json={"read": len(ids), "best": listed})


@pytest.mark.parametrize("options", [{}, {"draft_length": 2}, {"ask": "all"}, {"max_tokens": 3}])
async def test_the_engine_fuses_like_the_same_models_without_a_server(options: dict[str, Any]) -> None:
    scripts = TextModel(lima.DRAFT), TextModel(lima.ASSISTANT)
    one, other = (Server(script).engine() for script in scripts)
    assert isinstance(one, Provider)
    found = await fuse("Q:", draft=one, assistant=other, **options)
    draft, assistant = map(ScriptedProvider, scripts)
    expected = await fuse("Q:", draft=draft, assistant=assistant, unit="word", **options)
    assert found.text == expected.text
    assert [(token.text, token.source, token.draft_prob) for token in found.tokens] == [
        (token.text, token.source, token.draft_prob) for token in expected.tokens
    ]
    assert found.usage["draft"].completion_tokens > 0


# A verifier.


@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from([1.0, 2.0, 8.0]))
def test_the_verifier_compares_odds(p: float, q: float, k: float) -> None:
    verifier = OddsVerifier(k=k)
    assert isinstance(verifier, Verifier)
    if p < 1 and q < 1:
        odds = q / (1 - q), k * p / (1 - p)
        if not math.isclose(*odds, rel_tol=1e-9, abs_tol=1e-300):
            assert verifier.replaces(p, q) == (odds[0] > odds[1])
            assert (" > " in verifier.explain(p, q)) == verifier.replaces(p, q)
    assert verifier.contestable(p) == verifier.replaces(p, 1.0)


async def test_the_verifier_in_a_fusion() -> None:
    verifier = OddsVerifier()
    options: Any = {"draft": lima.draft(), "assistant": lima.assistant(), "verifier": verifier}
    result = await fuse("Q:", **options)
    assert result.text == lima.FUSED
    assert "0.9 x 0.7 > 2 x 0.3 x 0.1" in [token.reason for token in result.tokens]
    assert result.trace.replay(verifier) == result.text
    assert isinstance(result.settings.verifier, CustomVerifier)
    assert condition_of(verifier) == "replaces where the odds of q are more than 2 times those of p"


@pytest.mark.parametrize(("blocks", "most"), [(ENGINE, 74), (METHOD, 56), (VERIFIER, 46)])
def test_they_are_short(blocks: list[str], most: int) -> None:
    assert sum(block.count("\n") for block in blocks) <= most
