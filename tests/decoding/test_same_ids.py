"""Models with the same ids: the decoder against the naive reference, under every schedule of events."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from cosd_api import MatchVerifier, RuleVerifier
from cosd_api.decoding.commands import DRAFT, Ask, CancelAsk, CancelDraft, Command, Fail, Finish, StartDraft
from cosd_api.decoding.schedule import Pace
from cosd_api.methods.cosd import CoSDDecoder
from cosd_api.verification import Verifier
from cosd_providers.contract import DraftEnd, Proposal, Question, Token
from naive import reference_ids
from support.drawn import decoder_examples
from toys import id_schedules
from toys.id_models import TOKENS, TWIN, Always, Task, is_open, tasks
from toys.id_schedules import IdLimits
from toys.scheduled import NONE, choosers
from toys.schedules import BrokenError, Choose, Outcome

PACES = st.sampled_from(
    (
        NONE,
        {"draft_length": 1},
        {"draft_length": 3, "shown": 5},
        {"max_ahead": 1},
        {"max_ahead": 4},
        {"shown": 3},
    )
)
HEDGES, IN_FLIGHT, PLACES = st.integers(0, 3), st.integers(1, 3), st.sampled_from((1, 2, 64))


def check(outcome: Outcome, task: Task, *, skip: bool = True) -> None:
    """The answer is the reference's, id for id, and was emitted whole; every place that matters has its decisions."""
    assert outcome.error is None
    wanted, placed = task.expected(), outcome.decoder.response.tokens
    tokens = [(one.token.id, one.token.data, one.source) for one in placed]
    assert tokens == [(one.id, one.data, one.source) for one in wanted.tokens]
    assert outcome.text == wanted.text
    assert outcome.finish.finish_reason == wanted.finish_reason
    assert wanted.stop is None or outcome.finish.stop_reason == wanted.stop.decode()
    assert [id(one) for one in outcome.emitted] == [id(one) for one in placed]
    counts = outcome.decoder.report()
    assert counts.replacements == sum(one.source != DRAFT for one in wanted.written)
    assert counts.kept == sum(one.source == DRAFT for one in wanted.tokens)
    asked = judged(task, wanted, skip=skip)
    assert counts.ties == sum(bool(one.tied) for one, heard in zip(wanted.written, asked, strict=True) if heard)
    for one, heard in zip(placed, asked, strict=False):
        assert one.asked == bool(one.decisions) == heard
        if heard and one.source == DRAFT:
            assert [decision.assistant for decision in one.decisions] == [*range(len(task.assistants))]


def judged(task: Task, wanted: reference_ids.Fused, *, skip: bool) -> list[bool]:
    """For each place, whether the assistants are heard."""
    found, path, at = list[bool](), list[int](), 0
    for out in wanted.written:
        own = task.draft.token([*task.draft.encode(task.prompt.encode()), *path], 0)
        assert own.id is not None
        hidden = task.hides and not own.end and is_open([*path, own.id])
        found.append(not skip or task.contestable(out, at, hidden=hidden))
        path.append(out.id)
        at += len(out.data)
    return found


@decoder_examples
@given(tasks(), choosers(), st.booleans(), IN_FLIGHT, PLACES, PACES)
def test_equal_under_every_schedule(
    task: Task, choose: Choose, late: bool, in_flight: int, places: int, pace: dict[str, Any]
) -> None:
    given = pace | {"in_flight": in_flight, "places": (places,) * len(task.assistants)}
    check(id_schedules.run(task, choose, late=late, **given), task)


@decoder_examples
@given(tasks(), choosers(), st.integers(1, 3), st.booleans(), IN_FLIGHT, PACES)
def test_equal_with_hedges(
    task: Task, choose: Choose, hedge: int, late: bool, in_flight: int, pace: dict[str, Any]
) -> None:
    outcome = id_schedules.run(task, choose, late=late, hedge=hedge, in_flight=in_flight, **pace)
    check(outcome, task)
    target(float(outcome.decoder.schedule.hedges.hits))


@decoder_examples
@given(tasks(), choosers(), IN_FLIGHT, PLACES, PACES)
def test_equal_without_skipping(task: Task, choose: Choose, in_flight: int, places: int, pace: dict[str, Any]) -> None:
    given = pace | {"in_flight": in_flight, "places": (places,) * len(task.assistants)}
    check(id_schedules.run(task, choose, skip=False, **given), task, skip=False)


