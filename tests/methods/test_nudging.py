"""Nudging: the naive transcription under every order of answers, and what surrounds it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Fusion, SettingError, Trace, fuse
from cosd_api.methods.base import method_named
from cosd_providers.errors import BudgetError, ConnectError, UnsupportedError
from cosd_providers.testing import Fault, ScriptedProvider, ScriptToken, TableModel
from naive import nudging as naive_nudging
from support.drawn import costly
from support.method_files import AT, Nudging
from toys import contests
from toys import toy_models as toys

GAMMAS = st.sampled_from((0.0, 4 / 16, 0.4, 7 / 16, 9 / 16, 12 / 16, 1.0))
NUDGES = st.sampled_from((1, 2, 3, 4, 6, 16))


def naive(task: contests.Task, gamma: float, nudge_tokens: int, **more: Any) -> Any:
    limits: Any = {"max_tokens": task.max_tokens, "stop": task.stop}
    return naive_nudging.nudging(task.prompt, task.models, gamma=gamma, nudge_tokens=nudge_tokens, **limits | more)


@costly(40)
@given(contests.tasks(max_assistants=1, longest=40), GAMMAS, NUDGES, contests.delays())
async def test_the_answer_is_the_naive_one_whatever_the_order(
    task: contests.Task, gamma: float, nudge_tokens: int, delays: list[float]
) -> None:
    result = await contests.fused(task, Nudging(gamma=gamma, nudge_tokens=nudge_tokens), delays=delays)
    contests.check(result, naive(task, gamma, nudge_tokens))
    assert all(token.reason for token in result.tokens)


@costly(40)
@given(contests.tasks(max_assistants=1, longest=40), GAMMAS, NUDGES, st.integers(1, 40))
async def test_a_limit_cuts_the_answer_and_changes_nothing_before(
    task: contests.Task, gamma: float, nudge_tokens: int, limit: int
) -> None:
    method = Nudging(gamma=gamma, nudge_tokens=nudge_tokens)
    longer, shorter = [await contests.fused(replace(task, max_tokens=n, stop=()), method) for n in (40, limit)]
    assert [(one.data, one.source) for one in shorter.tokens] == [
        (one.data, one.source) for one in longer.tokens[:limit]
    ]


@costly(40)
@given(contests.tasks(max_assistants=1, longest=30), NUDGES, st.integers(1, 6))
async def test_where_the_nudging_model_fails_the_base_model_writes_on(
    task: contests.Task, nudge_tokens: int, request: int
) -> None:
    fault = Fault(ConnectError("gone"), request=request)
    method = Nudging(nudge_tokens=nudge_tokens)
    result = await contests.fused(task, method, faults={1: fault}, on_assistant_error="draft")
    wanted = naive(task, 0.4, nudge_tokens, fails=request)
    contests.check(result, wanted)
    assert all(token.verified == (token.reason != "no nudging model is heard") for token in result.tokens)


@costly(40)
@given(
    contests.tasks(max_assistants=1, longest=24),
    NUDGES,
    st.lists(st.sampled_from(contests.SPLITS), min_size=2, max_size=2),
)
async def test_words_are_those_of_the_nudging_model_where_they_are_known(
    task: contests.Task, nudge_tokens: int, splits: list[Any]
) -> None:
    result = await contests.fused(task, Nudging(nudge_tokens=nudge_tokens), splits=splits)
    contests.check(result, naive(task, 0.4, nudge_tokens, split=splits[1]))


@dataclass(frozen=True)
class Looping:
    """Writes one of a few words behind each word, and so comes round soon; mostly it is confident of the next one."""

    seed: int
    confident: int  # in sixteenths
    hides_end = False
    vocabulary = toys.Vocabulary(
        (*toys.SINGLE, *(f" {letter}".encode() for letter in "ab1"), b"a,", b"b1", b"11", b""), 23
    )

    def next(self, ids: Any) -> list[float]:
        """The probability of every token."""
        rng = random.Random(repr((self.seed, [*ids][-1:])))
        size = len(self.vocabulary.tokens)
        first, second = rng.sample(range(size - 7, size - 1), 2)
        probs = [0.0] * size
        top = 15 if rng.randrange(16) < self.confident else 5
        probs[first], probs[second] = top / 16, (15 - top) / 32
        return probs


LOOPS = st.builds(Looping, st.integers(0, 2**16), st.sampled_from((8, 14, 16)))


@costly(40)
@given(LOOPS, LOOPS, st.sampled_from((1, 2, 3, 6, 16)), st.integers(1, 120))
async def test_repetitions_are_not_written(base: Looping, nudger: Looping, nudge_tokens: int, limit: int) -> None:
    task = contests.Task(b"1", [base, nudger], limit, ())  # type: ignore[list-item]
    result = await contests.fused(task, Nudging(nudge_tokens=nudge_tokens))
    contests.check(result, naive(task, 0.4, nudge_tokens))
    assert (result.stop_reason == "repetition") == any("and then again" in words for words in result.warnings)


# By hand.

BASE: list[ScriptToken] = [(" is", 0.9), (" the", 0.8), (" capital", 0.3)]


def base(**options: Any) -> ScriptedProvider:
    """Is confident behind `Lima`, and for two tokens; and behind `Lima is the main`."""
    scripts: dict[str, list[ScriptToken]] = {
        "Q": [("?", 0.9)],
        "Q It": [(" may", 0.2)],
        "Q It seems": [(" not", 0.3)],
        "Q It seems Lima": BASE,
        "Q It seems Lima is the main": [(" city", 0.5), (".", 0.6)],
    }
    return ScriptedProvider.from_texts(scripts, **options)


def nudger(**options: Any) -> ScriptedProvider:
    """Writes another sentence."""
    scripts: dict[str, list[ScriptToken]] = {
        "Q": [" It", " seems", " Li", "ma", ",", " or"],
        "Q It seems Lima is the": [" main", " one", "!", " Yes"],
        "Q It seems Lima is the main city.": [" Yes"],
    }
    return ScriptedProvider.from_texts(scripts, **options)


NUDGE = Nudging(nudge_tokens=4)


async def test_the_base_model_writes_while_it_is_confident() -> None:
    result = await fuse("Q", draft=base(), assistant=nudger(), method=NUDGE)
    assert result.text == " It seems Lima is the main city. Yes"
    assert [(segment.candidates[0].sources[0], segment.candidates[0].text) for segment in result.segments] == [
        ("assistant", " It seems"),
        ("assistant", " Lima"),
        ("draft", " is the"),
        ("assistant", " main"),
        ("draft", " city."),
        ("assistant", " Yes"),
    ]
    assert [segment.reason for segment in result.segments] == [
        "the base model is not confident after any of its words",
        "the base model is confident: 0.9 >= 0.4",
        "the base model is confident: 0.9 >= 0.4, until it is not confident of ' capital' (0.3)",
        "the base model is confident: 0.5 >= 0.4",
        "the base model is confident: 0.5 >= 0.4, until it would end",
        "the nudging model ends the answer",
    ]
    assert [segment.candidates[0].end for segment in result.segments] == [False] * 5 + [True]
    assert {token.text: token.draft_prob for token in result.tokens if token.source == "draft"} == {
        " is": 0.9,
        " the": 0.8,
        " city": 0.5,
        ".": 0.6,
    }
    assert (result.finish_reason, result.acceptance_rate, result.draft_requests) == ("stop", None, 8)
    assert result.settings.method_options == {"gamma": 0.4, "nudge_tokens": 4}
    assert result.trace.replay() == result.text
    assert result.usage["assistant"].requests == 4


async def test_an_answer_of_one_nudge_is_the_nudging_models_own() -> None:
    asked = base()
    result = await fuse("Q", draft=asked, assistant=nudger(), method=AT["nudging"])
    assert (result.text, asked.calls) == (" It seems Lima, or", [])


async def test_a_base_model_that_begins_as_the_nudge_continues_takes_over() -> None:
    unsure = ScriptedProvider.from_texts({"Q It": [(" se", 0.1), ("a", 0.9), (" b", 0.1)]})
    result = await fuse("Q", draft=unsure, assistant=nudger(), method=NUDGE, max_tokens=4)
    assert result.text == " It sea"
    assert result.segments[1].reason == (
        "the base model continues with ' se', as the nudge does, until it is not confident of ' b' (0.1)"
    )
    assert result.tokens[1].reason == "the base model continues with ' se', as the nudge does"


async def test_where_the_base_model_is_never_confident_the_last_word_of_a_nudge_waits() -> None:
    nobody = ScriptedProvider.from_texts({})
    result = await fuse("Q", draft=nobody, assistant=nudger(), method=NUDGE, max_tokens=3)
    assert result.text == " It seems Li"
    assert result.segments[0].reason == "the base model is not confident after any of its words"
    assert len([call for call in nobody.calls if call.kind == "generate"]) == 2
    one = await fuse("Q", draft=nobody, assistant=nudger(), method=Nudging(nudge_tokens=1), max_tokens=1)
    assert (one.text, one.segments[0].reason) == (" It", "the nudge is one word")


async def test_the_same_nudge_is_written_three_times() -> None:
    def again(*words: bytes) -> ScriptedProvider:
        def always(_: object) -> list[float]:
            return [0.0, 0.0, 1.0]

        return ScriptedProvider(TableModel([b"", b"Q", *words], always, end_ids=(0,)))

    result = await fuse("Q", draft=ScriptedProvider.from_texts({}), assistant=again(b" a"), method=NUDGE)
    assert (result.text, result.finish_reason, result.stop_reason) == (" a" * 9, "length", "repetition")
    assert result.warnings == (
        "the nudging model wrote ' a a a' 3 times in a row, and then again: the answer ends there",
    )
    assert result.trace.replay() == result.text


async def test_it_streams_and_leaving_early_leaves_no_request_open() -> None:
    models = {"draft": base(token_delay=0.1), "assistant": nudger()}
    async with Fusion(**models, method=NUDGE) as fusion:  # type: ignore[arg-type]
        async with fusion.stream("Q") as stream:
            texts = [(await anext(stream)).text for _ in range(5)]
            assert texts == [" It", " seems", " Li", "ma", " is"]
            assert models["draft"].open_requests == 1  # it is still writing
        with anyio.move_on_after(0.1):
            await fusion.generate("Q")
    assert [model.open_requests for model in models.values()] == [0, 0]


class Mute(ScriptedProvider):
    """Is down where it is asked for its words, and, if `unknown`, from the start."""

    unknown = False

    async def describe(self) -> Any:
        if self.unknown:
            raise ConnectError("no connection")
        return await super().describe()

    async def word_splitter(self) -> Any:
        raise ConnectError("no connection")


@pytest.mark.parametrize(("unknown", "warned"), [(True, "failed before this answer began"), (False, "from token 1 on")])
async def test_the_base_model_writes_alone_where_the_nudging_model_is_down_from_the_start(
    unknown: bool, warned: str
) -> None:
    down = Mute(nudger().model)
    down.unknown = unknown
    with pytest.raises(ConnectError):
        await fuse("Q", draft=base(), assistant=down, method=NUDGE)
    result = await fuse("Q", draft=base(), assistant=down, method=NUDGE, on_assistant_error="draft")
    assert (result.text, down.requests) == ("?", 0)
    assert not any(token.verified for token in result.tokens)
    assert [segment.reason for segment in result.segments] == ["no nudging model is heard"]
    [warning] = result.warnings
    assert warned in warning


async def test_limits() -> None:
    models: Any = {"draft": base(), "assistant": nudger(), "method": NUDGE}
    result = await fuse("Q", **models, stop="he ma")
    assert (result.text, result.finish_reason, result.stop_reason) == (" It seems Lima is t", "stop", "he ma")
    assert result.trace.replay() == result.text
    result = await fuse("Q", **models, max_tokens=6)
    assert (result.text, result.finish_reason) == (" It seems Lima is the", "length")
    with pytest.raises(BudgetError) as found:
        await fuse("Q", **models, max_requests=5)
    assert found.value.partial.text == " It seems Lima is the"
    result = await fuse("Q", **models, max_billed_tokens=34, on_budget="end")
    assert (result.finish_reason, result.stop_reason) == ("budget", "max_billed_tokens")
    assert result.trace.replay() == result.text
    hangs: Any = {"draft": base(faults=[Fault(None, request=3, tokens=1)]), "assistant": nudger(), "method": NUDGE}
    result = await fuse("Q", **hangs, timeout=0.5, on_budget="end")
    assert (result.text, result.stop_reason) == (" It seems Lima is", "timeout")
    assert result.trace.replay() == result.text


async def test_where_a_model_cannot_continue_the_answer_ends() -> None:
    for sizes, text in (((None, 3), " It seems"), ((2, None), " It"), ((16, None), " It seems Lima is")):
        models: Any = {"draft": base(context=sizes[0]), "assistant": nudger(context=sizes[1])}
        result = await fuse("Q", **models, method=NUDGE)
        assert (result.text, result.finish_reason, result.stop_reason) == (text, "length", "context")
        assert result.trace.replay() == text


async def test_failures() -> None:
    fault = Fault(ConnectError("gone"), request=3)
    with pytest.raises(ConnectError) as found:
        await fuse("Q", draft=base(), assistant=nudger(faults=[fault]), method=NUDGE)
    assert found.value.partial.text == " It seems Lima is the"
    broken = base(faults=[Fault(ConnectError("gone"))])
    with pytest.raises(ConnectError):
        await fuse("Q", draft=broken, assistant=nudger(), method=NUDGE, on_assistant_error="draft")
    result = await fuse("Q", draft=base(), assistant=nudger(faults=[fault]), method=NUDGE, on_assistant_error="draft")
    assert result.text == " It seems Lima is the" + " capital"
    assert result.segments[-1].reason == "no nudging model is heard"
    assert [token.verified for token in result.tokens][-2:] == [False, False]
    assert result.trace.replay() == result.text


async def test_messages_are_rendered_for_each_model() -> None:
    def template(messages: Any) -> str:
        return "Q" if messages else ""

    models: Any = {"draft": base(template=template), "assistant": nudger(template=template)}
    result = await fuse([{"role": "user", "content": "Hello"}], method=NUDGE, **models)
    assert result.text == " It seems Lima is the main city. Yes"


async def test_a_base_model_without_probabilities_is_refused_and_a_nudging_model_needs_none() -> None:
    with pytest.raises(UnsupportedError, match="the draft is the base model of 'nudging', and does not") as found:
        await fuse("Q", draft=base(probs=False), assistant=nudger(), method=AT["nudging"])
    assert "It can be the assistant" in (found.value.hint or "")
    result = await fuse("Q", draft=base(), assistant=nudger(probs=False, end_prob=False), method=NUDGE)
    assert result.text == " It seems Lima is the main city. Yes"


def test_settings() -> None:
    assert method_named(AT["nudging"], gamma=0.5) == Nudging(gamma=0.5, nudge_tokens=16)
    for gamma in (-0.1, 1.1, math.nan, True):
        with pytest.raises(SettingError, match="gamma must be a number between 0 and 1, not"):
            Nudging(gamma=gamma)
    with pytest.raises(SettingError, match="nudge_tokens must be a whole number of at least 1, not 0"):
        Nudging(nudge_tokens=0)
    with pytest.raises(SettingError, match="'nudging' accepts at most 2 models, not 3"):
        Fusion(draft="http://a", assistant=["http://b", "http://c"], method=AT["nudging"])
    with pytest.raises(SettingError, match="unit means nothing to the method 'nudging': it decides by the prob"):
        Fusion(draft="http://a", assistant="http://b", method=AT["nudging"], unit="word")


@costly(60)
@given(contests.tasks(max_assistants=1, longest=16), NUDGES, GAMMAS)
async def test_an_estimate_holds(task: contests.Task, nudge_tokens: int, gamma: float) -> None:
    models = [ScriptedProvider(toys.Plain(model)) for model in task.models]
    method = Nudging(nudge_tokens=nudge_tokens, gamma=gamma)
    async with Fusion(draft=models[0], assistant=models[1], method=method) as fusion:
        for _ in range(2):
            estimate = await fusion.estimate(task.prompt.decode(), max_tokens=task.max_tokens)
            result = await fusion.generate(task.prompt.decode(), max_tokens=task.max_tokens)
            for name, usage in result.usage.items():
                one = estimate.endpoints[name]
                assert one.requests.low <= usage.requests <= one.requests.high
                assert one.requests.low <= one.requests.expected <= one.requests.high
                assert one.billed_tokens.low <= one.billed_tokens.expected <= one.billed_tokens.high
                assert one.billed_tokens.low <= usage.billed_tokens <= one.billed_tokens.high


async def test_the_trace_goes_through_its_file(tmp_path: Path) -> None:
    result = await fuse("Q", draft=base(), assistant=nudger(), method=NUDGE)
    result.trace.save(tmp_path / "trace")
    trace = Trace.load(tmp_path / "trace")
    assert trace.result == result
    assert trace.replay() == result.text
