"""Servers of OpenAI's protocol over scripts, for the tests of its adapter."""

from __future__ import annotations

from typing import Any

from cosd_providers import Question
from cosd_providers.engines.openai import OpenAICompatible
from cosd_providers.testing import TextModel
from fakes.adapters import TOY
from fakes.openai import FakeOpenAI

URL = "http://gpu:8000/v1"
QUESTIONS = [Question(0, (b" a",)), Question(2, (b" x",)), Question(4, (b" c",))]
SCRIPT: dict[str, list[Any]] = {"Q": [" a", (" b", 0.5), " c"]}


def fake(
    scripts: dict[str, list[Any]], provider: dict[str, Any] | None = None, **options: Any
) -> tuple[FakeOpenAI, Any]:
    """A server over scripts, with these switches of `FakeOpenAI`; and an adapter for it, with these arguments."""
    server = FakeOpenAI(TextModel(scripts), **options)
    return server, OpenAICompatible(URL, http_client=server.client(), **{"dialect": TOY, **(provider or {})})
