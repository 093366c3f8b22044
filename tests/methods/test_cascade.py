"""Cascading: the naive transcription under every order of answers, and what surrounds it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Fusion, SettingError, Trace, fuse
from cosd_api.methods.base import method_named
from cosd_providers.contract import Token
from cosd_providers.errors import BudgetError, ConnectError, UnsupportedError
from cosd_providers.testing import Fault, ScriptedProvider, ScriptToken, TextModel
from naive import route as naive_route
from support.drawn import costly
from support.method_files import AT, Cascade, beside
from toys import contests

level = beside(Cascade, "level")

QUANTILES = st.sampled_from((0.0, 0.1, 0.5, 0.8, 0.9, 1.0))
TAUS = st.sampled_from((0.0, 0.1, 0.3, 0.7, 1.2, 2.0))


@costly(40)
@given(contests.tasks(max_assistants=1), QUANTILES, TAUS, contests.delays())
async def test_the_answer_is_the_naive_one_whatever_the_order(
    task: contests.Task, quantile: float, tau: float, delays: list[float]
) -> None:
    wanted = naive_route.cascade(
        task.prompt, task.models, max_tokens=task.max_tokens, stop=task.stop, quantile=quantile, tau=tau
    )
    made = Cascade(quantile=quantile, tau=tau)
    result = await cascaded(task, made, delays)
    contests.check(result, wanted)
    assert result.usage["assistant"].requests == result.segments[0].winner


async def cascaded(task: contests.Task, method: Cascade, delays: list[float], fault: Fault | None = None) -> Any:
    """The library's answer."""
    faults = {1: fault} if fault else {}
    return await contests.fused(task, method, delays=delays, faults=faults, on_assistant_error="draft")


@costly(40)
@given(contests.tasks(max_assistants=1), QUANTILES, st.integers(0, 4))
async def test_where_the_assistant_fails_the_draft_stands_or_writes_on(
    task: contests.Task, quantile: float, written: int
) -> None:
    limits: Any = {"max_tokens": task.max_tokens, "stop": task.stop}
    whole = naive_route.cascade(task.prompt, task.models, quantile=quantile, tau=0.0, **limits)
    fault = Fault(ConnectError("gone"), tokens=written)
    result = await cascaded(task, Cascade(quantile=quantile, tau=0.0), [0.0] * 8, fault)
    got = [one.data for one in result.tokens]
    if got == [one.data for one in whole.tokens]:
        return  # the draft was sure, or the assistant ended first
    before = naive_route.answer(task.models[1], 1, task.prompt, (), max_tokens=task.max_tokens).tokens
    begun = [before[:n] for n in range(min(len(before), written + 1, task.max_tokens - 1) + 1)]
    ends = [
        naive_route.answer(task.models[0], 0, task.prompt, one, **limits) for one in begun if not (one and one[-1].end)
    ]
    assert got in [[one.data for one in end.tokens] for end in ends]
    assert result.trace.replay() == result.text


# By hand.

DRAFTED: list[ScriptToken] = [(" a", 0.9), (" b", 0.2), (" c", 0.5)]


def draft(**options: Any) -> ScriptedProvider:
    """Writes a b c, and is unsure of b."""
    return ScriptedProvider.from_texts({"Q": DRAFTED, "Q x": [" d"]}, **options)


def assistant(**options: Any) -> ScriptedProvider:
    """Writes x y."""
    return ScriptedProvider.from_texts({"Q": [" x", " y"]}, **options)


async def test_the_assistant_answers_where_a_quantile_is_above_tau() -> None:
    models = {"draft": draft(), "assistant": assistant()}
    result = await fuse("Q", method=Cascade(quantile=1, tau=1.5), **models)  # type: ignore[arg-type]
    assert result.text == " x y"
    assert {token.source for token in result.tokens} == {"assistant"}
    [segment] = result.segments
    assert segment.winner == 1
    mine, other = segment.candidates
    assert (mine.text, mine.end, other.text, other.end) == (" a b c", True, " x y", True)
    assert mine.mean == pytest.approx(math.log(5))
    assert other.mean == 1.5
    assert mine.scores == {"draft": pytest.approx(math.log(5)), "assistant": None}
    assert segment.reason == "the 1 quantile of the NLL of the draft's tokens is 1.609 > 1.5"
    assert result.settings.method_options == {"quantile": 1, "tau": 1.5}
    assert result.acceptance_rate is None


