"""Hedges, and questions that wait for more: the same text under every schedule."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from cosd_api import RuleVerifier
from cosd_api.decoding.commands import Ask, CancelDraft, Command, StartDraft
from cosd_api.decoding.schedule import LONGEST_HEDGE, Hedge, Pace
from cosd_api.decoding.units import Ahead, DraftUnit
from cosd_api.methods.cosd import CoSDDecoder
from cosd_providers.contract import DraftEnd, Proposal, Question, Token
from support.drawn import decoder_examples
from toys import schedules
from toys import toy_models as toys
from toys.scheduled import NONE, check, choosers, expected, failures, tasks

Also = Callable[[bytes, Token], tuple[Token, ...]]


@st.composite
def alternatives(draw: st.DrawFn, task: dict[str, Any]) -> Also:
    """What a draft may say it found probable: what the assistants will say, pieces of it, and anything else."""
    salt = draw(st.integers(0, 2**16))

    def also(text: bytes, token: Token) -> tuple[Token, ...]:
        words: list[bytes] = []
        for assistant in task["assistants"]:
            question = Question(len(text), (token.data,))
            for proposal in schedules.propose(assistant, task["prompt"], text, [question]):
                chain = [one.data for one in proposal.tokens] if proposal else []
                words += [b"".join(chain[:size]) for size in range(1, len(chain) + 1)]
        words += [toys.SINGLE[salt % len(toys.SINGLE)], b"ab", b""]
        words.sort(key=lambda word: zlib.crc32(repr((salt, text, word)).encode()))
        return tuple(Token(word, 0.1, end=not word) for word in dict.fromkeys(words) if word != token.data)

    return also


hedged = tasks().flatmap(lambda task: st.tuples(st.just(task), alternatives(task)))
SETTINGS = st.sampled_from(
    (NONE, {"max_ahead": 1}, {"max_ahead": 5}, {"in_flight": 2}, {"in_flight": 3}, {"skip": False, "in_flight": 2})
)


@decoder_examples
@given(hedged, choosers(), st.integers(1, 4), st.booleans(), SETTINGS)
def test_equal_with_hedges_under_every_schedule(
    given: Any, choose: schedules.Choose, hedge: int, late: bool, settings: dict[str, Any]
) -> None:
    task, also = given
    outcome = schedules.run(**task, choose=choose, also=also, hedge=hedge, late=late, **settings)
    check(outcome, expected(task))
    hedges = outcome.decoder.schedule.hedges
    target(float(hedges.hits))
    assert hedges.hits <= hedges.count < len(outcome.drafts)
    bound = settings.get("max_ahead")
    if bound:  # one that is taken over has a bound of its own
        assert outcome.most_ahead <= 2 * bound


@decoder_examples
@given(hedged, choosers(), st.integers(0, 2), st.randoms(use_true_random=False), st.sampled_from((0.5, 1.0)))
def test_equal_however_late_it_is_heard(
    given: Any, choose: schedules.Choose, hedge: int, chance: random.Random, share: float
) -> None:
    task, also = given
    outcome = schedules.run(**task, choose=choose, also=also, hedge=hedge, lately=lambda: chance.random() < share)
    check(outcome, expected(task))
    if share == 1:
        assert all(one.max_tokens <= 16 for one in outcome.drafts)


@decoder_examples
@given(hedged, choosers(), st.integers(1, 3))
def test_equal_with_hedges_where_only_text_is_taken(given: Any, choose: schedules.Choose, hedge: int) -> None:
    task, also = given
    outcome = schedules.run(**task, choose=choose, also=also, hedge=hedge, keeps_ids=False)
    check(outcome, expected(task, ids_kept=False))


@decoder_examples
@given(hedged, choosers(), choosers(), st.integers(0, 20), st.integers(0, 20), st.integers(1, 3))
def test_hedges_that_break_change_nothing(
    given: Any, one: schedules.Choose, other: schedules.Choose, draft: int, ask: int, hedge: int
) -> None:
    """Servers that break where a text gets too long for them: the same answer or error as without hedges."""
    task, also = given
    limits = schedules.Limits(draft, ask)
    outcomes = [
        schedules.run(**task, choose=one, limits=limits),
        schedules.run(**task, choose=other, limits=limits, also=also, hedge=hedge),
    ]
    assert len({(str(outcome.error), outcome.error is None and outcome.text) for outcome in outcomes}) == 1


@decoder_examples
@given(hedged, choosers(), failures(), st.integers(1, 3))
def test_hedges_without_an_assistant_that_fails_for_good(
    given: Any, choose: schedules.Choose, fails: Any, hedge: int
) -> None:
    task, also = given
    limits = schedules.Limits(fails=fails)
    outcome = schedules.run(**task, choose=choose, limits=limits, survives=lambda _: True, also=also, hedge=hedge)
    check(outcome, expected(task, fails=fails))


def drafts(commands: list[Command]) -> list[StartDraft]:
    return [one for one in commands if isinstance(one, StartDraft)]


def asked(commands: list[Command]) -> Ask:
    (ask,) = [one for one in commands if isinstance(one, Ask)]
    return ask


def unsure(data: bytes, *others: bytes) -> Token:
    return Token(data, 0.3, alternatives=tuple(Token(other, 0.2) for other in others))


def begun(*others: bytes, **settings: Any) -> tuple[CoSDDecoder, list[Command]]:
    """A decoder that has drafted one token which it is unsure of."""
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=9, pace=Pace(**settings))
    decoder.start()
    return decoder, decoder.drafted(1, unsure(b"a", *others))


def says(*data: bytes) -> list[Proposal | None]:
    return [Proposal(0, (Token(one, 0.9),)) for one in data]


def test_a_hit_goes_on_without_a_restart() -> None:
    decoder, commands = begun(b"x", b"y", b"z", hedge=2)
    assert [(one.text, one.max_tokens, one.own) for one in drafts(commands)] == [(b"x", 8, ()), (b"y", 8, ())]
    x, y = (one.draft for one in drafts(commands))
    assert decoder.drafted(y, Token(b"1", 0.9)) == []
    assert decoder.drafted(y, Token(b"2", 0.9)) == []
    after = decoder.answered(asked(commands).ask, says(b"y"))
    assert drafts(after) == []
    assert {one.draft for one in after if isinstance(one, CancelDraft)} == {1, x}
    assert bytes(decoder.response.text) == b"y12"
    decoder.drafted(y, Token(b"3", 0.9))
    assert bytes(decoder.response.text) == b"y123"
    assert (decoder.schedule.hedges.count, decoder.schedule.hedges.hits, decoder.schedule.hedges.written) == (2, 1, 2)


def test_a_miss_cancels_them_before_the_draft_begins_anew() -> None:
    decoder, commands = begun(b"x", hedge=1)
    (hedge,) = drafts(commands)
    after = decoder.answered(asked(commands).ask, says(b"q"))
    cancel = after.index(CancelDraft(hedge.draft))
    (start,) = drafts(after)
    assert start.text == b"q"
    assert cancel < after.index(start)
    assert decoder.schedule.hedges.hits == 0


def test_an_agreement_cancels_them() -> None:
    decoder, commands = begun(b"x", hedge=1)
    (hedge,) = drafts(commands)
    after = decoder.answered(asked(commands).ask, says(b"a"))
    assert CancelDraft(hedge.draft) in after
    assert drafts(after) == []
    assert decoder.drafted(hedge.draft, Token(b"1", 0.9)) == []


def test_one_that_has_ended_ends_the_answer() -> None:
    decoder, commands = begun(b"x", hedge=1)
    (hedge,) = drafts(commands)
    decoder.drafted(hedge.draft, Token(b"", 0.9, end=True))
    decoder.draft_ended(hedge.draft, DraftEnd("end"))
    decoder.answered(asked(commands).ask, says(b"x"))
    assert decoder.finished is not None
    assert (bytes(decoder.response.text), decoder.finished.finish_reason) == (b"x", "stop")


def test_one_that_breaks_is_forgotten() -> None:
    decoder, commands = begun(b"x", hedge=1)
    (hedge,) = drafts(commands)
    assert decoder.draft_failed(hedge.draft, ValueError("gone")) == []
    (start,) = drafts(decoder.answered(asked(commands).ask, says(b"x")))
    assert start.text == b"x"


def test_one_that_gets_too_long_is_given_up() -> None:
    decoder, commands = begun(b"x", hedge=1)
    (hedge,) = drafts(commands)
    for _ in range(LONGEST_HEDGE):
        assert decoder.drafted(hedge.draft, Token(b"1", 0.9)) == []
    assert decoder.drafted(hedge.draft, Token(b"1", 0.9)) == [CancelDraft(hedge.draft)]
    assert decoder.schedule.hedges.written == LONGEST_HEDGE + 1
    (start,) = drafts(decoder.answered(asked(commands).ask, says(b"x")))
    assert start.text == b"x"


def test_there_are_never_more_than_were_asked_for() -> None:
    decoder, commands = begun(b"x", b"y", hedge=1)
    assert len(drafts(commands)) == 1
    assert drafts(decoder.drafted(1, unsure(b"b", b"u"))) == []
    after = decoder.answered(asked(commands).ask, says(b"a"))  # agreed: the next one's turn
    assert [one.text for one in drafts(after)] == [b"au"]


def test_what_is_likeliest_anywhere_comes_before_what_is_second_somewhere() -> None:
    decoder, commands = begun(b"x", b"y", hedge=2)
    x, y = drafts(commands)
    later = decoder.drafted(1, unsure(b"b", b"u", b"v"))
    assert [one for one in later if isinstance(one, CancelDraft)] == [CancelDraft(y.draft)]
    assert [one.text for one in drafts(later)] == [b"au"]
    again = decoder.drafted(1, Token(b"c", 0.3))
    assert drafts(again) == []
    after = decoder.answered(asked(commands).ask, says(b"a"))  # room for the second one there
    assert [one.text for one in drafts(after)] == [b"av"]
    assert CancelDraft(x.draft) in after


def test_one_that_made_room_may_come_again() -> None:
    decoder, _ = begun(b"x", b"y", hedge=2)
    (u,) = drafts(decoder.drafted(1, unsure(b"b", b"u")))
    decoder.draft_failed(u.draft, ValueError("gone"))
    assert [one.text for one in drafts(decoder.drafted(1, Token(b"c", 0.9)))] == [b"y"]


def test_an_endpoint_that_takes_no_more_drafts_is_left_in_peace() -> None:
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=99, pace=Pace(hedge=1))
    decoder.start()
    started = 0
    for _ in range(20):
        for one in drafts(decoder.drafted(1, unsure(b"a", b"x"))):
            started += 1
            decoder.draft_failed(one.draft, ValueError("full"))
    assert started == 2


def test_a_text_is_not_drafted_from_twice_at_a_time() -> None:
    """What the draft may as well have said is what it said, or nothing: none of that is ahead."""
    decoder, commands = begun(b"a", b"", b"x", b"x", hedge=4)
    assert [one.text for one in drafts(commands)] == [b"x"]
    del decoder


def test_a_draft_that_goes_on_from_its_own_ids_is_no_hedge() -> None:
    """The same text, but the other one began with it again."""
    decoder, commands = begun(b"x", hedge=1, max_ahead=1)
    assert len(drafts(commands)) == 1
    decoder.draft_ended(1, DraftEnd("limit", (1, 2)))
    (start,) = drafts(decoder.answered(asked(commands).ask, says(b"a")))
    assert (start.text, start.continuation, start.own) == (b"a", (1, 2), (b"a",))
    hedges = decoder.schedule.hedges
    unit = decoder.units[0] if decoder.units else DraftUnit(0, 0, Token(b"a", 0.3))
    hedges.under_way[99] = Hedge(replace(start, continuation=None, own=()), unit, Ahead(b"a"))
    assert hedges.take(start) is None
    assert hedges.take(replace(start, continuation=None)) is None
    assert hedges.take(replace(start, continuation=None, own=())) is not None


@pytest.mark.parametrize(("reason", "finish"), [("context", "length"), ("filter", "content_filter")])
def test_one_whose_model_could_not_go_on_ends_the_answer_so(reason: Any, finish: str) -> None:
    decoder, commands = begun(b"x", hedge=1)
    (hedge,) = drafts(commands)
    decoder.drafted(hedge.draft, Token(b"1", 0.9))
    decoder.draft_ended(hedge.draft, DraftEnd(reason))
    decoder.answered(asked(commands).ask, says(b"x"))
    assert decoder.finished is not None
    assert (bytes(decoder.response.text), decoder.finished.finish_reason) == (b"x1", finish)


def test_a_sure_token_starts_none() -> None:
    decoder = CoSDDecoder(RuleVerifier.paper(), max_tokens=9, pace=Pace(hedge=3))
    decoder.start()
    assert drafts(decoder.drafted(1, Token(b"a", 0.6, alternatives=(Token(b"x", 0.3),)))) == []


def test_nothing_is_drafted_ahead_where_there_is_no_room() -> None:
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=1, pace=Pace(hedge=3))
    decoder.start()
    assert drafts(decoder.drafted(1, unsure(b"a", b"x"))) == []


def test_what_one_assistant_said_is_drafted_from_while_another_is_out() -> None:
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=9, assistants=2, pace=Pace(hedge=1))
    decoder.start()
    commands = decoder.drafted(1, Token(b"a", 0.3))
    first, second = (one for one in commands if isinstance(one, Ask))
    (hedge,) = drafts(decoder.answered(first.ask, says(b"x")))
    assert hedge.text == b"x"
    assert drafts(decoder.answered(second.ask, says(b"a"))) == []
    assert decoder.schedule.hedges.hits == 1


def second(*, late: bool, **settings: Any) -> list[int]:
    """Tokens that the first request of an answer is for, and the second one, behind the first that were kept."""
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=99, pace=Pace(**settings))
    decoder.late = True
    [first] = drafts(decoder.start())
    for _ in range(first.max_tokens):
        decoder.drafted(1, Token(b"a", 0.9))
    decoder.late = late
    [then] = drafts(decoder.draft_ended(1, DraftEnd("limit", (1,))))
    return [first.max_tokens, then.max_tokens]


def test_requests_are_for_few_tokens_where_verdicts_are_heard_late() -> None:
    """It is a little less than what lies between two replacements: here none were seen. The first one is short too."""
    assert second(late=True) == [16, 12]
    assert second(late=False) == [16, 83]
    assert second(late=True, max_ahead=30) == second(late=False, max_ahead=30) == [30, 30]  # an explicit bound holds
    assert second(late=True, draft_length=20) == [20, 20]
