"""What a fusion may cost, against what fusions have cost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import toys
from cosd_api import (
    DiffVerifier,
    EndpointEstimate,
    Estimate,
    Fusion,
    FusionClosedError,
    RandomVerifier,
    Range,
    RuleVerifier,
    SettingError,
    Tuning,
    Verifier,
)
from cosd_providers import Piece, UnsupportedError
from cosd_providers.testing import Fault, ScriptedProvider, ScriptToken, TableModel, TextModel
from drawn import costly


class Always(RuleVerifier):
    """Replaces whatever differs: as much as can be asked and thrown away."""

    def replaces(self, p: float, q: float) -> bool:
        return True

    def contestable(self, p: float) -> bool:
        return True


def check(estimate: Estimate, name: str, requests: int, tokens: int) -> None:
    one = estimate.endpoints[name]
    assert one.requests.low <= requests <= one.requests.high
    assert one.billed_tokens.low <= tokens <= one.billed_tokens.high
    assert one.requests.low <= one.requests.expected <= one.requests.high
    assert one.billed_tokens.low <= one.billed_tokens.expected <= one.billed_tokens.high


@costly(60)
@given(
    toys.model_sets(same_tokenizer=True, may_hide_end=False),
    st.sampled_from((RuleVerifier(), RuleVerifier(alpha=1, beta=0), Always())),
    st.sampled_from(("token", "word")),
    st.integers(1, 16),
    st.none() | st.integers(1, 5),
    st.none() | st.integers(1, 5),
    st.sampled_from(("contestable", "all")),
    st.integers(0, 3),
)
async def test_what_a_fusion_costs_is_within_what_was_said(
    models: Any,
    verifier: RuleVerifier,
    unit: Any,
    limit: int,
    length: int | None,
    ahead: int | None,
    ask: Any,
    hedge: int,
) -> None:
    providers = [ScriptedProvider(toys.Plain(model)) for model in (models[0], *models[1])]
    async with Fusion(
        draft=providers[0],
        assistant=providers[1:],
        verifier=verifier,
        unit=unit,
        draft_length=length,
        tuning=Tuning(max_ahead=ahead, hedge=0 if length else hedge),
        ask=ask,
    ) as fusion:
        for answers in range(2):
            estimate = await fusion.estimate("a b", max_tokens=limit)
            assert estimate.answers == answers
            result = await fusion.generate("a b", max_tokens=limit)
            for name, usage in result.usage.items():
                check(estimate, name, usage.requests, usage.billed_tokens)
        assert estimate.billed_tokens.high == sum(one.billed_tokens.high for one in estimate.endpoints.values())
        assert estimate.requests.low <= sum(usage.requests for usage in result.usage.values()) <= estimate.requests.high


SCRIPT: dict[str, list[ScriptToken]] = {"Q: What?": [" The", " cap", ("ital", 0.9), " is", (" Rome", 0.3), "."]}


async def test_the_expected_cost_is_that_of_the_answers_before() -> None:
    writer, asked = ScriptedProvider.from_texts(SCRIPT), ScriptedProvider.from_texts(SCRIPT)
    async with Fusion(draft=writer, assistant=asked) as fusion:
        before = await fusion.estimate("Q: What?")
        results = [await fusion.generate("Q: What?") for _ in range(3)]
        after = await fusion.estimate("Q: What?")
        short = await fusion.estimate("Q: What?", max_tokens=3)
        await fusion.generate("Q: What?", max_requests=1, on_budget="end")  # tells nothing of whole answers
        assert (await fusion.estimate("Q: What?")) == after
    assert writer.requests == 4  # none was for an estimate
    assert (before.answers, after.answers) == (0, 3)
    for name, usage in results[0].usage.items():
        assert after.endpoints[name].requests.expected == usage.requests
        assert abs(after.endpoints[name].billed_tokens.expected - usage.billed_tokens) <= 1
    assert short.billed_tokens.expected < after.billed_tokens.expected < before.billed_tokens.expected
    assert before.endpoints["draft"].prompt_tokens == len(await writer.tokenize("Q: What?"))
    assert before.endpoints["draft"].counted
    assert "10% of them asked about" in before.assumptions[0]
    assert after.assumptions[0] == "expected: for each token what past answers cost, and as long as they were (3 seen)"
    assert Estimate.model_validate_json(after.model_dump_json()) == after


@pytest.mark.parametrize(
    ("verifier", "asked"),
    [
        (RuleVerifier(), 1),  # a tenth of ten tokens
        (RuleVerifier(alpha=1, beta=1), 10),
        (DiffVerifier(), 10),
        (RandomVerifier(rate=0.4), 4),
        (RandomVerifier(rate=0), 0),
    ],
)
async def test_what_a_verifier_contests_is_asked_about(verifier: Verifier, asked: int) -> None:
    models = ScriptedProvider.from_texts(SCRIPT), ScriptedProvider.from_texts(SCRIPT)
    async with Fusion(draft=models[0], assistant=models[1], verifier=verifier) as fusion:
        estimate = await fusion.estimate("Q: What?", max_tokens=10)
    assert estimate.endpoints["assistant"].requests == Range(low=0, expected=asked, high=880)


async def test_a_prompt_that_nobody_counts_is_guessed() -> None:
    class Silent(ScriptedProvider):
        async def tokenize(self, text: str) -> list[Piece]:
            raise UnsupportedError("it does not encode")

    prompt = "Q: What? " * 10
    async with Fusion(draft=Silent(TextModel(SCRIPT)), assistant=ScriptedProvider.from_texts(SCRIPT)) as fusion:
        estimate = await fusion.estimate(prompt, max_tokens=1)
        result = await fusion.generate(prompt, max_tokens=1)
    one = estimate.endpoints["draft"]
    assert (one.prompt_tokens, one.counted) == (22, False)
    check(estimate, "draft", 1, result.usage["draft"].billed_tokens)


async def test_bounds_that_can_be_reckoned_by_hand() -> None:
    async with Fusion(draft=ScriptedProvider.from_texts(SCRIPT), assistant=ScriptedProvider.from_texts({})) as fusion:
        estimate = await fusion.estimate("Q: What?", max_tokens=2)
    # A draft from each of two places, each place twice. A request reads 8 tokens (the prompt, one by one), 8 special
    # ones, and at most 2 x 2 of the answer. Questions: 2 places from the first on and 1 from the second, twice, in
    # eight requests each, which write 12 more.
    assert estimate.endpoints == {
        "draft": EndpointEstimate(
            prompt_tokens=8,
            counted=True,
            requests=Range(low=1, expected=1, high=4),
            billed_tokens=Range(low=9, expected=13, high=80),
            written_tokens=3,
        ),
        "assistant": EndpointEstimate(
            prompt_tokens=8,
            counted=True,
            requests=Range(low=0, expected=0, high=48),
            billed_tokens=Range(low=0, expected=3, high=1536),
            written_tokens=1,
        ),
    }


async def test_a_long_word_takes_several_requests_for_one_place() -> None:
    letters = [bytes([byte]) for byte in b"Q:abcd"]
    # What the draft writes as one token, the assistant writes letter by letter, and otherwise.
    spelt = TableModel([*letters, b"", b"abcd"], lambda ids: [0, 0, 0.9, 0.1, 0, 0, 0, 0], end_ids=(6,))
    word = TableModel([*letters, b"", b"bbbb"], lambda ids: [0] * 7 + [0.3], end_ids=(6,))
    asked = ScriptedProvider(spelt)
    async with Fusion(draft=ScriptedProvider(word), assistant=asked, unit="word") as fusion:
        estimate = await fusion.estimate("Q:", max_tokens=1)
        await fusion.generate("Q:", max_tokens=1)
    assert 2 < asked.requests <= estimate.endpoints["assistant"].requests.high


async def test_one_that_is_certain_spares_those_listed_after_it() -> None:
    sure = ScriptedProvider.from_texts({"Q:": [(" Lima", 1.0)]})
    slow = ScriptedProvider.from_texts({}, faults=[Fault(None)])
    writer = ScriptedProvider.from_texts({"Q:": [(" Rome", 0.3)]})
    async with Fusion(draft=writer, assistant=[sure, slow], ask="all") as fusion:
        estimate = await fusion.estimate("Q:", max_tokens=1)
        result = await fusion.generate("Q:", max_tokens=1)
    assert result.text == " Lima"
    for name, usage in result.usage.items():
        check(estimate, name, usage.requests, usage.billed_tokens)


async def test_it_is_asked_as_a_fusion_is() -> None:
    fusion = Fusion(draft=ScriptedProvider.from_texts(SCRIPT), assistant=ScriptedProvider.from_texts(SCRIPT))
    with pytest.raises(FusionClosedError, match="open the fusion first"):
        await fusion.estimate("Q:")
    async with fusion:
        with pytest.raises(SettingError, match="prompt is empty"):
            await fusion.estimate("")
        with pytest.raises(SettingError, match="max_tokens must be a whole number"):
            await fusion.estimate("Q:", max_tokens=0)
