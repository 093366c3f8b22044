"""The coins of `RandomVerifier`, and a fusion that they decide."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import FusionResult, RandomVerifier, SettingError, TraceError, fuse
from cosd_api.extend import Place
from naive import reference
from support import virtual_time
from toys import lima
from toys import toy_models as toys
from toys.literal_tasks import WAYS, Fails, Task, check, failures, fused, tasks
from toys.unsteady import Order, orders

PROBS = st.floats(0, 1)
RATES = st.floats(0, 1) | st.sampled_from((0, 0.5, 1))
SEEDS = st.integers(-(2**70), 2**70)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time.BACKEND


def coin(seed: int, prompt: bytes, start: int) -> float:
    """As the documentation defines it."""
    inner = hashlib.blake2b(prompt, digest_size=16).digest()
    outer = hashlib.blake2b(f"{seed} {start} ".encode() + inner, digest_size=8).digest()
    return (int.from_bytes(outer, "big") >> 11) / 2**53


def place(prompt: bytes, start: int) -> Place:
    return Place(hashlib.blake2b(prompt, digest_size=16).digest(), start)


@given(RATES, SEEDS, st.binary(max_size=20), st.integers(0, 2**40), PROBS, PROBS | st.just(math.nan))
def test_the_coin_of_the_place_decides(rate: float, seed: int, prompt: bytes, start: int, p: float, q: float) -> None:
    here = RandomVerifier(rate=rate, seed=seed).at(place(prompt, start))
    assert here.coin == coin(seed, prompt, start)
    assert here.replaces(p, q) == here.contestable(p) == (here.coin < rate)
    assert here == RandomVerifier(rate=rate, seed=seed + 1).at(Place(coin=here.coin))


@pytest.mark.parametrize("rate", [0.03, 0.5])
def test_as_often_as_the_rate_says(rate: float) -> None:
    """Over places, over prompts and over seeds: within five standard deviations."""
    n = 4000
    verifier = RandomVerifier(rate=rate)
    for there in (
        [verifier.at(place(b"Q:", start)) for start in range(n)],
        [verifier.at(place(b"Q%d:" % number, 7)) for number in range(n)],
        [RandomVerifier(rate=rate, seed=seed).at(place(b"Q:", 7)) for seed in range(n)],
    ):
        share = sum(one.replaces(0.5, 0.5) for one in there) / n
        assert abs(share - rate) < 5 * math.sqrt(rate * (1 - rate) / n)
        assert all(0 <= one.coin < 1 for one in there)


def test_coins_stay_what_they_are() -> None:
    """An answer that was recorded with an earlier release comes out again."""
    assert RandomVerifier(rate=0.5).at(place(b"Q:", 0)).coin == 0.9944207506701872
    assert RandomVerifier(rate=0.5, seed=-1).at(place("Wo liegt Köln?".encode(), 12)).coin == 0.33509912055731605


def test_without_a_place_nothing_is_decided() -> None:
    verifier = RandomVerifier(rate=0.5)
    assert verifier.contestable(1.0)
    assert not RandomVerifier(rate=0).contestable(0.0)
    with pytest.raises(TypeError, match="decides by the place"):
        verifier.replaces(0.5, 0.5)
    with pytest.raises(TypeError, match="decides by the place"):
        verifier.explain(0.5, 0.5)
    with pytest.raises(SettingError, match="no coin is recorded there"):
        verifier.at(Place())


@given(RATES, st.floats(0, 1, exclude_max=True))
def test_the_words_are_true(rate: float, number: float) -> None:
    _, shown, sign, bound = RandomVerifier(rate=rate).at(Place(coin=number)).explain(0.5, math.nan).split(" ")
    assert (float(shown) < float(bound)) == (sign == "<") == (number < rate)


# A fusion.


def tossed(task: Task, verifier: RandomVerifier, **more: Any) -> reference.Fused:
    """The naive reference's answer with the coins of the definition."""
    prompt = task.prompt

    def placed(_: toys.Model, before: bytes, __: reference.Tok) -> Callable[[float, float], bool]:
        return lambda p, q: coin(verifier.seed, prompt, len(before) - len(prompt)) < verifier.rate

    if "fails" in more:
        more["contestable"] = lambda p, start: coin(verifier.seed, prompt, start) < verifier.rate
    return replace(task, verifier=verifier).expected(placed=placed, **more)