async def test_the_drafts_answer_stands_where_it_is_sure_and_the_assistant_is_not_asked() -> None:
    asked = assistant()
    result = await fuse("Q", draft=draft(), assistant=asked, method=Cascade(quantile=0.5, tau=0.2))
    # of 0, log(10/9), log 2 and log 5 the second one
    assert result.segments[0].reason == "the 0.5 quantile of the NLL of the draft's tokens is 0.1054 <= 0.2"
    assert (result.text, asked.calls) == (" a b c", [])
    assert [one.text for one in result.segments[0].candidates] == [" a b c", ""]
    equal = await fuse("Q", draft=draft(), assistant=asked, method=Cascade(quantile=1, tau=-math.log(0.2)))
    assert equal.text == " a b c"


def test_the_quantile_is_by_nearest_rank() -> None:
    tokens = [Token(b"a", math.exp(-n)) for n in (3, 1, 4, 2)]
    found = [level(tokens, quantile) for quantile in (0, 0.25, 0.26, 0.5, 0.75, 0.8, 1)]
    assert found == pytest.approx([1, 1, 2, 2, 3, 4, 4])
    hundred = [Token(b"a", math.exp(-n)) for n in range(1, 101)]
    assert level(hundred, 0.07) == pytest.approx(7)  # and 0.07 * 100 > 7
    assert level([Token(b"", None, end=True), Token(b"a", 1.0)], 1) == 0
    assert level([Token(b"a", 0.0)], 1) == math.inf
    assert level([Token(b"", None, end=True)], 1) is None
    assert level([], 1) is None


async def test_the_end_counts_where_its_probability_is_known() -> None:
    class Hesitates(TextModel):
        def _next(self, ids: Any) -> list[float]:
            return [prob * (0.1 if at == 0 else 1) for at, prob in enumerate(super()._next(ids))]

    for end_prob, text in ((True, " x y"), (False, " a")):
        model = ScriptedProvider(Hesitates({"Q": [" a"]}), end_prob=end_prob)
        result = await fuse("Q", draft=model, assistant=assistant(), method=AT["cascade"])
        assert result.text == text
        assert any("end of sequence, which does not count" in words for words in result.warnings) != end_prob
        # An end behind a stop string is none.
        result = await fuse("Q", draft=model, assistant=assistant(), method=AT["cascade"], stop="a")
        assert (result.text, result.finish_reason) == (" ", "stop")


async def test_a_stop_string_cuts_first() -> None:
    result = await fuse("Q", draft=draft(), assistant=assistant(), method=Cascade(quantile=1, tau=1), stop=" b")
    assert (result.text, result.finish_reason, result.stop_reason) == (" a", "stop", " b")
    assert result.segments[0].candidates[0].text == " a"
    nothing = await fuse("Q", draft=draft(), assistant=assistant(), method=Cascade(quantile=1, tau=0), stop=" a")
    assert (nothing.text, nothing.finish_reason) == ("", "stop")
    assert nothing.segments[0].reason == "no token of the draft's answer has a known probability: the answer is kept"
    assert nothing.trace.replay() == ""


async def test_the_assistants_answer_streams_and_leaving_early_leaves_no_request_open() -> None:
    models = {"draft": draft(token_delay=0.01), "assistant": assistant(token_delay=0.05)}
    async with Fusion(**models, method=Cascade(quantile=1)) as fusion:  # type: ignore[arg-type]
        async with fusion.stream("Q") as stream:
            assert (await anext(stream)).text == " x"
            assert models["assistant"].open_requests == 1
        with anyio.move_on_after(0.02):
            await fusion.generate("Q")
    assert [model.open_requests for model in models.values()] == [0, 0]


