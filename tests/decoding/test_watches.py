"""Watches: the answer is the one of single questions, under every schedule of events; and when they open and close."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from cosd_api import RuleVerifier
from cosd_api.decoding.commands import DRAFT, Ask, CloseWatch, Command, Finish, Heard, StartDraft, Watch
from cosd_api.decoding.schedule import Pace
from cosd_api.decoding.speeds import Speeds
from cosd_api.decoding.timeline import RequestSpan
from cosd_api.decoding.watches import AHEAD, LAG, is_watched
from cosd_api.methods.cosd import CoSDDecoder
from cosd_providers.contract import Capabilities, DraftEnd, Proposal, ServerInfo, Token
from decoding.test_same_ids import HEDGES, PACES, asks, check, wrote
from support.drawn import decoder_examples
from toys import id_schedules
from toys.id_models import TOKENS, Task, tasks
from toys.id_schedules import IdLimits
from toys.scheduled import choosers
from toys.schedules import BrokenError, Choose

WATCHED = st.sampled_from((frozenset({0, 1, 2}), frozenset({0}), frozenset({1, 2})))


def watching(task: Task, watched: frozenset[int]) -> frozenset[int]:
    """The assistants of a task among these."""
    return watched & {*range(len(task.assistants))}


@st.composite
def breaking(draw: st.DrawFn) -> Callable[[int, int], bool]:
    """Places, by bytes, at which the watch of an assistant breaks."""
    salt, share = draw(st.integers(0, 2**16)), draw(st.sampled_from((1, 2, 4)))
    return lambda assistant, at: zlib.crc32(repr((salt, assistant, at)).encode()) % share == 0


@decoder_examples
@given(tasks(), choosers(), WATCHED, st.booleans(), st.booleans(), HEDGES, PACES)
def test_equal_under_every_schedule(
    task: Task, choose: Choose, watched: frozenset[int], late: bool, skip: bool, hedge: int, pace: dict[str, Any]
) -> None:
    given = pace | {"watched": watching(task, watched), "hedge": 0 if "draft_length" in pace else hedge}
    outcome = id_schedules.run(task, choose, late=late, skip=skip, **given)
    check(outcome, task, skip=skip)


@decoder_examples
@given(tasks(), choosers(), WATCHED, HEDGES, st.randoms(use_true_random=False))
def test_equal_however_late_it_is_heard(
    task: Task, choose: Choose, watched: frozenset[int], hedge: int, chance: random.Random
) -> None:
    given: Any = {"hedge": hedge, "watched": watching(task, watched)}
    check(id_schedules.run(task, choose, lately=lambda: chance.random() < 0.5, **given), task)


@decoder_examples
@given(tasks(), choosers(), WATCHED, breaking(), st.sets(st.integers(0, 2)), HEDGES, PACES)
def test_watches_that_fail_change_nothing(
    task: Task,
    choose: Choose,
    watched: frozenset[int],
    breaks: Callable[[int, int], bool],
    failing: set[int],
    hedge: int,
    pace: dict[str, Any],
) -> None:
    limits = IdLimits(early=failing.__contains__, watch=breaks)
    given = pace | {"watched": watching(task, watched), "hedge": 0 if "draft_length" in pace else hedge}
    check(id_schedules.run(task, choose, limits=limits, **given), task)


@decoder_examples
@given(tasks(), choosers(), choosers(), WATCHED, breaking(), st.sets(st.integers(0, 2)), PACES)
def test_an_assistant_is_lost_where_single_questions_lose_it(
    task: Task,
    one: Choose,
    other: Choose,
    watched: frozenset[int],
    odd: Callable[[int, int], bool],
    failing: set[int],
    pace: dict[str, Any],
) -> None:
    limits = IdLimits(
        fails=lambda assistant, at, _: assistant in failing and odd(assistant, at), early=failing.__contains__
    )
    given: Any = {"limits": limits, "survives": lambda _: True}
    outcomes = [
        id_schedules.run(task, one, **given),
        id_schedules.run(task, other, **given, **pace, watched=watching(task, watched)),
    ]
    told = [
        [(one.token.id, one.token.data, one.source, one.verified) for one in outcome.decoder.response.tokens]
        for outcome in outcomes
    ]
    assert told[0] == told[1]
    lost = [{at: loss.token for at, loss in one.decoder.lost.items()} for one in outcomes]
    assert lost[0] == lost[1]


@decoder_examples
@given(tasks(same=True), choosers(), WATCHED, st.booleans(), PACES)
def test_a_model_fused_with_itself_is_watched_once(
    task: Task, choose: Choose, watched: frozenset[int], skip: bool, pace: dict[str, Any]
) -> None:
    outcome = id_schedules.run(task, choose, skip=skip, watched=watching(task, watched), **pace)
    check(outcome, task, skip=skip)
    assert outcome.decoder.report().replacements == outcome.decoder.report().ties == 0
    assert not any(ask.assistant == DRAFT or ask.assistant in watched for ask in outcome.asks)
    target(float(len(outcome.emitted)))


def begun(
    *, assistants: int = 1, max_tokens: int = 60, tie: float = 0.0, alpha: float = 0.5
) -> tuple[CoSDDecoder, list[Watch]]:
    """A decoder that watches every assistant from the start, and its watches."""
    pace = Pace(ids=True, watched=frozenset(range(assistants)))
    verifier = RuleVerifier(alpha=alpha)
    decoder = CoSDDecoder(verifier, max_tokens=max_tokens, assistants=assistants, tie=tie, pace=pace)
    return decoder, watches(decoder.start())


def watches(commands: Sequence[Command]) -> list[Watch]:
    return [one for one in commands if isinstance(one, Watch)]


def closed(commands: Sequence[Command]) -> list[int]:
    return [one.watch for one in commands if isinstance(one, CloseWatch)]


def heard(commands: Sequence[Command]) -> list[int]:
    return [one.watch for one in commands if isinstance(one, Heard)]


def said(id: int, prob: float | None = 0.9, *others: tuple[int, float]) -> Token:
    """A token of a watch, and those beside it."""
    listed = tuple(Token(TOKENS[one], share, id=one) for one, share in others)
    return Token(TOKENS[id], prob, id=id, alternatives=listed)


def test_a_watch_opens_with_the_answer() -> None:
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=9, assistants=2, pace=Pace(ids=True, watched=frozenset({1})))
    watch, ask, draft = decoder.start()
    assert watch == Watch(1, 1, b"", (), 9, 1)
    assert isinstance(ask, Ask)
    assert (ask.ask, ask.assistant) == (2, 0)
    assert draft == StartDraft(1, b"", 9, None, (), ids=())


def test_it_answers_each_place_that_it_passes_also_ahead_of_the_draft() -> None:
    decoder, [watch] = begun()
    assert decoder.watched(watch.watch, said(97)) == []
    assert decoder.watched(watch.watch, said(98)) == []  # held until the draft is there
    assert heard(decoder.drafted(1, wrote(97))) == [watch.watch]
    assert heard(decoder.drafted(1, wrote(98, 0.9))) == []  # nobody has to be heard there
    assert heard(decoder.drafted(1, wrote(97))) == []
    commands = decoder.watched(watch.watch, said(97))
    assert heard(commands) == [watch.watch]
    assert not (asks(commands) or closed(commands) or watches(commands))
    [first, _, third] = decoder.response.tokens
    [decision] = first.decisions
    assert (decision.ask, decision.strategy, decision.agreed) == (watch.watch, "watch", True)
    assert third.decisions[0].q == 0.9


def test_it_continues_the_answer_where_its_token_replaces_the_drafts() -> None:
    decoder, [watch] = begun()
    decoder.watched(watch.watch, said(98))
    decoder.watched(watch.watch, said(99))
    commands = decoder.drafted(1, wrote(97))
    assert not (closed(commands) or watches(commands))
    assert commands[-1] == StartDraft(2, b"b", 59, None, (), ids=(98,))
    assert heard(decoder.drafted(2, wrote(99))) == [watch.watch]


def test_it_is_closed_at_a_difference_that_stands() -> None:
    decoder, [watch] = begun()
    commands = [*decoder.watched(watch.watch, said(98, 0.1)), *decoder.drafted(1, wrote(97, 0.3))]
    assert heard(commands) == closed(commands) == [watch.watch]
    assert watches(commands) == []
    [again] = watches(decoder.drafted(1, wrote(97)))
    assert (again.ids, again.text, again.max_tokens) == ((97,), b"a", 59)
    assert decoder.watched(watch.watch, said(97)) == []  # it may still speak


def test_it_is_closed_at_a_tie() -> None:
    decoder, [watch] = begun(tie=0.05)
    commands = [*decoder.watched(watch.watch, said(98, 0.4, (97, 0.39))), *decoder.drafted(1, wrote(97))]
    assert closed(commands) == [watch.watch]
    assert decoder.report().ties == 1


def test_it_is_closed_where_the_draft_stands_unasked_and_differs() -> None:
    decoder, [watch] = begun()
    commands = [*decoder.drafted(1, wrote(97, 0.9)), *decoder.watched(watch.watch, said(98))]
    assert heard(commands) == []
    assert closed(commands) == [watch.watch]


def test_one_that_lags_is_opened_again_at_the_first_place_that_waits() -> None:
    decoder, [watch] = begun()
    commands: list[Command] = []
    for _ in range(LAG + 1):
        commands += decoder.drafted(1, wrote(97, 0.9))
    assert closed(commands) == []
    commands = decoder.drafted(1, wrote(98))
    assert closed(commands) == [watch.watch]
    [again] = watches(commands)
    assert again.ids == (97,) * (LAG + 1)
    assert closed(decoder.drafted(1, wrote(98))) == []


def test_one_that_runs_ahead_is_closed_and_its_tokens_are_kept() -> None:
    decoder, [watch] = begun()
    commands: list[Command] = []
    for _ in range(AHEAD + 1):
        assert commands == []
        commands = decoder.watched(watch.watch, said(97))
    assert commands == [CloseWatch(watch.watch)]
    for _ in range(AHEAD + 1):
        commands = decoder.drafted(1, wrote(97))
        assert heard(commands) == [watch.watch]
        assert watches(commands) == []
    [again] = watches(decoder.drafted(1, wrote(97)))
    assert len(again.ids) == AHEAD + 1


def test_one_that_fails_becomes_a_single_question() -> None:
    decoder, [watch] = begun()
    decoder.drafted(1, wrote(97))
    [ask] = asks(decoder.watch_failed(watch.watch, BrokenError("watch")))
    assert (ask.questions[0].start, ask.paths) == (0, ((),))
    commands = [*decoder.drafted(1, wrote(97)), *decoder.drafted(1, wrote(97))]
    assert not (asks(commands) or watches(commands))  # the assistant is busy
    [again] = watches(decoder.answered(ask.ask, [Proposal(0, (said(97),))]))
    assert again.ids == (97,)
    commands = decoder.watch_failed(again.watch, BrokenError("watch"))  # the second in a row: no more of them
    assert [one.paths for one in asks(commands)] == [((97,), (97, 97))]
    assert watches(decoder.drafted(1, wrote(97))) == []


@pytest.mark.parametrize("reason", ["context", "filter"])
def test_one_whose_context_is_full_becomes_a_single_question(reason: Literal["context", "filter"]) -> None:
    decoder, [watch] = begun()
    decoder.drafted(1, wrote(97))
    [ask] = asks(decoder.watch_ended(watch.watch, DraftEnd(reason)))
    decoder.answered(ask.ask, [None])
    assert decoder.response.settled == 1


def test_a_token_whose_probability_is_not_shown_only_agrees() -> None:
    decoder, [watch] = begun()
    assert heard([*decoder.drafted(1, wrote(0xC3)), *decoder.watched(watch.watch, said(0xC3, None))]) == [watch.watch]
    commands = [*decoder.drafted(1, wrote(97)), *decoder.watched(watch.watch, said(0xA9, None))]
    assert heard(commands) == []
    assert closed(commands) == [watch.watch]
    [ask] = asks(commands)
    assert ask.paths == ((0xC3,),)


def test_with_two_assistants_the_watch_of_the_one_that_replaces_is_kept() -> None:
    decoder, [one, other] = begun(assistants=2)
    decoder.drafted(1, wrote(97))
    commands = decoder.watched(one.watch, said(98, 0.6))
    assert closed(commands) == []  # it may become the answer's
    decoder.watched(one.watch, said(97))
    commands = decoder.watched(other.watch, said(99, 0.8))
    assert closed(commands) == [one.watch]
    assert decoder.response.tokens[0].token.id == 99
    assert heard(decoder.watched(other.watch, said(97))) == []
    [again] = watches(commands := decoder.drafted(2, wrote(97)))
    assert (again.assistant, again.ids) == (0, (99,))
    assert heard(commands) == [other.watch]


def test_the_watch_of_one_that_is_lost_together_with_the_last_is_closed_at_once() -> None:
    pace = Pace(ids=True, watched=frozenset({0, 1}))
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=9, assistants=2, pace=pace, survives=lambda _: True)
    one, other = watches(decoder.start())
    decoder.drafted(1, wrote(97))
    decoder.drafted(1, wrote(97))
    [ask] = asks(decoder.watch_failed(one.watch, BrokenError("watch")))
    [again] = watches(decoder.ask_failed(ask.ask, BrokenError("question")))  # the other may still speak: nobody is lost
    [ask] = asks(decoder.watch_failed(other.watch, BrokenError("watch")))
    commands = decoder.ask_failed(ask.ask, BrokenError("question"))
    assert sorted(decoder.lost) == [0, 1]
    assert again.watch in closed(commands)


def test_watches_are_closed_at_the_end() -> None:
    decoder, [watch] = begun(max_tokens=1)
    commands = [*decoder.watched(watch.watch, said(97)), *decoder.drafted(1, wrote(97))]
    assert closed(commands) == [watch.watch]
    assert isinstance(commands[-1], Finish)
    decoder, [watch] = begun()
    decoder.drafted(1, wrote(97))
    decoder.stop_here(Finish("budget", "timeout"))
    assert decoder.watched(watch.watch, said(97)) == []


INFO = ServerInfo("http://gpu1:8080", "llama.cpp", "m", None, None, Capabilities(True, True, True, True, places=1))


def at(url: str, **abilities: Any) -> ServerInfo:
    return replace(INFO, endpoint=url, capabilities=replace(INFO.capabilities, **abilities))


def test_an_assistant_is_watched_that_can_write_along() -> None:
    assert is_watched(INFO, at("http://gpu2:8080"), None)
    assert is_watched(INFO, at("http://gpu2:8080"), 1.1)
    assert not is_watched(INFO, at("http://gpu2:8080"), 1.5)
    assert not is_watched(INFO, at("http://gpu1:8081"), 0.5)
    assert not is_watched(at("http://localhost:1"), at("http://127.0.0.1:2"), None)
    assert not is_watched(at("scripted:"), at("scripted:"), None)
    assert not is_watched(INFO, at("http://gpu2:8080", places=64), None)
    assert is_watched(INFO, at("http://gpu1:8081", places=64, watch=True), 9.0)
    assert not is_watched(INFO, at("http://gpu2:8080", watch=False), None)


def test_speeds_are_compared_once_enough_was_written() -> None:
    speeds = Speeds()
    spans = [
        RequestSpan(0, "draft", 1, 0, 0.0, 1.0, 2.0, tokens=101),
        RequestSpan(1, "watch", 1, 0, 0, 1, 3, tokens=11),
    ]
    speeds.note(spans)
    assert speeds.slower(1) is None
    speeds.note([RequestSpan(1, "watch", 2, 0, 0.0, 1.0, 11.0, tokens=91), RequestSpan(1, "question", 3, 0, 0.0)])
    assert speeds.slower(1) == pytest.approx(12)
    assert speeds.slower(2) is None
