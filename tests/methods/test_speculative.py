"""Greedy speculative decoding, CoSD with `MatchVerifier`, by its definition, word for word; and what surrounds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import CoSD, Fusion, FusionResult, MatchVerifier, SettingError, Speculative, fuse
from cosd_api.alignment import Unit
from cosd_providers import ConnectError, UnsupportedError
from cosd_providers.testing import Fault, ScriptedProvider, ScriptToken
from naive import reference
from support.drawn import costly
from toys import toy_models as toys


def naive(
    prompt: bytes, draft: toys.Model, assistant: toys.Model, *, max_tokens: int, stop: Sequence[bytes]
) -> tuple[reference.Fused, int, int]:
    """The answer, the tokens kept, and those replaced.

    The draft writes from the text so far; at each of its tokens the assistant encodes the text before it and writes
    one; the first that differs replaces it, and the draft begins again.
    """
    answer: list[reference.Out] = []
    kept = replaced = 0
    while True:
        for ours in reference.generate(draft, prompt + reference.text_of(answer)):
            wish = [ours]  # preferred among equally probable ones
            theirs = next(reference.generate(assistant, prompt + reference.text_of(answer), wish, patience=3), None)
            stands = theirs is None or (theirs.data, theirs.end) == (ours.data, ours.end)
            one = ours if theirs is None or stands else theirs
            answer.append(reference.Out(one.data, -1 if stands else 0, one.end))
            kept, replaced = kept + stands, replaced + (not stands)
            done = reference.finished(answer, stop, max_tokens)
            if done:
                return done, sum(token.source == -1 for token in done.tokens), replaced
            if not stands:
                break


SETTINGS: list[dict[str, Any]] = [
    {},
    {"draft_length": 3},
    {"max_ahead": 2},
]


@costly(40)
@given(
    toys.model_sets(same_tokenizer=True, max_assistants=1, may_hide_end=False),
    st.text(st.sampled_from(toys.CHARACTERS), min_size=1, max_size=6),
    st.integers(1, 16),
    toys.stops(),
    st.lists(st.sampled_from((0.0, 0.001, 0.003)), min_size=4, max_size=4),
    st.sampled_from(SETTINGS),
)
async def test_the_answer_is_the_naive_one_whatever_the_order(
    models: tuple[toys.ToyModel, tuple[toys.ToyModel, ...]],
    prompt: str,
    max_tokens: int,
    stop: Sequence[bytes],
    delays: list[float],
    settings: dict[str, Any],
) -> None:
    toy, [other] = models
    draft = ScriptedProvider(toys.Plain(toy), request_delay=delays[0], token_delay=delays[1])
    assistant = ScriptedProvider(toys.Plain(other), request_delay=delays[2], token_delay=delays[3])
    limits: dict[str, Any] = {"max_tokens": max_tokens, "stop": [one.decode() for one in stop]}
    options = settings | {"verifier": MatchVerifier(), "unit": "token"}
    result = await fuse(prompt, draft=draft, assistant=assistant, **options, **limits)
    wanted, kept, replaced = naive(prompt.encode(), toy, other, max_tokens=max_tokens, stop=stop)
    names = {"draft": -1, "assistant": 0}
    assert [(one.data, names[one.source], one.end) for one in result.tokens] == [
        (one.data, one.source, one.end) for one in wanted.tokens
    ]
    assert result.finish_reason == wanted.finish_reason
    assert (result.kept_tokens, result.replaced_tokens) == (kept, replaced)
    assert draft.open_requests == assistant.open_requests == 0
    assert result.trace.replay() == result.text
    assert FusionResult.model_validate_json(result.model_dump_json()) == result


WRITTEN: dict[str, list[ScriptToken]] = {"Q": [(" a", 0.9), (" b", 0.8), (" c", 0.7)]}
OTHER: dict[str, list[ScriptToken]] = {"Q": [(" a", 0.6), (" x", 0.2), (" c", 0.4)], "Q a x": [" c"]}


def draft(**options: Any) -> ScriptedProvider:
    """Writes a b c; and again c, behind whatever stands in place of b."""
    return ScriptedProvider.from_texts(WRITTEN | {"Q a x": [(" c", 0.9)]}, **options)


def assistant(**options: Any) -> ScriptedProvider:
    """Writes a x c."""
    return ScriptedProvider.from_texts(OTHER, **options)


async def test_the_text_is_the_assistants_own_and_the_acceptance_says_how_often_they_agree() -> None:
    result = await fuse("Q", draft=draft(), assistant=assistant(), verifier=MatchVerifier(), unit="token")
    assert result.text == " a x c"
    assert [token.source for token in result.tokens] == ["draft", "assistant", "draft", "draft"]
    assert result.acceptance_rate == 3 / 4
    assert (result.replacements, result.iterations) == (1, 2)
    assert result.tokens[1].reason == "they differ"
    assert result.tokens[1].replaced == " b"
    assert (result.settings.method, result.settings.verifier) == ("cosd", MatchVerifier())
    same = await fuse("Q", draft=draft(), assistant=assistant(), method=CoSD(verifier=MatchVerifier(), unit="token"))
    assert same.text == result.text


async def test_of_other_tokenizers_the_words_are_the_assistants_own() -> None:
    result = await fuse("Q", draft=draft(), assistant=assistant(), verifier=MatchVerifier())
    assert (result.text, result.settings.unit) == (" a x c", "word")


async def test_every_token_is_asked_about() -> None:
    asked = assistant()
    result = await fuse("Q", draft=draft(), assistant=asked, verifier=MatchVerifier(), unit="token")
    assert all(token.asked for token in result.tokens)


async def test_streaming_gives_the_same_tokens() -> None:
    fusion = Fusion(draft=draft(), assistant=assistant(), verifier=MatchVerifier(), unit="token")
    async with fusion, fusion.stream("Q") as stream:
        texts = [token.text async for token in stream]
    assert texts == [token.text for token in stream.result.tokens]


async def test_models_without_probabilities_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="the assistant does not report the probabilities of its tokens"):
        await fuse("Q", draft=draft(), assistant=assistant(probs=False), verifier=MatchVerifier(), unit="token")


async def test_a_draft_that_hides_its_end_is_warned_of() -> None:
    result = await fuse("Q", draft=draft(end_prob=False), assistant=assistant(), verifier=MatchVerifier(), unit="token")
    assert any("no answer's end is ever contested by it" in warning for warning in result.warnings)


async def test_an_assistant_that_fails() -> None:
    fault = Fault(ConnectError("gone"))
    with pytest.raises(ConnectError, match="gone"):
        await fuse("Q", draft=draft(), assistant=assistant(faults=[fault]), verifier=MatchVerifier(), unit="token")
    alone = await fuse(
        "Q",
        draft=draft(),
        assistant=assistant(faults=[fault]),
        verifier=MatchVerifier(),
        unit="token",
        on_assistant_error="draft",
    )
    assert alone.text == " a b c"
    assert not any(token.verified for token in alone.tokens)


@pytest.mark.parametrize("limit", [{"max_requests": 1}, {"max_billed_tokens": 4}])
async def test_at_a_limit_the_answer_ends(limit: dict[str, int]) -> None:
    models = {"draft": draft(), "assistant": assistant()}
    result = await fuse("Q", verifier=MatchVerifier(), unit="token", on_budget="end", **models, **limit)  # type: ignore[arg-type]
    assert (result.finish_reason, result.stop_reason) == ("budget", next(iter(limit)))
    assert " a x c".startswith(result.text)


def test_settings_of_the_method() -> None:
    assert Speculative() == Speculative(temperature=1)
    words = r"temperature=0 is not accepted by the method 'speculative', which draws. For the assistant's greedy text, "
    words += r"use CoSD\(verifier=MatchVerifier\(\)\), or --verifier match"
    with pytest.raises(SettingError, match=words):
        Fusion(draft="http://a", assistant="http://b", method="speculative", temperature=0)
    with pytest.raises(SettingError, match="ask means nothing to the method 'speculative'"):
        Fusion(draft="http://a", assistant="http://b", method="speculative", ask="all")
    refused: dict[Unit, str] = {"word": "single tokens", "literal": "tokens of one tokenizer"}
    for unit, why in refused.items():
        with pytest.raises(SettingError, match=f'unit="{unit}" means nothing to the method .*: it compares {why}'):
            Fusion(draft=draft(), assistant=assistant(), method="speculative", unit=unit)


async def test_an_estimate_holds() -> None:
    async with Fusion(draft=draft(), assistant=assistant(), verifier=MatchVerifier(), unit="token") as fusion:
        for _ in range(2):
            estimate = await fusion.estimate("Q", max_tokens=8)
            result = await fusion.generate("Q", max_tokens=8)
            for name, usage in result.usage.items():
                one = estimate.endpoints[name]
                assert one.requests.low <= usage.requests <= one.requests.high
                assert one.billed_tokens.low <= usage.billed_tokens <= one.billed_tokens.high


async def test_messages_are_rendered_for_each_model() -> None:
    models = {"draft": draft(template=lambda _: "Q"), "assistant": assistant(template=lambda _: "Q")}
    result = await fuse([{"role": "user", "content": "Hello"}], verifier=MatchVerifier(), unit="token", **models)  # type: ignore[arg-type]
    assert result.text == " a x c"
