"""Draws from the mean of all models: by their definition, word for word; their distribution; what surrounds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Average, Fusion, FusionResult, SettingError, fuse
from cosd_providers import ConnectError, UnsupportedError
from cosd_providers.testing import Fault, ScriptedProvider, TableModel
from naive import enumerated
from support.drawn import examples, partly
from test_likelihood import LENGTH, LETTERS, letters
from toys import toy_models as toys


def naive(
    prompt: bytes, models: Sequence[toys.ToyModel], weights: Sequence[float], *, seed: int, length: int
) -> tuple[bytes, list[int]]:
    """Draw one answer, and who wrote each of its tokens.

    Each place draws a model. Where it is another one than before, it encodes the text, and draws with the random
    numbers of that place.
    """
    text, sources, ids, chance = b"", list[int](), list[int](), enumerated.draws(0, b"")
    vocabulary = models[0].vocabulary
    while len(sources) < length:
        place = len(sources)
        point = enumerated.number(seed, prompt, "model", place) * sum(weights)
        model = next(at for at, below in enumerate(accumulate(weights)) if point < below)
        if sources[-1:] != [model]:
            ids, chance = list(vocabulary.encode(prompt + text)), enumerated.draws(seed, prompt, "draw", place)
        ids.append(enumerated.drawn(chance, models[model].next(ids)))
        text += vocabulary.tokens[ids[-1]]
        sources.append(model)
        if ids[-1] == vocabulary.end:
            break
    return text, sources


@examples(30)
@given(
    enumerated.sets(),
    st.text(st.sampled_from("ab1 "), min_size=1, max_size=5),
    st.lists(st.sampled_from((0, 1, 2, 5)), min_size=3, max_size=3),
    st.integers(0, 99),
    st.integers(1, 20),
    st.sampled_from((0.0, 0.001)),
)
async def test_the_answer_is_the_naive_one(
    models: tuple[toys.ToyModel, ...], prompt: str, weights: list[int], seed: int, length: int, delay: float
) -> None:
    weights = weights[: len(models)]
    if not sum(weights):
        return
    providers = [ScriptedProvider(toys.Plain(one), probs=False, request_delay=delay) for one in models]
    method = Average(weights=tuple(map(float, weights)), temperature=1)
    result = await fuse(prompt, models=providers, method=method, unit="token", seed=seed, max_tokens=length)
    text, sources = naive(prompt.encode(), models, weights, seed=seed, length=length)
    names = ["draft", *(["assistant"] if len(models) == 2 else ["assistant 1", "assistant 2"])]
    assert b"".join(token.data for token in result.tokens) == text
    assert [names.index(token.source) for token in result.tokens] == sources
    runs = sum(one != other for one, other in zip(sources, [None, *sources], strict=False))
    assert result.draft_requests == runs == len(result.segments)
    assert result.trace.replay() == result.text
    assert FusionResult.model_validate_json(result.model_dump_json()) == result


@examples(20)
@given(
    toys.model_sets(same_tokenizer=True, max_assistants=2),
    st.text(st.sampled_from(toys.CHARACTERS), min_size=1, max_size=6),
    st.integers(0, 99),
    toys.stops(),
)
async def test_any_models_can_be_drawn_from(models: Any, prompt: str, seed: int, stop: Sequence[bytes]) -> None:
    """Characters of several tokens, texts of several encodings, stop strings."""
    toy, others = models
    providers = [ScriptedProvider(toys.Plain(one)) for one in (toy, *others)]
    options: dict[str, Any] = {"method": "average", "temperature": 1, "unit": "token", "seed": seed, "max_tokens": 12}
    result = await fuse(prompt, models=providers, stop=[one.decode() for one in stop], **options)
    whole = await fuse(prompt, models=providers, **options)
    data = b"".join(token.data for token in result.tokens)
    assert b"".join(token.data for token in whole.tokens).startswith(data)
    assert not any(one in data for one in stop)
    assert result.trace.replay() == result.text


@pytest.mark.parametrize("case", partly([((2, 5), (1, 1), 500), ((2, 5, 9), (1, 0.5, 3), 800)]))
async def test_answers_are_distributed_as_those_of_the_mean(case: tuple[Sequence[int], Any, int]) -> None:
    seeds, weights, many = case
    models = [letters(seed) for seed in seeds]

    def mean(ids: Sequence[int]) -> list[float]:
        every = [model.next(ids) for model in models]
        return [
            sum(w * p for w, p in zip(weights, probs, strict=True)) / sum(weights) for probs in zip(*every, strict=True)
        ]

    wanted = enumerated.answers(mean, models[0].encode(b"ab"), end=0, length=LENGTH)
    counts: Counter[enumerated.Text] = Counter()
    providers = [ScriptedProvider(model) for model in models]
    async with Fusion(models=providers, method=Average(weights=weights, temperature=1), unit="token") as fusion:
        for seed in range(many):
            result = await fusion.generate("ab", max_tokens=LENGTH, seed=seed)
            counts[tuple(LETTERS.index(token.data) for token in result.tokens)] += 1
    assert enumerated.follows(counts, wanted)


# ------------------------------------------------------------------------------------------------------ around it


def says(data: bytes, **options: Any) -> ScriptedProvider:
    """Says one letter for ever."""
    probs = [float(one == data) for one in LETTERS]
    return ScriptedProvider(TableModel(LETTERS, enumerated.fixed(probs), end_ids=(0,)), **options)


async def answer(**options: Any) -> FusionResult:
    given: dict[str, Any] = {"models": [says(b"a"), says(b"b")], "method": "average", "temperature": 1, "unit": "token"}
    given |= {"seed": 1, "max_tokens": 12, **options}
    return await fuse("ab", **given)


async def test_the_record_says_who_wrote_what() -> None:
    result = await answer()
    assert {token.source for token in result.tokens} == {"draft", "assistant"}
    assert all((token.text == "a") == (token.source == "draft") for token in result.tokens)
    assert result.segments[0].reason in ("draft was drawn, of weight 0.5", "assistant was drawn, of weight 0.5")
    assert (result.acceptance_rate, result.settings.temperature, result.settings.seed) == (None, 1, 1)
    assert (result.settings.method, result.settings.method_options) == ("average", {"weights": None, "temperature": 1})
    assert (await answer(method=Average(temperature=1))).text == result.text
    assert (await answer(seed=2)).text != result.text
    assert (await answer(method=Average(weights=(0, 1), temperature=1))).text == "b" * 12


async def test_streaming_gives_the_same_tokens() -> None:
    fusion = Fusion(models=[says(b"a"), says(b"b")], method=Average(temperature=1), unit="token")
    async with fusion, fusion.stream("ab", seed=5, max_tokens=8) as stream:
        texts = [token.text async for token in stream]
    assert texts == [token.text for token in stream.result.tokens]


async def test_an_assistant_that_fails() -> None:
    def models() -> list[ScriptedProvider]:
        return [says(b"a"), says(b"b", faults=[Fault(ConnectError("gone"), request=2)]), says(b"c")]

    with pytest.raises(ConnectError, match="gone"):
        await answer(models=models())
    result = await answer(models=models(), on_assistant_error="draft", method=Average(weights=(1, 2, 1), temperature=1))
    assert len(result.tokens) == 12
    assert {"a", "c"} == {*result.text[-3:]} | {"a", "c"}
    assert result.text.rstrip("ac") != result.text  # the last ones are of those that are left
    assert "was not asked any more" in result.warnings[-1]
    assert result.trace.replay() == result.text
    broken = [says(b"a", faults=[Fault(ConnectError("gone"))]), says(b"b")]
    with pytest.raises(ConnectError, match="gone"):
        await answer(models=broken, on_assistant_error="draft")


@pytest.mark.parametrize("limit", [{"max_requests": 2}, {"max_billed_tokens": 9}])
async def test_at_a_limit_the_answer_ends(limit: dict[str, int]) -> None:
    whole = await answer()
    part = await answer(on_budget="end", **limit)
    assert (part.finish_reason, part.stop_reason) == ("budget", next(iter(limit)))
    assert whole.text.startswith(part.text)


async def test_a_full_context_ends_the_answer() -> None:
    result = await answer(models=[says(b"a", context=6), says(b"b", context=6)])
    assert (result.stop_reason, len(result.tokens)) == ("context", 4)


def rendered(_: object) -> str:
    return "ab"


async def test_messages_are_rendered_for_each_model() -> None:
    models = [says(b"a", template=rendered), says(b"b", template=rendered)]
    options: dict[str, Any] = {"method": "average", "temperature": 1, "unit": "token", "seed": 1, "max_tokens": 12}
    result = await fuse([{"role": "user", "content": "Hello"}], models=models, **options)
    assert result.text == (await answer()).text


async def test_what_it_cannot_do_is_refused_in_words() -> None:
    with pytest.raises(
        UnsupportedError, match=r"the assistant does not draw tokens .* which 'average' with a temperature needs"
    ):
        await answer(models=[says(b"a"), says(b"b", sampling=False)])
    with pytest.raises(UnsupportedError, match="not known to have one tokenizer"):
        await answer(models=[says(b"a"), ScriptedProvider.from_texts({})], unit=None)
    with pytest.raises(SettingError, match="ahead and listed have no effect if tokens are drawn: leave them out, or"):
        Average(temperature=1, ahead=2)
    with pytest.raises(SettingError, match=r"temperature must be 0 or 1, not 0\.5"):
        Average(temperature=0.5)
    with pytest.raises(SettingError, match="seed is not accepted: the method 'average' draws nothing"):
        await answer(temperature=0)
    with pytest.raises(SettingError, match="there are 3 weights for 2 models"):
        await answer(method=Average(weights=(1, 2, 3), temperature=1))


async def test_an_estimate_holds() -> None:
    async with Fusion(models=[says(b"a"), says(b"b")], method=Average(temperature=1), unit="token") as fusion:
        for seed in range(4):
            estimate = await fusion.estimate("ab", max_tokens=8)
            result = await fusion.generate("ab", max_tokens=8, seed=seed)
            for name, usage in result.usage.items():
                one = estimate.endpoints[name]
                assert one.requests.low <= usage.requests <= one.requests.high
                assert one.billed_tokens.low <= usage.billed_tokens <= one.billed_tokens.high
