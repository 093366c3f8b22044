"""SGLang's adapter does what every adapter has to do, over HTTP: against a stand-in for SGLang in front of real models.

SGLang itself runs on accelerators only. What the stand-in does was read in SGLang's source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial

import httpx
import pytest

from conformance import Conformance, Subject
from cosd_providers import probe
from cosd_providers.sglang import Sglang
from plain import PlainLlamaCpp
from stand_in_sglang import StandInSglang
from stand_in_tgi import LlamaModel

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


class BehindSglang(PlainLlamaCpp):
    """The model behind a stand-in, asked directly."""

    def __init__(self, model_url: str, url: str, server: StandInSglang) -> None:
        super().__init__(model_url)
        self.server, self.context = server, server.context
        self.url = url
        self.name = "toy"
        self.model.url = self.model.vocabulary.url = model_url
        self._before = (0, 0)

    def before(self, prompt: str) -> int:
        self._before = self._streams()
        return 0

    def busy(self) -> bool:
        return self._streams() == self._before

    def written(self) -> int:
        left, _ = self._streams()
        return self.server.gone[-1] if left > self._before[0] else self.context

    def _streams(self) -> tuple[int, int]:
        """How many the client has left, and how many were sent to their end."""
        return len(self.server.gone), self.server.finished


@pytest.fixture(scope="module")
def plain(trio: Mapping[str, str]) -> Iterator[Mapping[str, BehindSglang]]:
    """The models behind SGLang, by name; one of them streams what is new alone."""
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(timeout=60))
        found = {}
        for name, url in trio.items():
            model = LlamaModel(url, client)
            server = StandInSglang(model, context=512, beginning=model.beginning, incremental=name == "facts")
            found[name] = BehindSglang(url, stack.enter_context(server.serve()), server)
        yield found


class TestSglang(Conformance):
    @pytest.fixture
    def given(self, plain: Mapping[str, BehindSglang]) -> Callable[[str], Subject]:
        return lambda name: Subject(partial(Sglang, plain[name].url), plain[name])


class TestStrategies(Conformance):
    """The same answers, whatever was asked how: the tests of proposals alone."""

    @pytest.fixture(params=["echo", "list", "singles", "continuation"])
    def given(self, plain: Mapping[str, BehindSglang], request: pytest.FixtureRequest) -> Callable[[str], Subject]:
        return lambda name: Subject(partial(Sglang, plain[name].url, strategy=request.param), plain[name])


for name in dir(Conformance):
    if name.startswith("test_") and "proposals" not in name:
        setattr(TestStrategies, name, None)


async def test_what_the_probe_says(plain: Mapping[str, BehindSglang]) -> None:
    card = await probe(plain["facts"].url)
    assert (card.engine, card.version, card.can_draft, card.can_assist) == ("sglang", "0.5.6", True, True)
    assert set(card.strategies) == {"echo", "list", "singles", "continuation"}
    assert str(card["scoring"].value).startswith("logprob_start_len")
