"""SAFE: the naive transcription under every order of answers, and what surrounds it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from cosd_api import Fusion, FusionResult, Safe, SettingError, Trace, fuse
from cosd_providers import BudgetError, ConnectError, UnsupportedError
from cosd_providers.testing import Fault, ScriptedProvider
from naive import safe as naive_safe
from support.drawn import costly
from toys import contests
from toys import toy_models as toys

pytestmark = pytest.mark.timeout(400)

REASONS = {
    "cut": ("no token of", "no other model"),
    "agreed": ("every other model would",),
    "mean": ("mean probability of",),
    "mixed": ("largest mean", "with the tokens"),
}
WEIGHTS = st.none() | st.lists(st.sampled_from((1.0, 2.0, 0.0, 0.3, 5.0)), min_size=4, max_size=4)


def tasks(longest: int = 12, **options: Any) -> st.SearchStrategy[contests.Task]:
    """Models whose tokens can be told apart, and which tell their end."""
    return contests.tasks(longest=longest, may_hide_end=False, **options).map(contests.unique)


def check(result: FusionResult, wanted: naive_safe.Written) -> None:
    """The answer is the naive one, token for token and for the same reasons."""
    assert [(one.data, one.end) for one in result.tokens] == [(one.data, one.end) for one in wanted.tokens]
    assert result.finish_reason == wanted.finish_reason
    if not (wanted.tokens and wanted.tokens[-1].end):
        assert result.stop_reason == wanted.stop_reason
    assert len(result.segments) == len(wanted.why)
    for segment, (reason, mixture) in zip(result.segments, wanted.why, strict=True):
        assert segment.reason.startswith(REASONS[reason]), (segment, reason)
        for one in segment.candidates if reason == "mixed" else ():
            told = {key: mean for key, mean in mixture.items() if naive_text(key) == (one.text, one.end)}
            assert one.mean is None or 1 / one.mean == pytest.approx(sum(told.values()))
    assert result.trace.replay() == result.text
    assert type(result).model_validate_json(result.model_dump_json()) == result


def naive_text(key: naive_safe.Key) -> tuple[str, bool]:
    return key[0].decode("utf-8", "backslashreplace"), key[1]


async def fused(
    task: contests.Task, method: Safe, faults: Mapping[int, Fault] | None = None, **settings: Any
) -> FusionResult:
    return await contests.fused(task, method, faults=faults, tokenizes=True, **settings)


@costly(40)
@given(tasks(24), WEIGHTS, st.sampled_from((5, 1, 2, 9)), st.sampled_from((10, 1, 2, 4)), contests.delays())
async def test_the_answer_is_the_naive_one_whatever_the_order(
    task: contests.Task, weights: Sequence[float] | None, ahead: int, listed: int, delays: list[float]
) -> None:
    given_weights = None if weights is None else (weights[0] or 1.0, *weights[1 : len(task.models)])
    method = Safe(weights=given_weights, ahead=ahead, listed=listed)
    limits: Any = {"max_tokens": task.max_tokens, "stop": task.stop}
    wanted = naive_safe.safe(task.prompt, task.models, weights=given_weights, ahead=ahead, listed=listed, **limits)
    for reason, mixture in wanted.why:
        event(reason if not mixture or max(mixture.values()) >= 0.5 else "mixed, less than 1/2")
    check(await fused(task, method, delays=delays), wanted)


async def test_a_listed_probability_counts_where_the_text_has_another_encoding() -> None:
    """The second model lists a1b, and encodes the text with it as `,` ` a` `1` `b`."""
    tokens: tuple[bytes, ...] = (
        b"b",
        b" ",
        b",",
        b"\xc3",
        b"1",
        b"\x9f",
        b"ba",
        b"\x98",
        b"a1b",
        b"\xa9",
        b"\xb8",
        b"\xf0",
        b"aa",
        b"b1",
    )
    tokens += (b"a", b"ab", b"\n", b"\xc3\xa9", b"\xff", b" a", b"\xe4", b"\x80", b"")
    vocabulary = toys.Vocabulary(tokens=tokens, end=22, merging="ranks")
    models = [
        toys.ToyModel(vocabulary=vocabulary, seed=seed, language=0, fluency=fluency, hides_end=False, longest_merge=4)
        for seed, fluency in ((1, 15), (1377, 15), (14888, 10))
    ]
    task = contests.Task(prompt=b", ", models=models, max_tokens=1, stop=())
    wanted = naive_safe.safe(task.prompt, models, max_tokens=1, listed=1)
    [(reason, mixture)] = wanted.why
    assert reason == "mixed"
    assert mixture[b"a1b", False] == pytest.approx((0.25 + 0.4375) / 3)
    check(await fused(task, Safe(listed=1), delays=[0.0] * 8), wanted)


@costly(40)
@given(tasks(24), st.integers(1, 12), st.data())
async def test_a_model_that_fails_is_left_out_from_there_on(
    task: contests.Task, request_number: int, data: st.DataObject
) -> None:
    at = data.draw(st.integers(1, len(task.models) - 1))
    faults = {at: Fault(ConnectError("gone"), request=request_number)}
    result = await fused(task, Safe(), faults=faults, on_assistant_error="draft")
    failed = any(" failed" in warning for warning in result.warnings)
    event("failed" if failed else "did not fail")
    gone = {at: sum(token.verified for token in result.tokens)} if failed else {}
    limits: Any = {"max_tokens": task.max_tokens, "stop": task.stop}
    check(result, naive_safe.safe(task.prompt, task.models, gone=gone, **limits))


# By hand: one model writes "Sofia" in parts, the other in one token.


def model(*longer: bytes, after: Mapping[bytes, Mapping[bytes | None, float]]) -> toys.Plain:
    """A model with some tokens beside single letters, and its distributions by the whole text."""
    letters = sorted({bytes([one]) for one in b"QRSaefimo."})
    tokens = (*letters, *longer, b"")
    return toys.Plain(toys.ScriptedModel(toys.Vocabulary(tokens, len(tokens) - 1, "longest"), after))


PARTS = model(
    b"So",
    b"Ro",
    b"me",
    b"fia",
    after={
        b"Q": {b"Ro": 0.47, b"So": 0.43, b"S": 0.1},
        b"QRo": {b"me": 1.0},
        b"QSo": {b"fia": 0.9, b"a": 0.1},
    },
)
WHOLE = model(
    b"Sofia",
    b"Rome",
    after={b"Q": {b"Sofia": 0.45, b"Rome": 0.3, b".": 0.25}, b"QSo": {b"f": 0.6, b"a": 0.4}},
)


def pair(**options: Any) -> list[ScriptedProvider]:
    return [ScriptedProvider(PARTS, **options), ScriptedProvider(WHOLE, **options)]


async def test_parts_of_a_word_stand_for_the_whole_word() -> None:
    """E of Ro, Rome, So and Sofia is 0.235, 0.385, 0.215 and 0.44; So, with Sofia, has 0.655, and Ro 0.62."""
    models = pair()
    result = await fuse("Q", models=models, method="safe")
    assert result.text == "Sofia"
    first, *others = result.segments
    assert first.reason.startswith("with the tokens that begin so, the largest mean probability: 0.6")
    chosen = first.candidates[first.winner]
    assert (chosen.text, chosen.sources) == ("So", ("draft",))
    assert chosen.scores["draft"] == pytest.approx(1 / 0.43)
    assert [(one.text, one.sources) for one in first.candidates] == [
        ("Ro", ("draft",)),
        ("So", ("draft",)),
        ("Sofia", ("assistant",)),
    ]
    # In Sofia none of the second model's tokens begins behind So.
    assert [one.reason for one in others] == [
        "no token of the assistant begins there",
        "every other model would write its own token there",
    ]
    assert [token.text for token in result.tokens] == ["So", "fia", ""]
    assert (result.settings.method, result.settings.unit) == ("safe", None)
    assert result.settings.method_options == {"weights": None, "ahead": 5, "listed": 10}
    assert result.acceptance_rate is None


async def test_weights_decide() -> None:
    assert (await fuse("Q", models=pair(), method=Safe(weights=(9, 1)))).text == "Rome"
    assert (await fuse("Q", models=pair(), method=Safe(weights=(0, 1)))).text == "Sofia"
    assert (await fuse("Q", draft=pair()[0], assistant=pair()[1], method=Safe(weights=(1, 0)))).text == "Rome"


async def test_streaming_gives_the_same_tokens() -> None:
    async with Fusion(models=pair(), method="safe") as fusion, fusion.stream("Q") as stream:
        assert [token.text async for token in stream] == ["So", "fia", ""]


async def test_models_that_cannot_are_refused() -> None:
    for options, words in (
        ({"top_k": 0}, "the assistant does not list its most probable tokens"),
        ({"top_k": 4}, "the assistant lists at most 5 tokens, and 'safe' needs the 10 most probable ones"),
        ({"probs": False}, "the assistant does not list its most probable tokens"),
        ({"end_prob": False}, "the assistant does not report the probability of its end"),
    ):
        with pytest.raises(UnsupportedError, match=words) as found:
            await fuse("Q", models=[*pair()[:1], ScriptedProvider(WHOLE, **options)], method="safe")
        assert 'method="cosd"' in found.value.hint
    with pytest.raises(UnsupportedError, match="the assistant does not encode text") as found:
        await fuse("Q", models=[*pair()[:1], contests.Uncounted(WHOLE)], method="safe")
    assert "connect(url, tokenizer=...)" in found.value.hint
    assert (await fuse("Q", models=pair(top_k=4), method=Safe(listed=5))).text == "Sofia"


async def test_a_text_that_cannot_be_encoded_is_the_drafters() -> None:
    class Unsure(ScriptedProvider):
        async def tokenize(self, text: str) -> Any:
            raise UnsupportedError("of this text it cannot be known", endpoint="scripted:")

    result = await fuse("Q", models=[pair()[0], Unsure(WHOLE)], method="safe")
    assert result.text == "Rome"
    assert any("the assistant could not tell how it encodes a text" in warning for warning in result.warnings)


async def test_a_model_that_fails() -> None:
    down = ScriptedProvider(WHOLE, faults=[Fault(ConnectError("gone"))])
    with pytest.raises(ConnectError, match="gone"):
        await fuse("Q", models=[*pair()[:1], down], method="safe")
    down = ScriptedProvider(WHOLE, faults=[Fault(ConnectError("gone"))])
    alone = await fuse("Q", models=[*pair()[:1], down], method="safe", on_assistant_error="draft")
    assert alone.text == "Rome"
    assert not any(token.verified for token in alone.tokens)


@pytest.mark.parametrize("limit", [{"max_requests": 3}, {"max_billed_tokens": 8}])
async def test_at_a_limit_the_answer_ends(limit: dict[str, Any]) -> None:
    result = await fuse("Q", models=pair(), method=Safe(ahead=1), on_budget="end", **limit)
    assert (result.finish_reason, result.stop_reason) == ("budget", next(iter(limit)))
    assert "Sofia".startswith(result.text)
    with pytest.raises(BudgetError):
        await fuse("Q", models=pair(), method=Safe(ahead=1), **limit)


async def test_a_timeout_ends_it_with_what_stands() -> None:
    slow = pair(token_delay=0.03)
    result = await fuse("Q", models=slow, method=Safe(ahead=1), timeout=0.05, on_budget="end")
    assert (result.finish_reason, result.stop_reason) == ("budget", "timeout")
    assert "Sofia".startswith(result.text)


async def test_stops_and_max_tokens() -> None:
    stopped = await fuse("Q", models=pair(), method="safe", stop="of")
    assert (stopped.text, stopped.finish_reason, stopped.stop_reason) == ("S", "stop", "of")
    short = await fuse("Q", models=pair(), method="safe", max_tokens=1)
    assert (short.text, short.finish_reason) == ("So", "length")


async def test_leaving_early_leaves_no_request_open() -> None:
    models = pair(token_delay=0.02, request_delay=0.02)
    async with Fusion(models=models, method="safe") as fusion:
        with anyio.move_on_after(0.03):
            await fusion.generate("Q")
        async with fusion.stream("Q") as stream:
            await anext(stream)
    assert [model.open_requests for model in models] == [0, 0]


async def test_messages_are_rendered_for_each_model() -> None:
    result = await fuse([{"role": "user", "content": "x"}], models=pair(template=lambda _: "Q"), method="safe")
    assert result.text == "Sofia"


async def test_a_saved_trace_gives_the_text_again(tmp_path: Path) -> None:
    result = await fuse("Q", models=pair(), method="safe")
    result.trace.save(tmp_path / "trace.jsonl")
    assert Trace.load(tmp_path / "trace.jsonl").replay() == "Sofia"


def test_settings() -> None:
    for name in ("ahead", "listed"):
        with pytest.raises(SettingError, match=f"{name} must be a whole number of at least 1"):
            Safe(**{name: 0})  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="weights must be numbers"):
        Safe(weights=(0, math.nan))
    with pytest.raises(SettingError, match="there are 3 weights for 2 models: give one for each"):
        Fusion(models=["http://a", "http://b"], method=Safe(weights=(1, 2, 3)))
    with pytest.raises(SettingError, match="unit means nothing to the method 'safe'"):
        Fusion(models=["http://a", "http://b"], method="safe", unit="word")


async def test_an_estimate_holds() -> None:
    async with Fusion(models=pair(), method=Safe(ahead=2)) as fusion:
        for _ in range(2):
            estimate = await fusion.estimate("Q", max_tokens=8)
            result = await fusion.generate("Q", max_tokens=8)
            for name, usage in result.usage.items():
                one = estimate.endpoints[name]
                assert one.requests.low <= usage.requests <= one.requests.high
                assert one.billed_tokens.low <= usage.billed_tokens <= one.billed_tokens.high
