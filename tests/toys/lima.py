"""Two scripted models that have to be fused for the right capital: what tests of the fusion draft and ask with."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping
from contextlib import aclosing
from typing import Any

import pytest

from cosd_api import Fusion, Speculative
from cosd_providers import Piece, UnsupportedError, Usage
from cosd_providers.testing import ScriptedProvider, ScriptToken

DRAFT: dict[str, list[ScriptToken]] = {
    "Q:": [" The", " cap", ("ital", 0.9), " is", (" Rome", 0.3), "."],
    "Q: The capital is Lima": [(".", 0.9), " Really", "."],
}
ASSISTANT: dict[str, list[ScriptToken]] = {
    "Q: The capital is": [(" Li", 0.9), ("ma", 0.8), "!"],
    "Q: The capital is Lima": [".", " Really", "."],
}
FUSED = " The capital is Lima. Really."


def draft(**options: Any) -> ScriptedProvider:
    return ScriptedProvider.from_texts(DRAFT, **options)


def assistant(**options: Any) -> ScriptedProvider:
    return ScriptedProvider.from_texts(ASSISTANT, **options)


def fusion(**settings: Any) -> Fusion:
    return Fusion(draft=draft(), assistant=assistant(), **settings)


class Unheard(ScriptedProvider):
    """Encodes nothing for us."""

    async def tokenize(self, text: str) -> list[Piece]:
        raise UnsupportedError("it does not encode")


class TellsNoPrompt(ScriptedProvider):
    """Tells what it has written, and nothing of what it has read."""

    async def generate(self, *args: Any, usage: Usage, **kwargs: Any) -> Any:
        async with aclosing(super().generate(*args, usage=usage, **kwargs)) as stream:
            async for item in stream:
                usage.prompt_tokens = 0
                yield item


def scripted(script: Mapping[str, list[ScriptToken]], prompt: str) -> ScriptedProvider:
    """A model that reads `prompt` where the script has `Q:`."""
    return ScriptedProvider.from_texts({text.replace("Q:", prompt): tokens for text, tokens in script.items()})


def read(provider: ScriptedProvider) -> str:
    """All that a model was given."""
    return repr([(call.prompt, call.text, call.contexts) for call in provider.calls])


def sampled() -> dict[str, Any]:
    """Keywords for sampled speculative decoding: the assistant's text is all but sure, and the draft errs once."""
    scripts: list[dict[str, list[ScriptToken]]] = [
        {"Q:": [" The", " sum"], "Q: The total": ["."]},
        {"Q:": [" The", " total", "."]},
    ]
    draft, assistant = (ScriptedProvider.from_texts(script) for script in scripts)
    settings = {"method": Speculative(temperature=1), "unit": "token", "seed": 1}
    return {"draft": draft, "assistant": assistant, **settings}


async def before_error(
    items: AsyncIterable[Any], error: type[Exception], words: str | None = None
) -> tuple[list[str], Any]:
    """The texts that come before an error of this kind and with these words, and the error."""
    texts: list[str] = []

    async def read() -> None:
        async for one in items:
            texts.append(str(getattr(one, "text", one)))  # noqa: PERF401 - what came before the error counts

    with pytest.raises(error, match=words) as caught:
        await read()
    return texts, caught.value
