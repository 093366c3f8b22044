"""Routing: the naive transcription under every order of answers, and what surrounds it."""

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
from cosd_api.methods.prompt_weights import prompt_nll
from cosd_api.methods.prompt_weights import prompt_weights as weights
from cosd_providers.contract import Context, Token
from cosd_providers.errors import BudgetError, ConnectError, UnsupportedError
from cosd_providers.testing import Fault, ScriptedProvider, ScriptToken, TextModel
from naive import route as naive_route
from support.drawn import costly
from support.method_files import AT, Route, beside
from toys import contests

chosen = beside(Route, "chosen")

TAUS = st.sampled_from((1.0, 0.25, 4.0))


@costly(40)
@given(contests.tasks(), TAUS, contests.delays())
async def test_the_answer_is_the_naive_one_whatever_the_order(
    task: contests.Task, tau: float, delays: list[float]
) -> None:
    wanted = naive_route.route(task.prompt, task.models, max_tokens=task.max_tokens, stop=task.stop, tau=tau)
    contests.check(await contests.fused(task, Route(tau=tau), delays=delays), wanted)


@costly(40)
@given(contests.tasks(), st.data())
async def test_a_model_that_cannot_be_heard_is_left_out(task: contests.Task, data: st.DataObject) -> None:
    deaf = data.draw(st.sets(st.integers(1, len(task.models) - 1), min_size=1))
    faults = {at: Fault(ConnectError("gone"), request=1) for at in deaf}
    result = await contests.fused(task, Route(), faults=faults, on_assistant_error="draft")
    left = [at for at in range(len(task.models)) if at not in deaf]
    wanted = naive_route.route(
        task.prompt, [task.models[at] for at in left], max_tokens=task.max_tokens, stop=task.stop
    )
    assert [one.data for one in result.tokens] == [one.data for one in wanted.tokens]
    [(options, best)] = wanted.contests
    [segment] = result.segments
    assert segment.winner == best
    assert [one.mean for one in segment.candidates] == pytest.approx([one.mean for one in options])
    assert not any(token.verified for token in result.tokens)
    assert result.trace.replay() == result.text


@costly(40)
@given(contests.tasks(longest=8), st.integers(0, 4))
async def test_where_the_one_that_writes_fails_the_next_best_writes_on(task: contests.Task, written: int) -> None:
    means = [naive_route.prompt_mean(model, task.prompt) for model in task.models]
    order = sorted(range(len(means)), key=lambda at: (round(means[at], 9), at))
    first, second = order[:2]
    fault = {first: Fault(ConnectError("gone"), request=2, tokens=written)} if first else {}
    limits: Any = {"max_tokens": task.max_tokens, "stop": task.stop}
    result = await contests.fused(task, Route(), faults=fault, on_assistant_error="draft")
    whole = naive_route.answer(task.models[first], first, task.prompt, (), **limits)
    mine = [one for one in result.tokens if one.source == [result.draft, *result.assistants][first].name]
    if len(mine) == len(result.tokens) and [one.data for one in mine] == [one.data for one in whole.tokens]:
        return  # it ended first
    before = naive_route.answer(task.models[first], first, task.prompt, (), max_tokens=task.max_tokens).tokens
    ends = [
        naive_route.answer(task.models[second], second, task.prompt, before[:count], **limits)
        for count in range(min(len(before), written + 1, task.max_tokens - 1) + 1)
        if not (count and before[count - 1].end)
    ]
    got = [one.data for one in result.tokens]
    assert got in [[one.data for one in end.tokens] for end in ends]
    assert result.trace.replay() == result.text


# By hand: two models, of which one knows the prompt.

TEXT: dict[str, list[ScriptToken]] = {"": [("Q", 0.5), (":", 0.5)], "Q:": [(" a", 0.9), (" b", 0.8), (" c", 0.7)]}


class Generous(TextModel):
    """Gives every text that it would not write itself a probability, too."""

    def __init__(self, scripts: Any, rest: float) -> None:
        super().__init__(scripts)
        self._rest = rest

    def _next(self, ids: Any) -> list[float]:
        return [max(prob, self._rest) for prob in super()._next(ids)]


def sure(text: str = " yes", prob: float = 0.5, **options: Any) -> ScriptedProvider:
    """Gives each of the two tokens of the prompt "Q:" this probability, and answers with words and a stop."""
    scripts: dict[str, list[ScriptToken]] = {"": [("Q", prob), (":", prob)], "Q:": [*text, "."]}
    return ScriptedProvider.from_texts(scripts, **options)


