"""The comparison on live servers: what the floor is made of, that all methods write one text, and what is counted."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks import hits as hits_module
from benchmarks.hits import Hits, hits
from benchmarks.live import Compared, Probe, compare, opener, spread
from benchmarks.methods import METHODS, Answer
from benchmarks.prompts import LONG, padded, prompts
from benchmarks.report import Options
from cosd_api import Fusion, FusionResult
from cosd_api.demo.questions import sample
from cosd_api.demo.servers import Pair, Three
from cosd_providers import connect

pytestmark = pytest.mark.extended


def answer(text: str, tokens: int, first: float, seconds: float, replacements: int = 0) -> Answer:
    usage = {"requests": 2, "prompt_tokens": 30, "completion_tokens": 12}
    more = {"usage": {"draft": usage, "assistant": usage}}
    return Answer(text, tokens, replacements, first, seconds, tokens + 3, more)


@pytest.fixture
async def reference(three: Three) -> FusionResult:
    """A real answer with a replacement."""
    async with Fusion(draft=three.sums, assistant=three.words, unit="token") as fusion:
        return await fusion.generate(sample("mixed-translation", 1, 5)[0].prompt)


@pytest.mark.live
async def test_the_floor_is_the_draft_alone_and_what_each_replacement_needs(reference: FusionResult) -> None:
    tokens = len(reference.tokens)
    compared = Compared(
        references=[reference],
        # Alone the draft wrote 11 tokens: the first after 1 s, each of the others 0.1 s later.
        answers={"d: alone": {0: answer("other", 11, 1.0, 2.0)}, "a": {0: answer(reference.text, tokens, 1, 7.0)}},
        cpu={"d: alone": {0: 0.1}, "a": {0: 0.2}},
        probes=[Probe(verifications=[0.5, 0.7], restarts=[1.2])],
    )
    alone = 1.0 + 0.1 * (tokens - 1)
    assert compared.alone(0) == pytest.approx(alone)
    assert compared.floor(0) == pytest.approx(alone + 0.5 + 0.7 + (1.2 - 0.1))
    assert compared.equal("a") == 1
    table = compared.table("somewhere", {"round_trip": 1}, "a note")
    assert [row[0] for row in table.rows] == ["d: alone", "floor", "a"]
    assert table.rows[2][3] == f"{7.0 / compared.floor(0):.2f}"
    assert table.rows[2][-1] == "1 of 1"
    assert table.rows[2][-2] == pytest.approx(1e6 * 0.2 / tokens)
    assert table.notes[-1] == "a note"


@pytest.mark.live
async def test_another_text_is_not_counted_as_equal(reference: FusionResult) -> None:
    compared = Compared([reference], {"a": {0: answer(reference.text + "x", 3, 1, 2)}}, {"a": {0: 0.0}}, [Probe()])
    assert compared.equal("a") == 0


def test_the_spread_is_in_milliseconds() -> None:
    assert spread([0.010]) == "10 (10-10)"
    assert spread([0.001, 0.002, 0.003, 0.004, 0.005]) == "3 (2-4)"


@pytest.mark.live
async def test_long_prompts_fill_the_context_and_end_with_the_question(pair: Pair) -> None:
    short = await prompts([*pair.values()], 3, long=False)
    long = await prompts([*pair.values()], 3, long=True)
    assert long == await prompts([*pair.values()], 3, long=True)
    async with connect(pair.sums) as sums, connect(pair.facts) as facts:
        for question, prompt in zip(short, long, strict=True):
            assert prompt.endswith(f"\n\n{question}")
            sizes = [len(await model.tokenize(prompt)) for model in (sums, facts)]
            assert LONG - 100 < max(sizes) <= LONG
        assert await padded("Q: x\nA:", [sums], {}, random.Random(1), tokens=3) == "Q: x\nA:"


@pytest.mark.live
async def test_every_method_writes_the_same_text_on_real_servers(three: Three) -> None:
    asked = await prompts([three.sums, three.words], 3, long=False, kind="mixed-translation")
    ways = {method.name: opener(method, three.sums, three.words) for method in METHODS}
    compared = await compare(three.sums, three.words, asked, ways, few=1)
    for name in ways:
        if name.startswith("d"):
            continue
        count = 1 if name.startswith("c") else len(asked)
        assert len(compared.answers[name]) == len(compared.cpu[name]) == count
        assert compared.equal(name) == count, name
    for at, one in enumerate(compared.references):
        assert len(compared.probes[at].verifications) == one.replacements
        assert len(compared.probes[at].restarts) == (one.iterations or 1) - 1
        assert compared.floor(at) > compared.alone(at) > 0 or not one.replacements
        # One by one: a request for each place, and one more where a token is hidden.
    usage: Any = compared.answers["c: one by one"][0].more["usage"]
    assert usage["draft"]["requests"] == compared.answers["c: one by one"][0].tokens
    assert usage["assistant"]["requests"] >= compared.answers["c: one by one"][0].tokens
    rounds = compared.answers["b: K=32"][0]
    assert rounds.more["usage"]["draft"]["requests"] >= compared.references[0].iterations  # more where one is hidden
    markdown = compared.table("here", {}).markdown()
    assert "| floor" in markdown


@pytest.mark.live
async def test_hits_are_counted_by_draft_and_kind(three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hits_module, "ASKED", {"sums": ("mixed-translation", "translation"), "words": ("sum",)})
    monkeypatch.setattr(hits_module, "HEDGES", (3,))
    monkeypatch.setattr(hits_module, "QUICK", 4)
    table = await hits(three, Options(quick=True))
    assert [row[0] for row in table.rows] == ["sums: mixed-translation", "sums: translation", "words: sum"]
    assert all(row[-1] == "4 of 4" for row in table.rows)


async def test_what_a_hedge_did_is_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    result = FusionResult.model_construct(
        text="a", iterations=3, hedge_hits=1, hedged_drafts=4, drafted_tokens=20, tokens=(1, 2)
    )
    sums = Hits()
    sums.add(result, "a")
    sums.add(result, "b")
    assert (sums.restarts, sums.hits, sums.started, sums.drafted, sums.written) == (4, 2, 8, 40, 4)
    assert (sums.right, sums.answers) == (1, 2)
