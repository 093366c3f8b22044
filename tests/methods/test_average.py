"""Averaging against full enumeration on toy models; and what surrounds it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cosd_api
from cosd_api import Average, Fusion, FusionResult, SettingError
from cosd_api.alignment import Unit
from cosd_providers import ConnectError, UnsupportedError
from cosd_providers.contract import Token
from cosd_providers.testing import Fault, ScriptedProvider, TableModel
from naive.average import average
from support.drawn import costly
from toys import toy_models as toys

LETTERS = "ab1 ,"
PIECES = ("ab", "aa", "ba", " a", " ab", "b1", "a,", ", ")
TOKENS = tuple(piece.encode() for piece in (*LETTERS, *PIECES, ""))
VOCABULARY = toys.Vocabulary(TOKENS, TOKENS.index(b""), "longest")
"""Whole characters only: every token has a distribution."""


@dataclass(frozen=True)
class Whole:
    """A toy model whose probabilities sum to 1: some leave a part of it to nobody."""

    toy: toys.ToyModel

    @property
    def vocabulary(self) -> toys.Vocabulary:
        """Its tokenizer."""
        return self.toy.vocabulary

    @property
    def hides_end(self) -> bool:
        """Never."""
        return False

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        """The probability of every token of the vocabulary after `ids`."""
        probs = list(self.toy.next(ids))
        probs[probs.index(max(probs))] += 1 - sum(probs)
        return probs


def models() -> st.SearchStrategy[list[Whole]]:
    """Two to four models of one tokenizer, mostly of one language."""
    one = toys.models(st.just(VOCABULARY), st.sampled_from((1, 1, 2)), may_hide_end=False)
    return st.lists(one.map(Whole), min_size=2, max_size=4)


@st.composite
def weighted(draw: st.DrawFn) -> tuple[list[Whole], tuple[float, ...] | None]:
    """Models, and their weights."""
    found = draw(models())
    one = st.sampled_from((0.0, 1.0, 2.0, 0.3, 5.0))
    some = st.lists(one, min_size=len(found), max_size=len(found)).filter(any).map(tuple)
    return found, draw(st.none() | some)


async def fuse(prompt: Any, **options: Any) -> FusionResult:
    """A fusion of models that are said to have one tokenizer."""
    return await cosd_api.fuse(prompt, **{"unit": "token"} | options)


DELAYS = st.lists(st.sampled_from((0.0, 0.001, 0.003)), min_size=8, max_size=8)
PROMPTS = st.text(st.sampled_from(LETTERS), min_size=1, max_size=6)


async def averaged(
    prompt: str,
    toy: Sequence[Whole],
    method: Average,
    delays: Sequence[float] = (0.0,) * 8,
    top_k: int | None = None,
    **limits: Any,
) -> FusionResult:
    providers = [
        ScriptedProvider(Plain(one), request_delay=delays[2 * at], token_delay=delays[2 * at + 1], top_k=top_k)
        for at, one in enumerate(toy)
    ]
    result = await fuse(prompt, models=providers, method=method, **limits)
    assert all(provider.open_requests == 0 for provider in providers)
    assert result.trace.replay() == result.text
    assert FusionResult.model_validate_json(result.model_dump_json()) == result
    return result


@dataclass(frozen=True)
class Plain:
    """A toy model in the shape that providers take."""

    toy: Whole
    tokens: Sequence[bytes] = TOKENS
    end_ids: Collection[int] = (VOCABULARY.end,)

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text."""
        return list(VOCABULARY.encode(text))

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        """The probability of every token."""
        return self.toy.next(ids)


def normalised(weights: Sequence[float] | None, count: int) -> list[float]:
    given = weights or (1.0,) * count
    return [one / sum(given) for one in given]