async def test_the_model_to_which_the_prompt_is_least_surprising_answers() -> None:
    models = [sure(" no", 0.25), sure(" yes", 0.5)]
    result = await fuse("Q:", models=models, method=AT["route"])
    assert result.text == " yes."
    assert {token.source for token in result.tokens} == {"assistant"}
    assert [[call.kind for call in model.calls] for model in models] == [["score"], ["score", "generate"]]
    assert all((call.prompt, call.text) == ("", b"Q:") for model in models for call in model.calls[:1])
    [segment] = result.segments
    assert segment.winner == 1
    assert [one.mean for one in segment.candidates] == pytest.approx([math.log(4), math.log(2)])
    draft, other = segment.candidates
    # softmax(-mean) of log 4 and log 2 is 1/3 and 2/3
    assert draft.scores == {"draft": pytest.approx(1 / 3), "assistant": None}
    assert other.scores == {"draft": None, "assistant": pytest.approx(2 / 3)}
    assert (draft.text, other.text, other.end) == ("", " yes.", True)
    words = "least mean NLL of the prompt 0.6931 (weight 0.6667) against 1.386 of draft (weight 0.3333)"
    assert segment.reason == words
    assert {token.reason for token in result.tokens} == {words}
    assert (result.acceptance_rate, result.settings.verifier, result.settings.method_options) == (
        None,
        None,
        {"tau": 1},
    )


async def test_tau_sharpens_the_weights_and_changes_nothing_else() -> None:
    result = await fuse("Q:", models=[sure(" no", 0.25), sure(" yes", 0.5)], method=Route(tau=0.5))
    assert result.text == " yes."
    assert result.segments[0].candidates[1].scores["assistant"] == pytest.approx(4 / 5)


async def test_of_equals_the_first_listed_answers() -> None:
    result = await fuse("Q:", models=[sure(" no"), sure(" yes"), sure(" yes")], method=AT["route"])
    assert result.text == " no."
    assert result.segments[0].reason.startswith(
        "least, and listed first: mean NLL of the prompt 0.6931 (weight 0.3333)"
    )


async def test_draft_and_assistant_are_the_first_and_the_others() -> None:
    result = await fuse("Q:", draft=sure(" no", 0.25), assistant=[sure(" yes"), sure(" oh", 0.1)], method=AT["route"])
    assert {token.source for token in result.tokens} == {"assistant 1"}


def test_a_first_token_without_a_probability_does_not_count() -> None:
    half, unknown = Token(b"a", 0.5), Token(b"a", None)
    assert prompt_nll([unknown, half, half]) == pytest.approx(math.log(2))
    assert prompt_nll([half, Token(b"b", 0.125)]) == pytest.approx(2 * math.log(2))
    assert prompt_nll([unknown]) is None
    assert prompt_nll([half, unknown]) is None
    assert prompt_nll([]) is None
    assert prompt_nll([half, Token(b"b", 0.0)]) == math.inf


def test_weights_and_the_choice() -> None:
    assert weights({0: math.inf, 1: 2.0}, 1) == {0: 0, 1: 1}
    assert weights({0: math.inf, 2: math.inf}, 1) == {0: 0.5, 2: 0.5}
    assert weights({0: None, 1: 2.0}, 1) == {0: None, 1: 1}
    assert weights({0: None, 1: None}, 1) == {0: None, 1: None}
    assert math.fsum(weights({0: 2000.0, 1: 2001.0}, 1).values()) == pytest.approx(1)  # type: ignore[arg-type]
    assert chosen({0: None, 1: 3.0, 2: 2.0}) == 2
    assert chosen({1: 2.0 + 1e-12, 2: 2.0}) == 1
    assert chosen({1: math.inf, 2: math.inf}) == 1
    assert chosen({1: None, 2: None}) == 1


class NoBeginning(ScriptedProvider):
    """A model without a beginning of sequence: the first token of a text has no probability."""

    async def score(self, context: Context, **options: Any) -> list[Token]:
        prompt = context.prompt
        first, *others = await super().score(context, **options)
        return [Token(first.data, None) if not prompt else first, *others]


def no_beginning(text: str, *probs: float) -> NoBeginning:
    scripts: dict[str, list[ScriptToken]] = {"": [("Q", probs[0]), (":", probs[1])], "Q:": [*text]}
    return NoBeginning(TextModel(scripts))


