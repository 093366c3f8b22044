"""Two real llama.cpp servers: the fused text is what a naive script gets that asks them one prefix at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
import pytest

from cosd_api import Fusion, FusionResult, RuleVerifier
from cosd_api.alignment import Unit
from cosd_api.apps.demo.questions import KINDS, sample
from cosd_api.apps.demo.servers import Pair, Three
from cosd_providers import connect
from naive import over_http as naive
from naive import reference, reference_ids, reference_paths
from naive.reference import Fires
from naive.reference_ids import Next
from support.drawn import partly
from support.near_ties import CLOSE, tied
from support.one_tokenizer import FOR_THREE, MAY_TIE, PAIRS, THREES
from support.one_tokenizer import PROMPTS as FOR_TWO

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

MAX_TOKENS = 48
PROMPTS = [question.prompt for question in sample("mixed", 60, seed=11)] + [
    question.prompt for kind in KINDS for question in sample(kind, 40, seed=12)[: 40 // len(KINDS) + 1]
]
PROMPTS = PROMPTS[:100]


@pytest.fixture(scope="module")
def models(pair: Pair) -> Iterator[dict[str, naive.HttpModel]]:
    """The two servers as the naive reference sees them; what it asked once it remembers."""
    with httpx.Client(timeout=60) as client:
        yield {name: naive.HttpModel(url, client) for name, url in pair.items()}


@pytest.mark.parametrize("every", partly([5, 1]))
@pytest.mark.parametrize("bounds", partly([(0.5, 0.5), (0.75, 0.75), (1, 1)]))
@pytest.mark.parametrize("direction", [("sums", "facts"), ("facts", "sums")])
async def test_a_hundred_prompts(
    pair: Pair, models: dict[str, naive.HttpModel], direction: tuple[str, str], bounds: tuple[float, float], every: int
) -> None:
    """An ordinary run takes every fifth."""
    draft, assistant = direction
    verifier = RuleVerifier(alpha=bounds[0], beta=bounds[1])
    asked = PROMPTS[::every] if bounds != (1, 1) else PROMPTS[:: 3 * every]  # there nearly every token is a question
    async with Fusion(draft=pair[draft], assistant=pair[assistant], verifier=verifier) as fusion:
        results = [result async for result in fusion.map(asked, max_tokens=MAX_TOKENS)]
    assert len(PROMPTS) == 100
    different = []
    for prompt, result in zip(asked, results, strict=True):
        wanted = by_paths(prompt, [models[draft], models[assistant]], reference.rule(*bounds), MAX_TOKENS)
        if (result.text.encode(), result.finish_reason) != (wanted.text, wanted.finish_reason):
            different.append((prompt, result.text, wanted.text))
    assert different == []


@pytest.mark.parametrize("count", partly([3, 20]))
@pytest.mark.parametrize("direction", [*partly(PAIRS), *partly(THREES)], ids="-".join)
async def test_token_by_token_and_with_three_models(
    three: Three, naively: Mapping[str, naive.HttpModel], direction: tuple[str, ...], count: int
) -> None:
    """Two models with one tokenizer are fused ids to ids, without being told; three of two tokenizers in words."""
    unit: Unit = "token" if len(direction) == 2 else "word"
    prompts = FOR_TWO if unit == "token" else FOR_THREE
    draft, *assistants = direction
    asked, rule = [three[name] for name in assistants], RuleVerifier.paper()
    async with Fusion(draft=three[draft], assistant=asked, verifier=rule) as fusion:
        results = [result async for result in fusion.map(prompts[:count], max_tokens=30)]
    assert {result.settings.unit for result in results} == {unit}
    assert sum(result.replacements or 0 for result in results) > 0
    models: Any = [naively[name] for name in direction]
    excused = 0
    if unit == "token":
        assert {result.settings.contexts for result in results} == {"ids"}
        for prompt, result in zip(prompts, results, strict=False):
            excused += not by_ids(prompt, models, result)
        assert excused <= MAY_TIE
        return
    for prompt, result in zip(prompts, results, strict=False):
        wanted = by_paths(prompt, models, reference.rule(), 30)
        texts = result.text.encode(), wanted.text
        if tied(prompt.encode(), models, texts, bounds=(0.5, 0.5)):
            excused += 1
            continue
        assert (result.text.encode(), result.finish_reason) == (wanted.text, wanted.finish_reason), prompt
        assert result.trace.replay() == result.text
    assert excused <= MAY_TIE


def by_paths(prompt: str, models: Sequence[naive.HttpModel], fires: Fires, max_tokens: int) -> reference_paths.Fused:
    """The naive answer of models with different ids."""
    draft, *assistants = (naive.PathModel(model, prompt) for model in models)
    decides: reference_paths.Fires = lambda _, p, q: fires(p, q)  # noqa: E731 - its type is written down
    return reference_paths.Reference(b"", draft, assistants, decides, max_tokens=max_tokens, tie=0.02).fuse()


def by_ids(prompt: str, models: Sequence[naive.HttpModel], result: FusionResult) -> bool:
    """Compare an answer with the reference on ids; False where it parts from it at a decision by the last digits."""
    asked: list[Next] = [after(model, prompt) for model in models]
    rule = reference.rule()
    wanted = reference_ids.fuse(
        asked[0],
        asked[1:],
        lambda _, p, q: rule(p, q),
        spell=lambda n: next(model.vocabulary.tokens[n] for model in models if n in model.vocabulary.tokens),
        ends={model.vocabulary.end for model in models},
        max_tokens=30,
        tie=result.settings.tie,
    )
    ids, written = [token.id for token in result.tokens], [out.id for out in wanted.written]
    parted = next((at for at, pair in enumerate(zip(ids, written, strict=False)) if len({*pair}) > 1), None)
    if parted is not None:
        lists = [one(tuple(written[:parted])) for one in asked]
        (p, *others), margins = [probs for _, probs in map(first, lists)], [lead(one) for one in lists]
        if min(*margins, abs(p - 0.5), *(abs(q - 0.5 * p) for q in others)) < CLOSE:
            return False
    assert ids == written, prompt
    assert result.replacements == sum(out.source != reference_ids.DRAFT for out in wanted.written), prompt
    assert result.trace.replay() == result.text
    return True


def after(model: naive.HttpModel, prompt: str) -> Next:
    """The three most probable ids of a server after its prompt and some ids."""
    start = model.vocabulary.encode(prompt.encode())

    def asked(path: tuple[int, ...]) -> Sequence[tuple[int, float]]:
        probs = model.next([*start, *path])
        return [(n, probs[n]) for n in sorted(range(len(probs)), key=lambda n: -probs[n])[:3]]

    return asked


def first(listed: Sequence[tuple[int, float]]) -> tuple[int, float]:
    return listed[0]


def lead(listed: Sequence[tuple[int, float]]) -> float:
    """How much more probable the first is than the second."""
    return listed[0][1] - listed[1][1]


@pytest.mark.parametrize("engine", ["llama.cpp", "openai"])
@pytest.mark.parametrize("direction", partly([("sums", "facts"), ("facts", "sums")]))
async def test_equation_3_as_printed(
    pair: Pair, models: dict[str, naive.HttpModel], direction: tuple[str, str], engine: str
) -> None:
    """`unit="literal"`: each draft token against the assistant's own after the text cut there, whatever the server."""
    draft, assistant = (connect(pair[name], engine=engine) for name in direction)
    rule, asked = RuleVerifier.paper(), PROMPTS[::5]
    several: Any = [models[name] for name in direction]
    async with Fusion(draft=draft, assistant=assistant, verifier=rule, unit="literal") as fusion:
        results = [result async for result in fusion.map(asked, max_tokens=MAX_TOKENS)]
    excused = others = 0
    for prompt, result in zip(asked, results, strict=True):
        assert (result.settings.unit, result.settings.contexts) == ("literal", "text")
        assert result.trace.replay() == result.text
        wanted = reference.fuse(
            prompt.encode(), several[0], several[1:], reference.rule(), unit="token", max_tokens=MAX_TOKENS
        )
        if tied(prompt.encode(), several, (result.text.encode(), wanted.text), bounds=(0.5, 0.5)):
            excused += 1
            continue
        assert (result.text.encode(), result.finish_reason) == (wanted.text, wanted.finish_reason), prompt
        assert result.replacements == wanted.replacements
        others += wanted.text != by_paths(prompt, several, reference.rule(), MAX_TOKENS).text
    assert excused <= MAY_TIE
    assert others  # it is not the comparison by words


@pytest.mark.extended
async def test_settings_of_cost_leave_the_text(pair: Pair) -> None:
    texts = []
    rounds = ({"draft_length": 1}, {"draft_length": 8}, {"max_ahead": 4})
    costs: list[dict[str, Any]] = [{}, *rounds]
    for cost in costs:
        async with Fusion(draft=pair.sums, assistant=pair.facts, **cost) as fusion:
            texts.append([result.text async for result in fusion.map(PROMPTS[:12], max_tokens=MAX_TOKENS)])
    assert all(one == texts[0] for one in texts)


async def test_a_rule_that_never_fires_asks_nothing_and_gives_the_drafts_own_answer(pair: Pair) -> None:
    async with Fusion(draft=pair.sums, assistant=pair.facts, verifier=RuleVerifier(alpha=0)) as fusion:
        result = await fusion.generate(PROMPTS[0], max_tokens=MAX_TOKENS)
    body = {"prompt": PROMPTS[0], "temperature": 0, "n_predict": MAX_TOKENS}
    async with httpx.AsyncClient() as client:
        alone = (await client.post(f"{pair.sums}/completion", json=body)).json()
    assert result.text == alone["content"]
    assert result.assistant_requests == 0
