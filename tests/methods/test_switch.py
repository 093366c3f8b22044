"""ModelSwitch: the naive transcription under every order of answers, its distribution, and what surrounds it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from cosd_api import Fusion, FusionResult, SettingError, Trace, fuse
from cosd_api.methods.base import method_from_text
from cosd_providers import BudgetError, ConnectError, Message, UnsupportedError, connect
from cosd_providers.testing import Fault, ScriptedProvider, TableModel, TextModel
from fakes.openai import FakeOpenAI
from naive import enumerated
from naive import switch as naive_switch
from naive.reference import Fused, Out
from support.drawn import costly, partly
from support.method_files import AT, Switch, beside
from toys import contests

consistency, found_in = beside(Switch, "consistency"), beside(Switch, "found_in")

pytestmark = pytest.mark.timeout(400)

PATTERNS = (None, "[a-z]", "1+", "(a)|b", " ?(.)$", "x")
WEIGHTS = st.none() | st.lists(st.sampled_from((1.0, 2.0, 0.3, 5.0)), min_size=4, max_size=4)


def check(result: FusionResult, won: naive_switch.Sample, votes: dict[str, float], asked: Sequence[int]) -> None:
    """The answer is the naive one, in the words of the same sample, by the same votes."""
    names = [result.draft.name, *(one.name for one in result.assistants)]
    got = [(one.data, names.index(one.source), one.end) for one in result.tokens]
    assert got == [(one.data, one.source, one.end) for one in won.fused.tokens]
    assert result.finish_reason == won.fused.finish_reason
    [segment] = result.segments
    if votes:
        told = [1 - one.mean for one in segment.candidates if one.mean is not None]
        assert told == pytest.approx([one / sum(votes.values()) for one in votes.values()])
        heard = {name for one in segment.candidates for name, count in one.scores.items() if count is not None}
        assert heard == {names[at] for at in asked}
    assert result.trace.replay() == result.text
    assert type(result).model_validate_json(result.model_dump_json()) == result


@costly(40)
@given(
    contests.tasks(longest=4).map(contests.unique),
    st.integers(1, 4),
    st.sampled_from((1.0, 0.5, 0.7, 0.01)),
    st.sampled_from(PATTERNS),
    WEIGHTS,
    st.integers(0, 99),
    contests.delays(),
)
async def test_the_answer_is_the_naive_one_whatever_the_order(
    task: contests.Task,
    samples: int,
    threshold: float,
    pattern: str | None,
    weights: list[float] | None,
    seed: int,
    delays: list[float],
) -> None:
    given_weights = None if weights is None else tuple(weights[: len(task.models)])
    method = Switch(samples=samples, threshold=threshold, answer=pattern, weights=given_weights)
    draw = naive_switch.by_seeds(task.models, task.prompt, seed, max_tokens=task.max_tokens, stop=task.stop)
    won, votes, asked = naive_switch.switch(
        draw, len(task.models), samples=samples, threshold=threshold, pattern=pattern, weights=given_weights
    )
    event(f"{len(asked)} asked")
    check(await contests.fused(task, method, delays=delays, seed=seed), won, votes, asked)


@costly(60)
@given(contests.tasks(longest=4).map(contests.unique), st.integers(0, 99), st.integers(1, 3), st.data())
async def test_a_model_that_fails_does_not_vote(
    task: contests.Task, seed: int, request_number: int, data: st.DataObject
) -> None:
    at = data.draw(st.integers(1, len(task.models) - 1))
    faults = {at: Fault(ConnectError("gone"), request=request_number)}
    result = await contests.fused(task, Switch(samples=3), faults=faults, seed=seed, on_assistant_error="draft")
    failed = any(" failed" in warning for warning in result.warnings)
    draw = naive_switch.by_seeds(task.models, task.prompt, seed, max_tokens=task.max_tokens, stop=task.stop)
    check(result, *naive_switch.switch(draw, len(task.models), samples=3, deaf=[at] if failed else []))


# ------------------------------------------------------------------------------------------------- by enumeration

LETTERS = (b"", b"Q", b"a", b"b", b"c")


def letter(*probs: float, **options: Any) -> ScriptedProvider:
    """Draws a, b or c, and ends."""

    def following(ids: Sequence[int]) -> list[float]:
        return [0.0, 0.0, *probs] if len(ids) == 1 else [1.0, 0.0, 0.0, 0.0, 0.0]

    return ScriptedProvider(TableModel(LETTERS, following, end_ids=(0,)), **options)


FIRST, SECOND = (0.5, 0.3, 0.2), (0.1, 0.2, 0.7)


@pytest.mark.parametrize("many", partly([150, 1000]))
async def test_the_answers_are_distributed_as_enumerated(many: int) -> None:
    wanted: Counter[tuple[int, ...]] = Counter()
    for drawn in product(range(3), repeat=6):
        prob = 1.0
        for at, one in enumerate(drawn):
            prob *= (FIRST, SECOND)[at // 3][one]
        answers = [bytes([b"abc"[one]]) for one in drawn]

        def draw(model: int, number: int, answers: Sequence[bytes] = answers) -> Fused:
            return Fused((Out(answers[3 * model + number], model),), "stop", "end")

        won, _, _ = naive_switch.switch(draw, 2, samples=3, weights=(1, 2))
        wanted[LETTERS.index(won.fused.text),] += prob  # type: ignore[assignment]
    counts: Counter[tuple[int, ...]] = Counter()
    async with Fusion(models=[letter(*FIRST), letter(*SECOND)], method=Switch(samples=3, weights=(1, 2))) as fusion:
        for seed in range(many):
            counts[LETTERS.index((await fusion.generate("Q", seed=seed)).text.encode()),] += 1
    assert enumerated.follows(counts, wanted)


# ------------------------------------------------------------------------------------------------------- by hand


def pair(**options: Any) -> list[ScriptedProvider]:
    return [letter(*FIRST, **options), letter(*SECOND, **options)]


async def answer(**options: Any) -> FusionResult:
    given_options: dict[str, Any] = {"models": pair(), "method": Switch(samples=3), "seed": 1} | options
    return await fuse("Q", **given_options)


async def test_a_model_that_agrees_with_itself_is_not_checked() -> None:
    models = [letter(1.0, 0.0, 0.0), letter(*SECOND)]
    result = await answer(models=models)
    assert (result.text, len(models[0].calls), len(models[1].calls)) == ("a", 3, 0)
    assert result.segments[0].reason == "all samples have the same answer"
    assert {(call.temperature, call.text) for call in models[0].calls} == {(1, b"")}
    assert len({call.seed for call in models[0].calls}) == 3
    assert (result.acceptance_rate, result.settings.temperature, result.settings.seed) == (None, 1, 1)
    assert result.settings.method_options == {"weights": None, "samples": 3, "threshold": 1.0, "answer": None}
    assert (await answer(models=models)).text == result.text


def of_four(*probs: float) -> ScriptedProvider:
    """Draws a, b, c or d, and ends."""

    def following(ids: Sequence[int]) -> list[float]:
        return [0.0, 0.0, *probs] if len(ids) == 1 else [1.0, *[0.0] * 5]

    return ScriptedProvider(TableModel([*LETTERS, b"d"], following, end_ids=(0,)))


@pytest.mark.parametrize(
    ("pattern", "more"), [(None, ": answer=, a regular expression, says what an answer is"), (".", "")]
)
async def test_a_vote_that_decides_nothing_is_said(pattern: str | None, more: str) -> None:
    words = f"no two of 4 samples have the same answer, so that the vote decides nothing{more}"
    seen = set[bool]()
    for seed in range(24):
        models = [of_four(0.5, 0.5, 0.0, 0.0), of_four(0.0, 0.0, 0.5, 0.5)]
        result = await answer(models=models, method=Switch(samples=2, answer=pattern), seed=seed)
        lottery = len(result.segments[0].candidates) == 4
        assert result.warnings == ((words,) if lottery else ())
        seen.add(lottery)
    assert seen == {True, False}


async def test_where_it_does_not_the_next_one_is_asked() -> None:
    """The first model's samples differ, so each of its votes weighs a third of the second model's."""
    models = [letter(0.0, 0.5, 0.5), letter(1.0, 0.0, 0.0)]
    for seed in range(8):
        result = await answer(models=models, seed=seed)
        [segment] = result.segments
        first, *others = segment.candidates
        if not others:
            continue
        assert result.text == "a"
        assert {token.source for token in result.tokens} == {"assistant"}
        assert re.fullmatch(r"'a' has 0\.\d+ of the votes, of 3 answers", segment.reason)
        assert segment.candidates[segment.winner].scores == {"draft": 0.0, "assistant": 3.0}
        assert first.scores["assistant"] == 0.0
        return
    raise AssertionError("no seed made it differ")


def test_consistency() -> None:
    assert consistency(["a"] * 5) == 1
    assert consistency(["a", "b", "c", "d"]) == pytest.approx(0.25)
    assert consistency(["a", "a", "a", "b"]) == pytest.approx(0.25 + 0.75 * (1 - 0.8112781))
    assert consistency([]) == 1


@pytest.mark.parametrize(
    ("text", "pattern", "found"),
    [
        (" yes\n", None, "yes"),
        (" \n", None, None),
        ("3 and 14 make 17.", r"-?\d+", "17"),
        ("none", r"\d+", None),
        ("The answer is 4, or so. The answer is B!", "answer is (\\w+)", "B"),
        ("ab", "a(x)?", None),
    ],
)
def test_what_an_answer_is(text: str, pattern: str | None, found: str | None) -> None:
    assert found_in(text, pattern) == found


async def test_where_nothing_is_found_the_first_sample_stands() -> None:
    result = await answer(models=[letter(1.0, 0.0, 0.0), letter(0.0, 1.0, 0.0)], method=Switch(answer="x"))
    assert (result.text, result.segments[0].reason) == ("a", "no sample has an answer: the first one is taken")


async def test_it_comes_at_once() -> None:
    async with Fusion(models=pair(), method=AT["switch"]) as fusion, fusion.stream("Q", seed=1) as stream:
        assert len([token.text async for token in stream]) == 2


async def test_models_that_do_not_draw_are_refused() -> None:
    words = r"the assistant does not draw tokens, which 'switch' needs.* api=\"messages\""
    with pytest.raises(UnsupportedError, match=words):
        await answer(models=[letter(*FIRST), letter(*SECOND, sampling=False)])
    with pytest.raises(SettingError, match="temperature=0 is not accepted by the method 'switch', which draws"):
        await answer(temperature=0)


async def test_models_that_draw_in_their_own_way_and_answer_messages_only() -> None:
    hosted: dict[str, Any] = {"sampling": False, "draws": True, "probs": False, "continues": False}
    rendered: list[Sequence[Message]] = []

    def template(messages: Sequence[Message]) -> str:
        rendered.append(messages)
        return "Q"

    models = [letter(*FIRST, **hosted, template=template), letter(*SECOND, **hosted, template=template)]
    result = await fuse("What?", models=models, method=Switch(samples=3), seed=1)
    assert result.text in ("a", "b", "c")
    warnings = [one for one in result.warnings if "draws in its server's own way: perhaps not from" in one]
    assert [one.split()[0] for one in warnings] == ["draft", "assistant"]
    assert [[*one] for one in rendered] == [[Message("user", "What?")]] * 2
    assert {(call.prompt, call.text, call.temperature) for one in models for call in one.calls} == {("Q", b"", 1)}
    by_messages = await fuse([{"role": "user", "content": "What?"}], models=models, method=Switch(samples=3), seed=1)
    assert {*by_messages.text} <= {*"abc"}


async def test_an_answer_of_fewer_and_longer_tokens_ends_at_the_limit() -> None:
    """A server that draws in its own way may send several tokens at a time."""
    server = FakeOpenAI(TextModel({"Q": [*"abcdef"]}), probs="refused", per_event=(2,))
    models = [connect(f"http://{name}", engine="openai", api="messages", http_client=server.client()) for name in "ab"]
    result = await fuse("Q", models=models, method=Switch(samples=2), seed=1, max_tokens=4)
    assert (result.text, result.finish_reason, result.stop_reason) == ("abcd", "length", "max_tokens")
    assert {body["messages"][0]["content"] for body in server.bodies} == {"Q"}
    assert len(result.tokens) == 2


async def test_a_first_model_that_fails() -> None:
    given_options: list[dict[str, Any]] = [{}, {"on_assistant_error": "draft"}]
    for options in given_options:
        with pytest.raises(ConnectError, match="gone"):
            await answer(models=[letter(*FIRST, faults=[Fault(ConnectError("gone"))]), letter(*SECOND)], **options)


@pytest.mark.parametrize("limit", [{"max_requests": 2}, {"max_billed_tokens": 3}])
async def test_at_a_limit_nothing_is_written(limit: dict[str, Any]) -> None:
    result = await answer(on_budget="end", **limit)
    assert (result.text, result.finish_reason, result.stop_reason) == ("", "budget", next(iter(limit)))
    with pytest.raises(BudgetError):
        await answer(**limit)


async def test_a_timeout_and_leaving_early() -> None:
    slow = pair(token_delay=0.05)
    result = await answer(models=slow, timeout=0.02, on_budget="end")
    assert (result.text, result.stop_reason) == ("", "timeout")
    async with Fusion(models=slow, method=AT["switch"]) as fusion:
        with anyio.move_on_after(0.02):
            await fusion.generate("Q")
    assert [model.open_requests for model in slow] == [0, 0]


async def test_stops_and_max_tokens() -> None:
    models = [letter(1.0, 0.0, 0.0), letter(*SECOND)]
    assert (await answer(models=models, max_tokens=1)).finish_reason == "length"
    stopped = await answer(models=[letter(1.0, 0.0, 0.0), letter(1.0, 0.0, 0.0)], stop="a")
    assert (stopped.text, stopped.finish_reason, stopped.stop_reason) == ("", "stop", "a")
    assert stopped.segments[0].reason == "no sample has an answer: the first one is taken"


async def test_messages_are_rendered_for_each_model() -> None:
    options: dict[str, Any] = {"method": Switch(samples=3), "seed": 1}
    models = pair(template=lambda _: "Q")
    result = await fuse([{"role": "user", "content": "x"}], models=models, **options)
    assert result.text == (await answer()).text


async def test_a_saved_trace_gives_the_text_again(tmp_path: Path) -> None:
    result = await answer()
    result.trace.save(tmp_path / "trace.jsonl")
    assert Trace.load(tmp_path / "trace.jsonl").replay() == result.text


def test_settings() -> None:
    for threshold in (0, 1.1, True, "all"):
        with pytest.raises(SettingError, match="threshold must be a number above 0 and at most 1"):
            Switch(threshold=threshold)
    for pattern in ("(", 3):
        with pytest.raises(SettingError, match="answer must be a regular expression"):
            Switch(answer=pattern)
    assert method_from_text(AT["switch"], {"answer": r"\d{1,3}"}) == Switch(answer=r"\d{1,3}")
    with pytest.raises(SettingError, match="samples must be a whole number of at least 1"):
        Switch(samples=0)
    with pytest.raises(SettingError, match="there are 3 weights for 2 models: give one for each"):
        Fusion(models=["http://a", "http://b"], method=Switch(weights=(1, 2, 3)))


async def test_an_estimate_holds() -> None:
    async with Fusion(models=pair(), method=Switch(samples=2)) as fusion:
        for seed in range(4):
            estimate = await fusion.estimate("Q", max_tokens=8)
            result = await fusion.generate("Q", max_tokens=8, seed=seed)
            for name, usage in result.usage.items():
                one = estimate.endpoints[name]
                assert one.requests.low <= usage.requests <= one.requests.high
                assert one.billed_tokens.low <= usage.billed_tokens <= one.billed_tokens.high