async def test_a_model_without_a_beginning_of_sequence() -> None:
    result = await fuse("Q:", models=[sure(" no", 0.5), no_beginning(" yes", 0.01, 0.6)], method=AT["route"])
    assert result.text == " yes"
    scripts: dict[str, list[ScriptToken]] = {"Q": [" yes"]}
    single = [NoBeginning(TextModel(scripts)), ScriptedProvider(Generous({"Q": [" no"]}, 0.01))]
    result = await fuse("Q", models=single, method=AT["route"])
    assert result.text == " no"
    assert result.segments[0].reason == "mean NLL of the prompt 4.605 (weight 1); no other could measure it"
    result = await fuse("Q", models=[single[0], NoBeginning(TextModel(scripts))], method=AT["route"])
    assert result.segments[0].reason == "no model could measure the prompt: the first listed answers"
    assert result.trace.replay() == result.text == " yes"


async def test_it_streams_token_by_token_as_they_come() -> None:
    slow = sure(" yes", token_delay=0.05)
    async with Fusion(models=[slow, sure(" no", 0.1)], method=AT["route"]) as fusion, fusion.stream("Q:") as stream:
        first = await anext(stream)
        assert first.text == " "
        assert slow.open_requests == 1  # it still writes
        assert [token.text async for token in stream] == ["y", "e", "s", ".", ""]


async def test_text_that_may_become_a_stop_string_is_held_back() -> None:
    slow = sure(" yes yet", token_delay=0.03)
    fusion = Fusion(models=[slow, sure(" no", 0.1)], method=AT["route"])
    async with fusion, fusion.stream("Q:", stop=["yet"]) as stream:
        texts = [token.text async for token in stream]
    assert "".join(texts) == " yes " == stream.result.text
    assert (stream.result.finish_reason, stream.result.stop_reason) == ("stop", "yet")
    assert stream.result.drafted_tokens == 8  # the request was closed where the stop string was complete
    assert stream.result.segments[0].candidates[0].text == " yes "


async def test_limits_of_the_answer() -> None:
    result = await fuse("Q:", models=[sure(), sure()], method=AT["route"], max_tokens=2)
    assert (result.text, result.finish_reason, result.stop_reason) == (" y", "length", "max_tokens")
    result = await fuse("Q:", models=[sure(), sure()], method=AT["route"], stop=" ")
    assert (result.text, result.finish_reason, len(result.segments)) == ("", "stop", 1)
    assert result.trace.replay() == ""
    result = await fuse("Q:", models=[sure(context=4), sure()], method=AT["route"])
    assert (result.text, result.finish_reason, result.stop_reason) == (" y", "length", "context")


async def test_budgets() -> None:
    with pytest.raises(BudgetError) as found:
        await fuse("Q:", models=[sure(), sure()], method=AT["route"], max_requests=2)
    assert (found.value.partial.text, found.value.partial.segments) == ("", ())
    result = await fuse("Q:", models=[sure(), sure()], method=AT["route"], max_billed_tokens=8, on_budget="end")
    assert (result.finish_reason, result.stop_reason) == ("budget", "max_billed_tokens")
    assert " yes.".startswith(result.text) and result.text
    assert result.trace.replay() == result.text
    result = await fuse(
        "Q:", models=[sure(token_delay=0.05), sure()], method=AT["route"], timeout=0.12, on_budget="end"
    )
    assert (result.finish_reason, result.stop_reason) == ("budget", "timeout")
    assert " yes.".startswith(result.text) and result.text
    assert result.trace.replay() == result.text


async def test_leaving_early_leaves_no_request_open() -> None:
    models = [sure(token_delay=0.02), sure(token_delay=0.02)]
    async with Fusion(models=models, method=AT["route"]) as fusion:
        with anyio.move_on_after(0.05):
            await fusion.generate("Q:")
        async with fusion.stream("Q:") as stream:
            await anext(stream)
    assert [model.open_requests for model in models] == [0, 0]


