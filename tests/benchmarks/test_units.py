"""The two rules that the benchmark of units compares: what it swaps is where units and replacements end."""

from __future__ import annotations

import pytest

from benchmarks.report import Options
from benchmarks.units import GATES, RULES, WORDS, interval, right_answers, ruled
from cosd_api import paths
from cosd_api.paths import Encoder, restart
from cosd_providers.contract import Piece, Token
from ngrams import pieces
from test_paths import KINDS, done, drafted, encoder, ends_of, units

SAME = [("gpt2", "llama3"), ("llama3", "gpt2"), ("digits", "o200k")]


@pytest.mark.parametrize(("draft", "assistant"), SAME)
@pytest.mark.parametrize("kind", ["prose", "digits"])
def test_units_end_at_every_common_boundary(draft: str, assistant: str, kind: str) -> None:
    found: dict[str, list[int]] = {}
    text = KINDS[kind][0].encode()
    one, other = pieces(draft), pieces(assistant)
    path = drafted(one, one.encode(text))
    common = sorted({*ends_of(one, one.encode(text))} & {*ends_of(other, other.encode(text))})
    for rule in RULES:
        with ruled(rule):
            found[rule] = [unit.end for unit in units(path, encoder(other))][:-1]  # the last is the end of sequence
    assert all(found[rule] == common for rule in RULES if rule != WORDS)
    assert {*found[WORDS]} < {*common}


def test_a_replacement_ends_its_word_but_by_the_last_rule() -> None:
    gpt2 = pieces("gpt2")
    tokens = [Token(data, 0.9) for data in (b" to", b"ken", b"s", b" of", b" each", b" model")]
    ends: dict[str, bytes] = {}
    for rule in RULES:
        with ruled(rule):
            path = drafted(gpt2, gpt2.encode(b"A"))
            found = done(restart(path, 1, 1, tokens, letters()))
            assert found is not None
            ends[rule] = found.text
    words, common, both = RULES
    assert ends == {words: b"A tokens", common: b"A tokens", both: b"A to"}


def letters() -> Encoder:
    """An encoding of one token for each character: every boundary is common."""

    async def encode(text: str) -> list[Piece]:
        return [Piece(ord(one), one.encode()) for one in text]

    return Encoder(encode)


def test_rules_end_with_their_block() -> None:
    before = paths.ends_unit, paths.completes
    with ruled([*RULES][-1]):
        assert paths.ends_unit is not before[0] and paths.completes is not before[1]
    assert (paths.ends_unit, paths.completes) == before


def test_an_interval_is_about_differences() -> None:
    assert interval([0.25] * 10) == (0.25, 0.25, 0.25)
    mean, low, high = interval([-1.0, 1.0] * 50)
    assert mean == 0 and -0.3 < low < 0 < high < 0.3


@pytest.mark.extended
@pytest.mark.live
async def test_each_rule_answers_on_real_servers() -> None:
    table = await right_answers(Options(quick=True))
    assert [row[2] for row in table.rows] == [rule for _, rules in GATES.values() for rule in rules] * 2
    assert all(row[3] == 2 for row in table.rows)
