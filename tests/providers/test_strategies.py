"""Strategies: which there are, and how the ledger counts what they answered."""

from __future__ import annotations

from typing import Any

import pytest

from cosd_providers import Context, Proposal, Token, Usage
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.strategies import checked_strategy, counted, marked
from cosd_providers.testing import TextModel
from fakes.llama_cpp import FakeLlamaCpp

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
    with pytest.raises(ValueError, match="no strategy 'echo'; there are 'list', 'singles' and 'watch'"):
        checked_strategy("echo", ("list", "singles", "watch"))


def test_the_same_model_asked_in_another_way() -> None:
    provider = LlamaCpp("http://gpu1:8080", strategy="list")
    assert provider.with_strategy("singles").name == provider.name
    with pytest.raises(ValueError, match="no strategy 'echo'; there are 'list', 'singles' and 'watch'"):
        provider.with_strategy("echo")


@pytest.mark.parametrize("strategy", ["singles", "list", "watch", None])
async def test_a_provider_says_if_it_is_to_be_watched(strategy: Any) -> None:
    """A watch is the fusion's way to ask: where the provider itself asks about places, its own rule holds."""
    server = FakeLlamaCpp(TextModel({"a": [" b", " c"]}))
    provider = LlamaCpp("http://gpu1:8080", http_client=server.client(), strategy=strategy)
    usage, contexts = Usage(), [Context("a", b"", ()), Context("a", b"", (1,))]
    info = await provider.describe()
    assert info.capabilities.watch == (None if strategy is None else strategy == "watch")
    assert (await provider.with_strategy(None).describe()).capabilities.watch is None
    await provider.next_tokens(contexts, usage=usage)
    assert usage.strategies == {"list" if strategy == "list" else "singles": 2}