@costly(40)
@given(
    weighted(),
    PROMPTS,
    st.integers(1, 12),
    toys.stops(),
    DELAYS,
    st.sampled_from((1, 2, 5)),
    st.sampled_from((1, 2, 20)),
)
async def test_the_answer_is_that_of_full_enumeration_whatever_is_listed(
    drawn: tuple[list[Whole], tuple[float, ...] | None],
    prompt: str,
    max_tokens: int,
    stop: Sequence[bytes],
    delays: list[float],
    ahead: int,
    listed: int,
) -> None:
    toy, weights = drawn
    method = Average(weights=weights, ahead=ahead, listed=listed)
    stops = [one.decode() for one in stop]
    result = await averaged(prompt, toy, method, delays, max_tokens=max_tokens, stop=stops)
    wanted, means = average(prompt.encode(), toy, normalised(weights, len(toy)), max_tokens=max_tokens, stop=stop)
    assert [(one.data, one.end) for one in result.tokens] == [(one.data, one.end) for one in wanted.tokens]
    assert result.finish_reason == wanted.finish_reason
    assert not result.warnings
    assert len(result.segments) == len(means)
    for segment, mean in zip(result.segments, means, strict=True):
        recorded = segment.candidates[segment.winner].mean
        assert recorded is None or recorded == pytest.approx(1 / mean)


@costly(40)
@given(weighted(), PROMPTS, st.integers(1, 12), st.integers(1, 4))
async def test_what_is_proved_is_right_and_what_is_not_is_said(
    drawn: tuple[list[Whole], tuple[float, ...] | None], prompt: str, max_tokens: int, top_k: int
) -> None:
    """Endpoints that list few tokens."""
    toy, weights = drawn
    result = await averaged(prompt, toy, Average(weights=weights), top_k=top_k, max_tokens=max_tokens)
    if not any("list too little to prove" in warning for warning in result.warnings):
        wanted, _ = average(prompt.encode(), toy, normalised(weights, len(toy)), max_tokens=max_tokens, stop=())
        assert result.text.encode() == wanted.text


# ----------------------------------------------------------------------------------------------------------- examples


def table(*probs: dict[bytes, float], tokens: Sequence[bytes] = (b"", b"Q", b"a", b"b", b"c")) -> TableModel:
    """A model by position behind the one-token prompt; in the end it ends."""

    def following(ids: Sequence[int]) -> list[float]:
        known = probs[len(ids) - 1] if 0 < len(ids) <= len(probs) else {b"": 1.0}
        return [known.get(token, 0.0) for token in tokens]

    return TableModel(tokens, following, end_ids=(0,))


FIRST = table({b"a": 0.5, b"b": 0.4, b"c": 0.1}, {b"a": 1.0})
SECOND = table({b"c": 0.5, b"b": 0.4, b"a": 0.1}, {b"a": 1.0})


def pair(**options: Any) -> list[ScriptedProvider]:
    return [ScriptedProvider(FIRST, **options), ScriptedProvider(SECOND, **options)]


async def test_the_mean_may_prefer_what_no_model_would_write() -> None:
    result = await fuse("Q", models=pair(), method="average")
    assert result.text == "ba"
    first, second, end = result.segments
    assert first.reason == "largest mean probability: 0.4 against 0.3 at most"
    assert [(one.text, one.sources) for one in first.candidates] == [
        ("a", ("draft",)),
        ("b", ("draft",)),
        ("c", ("assistant",)),
    ]
    chosen = first.candidates[first.winner]
    assert (chosen.text, chosen.scores, chosen.mean) == ("b", {"draft": 2.5, "assistant": 2.5}, 2.5)
    assert (second.reason, end.reason) == ("all models write the same", "all models write the same")
    assert second.candidates[0].sources == ("draft", "assistant")
    assert (result.settings.method, result.settings.unit) == ("average", "token")
    assert result.settings.method_options == {"weights": None, "ahead": 8, "listed": 20}
    assert result.acceptance_rate is None


