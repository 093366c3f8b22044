"""How the way to ask an assistant is chosen: against servers whose costs are known, and a clock that stands still."""

from __future__ import annotations

import copy
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_providers import (
    ContextLengthError,
    InvalidRequestError,
    Proposal,
    ProviderError,
    ProviderTimeoutError,
    Question,
    ResponseError,
    ServerError,
    Token,
    UnsupportedError,
    Usage,
)
from cosd_providers.costs import Work
from cosd_providers.strategies import TOKEN_SECONDS, Chooser, Strategy, Task, Ways, checked_strategy, marked

VLLM: tuple[Strategy, ...] = ("list", "echo", "singles", "continuation")
TGI: tuple[Strategy, ...] = ("filter", "singles", "continuation")


@dataclass(frozen=True)
class Server:
    """What asking costs in truth.

    Attributes:
        trip: seconds for a round trip.
        read: for a token that is read.
        write: for a token that is written after another.
        cache: whether what was read before is read from a cache; not by an echo.
        tells: whether it tells that.
        differs: how often a continuation has to begin anew, for each place.
        queue: how many single requests it takes at once.
    """

    trip: float
    read: float
    write: float
    cache: bool = False
    tells: bool = True
    differs: float = 0.0
    queue: int = 8

    def costs(self, way: Strategy, task: Task) -> tuple[float, float]:
        """Seconds, and the share of the prompts that came from the cache."""
        one, places = task.before + task.span, task.places
        all_of_them = places * (task.before + task.span / 2)
        new = task.span + places if self.cache else all_of_them
        match way:
            case "list":
                seconds = self.trip + self.read * new + self.write * task.wanted
            case "singles":
                turns = math.ceil(places / min(self.queue, 8))
                seconds = turns * (self.trip + self.write * task.wanted) + self.read * new
            case "echo":
                return 2 * self.trip + self.read * one + self.write, 0.0
            case "filter":
                return 3 * self.trip + self.read * one + self.write * (1 + task.wanted), 0.0
            case "continuation":
                runs, all_of_them, new = 1 + self.differs * places, task.before, task.before
                new = 1 if self.cache else task.before
                seconds = runs * (2 * self.trip + self.read * new + self.write * task.wanted) + self.write * task.span
        return seconds, 1 - new / all_of_them if self.cache and self.tells else 0.0

    def cheapest(self, task: Task, able: Sequence[Strategy]) -> float:
        return min(self.costs(way, task)[0] for way in able)


LONG = Task(places=12, before=4000, span=100, wanted=3)
SHORT = Task(places=4, before=200, span=40, wanted=3)


def run(
    server: Server, task: Task, *, able: Sequence[Strategy] = VLLM, times: int = 150, chooser: Chooser | None = None
) -> list[tuple[Strategy, float]]:
    """Which ways were chosen, and how many times the cheapest one's time each has taken."""
    rng, chooser, chosen = random.Random(1), chooser or Chooser(), list[tuple[Strategy, float]]()
    for _ in range(times):
        places = max(2, round(task.places * rng.uniform(0.5, 1.5)))
        one = replace(task, places=places, before=round(task.before * rng.uniform(0.7, 1.3)))
        way = chooser.choose(one, able)
        seconds, cached = server.costs(way, one)
        chooser.learn(way, one, seconds * rng.uniform(0.9, 1.1), cached)
        chosen.append((way, seconds / server.cheapest(one, able)))
    return chosen


def mostly(chosen: Sequence[tuple[Strategy, float]]) -> Strategy:
    """What is chosen in the end; nearly always it is the cheapest, or as cheap."""
    assert sum(times < 1.15 for _, times in chosen[-50:]) >= 40
    return Counter(way for way, _ in chosen[-50:]).most_common(1)[0][0]


