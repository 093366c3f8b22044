"""The cost of every method: all of them are asked, and what is counted is what the results say."""

from __future__ import annotations

import pytest

from benchmarks.each_method import COLUMNS, Contender, Spent, contenders, measure, one_tokenizer
from benchmarks.page import tables
from benchmarks.report import Options
from cosd_api import CoSD, fuse
from cosd_api.apps.demo.servers import Pair
from cosd_api.methods.base import METHODS

PROMPT = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"


def test_every_method_is_measured() -> None:
    found = contenders(("one", "other"))
    assert [one.name for one in found if one.name in METHODS] == [*METHODS]
    for one in found:
        if one.method:
            assert (one.models == ("one", "other")) == (one.method.one_tokenizer or one.name == "speculative")


def test_a_row_has_the_medians() -> None:
    answers = [
        Spent(10, 3, 100, 50, 20, 0.1, 0.01),
        Spent(20, 1, 10, 5, 2, 0.3, 0.03),
        Spent(20, 2, 50, 25, 10, 0.2, 0.02),
    ]
    row = Contender("cool", ("sums", "facts"), answers=answers).row()
    assert dict(zip(COLUMNS, row, strict=True)) == {
        "method": "cool",
        "models": "sums, facts",
        "tokens": 20,
        "requests": 2,
        "billed tokens": 60,
        "of them cached": 25,
        "ms an answer": 200,
        "ms a token": 10,
        "ms to first token": 20,
    }


def test_every_method_has_its_row() -> None:
    [table] = tables("methods")
    assert list(table.columns) == COLUMNS
    named = [one.name for one in contenders(("sums", "words"))]
    assert [row[0] for row in table.rows] == named, "run `make bench ARGS=methods`, and `make docs`"


@pytest.mark.live
@pytest.mark.extended
async def test_it_measures(pair: Pair) -> None:
    models = ("sums", "facts")
    found = [Contender("sums alone", models[:1]), Contender("cosd", models, CoSD())]
    await measure(found, pair, [PROMPT], Options(quick=True))
    single, fused = (one.answers[0] for one in found)
    result = await fuse(PROMPT, draft=pair.sums, assistant=pair.facts)
    assert (single.requests, single.written) == (1, single.tokens)
    assert fused.tokens == len(result.tokens)
    assert fused.requests >= 2
    assert 0 < fused.first <= fused.seconds
    assert fused.read + fused.written > single.read + single.written
    assert await one_tokenizer(pair) == ("sums", "sums")
