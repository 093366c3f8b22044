"""`Forwarding` and `ForwardingProvider`: a provider before another one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from cosd_api import Fusion, SettingError, fuse
from cosd_providers import Context, DraftEnd, Message, Provider, Token, Usage
from cosd_providers.contract import KnownVocabulary, Ready, WordSplitter
from cosd_providers.errors import UnsupportedError
from cosd_providers.forwarding import Forwarding, ForwardingProvider
from cosd_providers.testing import ScriptedProvider


class Noted:
    """A provider with everything optional, which notes what it is used for."""

    def __init__(self) -> None:
        self.used: list[str] = []

    async def keep_ready(self) -> None:
        self.used.append("ready")

    async def word_splitter(self) -> None:
        self.used.append("splitter")

    async def crossing_token(self) -> None:
        self.used.append("tokens")


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
        assert isinstance(before, Ready) and isinstance(before, WordSplitter) and isinstance(before, KnownVocabulary)
        await before.keep_ready()
        assert await before.word_splitter() is None
        assert await before.crossing_token() is None
    assert noted.used == ["ready", "splitter", "tokens"]


async def test_allowed_tokens_are_handed_on() -> None:
    """A provider without them is refused in words."""
    provider = ScriptedProvider.from_texts({"Q": [(" a", 0.6)]})
    found = await ForwardingProvider(provider).list_allowed(Context("Q"), b" a".__eq__, usage=Usage())
    assert found == await provider.list_allowed(Context("Q"), b" a".__eq__, usage=Usage()) != []
    noted: Any = Noted()
    noted.name = "mine"
    words = (
        "^mine: none of the tokens that the server lists is allowed here, and it cannot list more. "
        r"Use a server that finds allowed tokens \(docs/servers.md\).$"
    )
    with pytest.raises(UnsupportedError, match=words):
        await ForwardingProvider(noted).list_allowed(Context("Q"), b" a".__eq__, usage=Usage())


class Counted(ForwardingProvider):
    """A wrapper of a user's own."""

    asked = 0

    def generate(self, context: Context, **options: Any) -> AsyncGenerator[Token | DraftEnd, None]:
        Counted.asked += 1
        return super().generate(context, **options)


@pytest.mark.parametrize("prompt", ["Q:", [{"role": "user", "content": "Hi"}]])
async def test_a_wrapper_answers_as_the_provider_does(prompt: Any) -> None:
    asked = prompt if isinstance(prompt, str) else "user: Hi\nassistant: "

    def models() -> list[ScriptedProvider]:
        scripts: list[Any] = [{"Q:": [" a", (" b", 0.2)], "Q: a c": ["."]}, {"Q:": [" a", (" c", 0.9)]}]
        return [
            ScriptedProvider.from_texts({text.replace("Q:", asked): tokens for text, tokens in script.items()})
            for script in scripts
        ]

    draft, assistant = models()
    plain = await fuse(prompt, draft=draft, assistant=assistant)
    before = Counted.asked
    draft, assistant = models()
    wrapped = await fuse(prompt, draft=Counted(draft), assistant=ForwardingProvider(assistant))
    assert wrapped.text == plain.text == " a c."
    assert wrapped.settings == plain.settings
    assert Counted.asked > before


async def test_a_wrapper_hands_on_everything_else() -> None:
    inner = ScriptedProvider.from_texts({"Q": [" a"]}, name="mine")
    wrapper = ForwardingProvider(inner)
    assert isinstance(wrapper, Provider)
    assert await wrapper.describe() == await inner.describe()
    context = Context("Q", b" a")
    assert await wrapper.score(context, usage=Usage()) == await inner.score(context, usage=Usage())
    await wrapper.check_alive()
    assert wrapper.own_messages == ()
    bare: Any = Noted()
    bare.name = "bare"
    with pytest.raises(UnsupportedError, match=r"the provider takes no messages: it has no render_prompt\(\)"):
        await ForwardingProvider(bare).render_prompt([Message("user", "Hi")])
    with pytest.raises(UnsupportedError, match="takes no contexts by ids"):
        await ForwardingProvider(bare).next_tokens([], usage=Usage())


def test_a_class_with_getattr_is_told_what_to_derive_from() -> None:
    class Around:
        def __init__(self, provider: Provider) -> None:
            self.provider = provider

        def __getattr__(self, name: str) -> Any:
            return getattr(self.provider, name)

    inner = ScriptedProvider.from_texts({"Q": [" a"]})
    around: Any = Around(inner)
    words = (
        r"Around lacks __aenter__\(\), __aexit__\(\). A class that wraps a provider derives from cosd_providers.Forward"
    )
    with pytest.raises(SettingError, match=words):
        Fusion(draft=around, assistant=inner)