TOSSING = st.builds(RandomVerifier, rate=RATES, seed=SEEDS)


@given(tasks(), orders(), TOSSING, st.sampled_from(WAYS))
async def test_equal_under_every_schedule(
    task: Task, order: Order, verifier: RandomVerifier, way: dict[str, Any]
) -> None:
    result = await fused(replace(task, verifier=verifier), task.servers(order), **way)
    check(result, tossed(task, verifier))


@given(tasks(), orders(), TOSSING, failures())
async def test_without_an_assistant_that_fails_for_good(
    task: Task, order: Order, verifier: RandomVerifier, fails: Fails
) -> None:
    servers = task.servers(order, fails)
    result = await fused(replace(task, verifier=verifier), servers, on_assistant_error="draft")
    check(result, tossed(task, verifier, fails=fails))


@given(tasks(), orders(), TOSSING)
async def test_nobody_is_asked_where_the_coins_say_no(task: Task, order: Order, verifier: RandomVerifier) -> None:
    servers = task.servers(order)
    await fused(replace(task, verifier=verifier), servers)
    for call in (call for one in servers["assistant"] for call in one.calls):
        for question in call.questions or ():
            assert len(question.tokens) == 1
            assert coin(verifier.seed, task.prompt, question.start) < verifier.rate


async def answered(**settings: Any) -> FusionResult:
    return await fuse("Q:", draft=lima.draft(), assistant=lima.assistant(), **settings)


async def test_settings_of_cost_leave_the_text() -> None:
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"ask": "all"},
        {"draft_length": 1},
        {"max_ahead": 2},
    )
    for seed in range(6):
        verifier = RandomVerifier(rate=0.5, seed=seed)
        texts = {(await answered(verifier=verifier, **way)).text for way in ways}
        assert len(texts) == 1


async def test_a_trace_is_judged_again_without_the_prompt() -> None:
    result = await answered(verifier=RandomVerifier(rate=1), ask="all")
    differing = [one for token in result.tokens for one in token.decisions if not one.agreed]
    assert differing and all(one.fired and one.coin is not None for one in differing)
    assert differing[0].reason.startswith("coin ")
    again = FusionResult.model_validate_json(result.model_dump_json())
    assert again == result
    assert again.trace.replay() == result.text
    with pytest.raises(TraceError, match=r"was replaced, but the verifier says coin .* >= 0"):
        again.trace.replay(RandomVerifier(rate=0))
    ruled = await answered()
    with pytest.raises(TraceError, match="no coin is recorded there"):
        ruled.trace.replay(RandomVerifier(rate=1))


@dataclass(frozen=True)
class Behind:
    """A verifier of one's own: always replaces, behind a byte of the answer."""

    start: int
    here: bool = False

    def at(self, place: Place) -> Behind:
        return Behind(self.start, here=place.start is not None and place.start >= self.start)

    def replaces(self, p: float, q: float) -> bool:
        return self.here

    def contestable(self, p: float) -> bool:
        return self.here

    def explain(self, p: float, q: float) -> str:
        return f"{self.here}"


@given(tasks(), orders(), st.integers(0, 20))
async def test_a_verifier_of_ones_own_may_look_at_the_place(task: Task, order: Order, start: int) -> None:
    since = len(task.prompt) + start
    wanted = task.expected(placed=lambda _, before, __: lambda p, q: len(before) >= since)
    result = await fused(replace(task, verifier=Behind(start)), task.servers(order))
    assert [one.data for one in result.tokens] == [one.data for one in wanted.tokens]
