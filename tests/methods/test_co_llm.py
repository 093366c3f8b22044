"""Deferral by hidden states, which is Co-LLM, against its definition, word for word; and what surrounds it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cosd_api import CoLLMVerifier, CoSD, Defer, Fusion, FusionResult, SettingError, fuse
from cosd_api.methods.base import method_from_text
from cosd_providers import ConnectError, UnsupportedError
from cosd_providers.testing import Fault, ScriptedProvider, TextModel
from naive.co_llm import gate, naive
from naive.defer import gate as other_gate
from support.drawn import examples
from support.handing_over import OTHER, SETTINGS, WRITTEN, readable
from toys import toy_models as toys

GATES = st.builds(
    gate,
    st.sampled_from((0.0, 0.31, 0.5003, 0.77)),
    st.sampled_from((0.2, -0.9)),
    st.tuples(*[st.sampled_from((0.0, -1.3, 0.9, 2.1))] * 3),
)


@examples(25)
@given(
    toys.model_sets(same_tokenizer=True, max_assistants=1),
    GATES,
    st.text(st.sampled_from(toys.CHARACTERS), min_size=1, max_size=6),
    st.sampled_from((1, 2, 5, 16, 17, 36)),
    toys.stops(),
    st.lists(st.sampled_from((0.0, 0.001, 0.003)), min_size=4, max_size=4),
    st.sampled_from(SETTINGS),
)
async def test_the_answer_is_the_naive_one_whatever_the_order(
    models: tuple[toys.ToyModel, tuple[toys.ToyModel, ...]],
    one: CoLLMVerifier,
    prompt: str,
    max_tokens: int,
    stop: Sequence[bytes],
    delays: list[float],
    settings: dict[str, Any],
) -> None:
    """In whatever stretches the states are asked for: the state is that of all ids before, and of no other text."""
    toy, [other] = models
    wanted, seen = naive(prompt.encode(), toy, other, one, toys.state, max_tokens=max_tokens, stop=stop)
    assume(readable(b"".join(token.data for token in wanted.tokens)))
    draft, assistant = (
        ScriptedProvider(
            toys.Plain(model),
            end_prob=not model.hides_end,
            states=states,
            request_delay=delays[2 * at],
            token_delay=delays[2 * at + 1],
        )
        for at, (model, states) in enumerate(((toy, toys.state), (other, None)))
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

DRAFT_MODEL = TextModel(WRITTEN)
UNSURE = gate(bias=-1.0, weights=(2.0,))
"""Opens where the state is one, and not where it is zero."""


def before_b(ids: Sequence[int]) -> tuple[float]:
    """The draft's state: one where it will write b, or is behind the a that it has written."""
    text = b"".join(DRAFT_MODEL.tokens[at] for at in ids)
    return (float(text == b"Q a"),)


def draft(**options: Any) -> ScriptedProvider:
    """Writes a b c, with another state before b; and c again, behind what stands in place of b."""
    return ScriptedProvider(DRAFT_MODEL, **({"states": before_b} | options))


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
    assert result.tokens[1].reason == "deferral 0.73 > 0.5"
    assert result.tokens[1].replaced == " b"
    assert result.tokens[1].decisions[0].coin == pytest.approx(0.731, abs=1e-3)
    assert (result.acceptance_rate, result.replacements, result.iterations) == (3 / 4, 1, 2)
    assert [(call.states, call.alternatives) for call in mine.calls] == [(True, 0)] * 2
    assert not any(call.states for call in its.calls)
    assert (result.draft_requests, result.usage["draft"].requests) == (2, 4)  # two drafts, and the states of each
    assert (result.settings.method, result.settings.unit, result.settings.verifier) == ("defer", "token", UNSURE)
    same = await deferred(method=CoSD(verifier=UNSURE, unit="token"))
    assert same.text == result.text


async def test_the_states_of_a_stretch_are_one_request() -> None:
    """Of 40 tokens: those of 16, of 16 and of 8."""
    model = TextModel({"Q": [*"abcdefgh" * 5]})
    mine = ScriptedProvider(model, states=lambda ids: [0.0, len(ids)])
    closed = gate(bias=-1.0, weights=(1.0, 0.0))
    result = await deferred(draft=mine, method=Defer(gate=closed), max_tokens=40)
    assert result.text == "abcdefgh" * 5
    assert result.usage["draft"].requests == 1 + 3
    in_rounds = await deferred(draft=mine, method=Defer(gate=closed), max_tokens=40, draft_length=10)
    assert (in_rounds.text, in_rounds.usage["draft"].requests) == (result.text, 4 + 4)


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
    wide = ScriptedProvider(DRAFT_MODEL, states=lambda _: [0.0] * 5)
    for options, words, hint in (
        ({"draft": draft(probs=False)}, "the draft does not report the probabilities of its tokens, which", "cosd"),
        ({"assistant": assistant(probs=False)}, "the assistant does not report the probabilities of its", "cosd"),
        ({"draft": draft(states=None)}, "the draft does not report hidden states, which the gate", "--embeddings"),
        ({"draft": wide}, "a hidden state of the draft has 5 numbers, and the gate was trained on 1", "train-deferral"),
        ({"unit": None}, "'defer' compares tokens, and the models are not known to have one tokenizer", "unit"),
    ):
        with pytest.raises(UnsupportedError, match=words) as found:
            await deferred(**options)
        assert hint in found.value.hint
    with pytest.raises(UnsupportedError, match="the draft does not report hidden states"):
        await deferred(draft=draft(states=None), method=CoSD(verifier=UNSURE, unit="token"))
    result = await deferred(draft=draft(end_prob=False))
    assert any("an end is never deferred" in warning for warning in result.warnings)
    assert (await deferred(draft=draft(top_k=0), assistant=assistant(end_prob=False, top_k=0))).text == " a x c"