async def test_weights_decide() -> None:
    assert (await fuse("Q", models=pair(), method=Average(weights=(9, 1)))).text == "aa"
    assert (await fuse("Q", models=pair(), method=Average(weights=(0, 1)))).text == "ca"
    assert (await fuse("Q", draft=pair()[0], assistant=pair()[1], method=Average(weights=(1, 0)))).text == "aa"


async def test_of_equal_means_the_drafts_token_stands() -> None:
    one, other = table({b"a": 0.6, b"b": 0.4}), table({b"b": 0.6, b"a": 0.4})
    assert (await fuse("Q", models=[ScriptedProvider(one), ScriptedProvider(other)], method="average")).text == "a"
    assert (await fuse("Q", models=[ScriptedProvider(other), ScriptedProvider(one)], method="average")).text == "b"


UNCLEAR = table({b"a": 0.4, b"b": 0.33, b"c": 0.27}), table({b"c": 0.5, b"a": 0.3, b"b": 0.2})
"""Pairs of tokens do not show that the third has the largest mean."""


async def test_more_is_asked_for_where_the_lists_prove_nothing() -> None:
    models = [ScriptedProvider(one) for one in UNCLEAR]
    result = await fuse("Q", models=models, method=Average(listed=1))
    assert result.text == "c"
    assert not result.warnings
    assert [call.alternatives for call in models[1].calls if call.kind == "propose"] == [1, 2, 1]
    assert [call.alternatives for call in models[0].calls] == [1, 2, 1]


async def test_what_is_not_proved_is_said() -> None:
    result = await fuse("Q", models=[ScriptedProvider(one, top_k=1) for one in UNCLEAR], method="average")
    assert result.text == "a"
    assert result.segments[0].reason == "largest mean probability: 0.35 against 0.39 at most, which is not proved"
    [words] = result.warnings
    assert words.startswith("at 1 place the endpoints list too little to prove")


async def test_a_character_of_several_tokens_is_refused() -> None:
    tokens = (b"", b"Q", b"a", b"\xc3", b"\xa9")
    one = table({b"\xc3": 0.6, b"a": 0.4}, {b"\xa9": 0.9, b"a": 0.1}, tokens=tokens)
    other = table({b"a": 0.6, b"\xc3": 0.4}, {b"a": 1.0}, tokens=tokens)
    with pytest.raises(UnsupportedError, match="the draft would write 'é' at byte 0 of the answer, one character"):
        await fuse("Q", models=[ScriptedProvider(one), ScriptedProvider(other)], method="average")
    same = await fuse("Q", models=[ScriptedProvider(one), ScriptedProvider(one)], method="average")
    assert same.text == "é"


class Bare(ScriptedProvider):
    """Lists nothing beside `a`: of the next token the endpoint knows no text."""

    async def generate(self, *args: Any, **options: Any) -> Any:
        async for item in super().generate(*args, **options):
            yield replace(item, alternatives=()) if isinstance(item, Token) and item.data == b"a" else item


async def test_a_plain_token_without_a_list_is_bounded() -> None:
    """The rest that it leaves over is all that another token can have."""
    one, other = table({b"a": 0.6, b"b": 0.4}), table({b"c": 0.7, b"a": 0.2, b"b": 0.1})
    result = await fuse("Q", models=[Bare(one), ScriptedProvider(other)], method="average")
    assert (result.text, len(result.warnings)) == ("a", 1)  # c has at most (0.4 + 0.7) / 2
    sure = table({b"a": 0.95, b"b": 0.05})
    result = await fuse("Q", models=[Bare(sure), ScriptedProvider(other)], method=Average(weights=(2, 3)))
    assert (result.text, result.warnings) == ("a", ())


async def test_streaming_gives_the_same_tokens() -> None:
    fusion = Fusion(models=pair(), method="average", unit="token")
    async with fusion, fusion.stream("Q") as stream:
        texts = [token.text async for token in stream]
    assert texts == ["b", "a", ""]


