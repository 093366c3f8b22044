"""Runs the decoder against small models with the same ids under any schedule of events, without I/O.

It is `schedules` for contexts by ids. Beside drafts and questions there are questions about the start of the answer,
sent before the draft's first token is there, and questions to the draft about a probability that its server hides;
and watches, which write on as drafts do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from cosd_api.decoding.commands import DRAFT, Ask, CloseWatch, Command, Finish, Heard, StartDraft, Watch
from cosd_api.decoding.schedule import Pace
from cosd_api.decoding.units import Hearing, State
from cosd_api.decoding.watches import AHEAD
from cosd_api.methods.cosd import CoSDDecoder
from cosd_providers.contract import DraftEnd, Proposal, Question, Token
from toys import schedules
from toys.id_models import TOKENS, IdModel, Task, is_open
from toys.schedules import BrokenError, Choose, Limits, Outcome


class RawStream:
    """A draft by ids under way at a small server."""

    def __init__(self, model: IdModel, start: Sequence[int], command: StartDraft, *, hides: bool) -> None:
        assert command.ids is not None
        self.model, self.start, self.path, self.hides = model, start, list(command.ids), hides
        self.left, self.ended, self.command = command.max_tokens, False, command
        self.bytes = len(command.text)

    def next(self) -> Token | DraftEnd:
        """The next item that the decoder gets to see."""
        if self.ended or not self.left:
            return DraftEnd("end" if self.ended else "limit")
        token = self.model.token([*self.start, *self.path], self.command.alternatives)
        assert token.id is not None
        self.path.append(token.id)
        self.left, self.ended = self.left - 1, token.end
        if self.hides and not token.end and is_open(self.path):
            return replace(token, prob=None, alternatives=())
        return token


@dataclass
class IdLimits(Limits):
    """Places where a server breaks.

    `early`: which assistants, at the start; `own`: the draft, about its token; `watch`: an assistant's watch that is
    to write at a byte of the answer.
    """

    early: Callable[[int], bool] = lambda _: False
    own: Callable[[int], bool] = lambda _: False
    watch: Callable[[int, int], bool] = lambda *_: False


class IdRun(schedules.Run):
    """One fused answer under a schedule, by ids."""

    def __init__(self, task: Task, decoder: CoSDDecoder, **options: Any) -> None:
        self.task = task
        self.begins = task.draft.encode(task.prompt.encode())
        self.early: set[int] = set()
        self.watches: dict[int, tuple[int, RawStream]] = {}
        self.open: set[int] = set()
        self.heard = 0
        draft, assistants = cast("Any", task.draft), cast("Any", task.assistants)
        super().__init__(task.prompt.encode(), draft, assistants, decoder, keeps_ids=False, **options)

    def obey(self, commands: Sequence[Command]) -> None:
        """Watches are opened and closed."""
        for command in commands:
            match command:
                case Watch():
                    self.open_watch(command)
                case CloseWatch():
                    self.open.remove(command.watch)
                    if not self.late:
                        del self.watches[command.watch]
                case Heard():
                    self.heard += 1
                case Finish():
                    assert not self.open
                case _:
                    pass
        super().obey(commands)

    def open_watch(self, command: Watch) -> None:
        """A watch begins at a place that waits for it, or with the answer; each assistant has one."""
        response = self.decoder.response
        assert command.assistant in self.pace.watched
        assert command.ids == response.ids_before(len(command.ids))
        assert spelled(command.ids) == command.text
        assert command.max_tokens == response.max_tokens - len(command.ids) >= 1
        assert not any(self.watches[one][0] == command.assistant for one in self.open)
        if self.outcome.drafts:
            [unit] = [one for one in self.decoder.units if one.first == len(command.ids)]
            assert unit.verdicts[command.assistant].hearing in (Hearing.WATCHED, Hearing.DONE)
        else:
            assert command.ids == ()
            self.early.add(command.watch)
        more: Any = {"alternatives": command.alternatives, "ids": command.ids}
        start = StartDraft(command.watch, command.text, command.max_tokens, None, (), **more)
        stream = RawStream(self.task.assistants[command.assistant], self.begins, start, hides=self.task.hides)
        self.watches[command.watch] = command.assistant, stream
        self.open.add(command.watch)

    def happenings(self) -> list[tuple[str, int]]:
        """Watches write on, too."""
        return super().happenings() + [("watch", number) for number in self.watches]

    def let(self, kind: str, number: int) -> None:
        """A watch writes its next token, ends, or breaks."""
        if kind != "watch":
            super().let(kind, number)
            return
        assistant, stream = self.watches[number]
        limits, at = cast("IdLimits", self.limits), len(spelled(stream.path))
        early = number in self.early and limits.early(assistant)
        beyond = limits.ask is not None and at > limits.ask
        if early or beyond or limits.watch(assistant, at) or limits.fails(assistant, at, ()):
            del self.watches[number]
            self.open.discard(number)
            self.obey(self.decoder.watch_failed(number, BrokenError("watch")))
            return
        item = stream.next()
        if isinstance(item, Token):
            self.obey(self.decoder.watched(number, item))
        else:
            del self.watches[number]
            self.open.discard(number)
            self.obey(self.decoder.watch_ended(number, item))

    def start(self, command: StartDraft) -> None:
        """A draft begins, from the path of the answer or of a hedge."""
        assert command.ids is not None
        assert command.continuation is None
        assert spelled(command.ids) == command.text
        if command.draft in self.decoder.schedule.hedges.under_way:
            self.check_hedge(command)
        else:
            self.check_draft(command)
            assert command.ids == tuple(one.token.id for one in self.decoder.response.tokens)
        self.outcome.drafts.append(command)
        stream = RawStream(self.task.draft, self.begins, command, hides=self.task.hides)
        self.streams[command.draft] = cast("Any", stream)

    def check_hedge(self, command: StartDraft) -> None:
        """A draft ahead of a verdict that is still out, with room for a token."""
        unit = self.decoder.schedule.hedges.under_way[command.draft].unit
        assert unit in self.decoder.units
        assert unit.state is not State.JUDGED
        assert 1 <= command.max_tokens < self.decoder.response.max_tokens
        assert command.ids is not None
        assert len(command.ids) == unit.first + 1
        assert command.ids[:-1] == self.decoder.response.ids_before(unit.first)

    def check_ask(self, command: Ask) -> None:
        """Nothing is asked that cannot matter, given what is known, and every place after its own path."""
        decoder = self.decoder
        _, asked = decoder.schedule.questions.under_way[command.ask]
        assert command.paths is not None
        assert len(command.paths) == len(command.questions)
        if not asked:
            assert (command.text, command.questions, command.paths) == (b"", (Question(0, ()),), ((),))
            assert not self.outcome.drafts
            self.early.add(command.ask)
            return
        if command.assistant == DRAFT:
            [(unit, verdict)] = asked
            assert self.task.hides
            assert unit.token.prob is None
            assert verdict.hearing is Hearing.WITHOUT_P
        else:
            if not any(unit.p_asked for unit, _ in asked):  # what is known now may settle it, and all are heard
                super().check_ask(command)
            bound = self.pace.places
            assert not bound or len(asked) <= bound[command.assistant]
        for (unit, _), path, question in zip(asked, command.paths, command.questions, strict=True):
            assert path == decoder.response.ids_before(unit.first)
            assert spelled(path) == command.text[: question.start]

    def answer(self, number: int) -> None:
        """A request to an assistant, or to the draft about its own token, is answered, or breaks as a whole."""
        ask = self.waiting.pop(number)
        if self.breaks(ask):
            self.obey(self.decoder.ask_failed(number, BrokenError("ask")))
            return
        assert ask.paths is not None
        model = self.task.draft if ask.assistant == DRAFT else self.task.assistants[ask.assistant]
        tokens = [model.token([*self.begins, *path], ask.alternatives) for path in ask.paths]
        pairs = zip(ask.questions, tokens, strict=True)
        self.obey(self.decoder.answered(number, [Proposal(one.start, (token,)) for one, token in pairs]))

    def breaks(self, ask: Ask) -> bool:
        """Test whether this request breaks."""
        limits = cast("IdLimits", self.limits)
        if ask.ask in self.early:
            return limits.early(ask.assistant)
        if ask.assistant == DRAFT:
            return limits.own(ask.questions[0].start)
        return any(
            (limits.ask is not None and one.start > limits.ask) or limits.fails(ask.assistant, one.start, one.tokens)
            for one in ask.questions
        )

    def check(self) -> None:
        """Invariants between any two events."""
        under_way = self.decoder.schedule.questions.under_way
        early = {ask: under_way.pop(ask) for ask, (_, asked) in [*under_way.items()] if not asked}
        super().check()
        under_way.update(early)
        written = [len(self.watches[one][1].path) for one in self.open]
        assert all(length <= len(self.decoder.response.tokens) + AHEAD for length in written)
        assert sum(of == DRAFT for of, _ in under_way.values()) <= len(self.decoder.units)


def spelled(ids: Sequence[int]) -> bytes:
    """The bytes of ids."""
    return b"".join(TOKENS[one] for one in ids)


def run(
    task: Task,
    choose: Choose,
    *,
    late: bool = True,
    limits: IdLimits | None = None,
    skip: bool = True,
    survives: Callable[[Exception], bool] = lambda _: False,
    lately: Callable[[], bool] = lambda: False,
    **pace: Any,
) -> Outcome:
    """One fused answer: events as `choose` says, until it is complete or has failed. `pace` is of the schedule."""
    settings = Pace(ids=True, **pace)
    decoder = CoSDDecoder(
        task.verifier,
        max_tokens=task.max_tokens,
        assistants=len(task.assistants),
        stop=task.stop,
        skip=skip,
        survives=survives,
        pace=settings,
        prompt=task.prompt,
        tie=task.tie,
    )
    decoder.late = lately()
    one = IdRun(task, decoder, late=late, limits=limits or IdLimits(), pace=settings, lately=lately)
    one.obey(decoder.start())
    while not one.ended:
        one.happen(choose)
    one.outcome.text = bytes(decoder.response.text)
    return one.outcome