CASES = [
    (Server(trip=0.002, read=0.0002, write=0.01), LONG, "echo"),  # it reads all, but once
    (Server(trip=0.002, read=0.0002, write=0.01, cache=True), LONG, "list"),  # which echo would read anew
    (Server(trip=0.002, read=0.0002, write=0.01, cache=True, tells=False), LONG, "list"),
    (Server(trip=0.1, read=0.0002, write=0.01, cache=True), LONG, "list"),  # a slow network
    (Server(trip=0.002, read=0.0002, write=0.01), SHORT, "echo"),
    (Server(trip=0.1, read=0.0002, write=0.01), replace(SHORT, places=3, before=50, span=20), "list"),
    (Server(trip=0.002, read=0.005, write=0.001, cache=False), replace(LONG, span=30), "continuation"),
]


@pytest.mark.parametrize(("server", "task", "best"), CASES)
def test_the_cheapest_way_is_found(server: Server, task: Task, best: Strategy) -> None:
    able: Sequence[Strategy] = VLLM if best != "continuation" else ("list", "singles", "continuation")
    chosen = run(server, task, able=able)
    assert [way for way, _ in chosen[:3]] == ["list"] * 3  # before anything is known, the default
    assert mostly(chosen) == best
    assert sum(times for _, times in chosen[-100:]) / 100 < 1.25  # what is measured again included


def test_the_filter_is_left_where_the_server_caches() -> None:
    """Which nobody tells there: so it is tried."""
    task = replace(LONG, span=20)
    assert mostly(run(Server(0.002, 0.0002, 0.01, cache=True, tells=False), task, able=TGI)) == "singles"
    assert mostly(run(Server(0.1, 0.0002, 0.0001, cache=True, tells=False), task, able=TGI)) != "filter"
    assert mostly(run(Server(0.002, 0.0002, 0.05), task, able=TGI)) == "filter"


def test_a_server_that_takes_one_request_at_a_time_is_not_asked_by_singles() -> None:
    """That they are slower here than the model says is found out by trying them once, or not at all."""
    chosen = run(Server(0.02, 0.0001, 0.02, cache=True, queue=1), SHORT, able=("list", "singles"))
    assert mostly(chosen) == "list"
    assert Counter(way for way, _ in chosen)["singles"] <= 5


def test_a_continuation_that_differs_everywhere_is_given_up() -> None:
    server = Server(trip=0.002, read=0.005, write=0.001)
    chooser, task = Chooser(), replace(LONG, span=30)
    able: Sequence[Strategy] = ("list", "singles", "continuation")
    assert mostly(run(server, task, able=able, chooser=chooser)) == "continuation"
    assert mostly(run(replace(server, differs=3.0), task, able=able, chooser=chooser)) != "continuation"


def test_it_changes_when_the_server_does() -> None:
    chooser, cached = Chooser(), Server(trip=0.002, read=0.0002, write=0.01, cache=True)
    assert mostly(run(cached, LONG, chooser=chooser)) == "list"
    assert mostly(run(replace(cached, cache=False), LONG, chooser=chooser)) == "echo"
    assert mostly(run(cached, LONG, chooser=chooser, times=1500)) == "list"


def test_tasks_of_all_sizes_have_their_own_way() -> None:
    """An echo pays where much is read several times, a list where little is."""
    chooser, server, rng = Chooser(), Server(trip=0.2, read=0.0002, write=0.01), random.Random(2)
    small, chosen = replace(SHORT, places=2, before=50, span=20), dict[Task, list[Strategy]]()
    for _ in range(200):
        task = rng.choice((small, LONG))
        way = chooser.choose(task, ("list", "echo"))
        chooser.learn(way, task, *server.costs(way, task))
        chosen.setdefault(task, []).append(way)
    assert Counter(chosen[small][-50:]).most_common(1)[0][0] == "list"
    assert Counter(chosen[LONG][-50:]).most_common(1)[0][0] == "echo"


def test_one_place_is_asked_plainly() -> None:
    chooser = Chooser()
    run(Server(0.002, 0.0002, 0.01), LONG, chooser=chooser)
    assert chooser.choose(replace(LONG, places=1), VLLM) == "singles"
    assert chooser.choose(replace(LONG, places=1), ("filter", "continuation")) == "filter"


