"""What a fusion may cost, against what fusions have cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import (
    CoolFusion,
    DiffVerifier,
    Fusion,
    FusionClosedError,
    RandomVerifier,
    RuleVerifier,
    SettingError,
)
from cosd_api.decoding.pace import FIRST, Pace
from cosd_api.extend import Method, Verifier
from cosd_api.methods.cost import Plan, Reading, draft_cost
from cosd_api.types import EndpointEstimate, Estimate, Range
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.testing import Fault, ScriptedProvider, ScriptToken, TableModel, TextModel
from fakes.adapters import ENGINES, Engine
from fakes.llama_cpp import FakeLlamaCpp
from support.drawn import costly
from support.method_files import AT
from toys import toy_models as toys
from toys.lima import Unheard


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
    st.sampled_from(("token", "word", "literal")),
    st.integers(1, 16),
    st.none() | st.integers(1, 5),
    st.none() | st.integers(1, 5),
    st.sampled_from(("contestable", "all")),
)
async def test_what_a_fusion_costs_is_within_what_was_said(
    models: Any,
    verifier: RuleVerifier,
    unit: Any,
    limit: int,
    length: int | None,
    ahead: int | None,
    ask: Any,
) -> None:
    providers = [ScriptedProvider(toys.Plain(model)) for model in (models[0], *models[1])]
    async with Fusion(
        draft=providers[0],
        assistant=providers[1:],
        verifier=verifier,
        unit=unit,
        draft_length=length,
        max_ahead=ahead,
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
    assert before.assumptions[0].startswith("expected: 256 tokens; 10% of them asked about")
    assert after.assumptions[0] == "expected: 7 tokens, each at the cost of a token in past answers (3 seen)"
    assert (before.length, after.length, short.length) == (256, 7, 3)
    assert Estimate.model_validate_json(after.model_dump_json()) == after


async def test_the_expected_cost_is_that_of_a_length() -> None:
    """Of the length that is given; bounds are for the longest answer."""
    models = [ScriptedProvider.from_texts(SCRIPT), ScriptedProvider.from_texts(SCRIPT)]
    async with Fusion(models=models, method="average", unit="token") as fusion:
        longest = await fusion.estimate("Q: What?", max_tokens=40)
        short = await fusion.estimate("Q: What?", max_tokens=40, length=10)
        of_ten = await fusion.estimate("Q: What?", max_tokens=10)
        for length in (10, 40):  # a length that is given counts more than that of past answers
            assert (await fusion.estimate("Q: What?", max_tokens=40, length=length)).length == length
            await fusion.generate("Q: What?")
        with pytest.raises(SettingError, match="length must be at most max_tokens, which is 40, not 41"):
            await fusion.estimate("Q: What?", max_tokens=40, length=41)
        with pytest.raises(SettingError, match="length must be a whole number of at least 1, not 0"):
            await fusion.estimate("Q: What?", length=0)
    assert (longest.length, short.length) == (40, 10)
    assert short.assumptions[0].startswith("expected: 10 tokens; the first model writes 8 of them in a request")
    assert short.per_token == short.billed_tokens.expected / 10 < longest.per_token
    for name, one in short.endpoints.items():
        assert one.billed_tokens.expected == of_ten.endpoints[name].billed_tokens.expected
        assert one.billed_tokens.high == longest.endpoints[name].billed_tokens.high


def test_a_draft_that_may_pause_takes_a_second_request() -> None:
    """Unless a token of the first request is replaced, which is a request of its own."""

    def requests(pauses: bool, **bound: Any) -> float:
        plan = Plan(max_tokens=bound.pop("tokens", 64), models=2, pace=Pace(**bound), skip=True)
        return draft_cost(plan, Reading(10, 10, 18, pauses=pauses)).requests.expected

    assert requests(True) - requests(False) == pytest.approx((29 / 30) ** FIRST)
    for bound in ({"tokens": FIRST}, {"max_ahead": 8}, {"draft_length": 8}):
        assert requests(True, **bound) == requests(False, **bound)


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
    async with Fusion(draft=models[0], assistant=models[1], verifier=verifier, unit="token") as fusion:
        estimate = await fusion.estimate("Q: What?", max_tokens=10)
    assert estimate.endpoints["assistant"].requests == Range(low=0, expected=asked, high=880)


def watched_pair(*, same: bool) -> dict[str, Any]:
    """A model that writes letters, and another with its ids or with others; the second is asked by a watch."""
    draft = letters("a", "b")
    other = letters("a", "b") if same else turned(draft)
    return {
        "draft": ScriptedProvider(draft, ids=True),
        "assistant": ScriptedProvider(other, ids=True, places=1, watch=True),
    }


def turned(model: TableModel) -> TableModel:
    """The same model with its ids in another order."""
    last = len(model.tokens) - 1

    def following(ids: Sequence[int]) -> list[float]:
        found: list[float] = model.next([last - one for one in ids])
        return found[::-1]

    return TableModel(model.tokens[::-1], following, end_ids=[last - one for one in model.end_ids])


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize(("alpha", "share"), [(0.5, 0.1), (1.0, 1.0)])
async def test_a_watch_is_one_request_that_writes_along(same: bool, alpha: float, share: float) -> None:
    async with Fusion(**watched_pair(same=same), verifier=RuleVerifier(alpha=alpha, beta=alpha)) as fusion:
        estimate = await fusion.estimate("Q" * 24, max_tokens=60)
        result = await fusion.generate("Q" * 24, max_tokens=60)
    one, usage = estimate.endpoints["assistant"], result.usage["assistant"]
    assert result.settings.unit == ("token" if same else "word")
    restarts = 60 * share / 3
    assert one.requests.expected == 1 + restarts
    assert one.written_tokens == 90
    assert one.billed_tokens.expected == round((1 + restarts) * (24 + 30) + 90)
    assert "by a watch" in estimate.assumptions[0]
    assert "in a request of its own" not in estimate.assumptions[0]
    if alpha == 1:
        assert [*usage.strategies] == ["watch"]
        assert usage.requests == 1
        assert one.written_tokens / 3 <= usage.completion_tokens <= one.written_tokens
    check(estimate, "assistant", usage.requests, usage.billed_tokens)


async def test_what_is_not_watched_is_estimated_by_singles() -> None:
    """A watch follows ids: a method that asks after text, an assistant without ids, or one that is asked otherwise."""
    pair = watched_pair(same=True)
    chosen: list[dict[str, Any]] = [
        pair | {"assistant": ScriptedProvider(letters("a", "b"))},
        pair | {"assistant": ScriptedProvider(letters("a", "b"), ids=True, places=1, watch=False)},
        pair | {"verifier": RandomVerifier(rate=0)},
    ]
    for settings in chosen:
        async with Fusion(**settings) as fusion:
            estimate = await fusion.estimate("Q", max_tokens=60)
        expected = 0 if "verifier" in settings else 6
        assert estimate.endpoints["assistant"].requests.expected == expected


async def test_a_prompt_that_nobody_counts_is_guessed() -> None:
    prompt = "Q: What? " * 10
    async with Fusion(draft=Unheard(TextModel(SCRIPT)), assistant=ScriptedProvider.from_texts(SCRIPT)) as fusion:
        estimate = await fusion.estimate(prompt, max_tokens=1)
        result = await fusion.generate(prompt, max_tokens=1)
    one = estimate.endpoints["draft"]
    assert (one.prompt_tokens, one.counted) == (22, False)
    check(estimate, "draft", 1, result.usage["draft"].billed_tokens)


async def test_bounds_that_can_be_reckoned_by_hand() -> None:
    draft, assistant = ScriptedProvider.from_texts(SCRIPT), ScriptedProvider.from_texts({})
    async with Fusion(draft=draft, assistant=assistant, unit="token") as fusion:
        estimate = await fusion.estimate("Q: What?", max_tokens=2)
    async with Fusion(draft=draft, assistant=assistant, unit="word", ask="all") as fusion:
        by_words = await fusion.estimate("Q: What?", max_tokens=2)
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
    # By words the draft writes 16 tokens of lookahead: a draft from each of 18 places, twice, each of which reads
    # 16 tokens and at most 2 x 18 of the answer. Nothing need be ready to be asked about.
    assert by_words.endpoints["draft"].requests.high == 2 * 18
    assert by_words.endpoints["draft"].billed_tokens.high == 2 * 18 * (16 + 2 * 18)
    assert by_words.endpoints["assistant"].requests.low == by_words.endpoints["assistant"].billed_tokens.low == 0


async def test_a_long_word_takes_several_requests_for_one_place() -> None:
    letters = [bytes([byte]) for byte in b"Q:abc "]
    # What the draft writes as one token, the assistant writes letter by letter, and otherwise.
    spelt = TableModel([*letters, b"", b" abc"], lambda ids: [0, 0, 0.9, 0.1, 0, 0, 0, 0], end_ids=(6,))
    word = TableModel([*letters, b"", b" bbb"], lambda ids: [0] * 7 + [0.3], end_ids=(6,))
    asked = ScriptedProvider(spelt)
    async with Fusion(draft=ScriptedProvider(word), assistant=asked, unit="word") as fusion:
        estimate = await fusion.estimate("Q:", max_tokens=1)
        await fusion.generate("Q:", max_tokens=1)
    assert 2 < asked.requests <= estimate.endpoints["assistant"].requests.high


async def test_one_that_is_certain_spares_those_listed_after_it() -> None:
    """Of a token; by words it does not: one listed later may change an earlier word."""
    sure = ScriptedProvider.from_texts({"Q:": [(" Lima", 1.0)]})
    slow = ScriptedProvider.from_texts({}, faults=[Fault(None)])
    writer = ScriptedProvider.from_texts({"Q:": [(" Rome", 0.3)]})
    async with Fusion(draft=writer, assistant=[sure, slow], unit="token", ask="all") as fusion:
        estimate = await fusion.estimate("Q:", max_tokens=1)
        result = await fusion.generate("Q:", max_tokens=1)
    assert result.text == " Lima"
    for name, usage in result.usage.items():
        check(estimate, name, usage.requests, usage.billed_tokens)


def letters(first: str, second: str) -> TableModel:
    """A model that writes two letters, mostly the first one, and never ends; each byte is a token."""
    tokens = [b"", *(bytes([byte]) for byte in range(256))]

    def following(ids: Sequence[int]) -> list[float]:
        rest = 0.001 + ids[-1] / 1e6 if ids else 0.001
        probs = [0.0, *([rest] * 256)]
        probs[1 + ord("Q")], probs[1 + ord(second)] = 0.1, 0.2
        said = tokens[ids[-1]] if ids else b""
        probs[1 + ord(first if said in {b"Q", b"a", b"b"} else ",")] = 1 - 0.3 - 253 * rest
        return probs

    return TableModel(tokens, following, end_ids=(0,))


@pytest.mark.parametrize("method", [AT["route"], "rerank", AT["adafuse"], "cool", CoolFusion(rerank=True)])
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine.scores], ids=str)
async def test_what_is_expected_of_scores_is_what_each_server_bills(engine: Engine, method: str | Method) -> None:
    way = engine.way | ({"old": False} if engine.name == "sglang" else {})
    cases = [engine.case(letters(*both), way) for both in ("ab", "ba")]
    if method == AT["adafuse"] and engine.name in {"tgi", "vllm"}:
        pytest.skip("it lists no alternatives")
    async with Fusion(models=[case.make() for case in cases], method=method) as fusion:
        estimate = await fusion.estimate("Q" * 24, max_tokens=24)
        result = await fusion.generate("Q" * 24, max_tokens=24)
    for name, usage in result.usage.items():
        check(estimate, name, usage.requests, usage.billed_tokens)
    if method in {AT["route"], "rerank"}:  # the others are a matter of how the models write
        billed = sum(usage.billed_tokens for usage in result.usage.values())
        assert 1 / 2 <= billed / estimate.billed_tokens.expected <= 2
        assert (estimate.billed_tokens.expected > 600) == (engine.name == "llama.cpp")


@costly(10)
@given(
    toys.models(may_hide_end=False, longest_merge=6),
    toys.models(may_hide_end=False, longest_merge=6),
    st.sampled_from((AT["route"], "rerank", AT["adafuse"], "cool", CoolFusion(rerank=True))),
    st.integers(1, 12),
)
async def test_scores_token_by_token_cost_no_more_than_was_said(
    one: Any, other: Any, method: str | Method, limit: int
) -> None:
    servers = [FakeLlamaCpp(toys.Plain(model), beginning=True) for model in (one, other)]
    providers = [LlamaCpp("http://gpu:8080", http_client=server.client()) for server in servers]
    async with Fusion(models=providers, method=method) as fusion:
        estimate = await fusion.estimate("a b", max_tokens=limit)
        result = await fusion.generate("a b", max_tokens=limit)
    for name, usage in result.usage.items():
        check(estimate, name, usage.requests, usage.billed_tokens)


def test_a_score_by_tokens() -> None:
    once, by_token = Reading(1, 10, 18), Reading(1, 10, 18, by_token=True)
    assert once.scored(100, 10) == (1, 110)
    requests, billed = by_token.scored(100, 10)
    assert requests == pytest.approx(2.5)
    assert billed == pytest.approx(1.15 * (10 * 100 + 10 * 12 / 2))
    # Of each prompt for a token the billed ones are those before it, and one that is written.
    for tokens in range(1, 9):
        least = 3 * sum(100 + before + 1 for before in range(tokens))
        assert by_token.most_scored(100, tokens)[0] == 3 * tokens + 40
        assert by_token.most_scored(100, tokens)[1] >= least + 40 * (100 + tokens + 1)


async def test_it_is_asked_as_a_fusion_is() -> None:
    fusion = Fusion(draft=ScriptedProvider.from_texts(SCRIPT), assistant=ScriptedProvider.from_texts(SCRIPT))
    with pytest.raises(FusionClosedError, match="open the fusion first"):
        await fusion.estimate("Q:")
    async with fusion:
        with pytest.raises(SettingError, match="prompt is empty"):
            await fusion.estimate("")
        with pytest.raises(SettingError, match="max_tokens must be a whole number"):
            await fusion.estimate("Q:", max_tokens=0)