async def test_a_model_that_fails() -> None:
    with pytest.raises(ConnectError, match="gone"):
        await deferred(assistant=assistant(faults=[Fault(ConnectError("gone"))]))
    with pytest.raises(ConnectError, match="gone") as found:
        await deferred(draft=draft(faults=[Fault(ConnectError("gone"), request=4)]))  # the states behind x
    assert found.value.partial.text == " a x"
    down = assistant(faults=[Fault(ConnectError("gone"))])
    alone = await deferred(assistant=down, on_assistant_error="draft")
    assert alone.text == " a b c"
    assert [token.verified for token in alone.tokens] == [True, False, True, True]


@pytest.mark.parametrize(
    "limit", [{"max_requests": 1}, {"max_requests": 3}, {"max_billed_tokens": 4}, {"timeout": 0.02}]
)
async def test_at_a_limit_the_answer_ends(limit: dict[str, Any]) -> None:
    slow = assistant(request_delay=0.2) if "timeout" in limit else assistant()
    result = await deferred(assistant=slow, on_budget="end", **limit)
    assert (result.finish_reason, result.stop_reason) == ("budget", next(iter(limit)))
    assert " a x c".startswith(result.text)


async def test_messages_are_rendered_for_each_model() -> None:
    models = {"draft": draft(template=lambda _: "Q"), "assistant": assistant(template=lambda _: "Q")}
    assert (await deferred([{"role": "user", "content": "Hello"}], **models)).text == " a x c"


def test_a_gate_of_another_kind_is_recognised_by_its_file(tmp_path: Path) -> None:
    for one in (UNSURE, other_gate()):
        one.save(tmp_path / "gate.json")
        assert Defer(gate=tmp_path / "gate.json") == Defer(gate=one)
        text = (tmp_path / "gate.json").read_text()
        (tmp_path / "gate.json").write_text(text, encoding="utf-8-sig")
        assert Defer(gate=tmp_path / "gate.json") == Defer(gate=one)
    assert (Defer(gate=UNSURE).asks_by_ids, Defer(gate=other_gate()).asks_by_ids) == (False, True)
    for text, words in (
        ('{"kind": "co-llm"', "is not a deferral gate: it is not one JSON document"),
        ('{"kind": "co-llm", "width": 0}', "is not a Co-LLM gate: its width is 0"),
        ('{"kind": "tree"}', "is not a deferral gate: its kind is 'tree', not 'deferral'"),
    ):
        (tmp_path / "gate.json").write_text(text)
        with pytest.raises(SettingError, match=words):
            Defer(gate=tmp_path / "gate.json")
    with pytest.raises(SettingError, match="gate is invalid: Field required"):
        Defer(gate={"kind": "co-llm"})


@pytest.mark.parametrize("settings", [{}, {"draft_length": 2}])
async def test_an_estimate_holds(settings: dict[str, Any]) -> None:
    models: dict[str, Any] = {"draft": draft(), "assistant": assistant(), "unit": "token"}
    async with Fusion(**models, method=Defer(gate=UNSURE), **settings) as fusion:
        for _ in range(2):
            estimate = await fusion.estimate("Q", max_tokens=8)
            result = await fusion.generate("Q", max_tokens=8)
            for name, usage in result.usage.items():
                one = estimate.endpoints[name]
                assert one.requests.low <= usage.requests <= one.requests.high
                assert one.billed_tokens.low <= usage.billed_tokens <= one.billed_tokens.high


async def test_the_states_are_in_the_estimate_of_cosd_with_the_gate_too() -> None:
    found: list[Any] = []
    for method in (Defer(gate=UNSURE), CoSD(verifier=UNSURE, unit="token"), Defer(gate=other_gate())):
        async with Fusion(draft=draft(), assistant=assistant(), unit="token", method=method) as fusion:
            found.append((await fusion.estimate("Q", max_tokens=8)).endpoints["draft"].requests)
    assert found[0] == found[1]
    assert found[1].expected > found[2].expected