def test_what_is_dear_is_seldom_measured_again() -> None:
    chosen = run(Server(0.002, 0.0002, 0.01), LONG, times=1000)
    again = [times for way, times in chosen[50:] if way != mostly(chosen)]
    assert again
    assert sum(times - 1 for times in again) < 0.12 * 950


def test_tokens_that_are_billed_count() -> None:
    """Of two ways that take the same time, the one that bills less."""
    free = Server(trip=0.05, read=0.0, write=0.0)
    assert TOKEN_SECONDS > 0
    chooser = Chooser()
    ways: list[Strategy] = ["list", "continuation"]
    for way in ways * 3:
        chooser.learn(way, LONG, free.costs("list", LONG)[0], 0.0)
    assert chooser.choose(LONG, ("list", "continuation")) == "continuation"


def test_dues_keep_a_way_from_being_tried() -> None:
    server, task = Server(trip=0.1, read=0.0002, write=0.01), replace(SHORT, places=6, before=800)
    chooser = Chooser()
    run(server, task, able=("list",), chooser=chooser)
    assert chooser.choose(task, ("list", "echo")) == "echo"
    assert chooser.choose(task, ("list", "echo"), dues={"echo": 50}) == "list"


def test_a_new_way_is_tried_by_one_at_a_time() -> None:
    chooser = Chooser(clock=lambda: 0.0)
    run(Server(0.002, 0.0002, 0.01), LONG, able=("list",), chooser=chooser)
    with chooser.measured("echo", LONG, Usage()):
        assert chooser.choose(LONG, ("list", "echo")) == "list"
    assert chooser.choose(LONG, ("list", "echo")) == "echo"  # nothing was learned: the clock stood still


@given(st.lists(st.tuples(st.sampled_from(VLLM), st.floats(0, 1e4), st.floats(0, 1)), max_size=40), st.randoms())
def test_whatever_is_learned_something_is_chosen(
    answers: list[tuple[Strategy, float, float]], rng: random.Random
) -> None:
    chooser = Chooser()
    for way, seconds, cached in answers:
        task = Task(rng.randint(1, 20), rng.randint(0, 5000), rng.randint(0, 500), rng.randint(1, 10))
        chooser.learn(way, task, seconds, cached)
        assert chooser.choose(task, VLLM) in VLLM
        assert all(0 < chooser.expected(one, task) < math.inf for one in VLLM)


# What is done with what was chosen.