async def test_models_that_cannot_are_refused() -> None:
    for options, words in (
        ({"top_k": 0}, "the assistant does not list its most probable tokens"),
        ({"probs": False}, "the assistant does not list its most probable tokens"),
        ({"end_prob": False}, "the assistant does not report the probability of its end of sequence"),
    ):
        with pytest.raises(UnsupportedError, match=words) as found:
            await fuse("Q", models=[*pair()[:1], ScriptedProvider(SECOND, **options)], method="average")
        assert 'method="cosd"' in found.value.hint
    other = ScriptedProvider.from_texts({"Q": ["abc"]})
    with pytest.raises(UnsupportedError, match="'average' compares tokens, and the models are not known to have one"):
        await fuse("Q", models=[pair()[0], other], method="average", unit=None)


async def test_a_model_that_fails() -> None:
    down = ScriptedProvider(SECOND, faults=[Fault(ConnectError("gone"))])
    with pytest.raises(ConnectError, match="gone"):
        await fuse("Q", models=[*pair()[:1], down], method="average")
    down = ScriptedProvider(SECOND, faults=[Fault(ConnectError("gone"))])
    alone = await fuse("Q", models=[*pair()[:1], down], method="average", on_assistant_error="draft")
    assert alone.text == "aa"
    assert not any(token.verified for token in alone.tokens)
    assert any("assistant failed" in warning for warning in alone.warnings)


@pytest.mark.parametrize("limit", [{"max_requests": 2}, {"max_billed_tokens": 14}])
async def test_at_a_limit_the_answer_ends(limit: dict[str, int]) -> None:
    result = await fuse("Q", models=pair(), method=Average(ahead=1), on_budget="end", **limit)
    assert (result.finish_reason, result.stop_reason) == ("budget", next(iter(limit)))
    assert "ba".startswith(result.text)
    assert result.text


async def test_a_context_that_is_full_ends_the_answer() -> None:
    result = await fuse("Q", models=pair(context=2), method=Average(ahead=1))
    assert (result.text, result.finish_reason, result.stop_reason) == ("b", "length", "context")


async def test_messages_are_rendered_for_each_model() -> None:
    result = await fuse([{"role": "user", "content": "x"}], models=pair(template=lambda _: "Q"), method="average")
    assert result.text == "ba"


def test_settings() -> None:
    for weights in ((), (0, 0), (1, -1), ("a", "b"), (1, float("inf")), 3, (True, False)):
        with pytest.raises(SettingError, match="weights must be numbers of at least 0, not all of them 0"):
            Average(weights=weights)  # type: ignore[arg-type]
    for name in ("ahead", "listed"):
        with pytest.raises(SettingError, match=f"{name} must be a whole number of at least 1"):
            Average(**{name: 0})  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="there are 3 weights for 2 models: give one for each"):
        Fusion(models=["http://a", "http://b"], method=Average(weights=(1, 2, 3)))
    refused: dict[Unit, str] = {"word": "single tokens", "literal": "tokens of one tokenizer"}
    for unit, why in refused.items():
        with pytest.raises(SettingError, match=f'unit="{unit}" means nothing to the method .*: it compares {why}'):
            Fusion(models=["http://a", "http://b"], method="average", unit=unit)
    assert Average(weights=[1, 2]).weights == (1.0, 2.0)  # type: ignore[arg-type]


async def test_an_estimate_holds() -> None:
    async with Fusion(models=pair(), method=Average(ahead=2, listed=1), unit="token") as fusion:
        for _ in range(2):
            estimate = await fusion.estimate("Q", max_tokens=8)
            result = await fusion.generate("Q", max_tokens=8)
            for name, usage in result.usage.items():
                one = estimate.endpoints[name]
                assert one.requests.low <= usage.requests <= one.requests.high
                assert one.billed_tokens.low <= usage.billed_tokens <= one.billed_tokens.high
