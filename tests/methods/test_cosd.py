"""The decoder against the naive reference, under every schedule of events that hypothesis can think of."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from cosd_api import AgreementVerifier, RuleVerifier
from cosd_api.decoding.commands import (
    DRAFT,
    Ask,
    CancelAsk,
    CancelDraft,
    Command,
    Emit,
    Fail,
    Finish,
    StartDraft,
)
from cosd_api.decoding.schedule import Pace
from cosd_api.methods.cosd import CoSDDecoder
from cosd_providers.contract import Proposal, Token
from naive import reference
from support.drawn import decoder_examples
from toys import schedules
from toys import toy_models as toys
from toys.id_models import Always
from toys.scheduled import NONE, as_reference, check, choosers, expected, failures, tasks


@decoder_examples
@given(tasks(), choosers(), st.booleans(), st.integers(1, 3))
def test_equal_under_every_schedule(task: dict[str, Any], choose: schedules.Choose, late: bool, in_flight: int) -> None:
    outcome = schedules.run(**task, choose=choose, late=late, in_flight=in_flight)
    check(outcome, expected(task))


@decoder_examples
@given(tasks(), choosers(), st.floats(0, 1.2))
def test_equal_where_only_the_drafts_probability_counts(
    task: dict[str, Any], choose: schedules.Choose, alpha: float
) -> None:
    task["verifier"] = AgreementVerifier(alpha=alpha)
    check(schedules.run(**task, choose=choose), expected(task))


@decoder_examples
@given(tasks(), choosers(), st.integers(1, 6))
def test_equal_for_every_draft_length(task: dict[str, Any], choose: schedules.Choose, length: int) -> None:
    check(schedules.run(**task, choose=choose, draft_length=length), expected(task))


@decoder_examples
@given(tasks(), choosers(), st.integers(1, 12), st.integers(1, 3))
def test_equal_for_every_bound_ahead(
    task: dict[str, Any], choose: schedules.Choose, ahead: int, in_flight: int
) -> None:
    outcome = schedules.run(**task, choose=choose, max_ahead=ahead, in_flight=in_flight)
    check(outcome, expected(task))
    assert outcome.most_ahead <= ahead


@decoder_examples
@given(tasks(), choosers())
def test_equal_without_skipping(task: dict[str, Any], choose: schedules.Choose) -> None:
    everything = schedules.run(**task, choose=choose, skip=False)
    check(everything, expected(task))


@decoder_examples
@given(tasks(longest_merge=6), choosers())
def test_equal_where_characters_are_never_finished(task: dict[str, Any], choose: schedules.Choose) -> None:
    check(schedules.run(**task, choose=choose), expected(task))


@decoder_examples
@given(tasks(), choosers(), st.integers(1, 4))
def test_text_only_endpoints_follow_their_rounds(task: dict[str, Any], choose: schedules.Choose, length: int) -> None:
    outcome = schedules.run(**task, choose=choose, draft_length=length, keeps_ids=False)
    check(outcome, expected(task, ids_kept=False, round_length=length))


@decoder_examples
@given(tasks(), choosers(), st.sampled_from((RuleVerifier(alpha=0), RuleVerifier(alpha=1, beta=math.inf))))
def test_a_rule_that_never_fires_gives_the_drafts_own_text(
    task: dict[str, Any], choose: schedules.Choose, never: RuleVerifier
) -> None:
    task["verifier"] = never
    outcome = schedules.run(**task, choose=choose)
    alone = reference.fuse(
        task["prompt"],
        task["draft"],
        [],
        never.replaces,
        unit="token",
        max_tokens=task["max_tokens"],
        stop=task["stop"],
    )
    assert outcome.text == alone.text
    assert outcome.asks == []


@decoder_examples
@given(tasks(same_tokenizer=True, max_assistants=1, may_hide_end=False), choosers(), st.booleans())
def test_a_verifier_that_always_fires_gives_the_assistants_own_text(
    task: dict[str, Any], choose: schedules.Choose, late: bool
) -> None:
    task |= {"verifier": Always()}
    outcome = schedules.run(**task, choose=choose, late=late)
    check(outcome, expected(task))
    (assistant,) = task["assistants"]
    text, own = task["prompt"], []
    while True:  # the assistant starts afresh from its encoding of the text after every token
        token = next(reference.generate(assistant, text, patience=3), None)
        if token is None:
            return
        own.append(reference.Out(token.data, 0, token.end))
        text += token.data
        done = reference.finished(own, task["stop"], task["max_tokens"])
        if done:
            break
    if all(is_unique(assistant, task["prompt"], own, at) for at in range(len(own))):
        assert outcome.text == done.text


def is_unique(model: toys.Model, prompt: bytes, tokens: Sequence[reference.Out], at: int) -> bool:
    """Whether the model's most probable token there is the only one: ties go to the draft's."""
    probs = sorted(model.next(schedules.encode(model, prompt, reference.text_of(tokens[:at]))))
    return probs[-1] > probs[-2]


@decoder_examples
@given(tasks(), choosers())
def test_limits_hold_exactly(task: dict[str, Any], choose: schedules.Choose) -> None:
    outcome = schedules.run(**task, choose=choose)
    tokens = outcome.decoder.response.tokens
    assert len(tokens) <= task["max_tokens"]
    assert not any(stop in outcome.text for stop in task["stop"])
    assert not any(one.token.end for one in tokens[:-1])


@decoder_examples
@given(tasks(), choosers(), choosers(), st.integers(0, 20), st.integers(0, 20), st.integers(1, 8))
def test_whether_an_answer_succeeds_does_not_depend_on_timing(
    task: dict[str, Any], one: schedules.Choose, other: schedules.Choose, draft: int, ask: int, length: int
) -> None:
    """Servers that break where a text gets too long for them: the same answer, or the same error, every time."""
    limits = schedules.Limits(draft, ask)
    outcomes = [
        schedules.run(**task, choose=one, limits=limits),
        schedules.run(**task, choose=other, limits=limits, in_flight=3),
        schedules.run(**task, choose=one, limits=limits, draft_length=length),
        schedules.run(**task, choose=other, limits=limits, max_ahead=length),
    ]
    assert len({(str(outcome.error), outcome.error is None and outcome.text) for outcome in outcomes}) == 1
    emitted = b"".join(one.token.data for one in outcomes[0].emitted)
    assert expected(task).text.startswith(emitted)


@decoder_examples
@given(tasks(), choosers(), failures(), st.booleans(), st.sampled_from((NONE, {"draft_length": 3}, {"max_ahead": 2})))
def test_without_an_assistant_that_fails_for_good(
    task: dict[str, Any], choose: schedules.Choose, fails: Any, late: bool, settings: dict[str, Any]
) -> None:
    """It is lost at the same place, and the same tokens are unverified, under every schedule."""
    limits = schedules.Limits(fails=fails)
    outcome = schedules.run(**task, choose=choose, late=late, limits=limits, survives=lambda _: True, **settings)
    wanted = expected(task, fails=fails)
    check(outcome, wanted)
    lost = outcome.decoder.lost
    assert bool(lost) >= any(not token.verified for token in wanted.tokens)
    for assistant, loss in lost.items():
        own = [at for at, one in enumerate(wanted.tokens) if one.source == assistant]
        assert not own or own[-1] < loss.token


@decoder_examples
@given(tasks(), choosers(), failures())
def test_an_assistant_that_is_lost_is_asked_nothing_more(
    task: dict[str, Any], choose: schedules.Choose, fails: Any
) -> None:
    limits = schedules.Limits(fails=fails)
    asked: list[int] = []
    decoder = CoSDDecoder(
        task["verifier"],
        max_tokens=task["max_tokens"],
        assistants=len(task["assistants"]),
        survives=lambda _: True,
    )
    one = schedules.Run(
        task["prompt"], task["draft"], task["assistants"], decoder, keeps_ids=True, late=False, limits=limits
    )
    one.obey(decoder.start())
    while not one.ended:
        lost, asked = set(decoder.lost), list(one.waiting)
        one.happen(choose)
        for number in set(one.waiting) - set(asked):
            assert one.waiting[number].assistant not in lost


@decoder_examples
@given(tasks(), choosers(), st.integers(0, 60))
def test_an_answer_that_is_stopped_is_a_beginning_of_the_whole_one(
    task: dict[str, Any], choose: schedules.Choose, events: int
) -> None:
    decoder = CoSDDecoder(
        task["verifier"],
        max_tokens=task["max_tokens"],
        assistants=len(task["assistants"]),
        stop=task["stop"],
    )
    one = schedules.Run(
        task["prompt"], task["draft"], task["assistants"], decoder, keeps_ids=True, late=True, limits=schedules.Limits()
    )
    one.obey(decoder.start())
    for _ in range(events):
        if not one.ended:
            one.happen(choose)
    emitted = list(one.outcome.emitted)
    finish = Finish("budget", "max_requests")
    decoder.stop_here(finish)
    wanted = expected(task)
    tokens = [as_reference(placed) for placed in decoder.response.tokens]
    assert tokens == list(wanted.tokens[: len(tokens)])
    assert decoder.response.tokens == emitted
    assert bytes(decoder.response.text) == reference.text_of(tokens)
    assert decoder.report().kept == sum(one.source == DRAFT for one in tokens)
    if one.ended:
        assert decoder.finished == one.outcome.finish
        assert tokens == list(wanted.tokens)
    else:
        assert decoder.finished == finish
        assert decoder.drafted(1, Token(b"a", 0.3)) == []
        assert decoder.answered(1, []) == []


@decoder_examples
@given(tasks(), choosers())
def test_questions_are_about_what_could_change_the_answer(task: dict[str, Any], choose: schedules.Choose) -> None:
    outcome = schedules.run(**task, choose=choose)
    contestable = task["verifier"].contestable
    for one in outcome.decoder.response.tokens:
        if one.source == DRAFT and not one.decisions and one.token.prob is not None:
            note(f"{one}")
            cut = outcome.finish.finish_reason == "stop" and one is outcome.decoder.response.tokens[-1]
            assert cut or not contestable(one.token.prob)
        if one.source == DRAFT and one.decisions:
            assert one.token.prob is not None
            assert contestable(one.token.prob)


def test_reference_and_decoder_agree_on_a_long_answer() -> None:
    """One long case that is always run: 80 tokens over four models."""
    vocabulary = toys.Vocabulary((*toys.SINGLE, *toys.LONGER, b""), len(toys.SINGLE) + len(toys.LONGER), "longest")
    models = [toys.ToyModel(vocabulary, seed=seed, language=1, fluency=7) for seed in range(4)]
    task: dict[str, Any] = {
        "prompt": b"a",
        "draft": models[0],
        "assistants": models[1:],
        "verifier": RuleVerifier(alpha=0.6, beta=0.8),
        "max_tokens": 80,
        "stop": (),
    }
    check(schedules.run(**task, choose=lambda count: count // 2), expected(task))


def ask_of(commands: Sequence[Command]) -> Ask:
    """The one question among some commands."""
    (ask,) = [command for command in commands if isinstance(command, Ask)]
    return ask


def test_questions_that_fail_together_are_asked_again_one_by_one() -> None:
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=9)
    decoder.start()
    first = ask_of(decoder.drafted(1, Token(b"a", 0.3)))
    for data in (b"b", b"c"):
        assert not decoder.drafted(1, Token(data, 0.3))
    both = ask_of(decoder.answered(first.ask, [Proposal(0, (Token(b"a", 0.9),))]))
    assert [question.start for question in both.questions] == [1, 2]
    alone = ask_of(decoder.ask_failed(both.ask, ValueError("too long")))
    assert [question.start for question in alone.questions] == [1]
    last = ask_of(decoder.answered(alone.ask, [Proposal(1, (Token(b"b", 0.9),))]))
    assert [question.start for question in last.questions] == [2]
    error = ValueError("still too long")
    assert decoder.ask_failed(last.ask, error) == [Fail(error)]


def test_a_question_that_failed_matters_only_where_the_answer_waits_for_it() -> None:
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=9, pace=Pace(in_flight=2))
    decoder.start()
    first = ask_of(decoder.drafted(1, Token(b"a", 0.3)))
    second = ask_of(decoder.drafted(1, Token(b"b", 0.3)))
    assert decoder.ask_failed(second.ask, ValueError("too long")) == []
    commands = decoder.answered(first.ask, [Proposal(0, (Token(b"x", 0.9),))])
    assert not any(isinstance(command, Fail) for command in commands)
    assert bytes(decoder.response.text) == b"x"


@pytest.mark.parametrize("token", [Token(b"b", 0.9), Token(b"", 0.9, end=True)])
def test_a_draft_may_break_after_its_last_token(token: Token) -> None:
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=2)
    decoder.start()
    ask = ask_of(decoder.drafted(1, Token(b"a", 0.3)))
    decoder.drafted(1, token)
    assert decoder.draft_failed(1, ValueError("the connection broke")) == []
    *_, finish = decoder.answered(ask.ask, [Proposal(0, (Token(b"a", 0.9),))])
    assert isinstance(finish, Finish)


def test_a_draft_that_broke_is_an_error_once_all_before_is_settled() -> None:
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=9)
    decoder.start()
    ask = ask_of(decoder.drafted(1, Token(b"a", 0.3)))
    error = ValueError("the connection broke")
    assert decoder.draft_failed(1, error) == []
    emit, fail = decoder.answered(ask.ask, [Proposal(0, (Token(b"a", 0.9),))])
    assert isinstance(emit, Emit)
    assert fail == Fail(error)


def test_once_one_assistant_has_fired_nothing_is_done_behind_it() -> None:
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=9, assistants=2)
    decoder.start()
    first, second = (command for command in decoder.drafted(1, Token(b"a", 0.3)) if isinstance(command, Ask))
    decoder.drafted(1, Token(b"b", 0.9))
    assert decoder.answered(first.ask, [Proposal(0, (Token(b"x", 0.6),))]) == [CancelDraft(1)]
    assert decoder.drafted(1, Token(b"c", 0.3)) == []
    commands = decoder.answered(second.ask, [Proposal(0, (Token(b"y", 0.7),))])
    assert [command.text for command in commands if isinstance(command, StartDraft)] == [b"y"]


@pytest.mark.parametrize(("first", "loses"), [(0, False), (1, True)])
def test_an_assistant_that_nobody_could_have_been_surer_than_makes_up_for_one_that_failed(
    first: int, loses: bool
) -> None:
    """One that is certain and listed first wins anyway; one that is listed later only ties with the lost one."""
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=9, assistants=2, survives=lambda _: True)
    decoder.start()
    asks = [command for command in decoder.drafted(1, Token(b"a", 0.3)) if isinstance(command, Ask)]
    assert decoder.ask_failed(asks[1 - first].ask, ValueError("gone")) == []
    decoder.answered(asks[first].ask, [Proposal(0, (Token(b"x", 1.0),))])
    assert bool(decoder.lost) == loses
    assert [one.verified for one in decoder.response.tokens] == [not loses]
    assert [one.source for one in decoder.response.tokens] == [first]


def test_one_that_failed_is_lost_beside_one_that_is_certain_and_one_that_is_not_heard_any_more() -> None:
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=9, assistants=3, survives=lambda _: True)
    decoder.start()
    asks = [command for command in decoder.drafted(1, Token(b"a", 0.3)) if isinstance(command, Ask)]
    commands = decoder.answered(asks[1].ask, [Proposal(0, (Token(b"x", 1.0),))])
    assert CancelAsk(asks[2].ask) in commands
    commands = decoder.ask_failed(asks[0].ask, ValueError("gone"))
    assert [command.text for command in commands if isinstance(command, StartDraft)] == [b"x"]
    assert decoder.lost.keys() == {0}


def test_a_failure_waits_for_those_listed_before_who_may_be_certain() -> None:
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=9, assistants=2)
    decoder.start()
    first, second = (command for command in decoder.drafted(1, Token(b"a", 0.3)) if isinstance(command, Ask))
    error = ValueError("gone")
    assert decoder.ask_failed(second.ask, error) == []
    assert decoder.answered(first.ask, [Proposal(0, (Token(b"x", 0.9),))])[-1] == Fail(error)


def test_what_was_lost_before_is_verified_where_one_is_certain() -> None:
    decoder = CoSDDecoder(RuleVerifier(), max_tokens=2, assistants=2, survives=lambda _: True)
    decoder.start()
    first, second = (command for command in decoder.drafted(1, Token(b"a", 0.3)) if isinstance(command, Ask))
    decoder.ask_failed(second.ask, ValueError("gone"))
    decoder.answered(first.ask, [Proposal(0, (Token(b"a", 0.9),))])
    ask = ask_of(decoder.drafted(2, Token(b"b", 0.3)))
    decoder.answered(ask.ask, [Proposal(1, (Token(b"x", 1.0),))])
    assert [one.verified for one in decoder.response.tokens] == [False, True]
    assert decoder.lost.keys() == {1}


def test_a_failure_that_is_not_survived_is_an_error_beside_one_that_is() -> None:
    budget = OSError("no more")
    decoder = CoSDDecoder(
        RuleVerifier(), max_tokens=9, assistants=2, survives=lambda error: isinstance(error, ValueError)
    )
    decoder.start()
    first, second = (command for command in decoder.drafted(1, Token(b"a", 0.3)) if isinstance(command, Ask))
    assert decoder.ask_failed(first.ask, ValueError("gone")) == []
    assert decoder.ask_failed(second.ask, budget) == [Fail(budget)]
    assert decoder.lost == {}


def write(decoder: CoSDDecoder, late: int, *, replaces: bool) -> None:
    """Write an answer whose every fourth token is contested; verdicts come a number of tokens late."""
    due: deque[tuple[int, Ask]] = deque()
    commands, draft, at = decoder.start(), 0, 0
    while decoder.finished is None:
        for command in commands:
            if isinstance(command, StartDraft):
                draft = command.draft
            elif isinstance(command, Ask):
                due.append((at + late, command))
        if due and (due[0][0] <= at or decoder.response.over):
            ask = due.popleft()[1]
            word = Token(b"b" if replaces else b"a", 0.9)
            commands = decoder.answered(ask.ask, [Proposal(one.start, (word,)) for one in ask.questions])
        else:
            at += 1
            commands = decoder.drafted(draft, Token(b"a", 0.9 if at % 4 else 0.3))


def steps(length: int, late: int, *, replaces: bool) -> float:
    """Bytecodes that the decoder runs for each token of an answer of this length."""
    decoder, count, before = CoSDDecoder(RuleVerifier(), max_tokens=length), 0, sys.gettrace()

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        write(decoder, late, replaces=replaces)
    finally:
        sys.settrace(before)
    assert len(decoder.response.tokens) == length
    return count / length


def test_a_token_of_a_long_answer_takes_no_more_steps() -> None:
    for replaces in (False, True):
        assert steps(320, 3, replaces=replaces) < 1.1 * steps(64, 3, replaces=replaces)
    assert steps(320, 320, replaces=False) < 1.1 * steps(64, 64, replaces=False)  # all of it waits for a verdict