async def test_limits() -> None:
    models: Any = {"draft": draft(), "assistant": assistant(), "method": Cascade(quantile=1)}
    result = await fuse("Q", **models, max_tokens=1)
    assert (result.text, result.stop_reason) == (" a", "max_tokens")
    with pytest.raises(BudgetError) as found:
        await fuse("Q", **models, max_requests=1)
    assert found.value.partial.text == ""
    result = await fuse("Q", **models, max_billed_tokens=6, on_budget="end")
    assert (result.finish_reason, result.stop_reason) == ("budget", "max_billed_tokens")
    assert result.trace.replay() == result.text
    slow: Any = {"draft": draft(), "assistant": assistant(token_delay=0.1), "method": Cascade(quantile=1)}
    result = await fuse("Q", **slow, timeout=0.15, on_budget="end")
    assert (result.text, result.stop_reason) == (" x", "timeout")
    assert result.trace.replay() == " x"
    full: Any = {"draft": draft(context=2), "assistant": assistant(), "method": Cascade(quantile=1)}
    result = await fuse("Q", **full)
    assert (result.text, result.finish_reason, result.stop_reason) == (" a", "length", "context")


async def test_failures() -> None:
    first, later = Fault(ConnectError("gone")), Fault(ConnectError("gone"), tokens=1)
    method = Cascade(quantile=1)
    with pytest.raises(ConnectError) as found:
        await fuse("Q", draft=draft(), assistant=assistant(faults=[later]), method=method)
    assert found.value.partial.text == " x"
    broken = draft(faults=[first])
    with pytest.raises(ConnectError):
        await fuse("Q", draft=broken, assistant=assistant(), method=method, on_assistant_error="draft")
    for fault, text in ((first, " a b c"), (later, " x d")):
        failing = assistant(faults=[fault])
        result = await fuse("Q", draft=draft(), assistant=failing, method=method, on_assistant_error="draft")
        assert result.text == text == result.trace.replay()
        assert result.segments[-1].reason == "the assistant has failed"
        assert not result.tokens[-1].verified


async def test_messages_are_rendered_for_each_model() -> None:
    def template(messages: Any) -> str:
        return "Q" if messages else ""

    models: Any = {"draft": draft(template=template), "assistant": assistant(template=template)}
    result = await fuse([{"role": "user", "content": "Hello"}], method=Cascade(quantile=1), **models)
    assert result.text == " x y"


async def test_a_draft_without_probabilities_is_refused_and_an_assistant_needs_none() -> None:
    with pytest.raises(UnsupportedError, match="the draft does not report the probabilities of its tokens") as found:
        await fuse("Q", draft=draft(probs=False), assistant=assistant(), method=AT["cascade"])
    assert "let the other model draft" in (found.value.hint or "")
    result = await fuse("Q", draft=draft(), assistant=assistant(probs=False), method=Cascade(quantile=1))
    assert result.text == " x y"


def test_settings() -> None:
    assert method_named(AT["cascade"], quantile=0.5) == Cascade(quantile=0.5, tau=1.0)
    for wrong in (-0.1, 1.1, math.nan, True, "1"):
        with pytest.raises(SettingError, match="quantile must be a number between 0 and 1, not"):
            Cascade(quantile=wrong)
    for tau in (-0.1, math.inf, math.nan):
        with pytest.raises(SettingError, match="tau must be a number of at least 0, not"):
            Cascade(tau=tau)
    with pytest.raises(SettingError, match="'cascade' accepts at most 2 models, not 3"):
        Fusion(draft="http://a", assistant=["http://b", "http://c"], method=AT["cascade"])
    with pytest.raises(SettingError, match="models is for methods in which all models are equal"):
        Fusion(models=["http://a", "http://b"], method=AT["cascade"])
    with pytest.raises(SettingError, match="draft_length means nothing to the method 'cascade'"):
        Fusion(draft="http://a", assistant="http://b", method=AT["cascade"], draft_length=4)


@pytest.mark.parametrize("tau", [0.0, 9.0])
async def test_an_estimate_holds(tau: float) -> None:
    async with Fusion(draft=draft(), assistant=assistant(), method=Cascade(tau=tau)) as fusion:
        for _ in range(2):
            estimate = await fusion.estimate("Q", max_tokens=6)
            result = await fusion.generate("Q", max_tokens=6)
            for name, usage in result.usage.items():
                one = estimate.endpoints[name]
                assert one.requests.low <= usage.requests <= one.requests.high
                assert one.billed_tokens.low <= usage.billed_tokens <= one.billed_tokens.high


async def test_the_trace_goes_through_its_file(tmp_path: Path) -> None:
    result = await fuse("Q", draft=draft(), assistant=assistant(), method=Cascade(quantile=1))
    result.trace.save(tmp_path / "trace")
    trace = Trace.load(tmp_path / "trace")
    assert trace.result == result
    assert trace.replay() == " x y"