async def test_failures() -> None:
    gone = Fault(ConnectError("gone"))
    with pytest.raises(ConnectError, match="gone"):
        await fuse("Q:", models=[sure(), sure(faults=[gone])], method=AT["route"])
    with pytest.raises(ConnectError, match="gone"):
        await fuse("Q:", models=[sure(faults=[gone]), sure()], method=AT["route"], on_assistant_error="draft")
    result = await fuse(
        "Q:", models=[sure(), sure(" no", 0.9, faults=[gone])], method=AT["route"], on_assistant_error="draft"
    )
    assert result.text == " yes."
    assert result.segments[0].reason == "no other model is heard"
    assert any("assistant failed and was not asked any more" in warning for warning in result.warnings)
    # While it writes: what it wrote stands, and the next best writes on.
    late = Fault(ConnectError("gone"), request=2, tokens=2)
    models = [sure(" yep", 0.1), sure(" yes", 0.2), sure(" yes", 0.9, faults=[late])]
    result = await fuse("Q:", models=models, method=AT["route"], on_assistant_error="draft")
    assert result.text == " yes."
    assert [token.source for token in result.tokens] == [*["assistant 2"] * 2, *["assistant 1"] * 4]
    assert [(one.candidates[one.winner].text, len(one.candidates)) for one in result.segments] == [
        (" y", 3),
        ("es.", 2),
    ]
    assert [token.verified for token in result.tokens] == [True] * 2 + [False] * 4
    assert [token.unit for token in result.tokens] == [0, 0, 1, 1, 1, 1]
    assert result.trace.replay() == result.text
    with pytest.raises(ConnectError) as found:
        await fuse("Q:", models=[sure(), sure(" yes", 0.9, faults=[late])], method=AT["route"])
    assert found.value.partial.text == " y"
    assert found.value.partial.trace.replay() == " y"


async def test_of_a_conversation_the_text_of_its_messages_is_measured() -> None:
    def chat(mark: str, text: str, prob: float) -> ScriptedProvider:
        scripts: dict[str, list[ScriptToken]] = {"": [("Hello\n\nQ", prob)], f"{mark}Q": [text]}
        return ScriptedProvider(TextModel(scripts), template=lambda messages: f"{mark}{messages[-1].content}")

    models = [chat("<chat>", " no", 0.3), chat("[chat]", " yes", 0.7)]
    messages = [{"role": "system", "content": "Hello"}, {"role": "user", "content": "Q"}]
    result = await fuse(messages, models=models, method=AT["route"])
    assert result.text == " yes"
    assert [(call.prompt, call.text) for call in models[1].calls] == [("", b"Hello\n\nQ"), ("[chat]Q", b"")]
    nothing = [{"role": "user", "content": ""}]
    result = await fuse(nothing, models=[chat("", " no", 0.3), chat("", " yes", 0.7)], method=AT["route"])
    assert result.segments[0].reason == "no model could measure the prompt: the first listed answers"


async def test_models_that_score_nothing_are_refused_with_a_method_that_would_work() -> None:
    words = "the assistant does not report the probabilities of a given text, by which 'route' compares"
    with pytest.raises(UnsupportedError, match=words) as found:
        await fuse("Q:", models=[sure(), sure(probs=False)], method=AT["route"])
    assert 'method="cosd"' in (found.value.hint or "")


def test_settings() -> None:
    assert method_named(AT["route"], tau=2) == Route(tau=2)
    for tau in (0, -1, math.inf, math.nan, True, "1"):
        with pytest.raises(SettingError, match="tau must be a number above 0, not"):
            Route(tau=tau)
    with pytest.raises(SettingError, match="means nothing to the method 'route': it decides by the perplexity of the"):
        Fusion(models=["http://a", "http://b"], method=AT["route"], unit="word")


async def test_an_estimate_holds() -> None:
    async with Fusion(models=[sure(" no", 0.1), sure(), sure(" oh", 0.2)], method=AT["route"]) as fusion:
        estimate = await fusion.estimate("Q:", max_tokens=6)
        assert "answers with 6 tokens once in 3 times" in estimate.assumptions[0]
        for _ in range(2):
            result = await fusion.generate("Q:", max_tokens=6)
            for name, usage in result.usage.items():
                one = estimate.endpoints[name]
                assert one.requests.low <= usage.requests <= one.requests.high
                assert one.billed_tokens.low <= usage.billed_tokens <= one.billed_tokens.high
            estimate = await fusion.estimate("Q:", max_tokens=6)


async def test_the_trace_goes_through_its_file(tmp_path: Path) -> None:
    result = await fuse("Q:", models=[sure(" no", 0.1), sure()], method=AT["route"])
    result.trace.save(tmp_path / "trace")
    trace = Trace.load(tmp_path / "trace")
    assert trace.result == result
    assert trace.replay() == " yes."
