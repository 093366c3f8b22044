"""Draws from the gated mixture: by its definition, word for word; as it is distributed; and what surrounds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import (
    AgreementVerifier,
    CoSD,
    Fusion,
    FusionResult,
    RandomVerifier,
    RuleVerifier,
    SettingError,
    SurpriseVerifier,
    fuse,
)
from cosd_api.extend import Verifier
from cosd_providers import ConnectError, UnsupportedError
from cosd_providers.testing import Fault, ScriptedProvider, TableModel
from naive import enumerated
from naive.gated import gated
from support.drawn import examples, partly
from test_likelihood import LENGTH, LETTERS, VERIFIERS, letters, placed
from toys import toy_models as toys


@dataclass(frozen=True)
class Naive:
    """The definition: one place after the other, everything asked again.

    Attributes:
        text: the answer.
        sources: 0 for the draft, and the others from 1.
    """

    text: bytes
    sources: list[int]


def naive(
    prompt: bytes, models: Sequence[toys.ToyModel], verifier: Verifier, *, seed: int, ahead: int, length: int
) -> Naive:
    """Draw one answer.

    The draft draws up to `ahead` tokens in one go, with the random numbers of the place where it begins; an assistant
    draws one, with those of its place. The draft goes on from its own tokens until an assistant has drawn; assistants
    encode the text.
    """
    draft, *others = models
    vocabulary = draft.vocabulary
    text, sources, own = b"", list[int](), list(vocabulary.encode(prompt))
    while True:
        chance, tokens, ids = enumerated.draws(seed, prompt, "draft", len(text)), list[int](), list(own)
        for _ in range(min(ahead, length - len(sources))):
            tokens.append(enumerated.drawn(chance, draft.next(ids)))
            ids.append(tokens[-1])
            if tokens[-1] == vocabulary.end:
                break
        for token in tokens:
            here = placed(verifier, prompt, len(text))
            encoded = list(vocabulary.encode(prompt + text))
            probs = draft.next(own)
            mine = probs if probs.count(max(probs)) == 1 else draft.next(encoded)
            nexts = [enumerated.fixed(one.next(encoded)) for one in others]
            model, _ = gated(enumerated.fixed(mine), nexts, here.replaces, ())
            source = 1 + nexts.index(model) if model in nexts else 0
            chosen = token
            if source:
                chosen = enumerated.drawn(enumerated.draws(seed, prompt, "draw", len(text), source), model(()))
            text += vocabulary.tokens[chosen]
            sources.append(source)
            own = [*own, token] if not source else list(vocabulary.encode(prompt + text))
            if chosen == vocabulary.end or len(sources) == length:
                return Naive(text, sources)
            if source:
                break


DELAYS = st.lists(st.sampled_from((0.0, 0.001)), min_size=2, max_size=2)


@examples(30)
@given(
    enumerated.sets(),
    st.text(st.sampled_from("ab1 "), min_size=1, max_size=5),
    st.sampled_from(VERIFIERS),
    st.integers(0, 99),
    st.sampled_from((None, 1, 3)),
    st.integers(1, 20),
    DELAYS,
    st.sampled_from(("contestable", "all")),
)
async def test_the_answer_is_the_naive_one(
    models: tuple[toys.ToyModel, ...],
    prompt: str,
    verifier: Verifier,
    seed: int,
    ahead: int | None,
    length: int,
    delays: list[float],
    ask: Any,
) -> None:
    draft, *others = (
        ScriptedProvider(toys.Plain(one), request_delay=delays[0], token_delay=delays[1]) for one in models
    )
    options: dict[str, Any] = {"verifier": verifier, "unit": "token", "draft_length": ahead, "ask": ask}
    result = await fuse(prompt, draft=draft, assistant=others, temperature=1, seed=seed, max_tokens=length, **options)
    wanted = naive(prompt.encode(), models, verifier, seed=seed, ahead=ahead or 16, length=length)
    names = {"draft": 0, "assistant": 1, "assistant 1": 1, "assistant 2": 2}
    assert b"".join(token.data for token in result.tokens) == wanted.text
    assert [names[token.source] for token in result.tokens] == wanted.sources
    assert result.replacements == result.replaced_tokens == sum(source > 0 for source in wanted.sources)
    assert result.kept_tokens == wanted.sources.count(0)
    assert draft.open_requests == 0
    assert result.settings.seed == seed
    assert result.trace.replay(None if result.settings.verifier in VERIFIERS else verifier) == result.text
    assert FusionResult.model_validate_json(result.model_dump_json()) == result


@examples(30)
@given(
    toys.model_sets(same_tokenizer=True, may_hide_end=False, max_assistants=2),
    st.text(st.sampled_from(toys.CHARACTERS), min_size=1, max_size=6),
    st.sampled_from(VERIFIERS[:6]),
    st.integers(0, 99),
    toys.stops(),
)
async def test_any_models_can_be_drawn_from(
    models: Any, prompt: str, verifier: Verifier, seed: int, stop: Sequence[bytes]
) -> None:
    """Characters of several tokens, texts of several encodings, stop strings: the record explains the answer."""
    draft, others = models
    options: dict[str, Any] = {"verifier": verifier, "unit": "token", "stop": [one.decode() for one in stop]}
    options |= {"temperature": 1, "seed": seed, "max_tokens": 12}
    providers = [ScriptedProvider(toys.Plain(one)) for one in others]
    result = await fuse(prompt, draft=ScriptedProvider(toys.Plain(draft)), assistant=providers, **options)
    assert result.trace.replay() == result.text
    assert len(result.tokens) <= 12
    assert not any(one in b"".join(token.data for token in result.tokens) for one in stop)
    again = await fuse(prompt, draft=ScriptedProvider(toys.Plain(draft)), assistant=providers, **options)
    assert [token.text for token in again.tokens] == [token.text for token in result.tokens]


@pytest.mark.parametrize(
    "case",
    partly(
        [
            ((2, 5), RuleVerifier(alpha=1, beta=0.1), 500),
            ((11, 4, 7), RuleVerifier(alpha=1, beta=0.1), 600),
            ((3, 8), AgreementVerifier(alpha=0.6), 600),
            ((3, 8), RandomVerifier(rate=0.5, seed=1), 600),
        ]
    ),
)
async def test_answers_are_distributed_as_enumerated(case: tuple[Sequence[int], Verifier, int]) -> None:
    seeds, verifier, many = case
    models = [letters(seed) for seed in seeds]
    prompt = models[0].encode(b"ab")

    def following(ids: Sequence[int]) -> Sequence[float]:
        here = placed(verifier, b"ab", len(ids) - 2)
        model, _ = gated(models[0].next, [one.next for one in models[1:]], here.replaces, ids)
        return model(ids)

    wanted = enumerated.answers(following, prompt, end=0, length=LENGTH)
    counts: Counter[enumerated.Text] = Counter()
    draft, *others = [ScriptedProvider(model) for model in models]
    fusion = Fusion(draft=draft, assistant=others, verifier=verifier, unit="token", temperature=1)
    async with fusion:
        for seed in range(many):
            result = await fusion.generate("ab", max_tokens=LENGTH, seed=seed)
            counts[tuple(LETTERS.index(token.data) for token in result.tokens)] += 1
    assert enumerated.follows(counts, wanted)


# ------------------------------------------------------------------------------------------------------ around it


def draft(**options: Any) -> ScriptedProvider:
    """Sure of its first token, and unsure of all others."""

    def following(ids: Sequence[int]) -> list[float]:
        return [0.0, 0.75, 0.125, 0.125] if len(ids) == 2 else [0.125, 0.375, 0.25, 0.25]

    return ScriptedProvider(TableModel(LETTERS, following, end_ids=(0,)), **options)


def assistant(**options: Any) -> ScriptedProvider:
    """Has another favourite."""
    return ScriptedProvider(TableModel(LETTERS, enumerated.fixed([0.125, 0.125, 0.5, 0.25]), end_ids=(0,)), **options)


async def answer(**options: Any) -> FusionResult:
    """An answer in which the assistant draws all tokens but the first."""
    given: dict[str, Any] = {"draft": draft(), "assistant": assistant(), "unit": "token", "max_tokens": 8}
    given |= {"verifier": RuleVerifier.paper()}
    given |= {"temperature": 1, "seed": 2, **options}
    return await fuse("ab", **given)


async def test_a_record_says_who_drew_each_token_and_why() -> None:
    result = await answer()
    token = result.tokens[1]
    (decision,) = token.decisions
    assert decision.fired and token.reason == decision.reason
    assert token.replaced == decision.draft_text  # what the draft finds most probable
    assert token.draft_prob == decision.draft_prob
    assert (result.settings.temperature, result.settings.seed) == (1, 2)
    assert result.acceptance_rate is not None


async def test_a_seed_repeats_an_answer_and_another_prompt_has_draws_of_its_own() -> None:
    model = letters(2)
    model.next = enumerated.fixed([0.1, 0.3, 0.3, 0.3])
    both: dict[str, Any] = {"draft": ScriptedProvider(model), "assistant": ScriptedProvider(model)}
    async with Fusion(**both, unit="token", method=CoSD(unit="token", temperature=1)) as fusion:
        texts = [one.text async for one in fusion.map(["a", "b", "a"], seed=3, max_tokens=20)]
        free = [await fusion.generate("a", max_tokens=20) for _ in range(2)]
    assert texts[0] == texts[2] != texts[1]
    assert free[0].settings.seed != free[1].settings.seed
    repeated = await fuse("a", **both, unit="token", temperature=1, max_tokens=20, seed=free[0].settings.seed)
    assert repeated.text == free[0].text


async def test_streaming_gives_the_same_tokens() -> None:
    fusion = Fusion(draft=draft(), assistant=assistant(), temperature=1, unit="token")
    async with fusion, fusion.stream("ab", seed=5, max_tokens=8) as stream:
        texts = [token.text async for token in stream]
    assert texts == [token.text for token in stream.result.tokens]


async def test_a_gate_that_is_always_shut_needs_no_assistant() -> None:
    asked = assistant()
    result = await answer(assistant=asked, verifier=RuleVerifier(alpha=0))
    assert {token.source for token in result.tokens} == {"draft"}
    assert asked.calls == []


async def test_an_assistant_that_fails() -> None:
    for number in (1, 2):  # asked, and drawing
        fault = Fault(ConnectError("gone"), request=number)
        with pytest.raises(ConnectError, match="gone"):
            await answer(assistant=assistant(faults=[fault]))
        alone = await answer(assistant=assistant(faults=[fault]), on_assistant_error="draft")
        assert alone.tokens[0].verified
        assert alone.finish_reason in ("stop", "length")
        assert {token.source for token in alone.tokens} == {"draft"}
        assert not all(token.verified for token in alone.tokens)
        assert "was not asked any more" in alone.warnings[-1]
        assert alone.trace.replay() == alone.text


@pytest.mark.parametrize("limit", [{"max_requests": 2}, {"max_billed_tokens": 9}])
async def test_at_a_limit_the_answer_ends(limit: dict[str, int]) -> None:
    whole = await answer()
    part = await answer(on_budget="end", **limit)
    assert (part.finish_reason, part.stop_reason) == ("budget", next(iter(limit)))
    assert whole.text.startswith(part.text)


async def test_a_full_context_ends_the_answer() -> None:
    result = await answer(draft=draft(context=4), verifier=RuleVerifier(alpha=0), max_tokens=20)
    assert (result.stop_reason, len(result.tokens)) == ("context", 2)


def rendered(_: object) -> str:
    return "ab"


async def test_messages_are_rendered_for_each_model() -> None:
    models = {"draft": draft(template=rendered), "assistant": assistant(template=rendered)}
    given: dict[str, Any] = {"unit": "token", "temperature": 1, "seed": 2, "max_tokens": 8, **models}
    result = await fuse([{"role": "user", "content": "Hello"}], **given)
    assert result.text == (await answer()).text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"assistant": assistant(sampling=False)},
            "the assistant does not draw tokens from the model's own distribution",
        ),
        ({"draft": draft(sampling=False)}, "the draft does not draw tokens"),
        ({"draft": draft(top_k=0)}, "the draft does not list its most probable tokens"),
        ({"assistant": assistant(end_prob=False)}, "the assistant does not report all probabilities"),
        (
            {"unit": None, "assistant": ScriptedProvider.from_texts({})},
            "not known to have one tokenizer, and a mixture",
        ),
    ],
)
async def test_models_that_cannot_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        await answer(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"unit": "word"}, 'temperature=1 is for unit="token": words have no next-token distribution'),
        ({"unit": "literal"}, 'temperature=1 is for unit="token": tokens of two vocabularies have no next-token dist'),
        ({"verifier": SurpriseVerifier()}, "temperature=1 is not defined for a SurpriseVerifier"),
        ({"max_ahead": 1}, "max_ahead is for a draft that is verified while it streams"),
        ({"temperature": 0.7}, "temperature must be 0 or 1, not 0.7"),
        ({"temperature": True}, "temperature must be 0 or 1, not True"),
        ({"temperature": 0}, "seed is not accepted: the method 'cosd' draws nothing"),
    ],
)
async def test_settings_are_refused_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        await answer(**options)


async def test_an_estimate_holds() -> None:
    async with Fusion(draft=draft(), assistant=assistant(), unit="token", temperature=1) as fusion:
        for seed in range(4):
            estimate = await fusion.estimate("ab", max_tokens=8)
            if not seed:
                assert "8 tokens, drafted 16 at a time; 30% of them asked about" in estimate.assumptions[0]
                assert estimate.assumptions[0].endswith("; the draft is asked about the same places")
            result = await fusion.generate("ab", max_tokens=8, seed=seed)
            for name, usage in result.usage.items():
                one = estimate.endpoints[name]
                assert one.requests.low <= usage.requests <= one.requests.high
                assert one.billed_tokens.low <= usage.billed_tokens <= one.billed_tokens.high