class Clock:
    """Seconds that pass only when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(
        self, seconds: float, usage: Usage, error: ProviderError | None = None
    ) -> Callable[[], Awaitable[list[Proposal | None]]]:
        async def ask() -> list[Proposal | None]:
            self.now += seconds
            usage.bill(100, 3, 50)
            if error is not None:
                raise error
            return [*SAID]

        return ask


SAID = [Proposal(start, (Token(b"x", 0.5),)) for start in range(LONG.places)]


async def way_of(chooser: Chooser, ways: Ways, usage: Usage) -> str | None:
    """In which way all places were answered, by what the proposals say."""
    found = await chooser.answer(LONG, ways, usage)
    assert found == SAID
    [way] = {one.strategy for one in found if one is not None}
    return way


async def test_what_is_done_is_measured_and_noted() -> None:
    clock, usage = Clock(), Usage()
    chooser = Chooser(clock=clock)
    chosen = []
    for _ in range(12):
        ways: Ways = {"list": clock.taking(9.0, usage), "echo": clock.taking(0.1, usage)}
        chosen.append(await way_of(chooser, ways, usage))
    assert chosen == ["list"] * 3 + ["echo"] * 9
    assert usage.strategies == {"list": 36, "echo": 108}


async def test_what_was_answered_in_another_way_is_noted_as_such() -> None:
    clock, usage = Clock(), Usage()

    async def echo() -> list[Proposal | None]:
        return marked([*SAID[:-1], None], "list", but=range(7))

    found = await Chooser("echo", clock=clock).answer(LONG, {"echo": echo}, usage)
    assert [one and one.strategy for one in found] == ["echo"] * 7 + ["list"] * 4 + [None]
    assert usage.strategies == {"echo": 7, "list": 4}


@pytest.mark.parametrize("error", [UnsupportedError("no"), InvalidRequestError("no")])
async def test_a_way_that_is_not_supported_is_left_for_good(error: ProviderError) -> None:
    clock, usage = Clock(), Usage()
    chooser = Chooser(clock=clock)
    ways: Ways = {"list": clock.taking(9.0, usage), "echo": clock.taking(0.1, usage, error)}
    assert [await way_of(chooser, ways, usage) for _ in range(6)] == ["list"] * 6
    assert clock.now == pytest.approx(6 * 9 + 0.1)
    assert usage.strategies == {"list": 72}


@pytest.mark.parametrize("error", [ServerError("no"), ContextLengthError("no")])
async def test_other_errors_are_the_callers(error: ProviderError) -> None:
    clock, usage = Clock(), Usage()
    chooser = Chooser(clock=clock)
    ways: Ways = {"list": clock.taking(9.0, usage), "echo": clock.taking(0.1, usage, error)}
    for _ in range(3):
        await chooser.answer(LONG, ways, usage)
    with pytest.raises(type(error)):
        await chooser.answer(LONG, ways, usage)


@pytest.mark.parametrize("error", [ServerError("no"), ResponseError("no"), ProviderTimeoutError("no")])
async def test_a_way_that_fails_at_its_first_trial_is_tried_once(error: ProviderError) -> None:
    clock, usage = Clock(), Usage()
    chooser = Chooser(clock=clock)
    ways: Ways = {"list": clock.taking(9.0, usage), "echo": clock.taking(0.1, usage, error)}
    for _ in range(3):
        await chooser.answer(LONG, ways, usage)
    with pytest.raises(type(error)):
        await chooser.answer(LONG, ways, usage)
    assert await way_of(chooser, ways, usage) == "list"


async def test_a_copy_tries_nothing_that_another_one_is_trying() -> None:
    clock, usage = Clock(), Usage()
    chooser = Chooser()
    chooser._clock = clock
    ways: Ways = {"list": clock.taking(9.0, usage), "echo": clock.taking(0.1, usage)}
    for _ in range(3):
        await chooser.answer(LONG, ways, usage)
    with chooser.measured("echo", LONG, usage):
        assert chooser.choose(LONG, ["list", "echo"]) == "list"
        assert copy.deepcopy(chooser).choose(LONG, ["list", "echo"]) == "echo"


def test_what_another_thread_learns_meanwhile_does_not_matter() -> None:
    chooser = Chooser()
    for _ in range(3):
        chooser.learn("list", LONG, 1.0, 0.0)
    plain = chooser._cost.seconds

    def seconds(work: Work) -> float:
        chooser._cost.seconds = plain  # type: ignore[method-assign]
        chooser.learn("list", LONG, 1.0, 0.0)
        return plain(work)

    with patch.object(chooser._cost, "seconds", seconds):
        chooser._factor("list")


async def test_a_way_that_was_named_fails_as_it_is() -> None:
    clock, usage = Clock(), Usage()
    ways: Ways = {"list": clock.taking(1.0, usage), "echo": clock.taking(1.0, usage, UnsupportedError("no"))}
    with pytest.raises(UnsupportedError):
        await Chooser("echo", clock=clock).answer(LONG, ways, usage)
    assert usage.strategies == {}


def test_tasks() -> None:
    questions = [Question(8, (b"a", b"b"), word=True), Question(0, (b"x",)), Question(8, (b"c",))]
    assert Task.of("Q" * 40, b"t" * 20, questions) == Task(places=3, before=10, span=2, wanted=4)
    assert Task.of("", b"", []) == Task(places=1, before=0, span=0, wanted=1)


def test_strategies_that_there_are_not() -> None:
    assert checked_strategy(None, "list", "singles") is None
    assert checked_strategy("list", "list", "singles") == "list"
    with pytest.raises(ValueError, match="no strategy 'echo'; there are 'list', 'singles' and 'filter'"):
        checked_strategy("echo", "list", "singles", "filter")
