"""Deferral against its definition, word for word; and what surrounds it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cosd_api import CoSD, Defer, DeferralVerifier, Fusion, FusionResult, SettingError, fuse
from cosd_api.alignment import Unit
from cosd_api.methods.base import method_from_text
from cosd_providers import ConnectError, UnsupportedError
from cosd_providers.testing import Fault, ScriptedProvider
from naive.defer import gate, naive
from support.drawn import examples
from support.handing_over import OTHER, SETTINGS, WRITTEN, readable
from toys import toy_models as toys

GATES = st.builds(
    gate,
    st.sampled_from((0.0, 0.31, 0.5003, 0.77)),
    st.sampled_from((1, 2, 9)),
    bias=st.sampled_from((0.2, 2.1)),
    top=st.sampled_from((0.0, -3.1, 2.3)),
    margin=st.sampled_from((0.0, -1.7)),
    entropy=st.sampled_from((0.0, 1.3)),
    number=st.sampled_from((0.0, 1.9)),
    word=st.sampled_from((0.0, -2.9)),
    part=st.sampled_from((0.0, 1.1)),
    end=st.sampled_from((0.0, 1.7, -3.3)),
)


@examples(25)
@given(
    toys.model_sets(same_tokenizer=True, max_assistants=1),
    GATES,
    st.text(st.sampled_from(toys.CHARACTERS), min_size=1, max_size=6),
    st.integers(1, 16),
    toys.stops(),
    st.lists(st.sampled_from((0.0, 0.001, 0.003)), min_size=4, max_size=4),
    st.sampled_from(SETTINGS),
)
async def test_the_answer_is_the_naive_one_whatever_the_order(
    models: tuple[toys.ToyModel, tuple[toys.ToyModel, ...]],
    one: DeferralVerifier,
    prompt: str,
    max_tokens: int,
    stop: Sequence[bytes],
    delays: list[float],
    settings: dict[str, Any],
) -> None:
    toy, [other] = models
    wanted, seen = naive(prompt.encode(), toy, other, one, max_tokens=max_tokens, stop=stop)
    assume(readable(b"".join(token.data for token in wanted.tokens)))  # of other bytes an adapter shows no list
    draft, assistant = (
        ScriptedProvider(
            toys.Plain(model),
            end_prob=not model.hides_end,
            request_delay=delays[2 * at],
            token_delay=delays[2 * at + 1],
        )
        for at, model in enumerate((toy, other))
    )
    limits: dict[str, Any] = {"max_tokens": max_tokens, "stop": [text.decode() for text in stop]}
    options = settings | {"method": Defer(gate=one), "unit": "token"}
    result = await fuse(prompt, draft=draft, assistant=assistant, **options, **limits)
    assume(readable(b"".join(token.data for token in result.tokens)))
    names = {"draft": -1, "assistant": 0}
    assert [(token.data, names[token.source], token.end) for token in result.tokens] == [
        (token.data, token.source, token.end) for token in wanted.tokens
    ]
    assert result.finish_reason == wanted.finish_reason
    if "ask" not in settings:
        assert [token.asked for token in result.tokens] == [place.opens for place in seen[: len(result.tokens)]]
    assert draft.open_requests == assistant.open_requests == 0
    assert result.trace.replay() == result.text
    assert FusionResult.model_validate_json(result.model_dump_json()) == result


# What surrounds it.

UNSURE = gate(bias=4.0, top=-8.0)
"""Opens below one half."""


def draft(**options: Any) -> ScriptedProvider:
    """Writes a b c, unsure of b; and c again, behind what stands in place of b."""
    return ScriptedProvider.from_texts(WRITTEN, **options)


def assistant(**options: Any) -> ScriptedProvider:
    """Would write y in place of a, and x in place of b."""
    return ScriptedProvider.from_texts(OTHER, **options)


async def deferred(prompt: Any = "Q", **options: Any) -> FusionResult:
    models: dict[str, Any] = {"draft": draft(), "assistant": assistant(), "unit": "token"}
    models["method"] = Defer(gate=UNSURE)
    return await fuse(prompt, **models | options)


async def test_one_token_is_handed_over_where_the_gate_opens() -> None:
    mine, its = draft(), assistant()
    result = await deferred(draft=mine, assistant=its)
    assert result.text == " a x c"
    assert [token.source for token in result.tokens] == ["draft", "assistant", "draft", "draft"]
    assert [token.asked for token in result.tokens] == [False, True, False, False]
    assert result.tokens[1].reason == "deferral 0.83 > 0.5"
    assert result.tokens[1].replaced == " b"
    assert result.tokens[1].decisions[0].coin == pytest.approx(0.832, abs=1e-3)
    assert (result.acceptance_rate, result.replacements, result.iterations) == (3 / 4, 1, 2)
    assert {call.alternatives for call in mine.calls} == {3}
    assert [call.alternatives for call in its.calls] == [0]
    assert (result.settings.method, result.settings.unit, result.settings.verifier) == ("defer", "token", UNSURE)
    same = await deferred(method=CoSD(verifier=UNSURE, unit="token"))
    assert same.text == result.text


async def test_the_gate_is_a_file_or_what_a_saved_model_holds(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    UNSURE.save(path)
    for given_gate in (path, str(path), UNSURE.model_dump(mode="json")):
        assert Defer(gate=given_gate) == Defer(gate=UNSURE)
    assert method_from_text("defer", {"gate": str(path)}) == Defer(gate=UNSURE)
    assert Defer(**Defer(gate=UNSURE).options()) == Defer(gate=UNSURE)


async def test_streaming_gives_the_same_tokens() -> None:
    fusion = Fusion(draft=draft(), assistant=assistant(), method=Defer(gate=UNSURE), unit="token")
    async with fusion, fusion.stream("Q") as stream:
        texts = [token.text async for token in stream]
    assert texts == [" a", " x", " c", ""]


async def test_what_endpoints_lack_is_refused_in_words() -> None:
    for options, words in (
        ({"draft": draft(probs=False)}, "the draft does not report the probabilities of its tokens, which the gate"),
        ({"assistant": assistant(probs=False)}, "the assistant does not report the probabilities of its tokens, and"),
        ({"draft": draft(top_k=0)}, "the draft lists no other tokens at a place, and the gate looks at 3"),
        ({"draft": draft(top_k=2)}, "the draft lists 2 other tokens at a place, and the gate looks at 3"),
        ({"unit": None}, "'defer' compares tokens, and the models are not known to have one tokenizer"),
    ):
        with pytest.raises(UnsupportedError, match=words) as found:
            await deferred(**options)
        assert "cosd" in found.value.hint or "unit" in found.value.hint
    result = await deferred(draft=draft(end_prob=False))
    assert any("an end is never deferred" in warning for warning in result.warnings)
    assert (await deferred(assistant=assistant(end_prob=False, top_k=0))).text == " a x c"


async def test_an_assistant_that_fails() -> None:
    with pytest.raises(ConnectError, match="gone"):
        await deferred(assistant=assistant(faults=[Fault(ConnectError("gone"))]))
    down = assistant(faults=[Fault(ConnectError("gone"))])
    alone = await deferred(assistant=down, on_assistant_error="draft")
    assert alone.text == " a b c"
    assert [token.verified for token in alone.tokens] == [True, False, True, True]


@pytest.mark.parametrize("limit", [{"max_requests": 1}, {"max_billed_tokens": 4}, {"timeout": 0.02}])
async def test_at_a_limit_the_answer_ends(limit: dict[str, Any]) -> None:
    slow = assistant(request_delay=0.2) if "timeout" in limit else assistant()
    result = await deferred(assistant=slow, on_budget="end", **limit)
    assert (result.finish_reason, result.stop_reason) == ("budget", next(iter(limit)))
    assert " a x c".startswith(result.text)


async def test_messages_are_rendered_for_each_model() -> None:
    models = {"draft": draft(template=lambda _: "Q"), "assistant": assistant(template=lambda _: "Q")}
    assert (await deferred([{"role": "user", "content": "Hello"}], **models)).text == " a x c"


def test_settings(tmp_path: Path) -> None:
    servers: dict[str, Any] = {"draft": "http://a", "assistant": "http://b"}
    with pytest.raises(SettingError, match=r"the method 'defer' needs a gate, .* cosd train-deferral makes one"):
        Fusion(**servers, method="defer")
    with pytest.raises(
        SettingError, match="gate must be a DeferralVerifier, a CoLLMVerifier or the path of the file of one, not 3"
    ):
        Defer(gate=3)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="gate is invalid: Field required"):
        Defer(gate={})
    with pytest.raises(FileNotFoundError):
        Defer(gate=tmp_path / "nowhere")
    with pytest.raises(SettingError, match="'defer' accepts at most 2 models, not 3"):
        Fusion(draft="http://a", assistant=["http://b", "http://c"], method=Defer(gate=UNSURE))
    with pytest.raises(SettingError, match="verifier means nothing to the method 'defer': it decides by a trained"):
        Fusion(**servers, method=Defer(gate=UNSURE), verifier=UNSURE)
    refused: dict[Unit, str] = {"word": "single tokens", "literal": "tokens of one tokenizer"}
    for unit, why in refused.items():
        with pytest.raises(SettingError, match=f'unit="{unit}" means nothing to the method .*: it compares {why}'):
            Fusion(**servers, method=Defer(gate=UNSURE), unit=unit)


async def test_an_estimate_holds() -> None:
    async with Fusion(draft=draft(), assistant=assistant(), method=Defer(gate=UNSURE), unit="token") as fusion:
        for _ in range(2):
            estimate = await fusion.estimate("Q", max_tokens=8)
            result = await fusion.generate("Q", max_tokens=8)
            for name, usage in result.usage.items():
                one = estimate.endpoints[name]
                assert one.requests.low <= usage.requests <= one.requests.high
                assert one.billed_tokens.low <= usage.billed_tokens <= one.billed_tokens.high
