"""Steps: the naive transcription under every order of answers, and what surrounds it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Fusion, RuleVerifier, SettingError, Steps, Trace, fuse
from cosd_api.methods.base import method_named
from cosd_api.methods.steps import CUE, QUESTION
from cosd_providers.errors import BudgetError, ConnectError, UnsupportedError
from cosd_providers.testing import Fault, ScriptedProvider, ScriptToken, TableModel
from naive import steps as naive_steps
from support.drawn import costly
from toys import contests
from toys import toy_models as toys

WORDS: dict[str, Any] = {"question": "b,", "cue": "1a", "again": "a a"}
"""Words that toy models can read."""
KEEPS = st.sampled_from((0, 1, 2))
LENGTHS = st.sampled_from((1, 2, 4, 8, 512))


def naive(task: contests.Task, **more: Any) -> Any:
    limits: Any = {"max_tokens": task.max_tokens, "stop": task.stop}
    return naive_steps.steps(task.prompt, task.models, **WORDS | limits | more)


PIECES = (
    b" a",
    b"b",
    b".",
    b".\n\n",
    b"\n",
    b"\n\n",
    b"\n\n ",
    b" ",
    b"1",
    b"5",
    b"7",
    b"9 ",
    b" 8",
    b"12",
    b"\xc3\xa9",
)
LETTERS = tuple(bytes([n]) for n in (*range(128), 0xC3, 0xA9))


@dataclass(frozen=True)
class Liner:
    """Writes pieces of a few lines and digits, and ends now and then; of some pieces it has no token."""

    seed: int
    lacks: frozenset[int]
    hides_end: bool = False

    @cached_property
    def vocabulary(self) -> toys.Vocabulary:
        """Its tokenizer: single bytes, and some of the pieces."""
        own = [piece for at, piece in enumerate(PIECES) if at not in self.lacks and piece not in LETTERS]
        return toys.Vocabulary((*LETTERS, *own, b""), len(LETTERS) + len(own), "longest")

    def next(self, ids: Any) -> list[float]:
        """The probability of every token."""
        rng, tokens = random.Random(repr((self.seed, [*ids][-2:]))), self.vocabulary.tokens
        probs = [0.0] * len(tokens)
        data = rng.choice([b"", *(piece for piece in PIECES if piece in tokens)])
        probs[tokens.index(data) if data else self.vocabulary.end] = 0.5
        return probs


LINERS = st.builds(Liner, st.integers(0, 2**16), st.frozensets(st.integers(0, len(PIECES) - 1), max_size=6))
LINES = st.builds(
    contests.Task,
    st.sampled_from((b"Q", b"a\n\n", b"1")),
    st.lists(LINERS, min_size=2, max_size=2),
    st.integers(1, 60),
    st.sampled_from(((), (), (b"b.",), (b"\n\n",), (b"5", b" a b"))),
)
GRADES = st.sampled_from((0, 5, 7, 8.5, 9))


@costly(40)
@given(LINES, GRADES, LENGTHS, contests.delays())
async def test_many_steps_are_the_naive_ones(
    task: contests.Task, keep: float, step_tokens: int, delays: list[float]
) -> None:
    method = Steps(keep=keep, step_tokens=step_tokens, **WORDS)
    result = await contests.fused(task, method, delays=delays)
    wanted = naive(task, keep=keep, step_tokens=step_tokens)
    contests.check(result, wanted)
    assert (result.stop_reason == "repetition") == any(
        "wrote the step before it again" in words for words in result.warnings
    )


@costly(40)
@given(LINES, GRADES, LENGTHS, st.integers(1, 8))
async def test_where_the_assistant_fails_the_draft_writes_on(
    task: contests.Task, keep: float, step_tokens: int, request: int
) -> None:
    fault = Fault(ConnectError("gone"), request=request)
    method = Steps(keep=keep, step_tokens=step_tokens, **WORDS)
    result = await contests.fused(task, method, faults={1: fault}, on_assistant_error="draft")
    contests.check(result, naive(task, keep=keep, step_tokens=step_tokens, fails=request))
    assert all(token.verified == (token.reason != "no assistant is heard") for token in result.tokens)


CONVERSATIONS = st.sampled_from(
    (
        (("user", "Q"),),
        (("system", "b"), ("user", "a")),
        (("user", "Q"), ("assistant", "1"), ("user", "a")),
        (("user", "Q"), ("assistant", "a b")),
    )
)


def template(messages: Any) -> str:
    return naive_steps.plain_lines(0, [(one.role, one.content) for one in messages])


@costly(40)
@given(LINES, CONVERSATIONS | st.none(), GRADES, LENGTHS, st.tuples(st.booleans(), st.booleans()))
async def test_by_messages(
    task: contests.Task, conversation: Any, keep: float, step_tokens: int, continues: tuple[bool, bool]
) -> None:
    providers = [
        ScriptedProvider(toys.Plain(model), template=template, continues=own)
        for model, own in zip(task.models, continues, strict=True)
    ]
    method = Steps(keep=keep, step_tokens=step_tokens, **WORDS)
    prompt: Any = [{"role": role, "content": content} for role, content in conversation or ()]
    limits: Any = {"max_tokens": task.max_tokens, "stop": [stop.decode() for stop in task.stop]}
    result = await fuse(
        prompt or task.prompt.decode(), draft=providers[0], assistant=providers[1], method=method, **limits
    )
    wanted = naive(
        replace(task, prompt=conversation or task.prompt), keep=keep, step_tokens=step_tokens, continues=continues
    )
    contests.check(result, wanted)


@costly(40)
@given(contests.tasks(max_assistants=1, longest=40), KEEPS, LENGTHS, contests.delays())
async def test_the_answer_is_the_naive_one_whatever_the_order(
    task: contests.Task, keep: int, step_tokens: int, delays: list[float]
) -> None:
    method = Steps(keep=keep, step_tokens=step_tokens, **WORDS)
    result = await contests.fused(task, method, delays=delays)
    contests.check(result, naive(task, keep=keep, step_tokens=step_tokens))


# By hand.

FIRST, SECOND, THIRD = "One.\n\n", "Two.\n\n", "Three."
ASKED = "{}\n\n" + QUESTION + "\n" + CUE


def small(**options: Any) -> ScriptedProvider:
    """Writes two steps and a half; it would write `2?` where the assistant writes `Two`."""
    scripts: dict[str, list[ScriptToken]] = {"Q": ["One", ".\n\n", "2", "?\n\n"], "QOne.\n\nTwo.\n\n": ["Three", "."]}
    return ScriptedProvider.from_texts(scripts, **options)


def large(*, scores: Sequence[str] = (" 8", "6", "9"), **options: Any) -> ScriptedProvider:
    """Gives these scores, and writes the second step."""
    graded = ("QOne.", "QOne.\n\n2?", "QOne.\n\nTwo.\n\nThree.")
    scripts: dict[str, list[ScriptToken]] = {
        ASKED.format(text): [score] for text, score in zip(graded, scores, strict=True)
    }
    scripts["QOne.\n\n"] = ["Two", ".", "\n\nMore"]
    scripts["Q"] = ["Uno", ".\n\n"]
    return ScriptedProvider.from_texts(scripts, **options)


async def test_a_step_is_kept_if_its_score_is_high_enough() -> None:
    models = {"draft": small(), "assistant": large()}
    result = await fuse("Q", **models, method="steps")  # type: ignore[arg-type]
    assert result.text == FIRST + SECOND + THIRD
    assert [segment.reason for segment in result.segments] == [
        "the assistant's score is 8 of 9, at least 7",
        "the assistant's score is 6 of 9, below 7",
        "the assistant's score is 9 of 9, at least 7",
    ]
    assert [segment.winner for segment in result.segments] == [0, 1, 0]
    mine, theirs = result.segments[1].candidates
    assert (mine.text, mine.scores, mine.mean, theirs.text) == (
        "2?\n\n",
        {"draft": None, "assistant": 6.0},
        3.0,
        SECOND,
    )
    assert [(token.text, token.source) for token in result.tokens][-4:] == [
        ("\n\n", "assistant"),  # and no more of that token
        ("Three", "draft"),
        (".", "draft"),
        ("", "draft"),
    ]
    assert (result.finish_reason, result.acceptance_rate, result.warnings) == ("stop", None, ())
    assert (result.usage["draft"].requests, result.usage["assistant"].requests) == (3, 4)
    assert result.trace.replay() == result.text
    assert result.settings.method_options["keep"] == 7


@pytest.mark.parametrize("reply", ["10", "I", "7.", "", "²", "-"])
async def test_what_is_no_digit_counts_as_below(reply: str) -> None:
    result = await fuse("Q", draft=small(), assistant=large(scores=(reply, "9", "9")), method="steps")
    assert result.text == "Uno.\n\n"
    assert result.segments[0].reason == "the assistant gave no score, which counts as below"
    [warning] = result.warnings
    assert warning.startswith("1 of 1 times the assistant answered a request for a score with no digit, but with ")
    assert result.trace.replay() == result.text


async def test_a_model_that_gives_no_scores_is_not_asked_again() -> None:
    told = [f"{number}\n\n" for number in range(1, 8)]
    asked = ScriptedProvider.from_texts(
        {"Q" + "".join(told[:at]): told[at:] for at in range(len(told))}
        | {ASKED.format("Q" + "".join(told[:at]) + f"x{at}"): ["I"] for at in range(len(told))}
    )
    drafts = {"Q" + "".join(told[:at]): [f"x{at}\n\n"] for at in range(len(told))}
    draft = ScriptedProvider.from_texts(drafts)
    result = await fuse("Q", draft=draft, assistant=asked, method="steps")
    assert result.text == "".join(told)
    reasons = [segment.reason for segment in result.segments]
    assert reasons[:3] == ["the assistant gave no score, which counts as below"] * 3
    assert {*reasons[3:]} == {"the assistant gives no scores, and writes the rest"}
    assert len(draft.calls) == 3
    [warning] = result.warnings
    assert warning.startswith("3 of 3 times the assistant answered a request for a score with no digit, but with 'I'")
    assert warning.endswith("It was not asked again, and wrote the rest by itself: it seems unable to grade")
    assert result.trace.replay() == result.text


async def test_white_space_before_a_score_may_be_a_token_of_its_own() -> None:
    model = large()
    model = ScriptedProvider.from_texts(
        {ASKED.format("QOne."): [" ", "7"], ASKED.format("QOne.\n\n2?"): ["\n", " ", "9"], "QOne.\n\n": ["Two."]}
    )
    result = await fuse("Q", draft=small(), assistant=model, method="steps")
    assert [segment.winner for segment in result.segments] == [0, 1]  # a third token is not asked for


async def test_a_step_of_nothing_is_the_assistants() -> None:
    for nothing in ([], ["\n\n", " "]):
        asked = large()
        result = await fuse("Q", draft=ScriptedProvider.from_texts({"Q": nothing}), assistant=asked, method="steps")
        assert result.text.startswith("Uno.\n\n")
        assert result.segments[0].reason == "the draft wrote nothing that could be scored"
        assert asked.calls[0].text == b""


async def test_a_step_twice_in_a_row_ends_the_answer() -> None:
    loops = ScriptedProvider.from_texts({"Q": ["One.\n\n", "One.\n\n"]})
    result = await fuse("Q", draft=loops, assistant=always("9"), method="steps")
    assert (result.text, result.finish_reason, result.stop_reason) == (FIRST, "length", "repetition")
    assert result.warnings == ("draft wrote the step before it again: the answer ends there",)
    assert result.trace.replay() == FIRST


def always(score: str) -> ScriptedProvider:
    """Writes one token, whatever it is asked."""

    def following(_: object) -> list[float]:
        return [0.0, *([0.0] * 256), 1.0]

    return ScriptedProvider(
        TableModel([b"", *(bytes([n]) for n in range(256)), score.encode()], following, end_ids=(0,))
    )


async def test_it_streams_by_step_and_leaving_early_leaves_no_request_open() -> None:
    models = {"draft": small(token_delay=0.01), "assistant": large(request_delay=0.02)}
    async with Fusion(**models, method="steps") as fusion:  # type: ignore[arg-type]
        async with fusion.stream("Q") as stream:
            assert [(await anext(stream)).text for _ in range(2)] == ["One", ".\n\n"]
        with anyio.move_on_after(0.05):
            await fusion.generate("Q")
    assert [model.open_requests for model in models.values()] == [0, 0]


async def test_limits() -> None:
    models: Any = {"draft": small(), "assistant": large(), "method": "steps"}
    result = await fuse("Q", **models, stop="wo")
    assert (result.text, result.stop_reason) == (FIRST + "T", "wo")
    assert result.trace.replay() == result.text
    result = await fuse("Q", **models, max_tokens=3)
    assert (result.text, result.finish_reason) == (FIRST + "Two", "length")  # `2` alone is another step
    with pytest.raises(BudgetError) as found:
        await fuse("Q", **models, max_requests=4)
    assert found.value.partial.text == FIRST
    half = sum(usage.billed_tokens for usage in (await fuse("Q", **models)).usage.values()) // 2
    result = await fuse("Q", **models, max_billed_tokens=half, on_budget="end")
    assert (result.finish_reason, result.stop_reason) == ("budget", "max_billed_tokens")
    assert result.trace.replay() == result.text
    hangs: Any = {"draft": small(), "assistant": large(faults=[Fault(None, request=2)]), "method": "steps"}
    result = await fuse("Q", **hangs, timeout=0.5, on_budget="end")
    assert (result.text, result.stop_reason) == (FIRST, "timeout")
    assert result.trace.replay() == FIRST
    short: Any = {"draft": small(), "assistant": always("9"), "method": Steps(step_tokens=1)}
    result = await fuse("Q", **short, max_tokens=3)
    assert [segment.candidates[0].text for segment in result.segments] == ["One", ".\n\n", "2"]


async def test_where_a_model_cannot_continue_the_answer_ends() -> None:
    result = await fuse("Q", draft=small(context=2), assistant=always("9"), method="steps")
    assert (result.text, result.finish_reason, result.stop_reason) == ("One", "length", "context")
    assert result.trace.replay() == "One"


async def test_failures() -> None:
    fault = Fault(ConnectError("gone"), request=2)
    with pytest.raises(ConnectError) as found:
        await fuse("Q", draft=small(), assistant=large(faults=[fault]), method="steps")
    assert found.value.partial.text == FIRST
    broken = small(faults=[fault])
    with pytest.raises(ConnectError):
        await fuse("Q", draft=broken, assistant=large(), method="steps", on_assistant_error="draft")
    result = await fuse("Q", draft=small(), assistant=large(faults=[fault]), method="steps", on_assistant_error="draft")
    assert result.text == FIRST + "2?\n\n" == result.trace.replay()
    assert result.segments[-1].reason == "no assistant is heard"


async def test_models_that_take_messages_only_show_nothing_and_continue_nothing() -> None:
    lines = {"template": template, "probs": False, "end_prob": False, "continues": False}
    draft = ScriptedProvider.from_texts({"Q\n": ["One.\n\n"], "Q\nOne.\n\n\nGo\n": ["Two."]}, **lines)
    assistant = ScriptedProvider.from_texts({"Q\nOne.\nGrade\n": ["9"], "Q\nOne.\n\nTwo.\nGrade\n": ["8"]}, **lines)
    method = Steps(question="Grade", again="Go")
    result = await fuse([{"role": "user", "content": "Q"}], draft=draft, assistant=assistant, method=method)
    assert result.text == "One.\n\nTwo."
    assert all(call.text == b"" for model in (draft, assistant) for call in model.calls)


async def test_other_methods_refuse_models_that_take_messages_only() -> None:
    for models in ((small(continues=False), large()), (small(), large(continues=False))):
        with pytest.raises(UnsupportedError, match="takes messages only, and does not continue a partial") as found:
            await fuse("Q", draft=models[0], assistant=models[1], method="cool")
        assert 'method="steps" asks by messages, as switch.py of examples/methods does' in (found.value.hint or "")


def test_settings() -> None:
    assert method_named("steps", keep=5) == Steps(keep=5)
    for keep in (-1, 10, True):
        with pytest.raises(SettingError, match="keep must be a number between 0 and 9, not"):
            Steps(keep=keep)
    with pytest.raises(SettingError, match="step_tokens must be a whole number of at least 1, not 0"):
        Steps(step_tokens=0)
    for empty in ("", " ", None):
        with pytest.raises(SettingError, match="cue must be text that is not blank, not"):
            Steps(cue=empty)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="'steps' accepts at most 2 models, not 3"):
        Fusion(draft="http://a", assistant=["http://b", "http://c"], method="steps")
    with pytest.raises(SettingError, match="verifier means nothing to the method 'steps'"):
        Fusion(draft="http://a", assistant="http://b", method="steps", verifier=RuleVerifier(alpha=0.2))


@costly(60)
@given(LINES, GRADES, LENGTHS, st.booleans())
async def test_an_estimate_holds(task: contests.Task, keep: float, step_tokens: int, continues: bool) -> None:
    models = [ScriptedProvider(toys.Plain(model), template=template, continues=continues) for model in task.models]
    method = Steps(keep=keep, step_tokens=step_tokens, **WORDS)
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
    result = await fuse("Q", draft=small(), assistant=large(), method="steps")
    result.trace.save(tmp_path / "trace")
    trace = Trace.load(tmp_path / "trace")
    assert trace.result == result
    assert trace.replay() == result.text
