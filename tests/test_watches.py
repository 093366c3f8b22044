"""Watches of models with the same ids: when they open and close, and which assistants are watched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import anyio
import pytest

from cosd_api import Fusion, FusionResult, RuleVerifier, fuse
from cosd_api.records import Request
from cosd_providers import ServerInfo
from cosd_providers.testing import Fault, ScriptedProvider
from support import virtual_time
from toys.id_models import Written


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time.BACKEND


def served(model: Written, **options: Any) -> ScriptedProvider:
    return ScriptedProvider(model, ids=True, **options)


async def watched(draft: ScriptedProvider, *assistants: Written, **settings: Any) -> FusionResult:
    """An answer whose assistants are watched; each writes a token in a tenth of a second."""
    asked = [served(one, places=1, watch=True, token_delay=0.1) for one in assistants]
    result = await fuse("Q", draft=draft, assistant=asked, **settings)
    assert all(one.open_requests == 0 for one in (draft, *asked))
    return result


def sent(result: FusionResult) -> list[Request]:
    """The requests to the assistants."""
    return [one for one in result.requests if one.kind in ("question", "watch")]


def same(length: int, *unsure: int) -> Written:
    """A model that writes one letter, and is unsure of it at some places."""
    return Written((97,) * length, {place: {97: 0.3} for place in unsure}, prob=0.95)


async def test_a_watch_opens_with_the_answer() -> None:
    asked = [served(same(9), watch=watch, places=1) for watch in (False, True)]
    async with Fusion(draft=served(same(9, 0), request_delay=9), assistant=asked) as fusion:
        with anyio.move_on_after(1):
            await fusion.generate("Q")
    assert [[(call.kind, call.ids) for call in one.calls] for one in asked] == [
        [("next_tokens", None)],
        [("generate", ())],
    ]


@pytest.mark.parametrize("token_delay", [0.01, 1.0])
async def test_it_answers_each_place_that_it_passes_also_ahead_of_the_draft(token_delay: float) -> None:
    """Also where nobody has to be heard; and it continues the answer where its token replaces the draft's."""
    draft = Written((97, 98, 99, 97), {2: {99: 0.95}}, prob=0.3)
    result = await watched(served(draft, token_delay=token_delay), Written((97, 99, 99, 97), prob=0.9))
    assert (result.text, result.replacements, result.draft_requests) == ("acca", 1, 2)
    assert [one.kind for one in sent(result)] == ["watch"]
    heard = [[(one.strategy, one.prob, one.agreed) for one in token.decisions] for token in result.tokens[:4]]
    assert heard == [[("watch", 0.9, True)], [("watch", 0.9, False)], [], [("watch", 0.9, True)]]


@pytest.mark.parametrize(
    ("says", "verifier"),
    [
        ({98: 0.1}, RuleVerifier()),  # a difference that stands
        ({98: 0.4, 97: 0.396}, RuleVerifier()),  # a tie
        ({98: 0.9}, RuleVerifier(alpha=0.2)),  # where nobody has to be heard
    ],
)
async def test_it_is_closed_where_it_differs_for_nothing(says: dict[int, float], verifier: RuleVerifier) -> None:
    draft = Written((97,) * 40, {0: {97: 0.3}, 20: {97: 0.1}}, prob=0.95)
    assistant = Written((97,) * 40, {0: says}, prob=0.95)
    result = await watched(served(draft, token_delay=0.1), assistant, verifier=verifier)
    assert (result.text, result.replacements) == ("a" * 40, 0)
    first = sent(result)[0]
    assert (first.kind, first.outcome) == ("watch", "cancelled")
    assert first.tokens < 3


async def test_one_that_lags_is_not_waited_for() -> None:
    """Another one reads at once what lies between."""
    asked = served(same(60), places=1, watch=True, token_delay=1.0)
    with anyio.fail_after(20):
        result = await fuse("Q", draft=served(same(60, 0, 50), token_delay=0.01), assistant=asked)
    assert (result.text, len(result.tokens[50].decisions)) == ("a" * 60, 1)
    assert 50 in [len(call.ids or ()) for call in asked.calls]


async def test_one_that_runs_ahead_is_closed_and_its_tokens_are_kept() -> None:
    asked = served(same(200), places=1, watch=True, token_delay=0.01)
    result = await fuse("Q", draft=served(same(200, *range(50)), token_delay=1.0), assistant=asked, max_tokens=50)
    assert all(token.decisions for token in result.tokens)
    assert {one.kind for one in sent(result)} == {"watch"}
    assert sum(one.tokens for one in sent(result)) < 100