@decoder_examples
@given(tasks(), choosers(), HEDGES, st.randoms(use_true_random=False))
def test_equal_however_late_it_is_heard(task: Task, choose: Choose, hedge: int, chance: random.Random) -> None:
    check(id_schedules.run(task, choose, hedge=hedge, lately=lambda: chance.random() < 0.5), task)


@decoder_examples
@given(tasks(same=True), choosers(), HEDGES, st.booleans(), PACES)
def test_a_model_fused_with_itself_replaces_nothing(
    task: Task, choose: Choose, hedge: int, skip: bool, pace: dict[str, Any]
) -> None:
    outcome = id_schedules.run(task, choose, hedge=hedge, skip=skip, **pace)
    check(outcome, task, skip=skip)
    assert outcome.decoder.report().replacements == outcome.decoder.report().ties == 0
    assert not any(ask.assistant == DRAFT for ask in outcome.asks)  # an agreement needs no probability


@decoder_examples
@given(tasks(), choosers(), st.sets(st.integers(0, 2)), HEDGES, PACES)
def test_early_questions_that_fail_change_nothing(
    task: Task, choose: Choose, failing: set[int], hedge: int, pace: dict[str, Any]
) -> None:
    limits = IdLimits(early=failing.__contains__)
    check(id_schedules.run(task, choose, limits=limits, hedge=hedge, **pace), task)


@st.composite
def breaking(draw: st.DrawFn) -> Callable[[int], bool]:
    """Places of the answer, by bytes, at which the draft cannot say how probable its own token is."""
    salt, share = draw(st.integers(0, 2**16)), draw(st.sampled_from((1, 2, 4)))
    return lambda at: zlib.crc32(repr((salt, at)).encode()) % share == 0


@decoder_examples
@given(tasks(), choosers(), choosers(), breaking(), st.integers(1, 3), st.integers(0, 20), st.integers(0, 20))
def test_whether_an_answer_succeeds_does_not_depend_on_timing(
    task: Task, one: Choose, other: Choose, own: Callable[[int], bool], number: int, draft: int, ask: int
) -> None:
    """Servers that break at some places of the text: the same answer, or the same error, every time."""
    limits = IdLimits(draft, ask, own=own)
    outcomes = [
        id_schedules.run(task, one, limits=limits),
        id_schedules.run(task, other, limits=limits, in_flight=3),
        id_schedules.run(task, one, limits=limits, draft_length=number),
        id_schedules.run(task, other, limits=limits, max_ahead=number),
        id_schedules.run(task, other, limits=limits, hedge=number),
    ]
    assert len({(str(outcome.error), outcome.error is None and outcome.text) for outcome in outcomes}) == 1
    assert task.expected().text.startswith(b"".join(one.token.data for one in outcomes[0].emitted))


@decoder_examples
@given(tasks(), choosers(), choosers(), breaking(), st.sets(st.integers(0, 2)), HEDGES, PACES)
def test_an_assistant_is_lost_at_the_same_place_under_every_schedule(
    task: Task,
    one: Choose,
    other: Choose,
    odd: Callable[[int], bool],
    failing: set[int],
    hedge: int,
    pace: dict[str, Any],
) -> None:
    limits = IdLimits(fails=lambda assistant, at, _: assistant in failing and odd(at), early=failing.__contains__)
    given: Any = {"limits": limits, "survives": lambda _: True}
    outcomes = [id_schedules.run(task, one, **given), id_schedules.run(task, other, hedge=hedge, **given, **pace)]
    told = [
        [(one.token.id, one.token.data, one.source, one.verified) for one in outcome.decoder.response.tokens]
        for outcome in outcomes
    ]
    assert told[0] == told[1]
    assert [{at: loss.token for at, loss in one.decoder.lost.items()} for one in outcomes] == [
        {at: loss.token for at, loss in outcomes[0].decoder.lost.items()}
    ] * 2


def begun(*, assistants: int = 1, max_tokens: int = 9, tie: float = 0.0) -> tuple[CoSDDecoder, list[Ask]]:
    """A decoder that has asked about the start, and its questions."""
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=max_tokens, assistants=assistants, tie=tie, pace=Pace(ids=True))
    return decoder, asks(decoder.start())


