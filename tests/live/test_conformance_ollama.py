"""Ollama's adapter does what every adapter has to do, over HTTP: against a stand-in for Ollama in front of real models.

The stand-in does what the server's source says; no Ollama was run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import product
from typing import Literal

import pytest

from cosd_providers.engines.ollama import Ollama
from fakes.ollama import StandInOllama
from fakes.tgi import LlamaModel
from naive.plain_http import Behind, PlainLlamaCpp
from support.conformance import Conformance, Proposals, Subject

pytestmark = [pytest.mark.extended, pytest.mark.live, pytest.mark.timeout(300)]

RUNNERS: tuple[Literal["llama-server", "engine"], ...] = ("llama-server", "engine")


def _error(status: int, message: str) -> object:
    return {"error": message}


@pytest.fixture(scope="module")
def plain(
    models: Mapping[str, LlamaModel], plainly: Mapping[str, PlainLlamaCpp]
) -> Iterator[Mapping[tuple[str, str], Behind]]:
    """The models behind Ollama, by engine and name."""
    with ExitStack() as stack:
        found = dict[tuple[str, str], Behind]()
        for runner, (name, model) in product(RUNNERS, models.items()):
            server = StandInOllama(model, (f"{name}:latest",), 512, model.beginning, runner=runner)
            url = stack.enter_context(server.serve())
            found[runner, name] = Behind(plainly[name], url, server, f"{name}:latest", 512, tells_end=False)
        yield found


def subject(plain: Behind, *, parts: bool) -> Subject:
    return Subject(partial(Ollama, plain.url), plain, parts=parts, error=_error)


class TestOnLlamaServer(Conformance):
    @pytest.fixture
    def given(self, plain: Mapping[tuple[str, str], Behind]) -> Callable[[str], Subject]:
        return lambda name: subject(plain["llama-server", name], parts=False)


class TestOnItsOwnEngine(Proposals):
    """Which differs in what it shows of a character that several tokens share."""

    @pytest.fixture
    def given(self, plain: Mapping[tuple[str, str], Behind]) -> Callable[[str], Subject]:
        return lambda name: subject(plain["engine", name], parts=True)

    test_streamed_tokens = Conformance.test_streamed_tokens
    test_a_limit_counts_whole_characters = Conformance.test_a_limit_counts_whole_characters
    test_a_character_that_is_never_finished = Conformance.test_a_character_that_is_never_finished