async def test_one_whose_context_is_full_becomes_a_single_question() -> None:
    draft, wanted = served(same(8, *range(8))), Written((97, 97, 98, 98, 98), prob=0.95)
    asked = served(wanted, context=4, watch=True, places=1)
    result = await fuse("Q", draft=draft, assistant=asked)
    single = await fuse("Q", draft=draft, assistant=served(wanted, context=4, watch=False))
    assert (result.text, result.warnings) == (single.text, single.warnings)
    assert {one.kind for one in sent(result)} == {"watch", "question"}


# ---------------------------------------------------------------------------------------------- who is watched


class At(ScriptedProvider):
    """Has an address."""

    url = "scripted:"

    async def describe(self) -> ServerInfo:
        return replace(await super().describe(), endpoint=self.url)


def at(url: str, **options: Any) -> At:
    one = At(same(9, 0), ids=True, **{"places": 1, **options})
    one.url = url
    return one


@pytest.mark.parametrize(
    ("draft", "assistant", "options", "kind"),
    [
        ("http://gpu1:8080", "http://gpu2:8080", {}, "watch"),
        ("http://gpu1:8080", "http://gpu1:8081", {}, "question"),
        ("http://localhost:1", "http://127.0.0.1:2", {}, "question"),
        ("scripted:", "scripted:", {}, "question"),
        ("http://gpu1:8080", "http://gpu2:8080", {"places": 64}, "question"),
        ("http://gpu1:8080", "http://gpu1:8081", {"places": 64, "watch": True}, "watch"),
        ("http://gpu1:8080", "http://gpu2:8080", {"watch": False}, "question"),
    ],
)
async def test_an_assistant_is_watched_that_can_write_along(
    draft: str, assistant: str, options: dict[str, Any], kind: str
) -> None:
    result = await fuse("Q", draft=at(draft), assistant=at(assistant, **options))
    assert {one.kind for one in result.requests} == {"draft", kind}


@pytest.mark.parametrize(("seconds", "kinds"), [(0.11, ["watch"] * 3), (0.15, ["watch", "question", "question"])])
async def test_an_assistant_that_writes_more_slowly_is_not_watched_once_its_speed_is_known(
    seconds: float, kinds: Sequence[str]
) -> None:
    draft, assistant = (At(same(400, 0), ids=True, places=1, token_delay=delay) for delay in (0.1, seconds))
    draft.url, assistant.url = "http://gpu1:8080", "http://gpu2:8080"
    found = list[str]()
    with patch("time.perf_counter", anyio.current_time):
        async with Fusion(draft=draft, assistant=assistant, verifier=RuleVerifier(alpha=1, beta=1)) as fusion:
            for tokens in (40, 40, 10):
                result = await fusion.generate("Q", max_tokens=tokens)
                [kind] = {one.kind for one in result.requests} - {"draft"}
                found.append(kind)
    assert found == kinds


@pytest.mark.parametrize(
    ("token_delay", "watch", "writes_on"), [(0.02, None, True), (0.2, None, False), (0.02, False, False)]
)
async def test_an_assistant_that_writes_faster_than_the_draft_answers_the_next_places_too(
    token_delay: float, watch: bool | None, writes_on: bool
) -> None:
    """By a watch of three tokens, unless the user chose a strategy: the same text, with fewer requests."""
    draft, rule = served(same(200), places=1, token_delay=0.1), RuleVerifier(alpha=1, beta=1)
    asked = served(same(200), places=1, watch=True, token_delay=token_delay)
    async with Fusion(draft=draft, assistant=asked, verifier=rule) as fusion:
        await fusion.generate("Q", max_tokens=40)  # by a watch of the whole answer: the speeds are known now
        asked.watch = watch
        result = await fusion.generate("Q", max_tokens=40)
    assert result.text == "a" * 40
    short = [one for one in sent(result) if one.kind == "watch"]
    assert bool(short) == writes_on
    assert all(one.tokens <= 3 for one in short)
    assert (len(sent(result)) < 20) == writes_on


async def test_a_short_watch_is_not_waited_for_if_it_hangs_after_the_answer_has_left_it() -> None:
    """The draft's token is kept where the assistant's is less probable: what the watch writes then is for nothing."""
    others = Written(tuple(98 if at % 5 == 4 else 97 for at in range(200)), prob=0.9)
    draft = served(Written((97,) * 200, prob=0.95), places=1, token_delay=0.1)
    asked = served(others, places=1, watch=True, token_delay=0.02)
    async with Fusion(draft=draft, assistant=asked, verifier=RuleVerifier(alpha=1, beta=1)) as fusion:
        await fusion.generate("Q", max_tokens=60)
        asked.watch = None
        asked.faults = [Fault(None, request=asked.requests + 2, tokens=2)]
        with anyio.fail_after(20):
            result = await fusion.generate("Q", max_tokens=40)
    assert (result.text, [one.at for one in sent(result)][:3]) == ("a" * 40, [0, 3, 5])
