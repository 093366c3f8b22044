"""Every method over llama.cpp's `/v1`, by the adapter for OpenAI's protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

import pytest

from cosd_api.apps.demo.servers import Pair
from cosd_providers import Provider, connect
from cosd_providers.engines.openai import DIALECTS, OpenAICompatible
from support.every_method import LINES, EveryMethod

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

_SCORES = "does not report the probabilities of a given text"
_LISTS = "lists no other tokens"
_LISTING = ("adafuse", "average", "safe", "safe of three", "chared", "chared of three")
_EXACT = ("average drawn", "cosd drawn", "speculative drawn")


class TestCompletions(EveryMethod):
    """`/v1/completions`: no text is scored, and alternatives are listed."""

    engine = "llama.cpp's /v1/completions"
    stated = ("OpenAI-compatible", "`/v1` of llama.cpp, vLLM")
    refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("adafuse", "cool", "cool of three", "rerank", "cool and rerank", "route"), _SCORES),
        **dict.fromkeys(("safe", "safe of three"), "does not encode text"),
    }
    count = 3

    @pytest.fixture
    def found(self, pair: Pair) -> Callable[[str], Provider]:
        return lambda name: connect(pair[name], engine="openai", dialect="llama.cpp")


class TestUnknownServer(EveryMethod):
    """The same by nothing but the protocol: it lists nothing in proposals, and hides the end of a draft."""

    engine = "llama.cpp as any server of OpenAI's protocol"
    stated = ("OpenAI-compatible", "")
    refused: ClassVar[Mapping[str, str]] = {
        **TestCompletions.refused,
        **dict.fromkeys(_LISTING, "does not list its most probable tokens"),
        **dict.fromkeys(_EXACT, "does not draw tokens from the model's own distribution"),
        "surprise": _LISTS,
        "defer": _LISTS,
    }
    count = 3

    @pytest.fixture
    def found(self, pair: Pair) -> Callable[[str], Provider]:
        return lambda name: connect(pair[name], engine="openai")


_UNSEEN = ("agreement", "agreement below 0.7", "match by words", "random", "cascade", "nudging", "steps", "switch")


class TestUnseenAssistant(EveryMethod):
    """An assistant of which nothing is known but what it writes, by messages; the draft shows everything."""

    engine = "an assistant without probabilities"
    stated = ("messages only", "")
    refused = dict.fromkeys(
        (line.name for line in LINES if line.name not in _UNSEEN), r"does not (report|list|draw)|lists no other"
    )
    assists, chat, count = True, True, 2

    @pytest.fixture
    def found(self, pair: Pair) -> Callable[[str], Provider]:
        dialect = replace(DIALECTS["llama.cpp"], probs=False)
        return lambda name: OpenAICompatible(pair[name], dialect=dialect, api="chat")


class TestWholeAnswers(EveryMethod):
    """An assistant that does not continue a partial answer, either, as OpenAI's own chat models."""

    engine = "an assistant that answers messages"
    stated = ("whole answers only", "")
    refused = dict.fromkeys(
        (line.name for line in LINES if line.name not in ("cascade", "steps", "switch")),
        "does not continue a partial answer",
    )
    apart = ("steps",)  # it asks in other words
    space = True  # nothing shows whose the space before an answer is: the template's, or the model's
    assists, chat, count = True, True, 2

    @pytest.fixture
    def found(self, pair: Pair) -> Callable[[str], Provider]:
        return lambda name: connect(pair[name], engine="openai", dialect="llama.cpp", api="messages")


class TestChat(EveryMethod):
    """`/v1/chat/completions`: messages, with the answer so far as a partial reply."""

    engine = "llama.cpp's /v1/chat/completions"
    stated = ("messages only", "of llama.cpp, vLLM")
    refused: ClassVar[Mapping[str, str]] = {
        **TestCompletions.refused,
        **dict.fromkeys(_LISTING, "does not report the probability of its end of sequence"),
        "cosd drawn": "does not report all probabilities, the end of sequence included",
        "speculative drawn": "does not report the probability of its end of sequence",
    }
    apart = ("random",)  # its coins are of the rendered prompt, which the server keeps to itself
    chat, count = True, 2

    @pytest.fixture
    def found(self, pair: Pair) -> Callable[[str], Provider]:
        return lambda name: connect(pair[name], engine="openai", dialect="llama.cpp", api="chat")