def asks(commands: Sequence[Command]) -> list[Ask]:
    return [one for one in commands if isinstance(one, Ask)]


def says(id: int, prob: float | None = 0.9, *others: tuple[int, float]) -> list[Proposal | None]:
    """An answer of a model: a token, and those beside it."""
    listed = tuple(Token(TOKENS[one], share, id=one) for one, share in others)
    return [Proposal(0, (Token(TOKENS[id], prob, id=id, alternatives=listed),))]


def wrote(id: int, prob: float | None = 0.3) -> Token:
    return Token(TOKENS[id], prob, id=id)


def test_a_question_about_the_start_goes_out_before_the_draft() -> None:
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=9, assistants=2, pace=Pace(ids=True))
    first, second, draft = decoder.start()
    assert [first, second] == [Ask(at, at - 1, b"", (Question(0, ()),), 1, ((),)) for at in (1, 2)]
    assert draft == StartDraft(1, b"", 9, None, (), ids=())
    never = CoSDDecoder(RuleVerifier(alpha=0), max_tokens=9, pace=Pace(ids=True))
    assert asks(never.start()) == []


def test_an_early_answer_is_kept_until_the_draft_is_there() -> None:
    decoder, [early] = begun()
    assert decoder.answered(early.ask, says(98)) == []
    [cancel, _, again] = decoder.drafted(1, wrote(97))  # and it is final at once
    assert cancel == CancelDraft(1)
    assert again == StartDraft(2, b"b", 8, None, (), ids=(98,))
    assert decoder.response.tokens[0].decisions[0].ask == early.ask


def test_an_early_question_that_fails_late_is_asked_again() -> None:
    decoder, [early] = begun()
    assert decoder.drafted(1, wrote(97)) == []  # it is what the early question is about
    [again] = asks(decoder.ask_failed(early.ask, BrokenError("early")))
    assert again.questions == (Question(0, (b"a",)),)
    [fail] = decoder.ask_failed(again.ask, BrokenError("again"))
    assert isinstance(fail, Fail)


def test_an_early_question_that_fails_frees_its_assistant() -> None:
    """The first token is sure, and about the second one the assistant is asked once it is free."""
    decoder, [early] = begun(max_tokens=2)
    assert asks(decoder.drafted(1, wrote(97, 0.9))) == []
    assert asks([*decoder.drafted(1, wrote(98)), *decoder.draft_ended(1, DraftEnd("limit"))]) == []
    [ask] = asks(decoder.ask_failed(early.ask, BrokenError("early")))
    assert ask.paths == ((97,),)
    decoder.answered(ask.ask, says(98))
    assert decoder.finished is not None


def test_an_early_question_is_left_behind_where_the_answer_does_not_need_it() -> None:
    decoder, [early] = begun(max_tokens=1)
    commands = decoder.drafted(1, wrote(97, 0.9))
    assert CancelAsk(early.ask) in commands
    assert isinstance(commands[-1], Finish)
    assert decoder.answered(early.ask, says(98)) == []


def test_the_draft_is_asked_once_how_probable_its_token_is() -> None:
    """Two assistants differ from a token whose probability was not shown; the surer one's token replaces it."""
    decoder, [one, other] = begun(assistants=2)
    decoder.drafted(1, wrote(0xC3, None))
    [ask] = asks(decoder.answered(one.ask, says(97, 0.6)))
    assert (ask.assistant, ask.questions, ask.paths) == (DRAFT, (Question(0, ()),), ((),))
    assert ask.alternatives > 0
    assert asks(decoder.answered(other.ask, says(98, 0.8))) == []
    decoder.answered(ask.ask, says(0xC3, 0.4, (97, 0.3)))
    [placed] = decoder.response.tokens
    assert (placed.token.id, placed.source) == (98, 1)
    assert placed.replaced == (wrote(0xC3, 0.4),)
    assert [(decision.p, decision.ask) for decision in placed.decisions] == [(0.4, one.ask), (0.4, other.ask)]


