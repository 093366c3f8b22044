"""Strategies: which there are, and how the ledger counts what they answered."""

from __future__ import annotations

import pytest

from cosd_providers import Proposal, Token, Usage
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.strategies import checked_strategy, counted, marked

SAID = [Proposal(start, (Token(b"x", 0.5),)) for start in range(12)]


def test_answers_are_marked_and_counted() -> None:
    usage = Usage()
    found = counted(SAID, "list", usage)
    assert found == SAID
    assert {one and one.strategy for one in found} == {"list"}
    assert usage.strategies == {"list": 12}


def test_what_was_answered_in_another_way_keeps_its_mark() -> None:
    usage = Usage()
    found = counted(marked([*SAID[:-1], None], "list", but=range(7)), "echo", usage)
    assert [one and one.strategy for one in found] == ["echo"] * 7 + ["list"] * 4 + [None]
    assert usage.strategies == {"echo": 7, "list": 4}


def test_strategies_that_there_are_not() -> None:
    assert checked_strategy(None, ("list", "singles")) is None
    assert checked_strategy("list", ("list", "singles")) == "list"
    with pytest.raises(ValueError, match="no strategy 'echo'; there are 'list', 'singles' and 'filter'"):
        checked_strategy("echo", ("list", "singles", "filter"))


def test_the_same_model_asked_in_another_way() -> None:
    provider = LlamaCpp("http://gpu1:8080", strategy="list")
    assert provider.with_strategy("singles").name == provider.name
    with pytest.raises(ValueError, match="no strategy 'filter'; there are 'list' and 'singles'"):
        provider.with_strategy("filter")
