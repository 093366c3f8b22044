"""`Forwarding`: all but the answers is the provider's own."""

from __future__ import annotations

from typing import Any

from cosd_providers.contract import Ready, WordSplitter
from cosd_providers.forwarding import Forwarding
from cosd_providers.testing import ScriptedProvider


class Noted:
    """A provider with everything optional, which notes what it is used for."""

    def __init__(self) -> None:
        self.used: list[str] = []

    async def keep_ready(self) -> None:
        self.used.append("ready")

    async def word_splitter(self) -> None:
        self.used.append("splitter")


async def test_everything_is_handed_on() -> None:
    provider = ScriptedProvider.from_texts({"Q": [" a"]}, name="mine")
    before = Forwarding(provider)
    async with before:
        assert before.name == provider.name == "mine"
        assert await before.describe() == await provider.describe()
        assert await before.tokenize("Q") == await provider.tokenize("Q")


async def test_what_is_optional_is_handed_on_where_it_is_there() -> None:
    noted: Any = Noted()
    for before in (Forwarding(noted), Forwarding(ScriptedProvider.from_texts({"Q": [" a"]}))):
        assert isinstance(before, Ready) and isinstance(before, WordSplitter)
        await before.keep_ready()
        assert await before.word_splitter() is None
    assert noted.used == ["ready", "splitter"]