def test_the_probability_is_found_where_the_draft_lists_its_token_second() -> None:
    decoder, [early] = begun()
    decoder.drafted(1, wrote(0xC3, None))
    [ask] = asks(decoder.answered(early.ask, says(97)))
    decoder.answered(ask.ask, says(98, 0.41, (0xC3, 0.4)))
    assert decoder.response.tokens[0].decisions[0].p == 0.4


@pytest.mark.parametrize("answer", [[None], says(97)])
def test_a_probability_that_stays_unknown_replaces_nothing(answer: list[Proposal | None]) -> None:
    decoder, [early] = begun()
    decoder.drafted(1, wrote(0xC3, None))
    [ask] = asks(decoder.answered(early.ask, says(97)))
    decoder.answered(ask.ask, answer)
    assert decoder.response.tokens[0].token == wrote(0xC3, None)
    assert not decoder.response.tokens[0].decisions[0].fired


def test_a_question_to_the_draft_that_fails_ends_the_answer_only_where_it_waits_for_it() -> None:
    """About the second token the draft fails; the first one is replaced, and so nobody waits for it."""
    decoder, [early] = begun()
    decoder.drafted(1, wrote(97))
    decoder.drafted(1, wrote(0xC3, None))
    [ask] = asks(decoder.ask_failed(early.ask, BrokenError("early")))
    assert ask.paths == ((),)
    [second] = asks(decoder.answered(ask.ask, says(97)))
    [own] = asks(decoder.answered(second.ask, says(97)))
    [fail] = decoder.ask_failed(own.ask, BrokenError("own"))
    assert isinstance(fail, Fail)
    decoder, [early] = begun(assistants=1)
    decoder.drafted(1, wrote(97))
    decoder.drafted(1, wrote(0xC3, None))
    assert asks(decoder.answered(early.ask, says(98))) == []
    assert bytes(decoder.response.text) == b"b"


def tied(said: list[Proposal | None], tie: float, verifier: Verifier | None = None) -> tuple[int, int]:
    """Ties and replacements where the draft wrote "a", and the assistant says this."""
    decoder = CoSDDecoder(verifier or RuleVerifier(), max_tokens=1, tie=tie, pace=Pace(ids=True))
    [early] = asks(decoder.start())
    decoder.drafted(1, wrote(97))
    decoder.answered(early.ask, said)
    report = decoder.report()
    assert decoder.finished is not None
    return report.ties, report.replacements


def test_a_tie_is_the_second_choice_within_the_difference() -> None:
    near = says(98, 0.4, (97, 0.39), (99, 0.2))
    assert tied(near, 0.05) == (1, 0)
    assert tied(near, 0.02) == (0, 1)
    assert tied(says(98, 0.4, (97, 0.4)), 0.0) == (1, 0)  # equal probabilities
    assert tied(says(98, 0.4, (99, 0.399), (97, 0.398)), 0.05) == (0, 1)  # the third choice
    assert tied(says(98, 0.4), 0.05) == (0, 1)  # not listed
    assert tied(says(TWIN, 0.4, (97, 0.1)), 0.05) == (0, 1)  # other ids, although the same byte
    assert tied(says(97, 0.4, (98, 0.4)), 0.05) == (0, 0)  # an agreement


@pytest.mark.parametrize("verifier", [MatchVerifier(), Always()])
def test_a_verifier_that_replaces_whatever_differs_has_no_ties_but_of_equals(verifier: Verifier) -> None:
    assert tied(says(98, 0.4, (97, 0.399)), 0.5, verifier) == (0, 1)
    assert tied(says(98, 0.4, (97, 0.4)), 0.5, verifier) == (1, 0)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_tie_counts_once_and_only_where_the_token_stands(order: tuple[int, int]) -> None:
    answers = [says(98, 1.0), says(98, 0.4, (97, 0.4))]
    decoder, early = begun(assistants=2, max_tokens=1)
    decoder.drafted(1, wrote(97))
    for assistant in order:
        decoder.answered(early[assistant].ask, answers[assistant])
    assert (decoder.report().ties, decoder.report().replacements) == (0, 1)
    decoder, early = begun(assistants=2, max_tokens=1)
    decoder.drafted(1, wrote(97))
    for assistant in order:
        decoder.answered(early[assistant].ask, answers[1])
    assert (decoder.report().ties, decoder.report().replacements) == (1, 0)
