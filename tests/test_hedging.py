"""Hedged drafts, through a whole fusion: the same text, and what they save."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from cosd_api import Fusion, RuleVerifier, SettingError, Tuning, fuse
from cosd_api.result import FusionResult
from cosd_providers import BudgetError, ResponseError
from cosd_providers.contract import DraftEnd, Proposal, Token
from cosd_providers.testing import Fault, ScriptedProvider, TableModel
from naive import reference
from support import virtual_time
from support.drawn import decoder_examples
from toys.id_models import Written
from toys.literal_tasks import Task, check, fused, tasks
from toys.unsteady import Order, orders

TOKENS = (b"", b"Q", b" It", b" is", b" Rome", b" Lima", b" Oslo", b" and", b" so", b" on")
DRAFT = (2, 3, 4, 7, 8, 9)
FUSED = " It is Lima and so on"
in_virtual_time = pytest.mark.parametrize("anyio_backend", [virtual_time.BACKEND], ids=["virtual time"])
#: In its third place the draft is unsure of " Rome", and finds " Lima" and " Oslo" next most probable.
UNSURE = {4: 0.45, 5: 0.35, 6: 0.2}


def model(words: Sequence[int], unsure: Mapping[int, float]) -> TableModel:
    """A model that writes `words`, whatever stood before, with these probabilities in the third place."""

    def following(ids: Sequence[int]) -> list[float]:
        place = len(ids) - 1  # the prompt is one token
        chosen = unsure if place == 2 else {words[place] if place < len(words) else 0: 1.0}
        return [chosen.get(token, 0.0) for token in range(len(TOKENS))]

    return TableModel(TOKENS, following, end_ids={0})


class Patient(ScriptedProvider):
    """An assistant that answers only when something has happened."""

    until: Callable[[], bool] = staticmethod(lambda: True)

    async def propose(self, *args: Any, **options: Any) -> list[Proposal | None]:
        while not self.until():
            await anyio.lowlevel.checkpoint()
        return await super().propose(*args, **options)


def pair(says: int = 5, *, until: Callable[[ScriptedProvider], bool] | None = None, **options: Any) -> Any:
    """A draft, with `options`, and an assistant that says another word in the third place.

    By default it says so when the draft, and all that was started ahead, has written all that it has to write.
    """
    draft = ScriptedProvider(model(DRAFT, UNSURE), name="draft", **options)
    assistant = Patient(model((), {says: 0.9}), name="assistant")
    assistant.until = partial(until or (lambda draft: draft.open_requests == 0), draft)
    return {"draft": draft, "assistant": assistant, "unit": "token"}


async def test_a_hit_is_told_and_spares_a_request() -> None:
    servers = pair()
    result = await fuse("Q", **servers, tuning=Tuning(hedge=1))
    assert result.text == FUSED
    assert (result.hedged_drafts, result.hedge_hits, result.iterations) == (1, 1, 2)
    assert result.draft_requests == 2
    assert result.hedged_tokens == 4  # " and so on" and the end: all that there was
    assert result.drafted_tokens == 7 + 4
    starts = [call.text for call in servers["draft"].calls if call.kind == "generate"]
    assert starts == [b"", b" It is Lima"]
    assert servers["draft"].open_requests == 0


async def test_a_miss_is_told_and_changes_nothing() -> None:
    plain = await fuse("Q", **pair(6))
    servers = pair(6)
    result = await fuse("Q", **servers, tuning=Tuning(hedge=1))
    assert result.text == plain.text == FUSED.replace("Lima", "Oslo")
    assert (result.hedged_drafts, result.hedge_hits, result.draft_requests) == (1, 0, 3)
    assert (plain.hedged_drafts, plain.hedge_hits, plain.draft_requests) == (0, 0, 2)
    both = await fuse("Q", **pair(6), tuning=Tuning(hedge=2))
    assert (both.text, both.hedge_hits) == (plain.text, 1)


async def test_alternatives_are_asked_for_only_where_they_are_used() -> None:
    for hedge in (0, 2):
        servers = pair()
        await fuse("Q", **servers, tuning=Tuning(hedge=hedge))
        assert {call.alternatives for call in servers["draft"].calls if call.kind == "generate"} == {hedge}


async def test_settings_and_counts_are_part_of_the_result() -> None:
    result = await fuse("Q", **pair(), tuning=Tuning(hedge=2))
    assert result.settings.hedge == 2
    assert FusionResult.model_validate_json(result.model_dump_json()) == result


async def test_a_hedge_that_breaks_is_only_a_restart() -> None:
    fault = Fault(ResponseError("gone", endpoint="draft"), request=2)
    result = await fuse("Q", **pair(faults=[fault]), tuning=Tuning(hedge=1))
    assert (result.text, result.hedge_hits, result.draft_requests) == (FUSED, 0, 3)


async def test_a_hedge_that_breaks_once_it_is_the_draft_is_an_error() -> None:
    fault = Fault(ResponseError("gone", endpoint="draft"), request=2, tokens=3)
    servers = pair(token_delay=0.03, faults=[fault], until=lambda draft: draft.requests == 2)
    with pytest.raises(ResponseError, match="gone") as caught:
        await fuse("Q", **servers, tuning=Tuning(hedge=1))
    partial: Any = caught.value.partial
    assert partial.text == " It is Lima and so on"


async def test_hedges_count_in_the_limits_of_an_answer() -> None:
    with pytest.raises(BudgetError, match="max_requests=2 is reached") as caught:
        await fuse("Q", **pair(6), tuning=Tuning(hedge=1), max_requests=2)
    partial: Any = caught.value.partial
    assert partial.text == " It is"
    result = await fuse("Q", **pair(6), tuning=Tuning(hedge=1), max_requests=4)
    assert result.text == FUSED.replace("Lima", "Oslo")


@in_virtual_time
@decoder_examples
@given(tasks(), orders(), st.integers(1, 3), st.sampled_from((None, 1, 5)), st.booleans())
async def test_equal_under_every_schedule(task: Task, order: Order, hedge: int, most: int | None, ids: bool) -> None:
    """The draft finds probable what the assistants will say."""

    def also(text: bytes, token: Token) -> tuple[Token, ...]:
        said = [next(reference.generate(one, task.prompt + text, patience=3), None) for one in task.assistants]
        words = {one.data: one.end for one in said if one and (one.data, one.end) != (token.data, token.end)}
        return tuple(Token(word, 0.1, end=end) for word, end in words.items())

    servers = task.servers(order, also=also, token_ids=ids)
    result = await fused(task, servers, tuning=Tuning(hedge=hedge, max_ahead=most if ids else None))
    check(result, task.expected(ids_kept=ids))
    target(float(result.hedge_hits))
    assert result.hedge_hits <= result.hedged_drafts < result.draft_requests


@in_virtual_time
async def test_one_whose_context_is_full_ends_the_answer_so() -> None:
    draft = Written((97, 99, 99), {0: {97: 0.3, 98: 0.2}}, prob=0.95)
    result = await fuse("Q", **slow(draft, context=3), tuning=Tuning(hedge=1))
    assert (result.text, result.finish_reason, result.stop_reason) == ("bc", "length", "context")
    assert result.hedge_hits == 1


def slow(draft: Written, says: int = 98, **options: Any) -> dict[str, Any]:
    """A draft, and an assistant that says one thing at each place, half a minute later."""
    assistant = ScriptedProvider(Written((says,) * 400, prob=0.9), ids=True, request_delay=30)
    return {"draft": ScriptedProvider(draft, ids=True, token_delay=0.01, **options), "assistant": assistant}


@in_virtual_time
async def test_one_that_gets_too_long_is_given_up() -> None:
    draft = Written((97,) + (98,) * 300, {0: {97: 0.3, 98: 0.2}}, prob=0.95)
    result = await fuse("Q", **slow(draft), tuning=Tuning(hedge=1, max_ahead=300), max_tokens=300)
    assert (result.text, result.hedge_hits, result.draft_requests) == ("b" * 300, 0, 3)
    assert result.hedged_tokens < 200


@in_virtual_time
async def test_an_endpoint_that_takes_no_more_drafts_is_left_in_peace() -> None:
    draft = Written((97,) * 20, {place: {97: 0.3, 98: 0.2} for place in range(20)})
    full = [Fault(ResponseError("full", endpoint="draft"), request=at) for at in range(2, 9)]
    result = await fuse("Q", **slow(draft, 97, faults=full), tuning=Tuning(hedge=1, max_ahead=20), max_tokens=20)
    assert (result.text, result.hedged_drafts, result.draft_requests) == ("a" * 20, 2, 3)


@in_virtual_time
async def test_nothing_is_drafted_ahead_of_a_token_that_is_sure_or_the_last() -> None:
    draft = Written((97, 97), {0: {97: 0.3, 98: 0.2}})
    for settings in ({"verifier": RuleVerifier(alpha=0.25)}, {"max_tokens": 1}):
        result = await fuse("Q", **slow(draft), tuning=Tuning(hedge=3), **settings)
        assert (result.text[0], result.hedged_drafts) == ("ba"["verifier" in settings], 0)


@in_virtual_time
async def test_what_one_assistant_said_is_drafted_from_while_another_is_out() -> None:
    servers = slow(Written((97, 99), prob=0.3), 97)
    quick = ScriptedProvider(Written((98, 99), prob=0.9), ids=True)
    result = await fuse("Q", draft=servers["draft"], assistant=[quick, servers["assistant"]], tuning=Tuning(hedge=1))
    assert (result.text[0], result.hedged_drafts, result.hedge_hits) == ("b", 1, 1)


async def test_leaving_a_stream_leaves_no_hedge_open() -> None:
    servers = pair(token_delay=0.005, until=lambda _: False)
    async with Fusion(**servers, tuning=Tuning(hedge=2)) as fusion, fusion.stream("Q") as stream:
        async for _ in stream:
            while servers["draft"].open_requests < 3:
                await anyio.lowlevel.checkpoint()
            break
    assert servers["draft"].open_requests == servers["assistant"].open_requests == 0


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"hedge": -1}, "hedge must be a whole number of at least 0, not -1"),
        ({"hedge": True}, "hedge must be a whole number of at least 0, not True"),
        ({"max_ahead": -1}, "max_ahead must be a whole number of at least 1, not -1"),
        (
            {"hedge": 1, "draft_length": 8},
            "hedge is for a draft that streams on: leave out draft_length, which asks in",
        ),
    ],
)
def test_settings_that_cannot_be(setting: dict[str, Any], words: str) -> None:
    tuned = {name: setting.pop(name) for name in ("hedge", "max_ahead") if name in setting}
    with pytest.raises(SettingError, match=f"^{words}"):
        Fusion(draft="http://a", assistant="http://b", tuning=Tuning(**tuned), **setting)


class Near(ScriptedProvider):
    """A draft that says when it has a connection, and when one more is made; the latter does not always succeed."""

    happened: list[str]
    needed: bool = True

    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[Token | DraftEnd, None]:
        for _ in range(9):  # as many turns as a request may take to get to a connection
            await anyio.lowlevel.checkpoint()
        self.happened.append("connected")
        async with aclosing(super().generate(*args, **options)) as items:
            async for item in items:
                yield item

    async def keep_ready(self) -> bool:
        self.happened.append("ready")
        if self.needed:
            raise OSError("and nobody minds")
        return False


@in_virtual_time
async def test_a_connection_is_made_behind_each_draft_that_is_started() -> None:
    draft = Near(model(DRAFT, UNSURE), token_delay=0.01)
    draft.happened = []
    result = await fuse("Q", draft=draft, assistant=pair()["assistant"])
    assert result.text == FUSED
    assert draft.happened == ["connected", "ready"] * result.draft_requests


@in_virtual_time
async def test_a_connection_that_saves_no_time_is_made_once_for_an_answer() -> None:
    draft = Near(model(DRAFT, UNSURE), token_delay=0.01)
    draft.happened, draft.needed = [], False
    result = await fuse("Q", draft=draft, assistant=pair()["assistant"])
    assert result.text == FUSED
    assert result.draft_requests > 1
    assert draft.happened == ["connected", "ready"] + ["connected"] * (result.draft_requests - 1)


async def test_hedges_are_part_of_what_an_answer_may_cost() -> None:
    expected: list[tuple[int, int]] = []
    for hedge in (0, 2):
        async with Fusion(**pair(), tuning=Tuning(hedge=hedge)) as fusion:
            estimate = (await fusion.estimate("Q", max_tokens=100)).endpoints["draft"]
            expected.append((estimate.requests.expected, estimate.billed_tokens.expected))
    assert expected[1][0] - expected[0][0] == 2 * 10  # at a tenth of the tokens
    assert expected[1][1] > expected[0][1]
