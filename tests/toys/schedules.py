"""Runs the decoder against toy models under any schedule of events, without I/O.

Every step, something chooses what happens next: a draft under way writes its next token or ends, an assistant
answers one of the requests that wait. Cancelled drafts and requests may still speak: the decoder
must drop that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from cosd_api.decoding.commands import (
    DRAFT,
    Ask,
    CancelAsk,
    CancelDraft,
    Command,
    Emit,
    Fail,
    Finish,
    Placed,
    StartDraft,
)
from cosd_api.decoding.schedule import Pace
from cosd_api.decoding.units import State
from cosd_api.methods.cosd import CoSDDecoder
from cosd_api.verification import Verifier
from cosd_providers.contract import DraftEnd, Proposal, Question, Token
from cosd_providers.greedy import Choice, Continuation, Draft, Position
from cosd_providers.text import sendable
from toys.toy_models import Model

Choose = Callable[[int], int]
"""Takes how many things could happen next; says which one does."""


def position(model: Model, ids: Sequence[int], *, listed: bool = False) -> Position:
    """The next token of a server with this model after `ids`: the lowest id of the most probable, and all that tie.

    `listed`: and all the others.
    """
    probs, vocabulary = model.next(ids), model.vocabulary
    top = max(probs)

    def choice(one: int) -> Choice:
        end = one == vocabulary.end
        prob = None if end and model.hides_end else probs[one]
        return Choice(one, Token(vocabulary.tokens[one], prob, end=end))

    best = [choice(one) for one, prob in enumerate(probs) if prob == top]
    return Position(best[0], [choice(one) for one in range(len(probs))] if listed else best)


def encode(model: Model, prompt: bytes, text: bytes) -> list[int]:
    """The model's encoding of prompt and response as one text, as it reaches a server."""
    return list(model.vocabulary.encode(prompt + sendable(text).encode()))


def propose(
    model: Model, prompt: bytes, text: bytes, questions: Sequence[Question], alternatives: int = 0
) -> list[Proposal | None]:
    """What an adapter answers: chains of greedy tokens, in as many rounds as they need."""
    proposals = []
    for question in questions:
        chain = Continuation(question, alternatives)
        start = encode(model, prompt, text[: question.start])
        while not chain.enough:
            ids = start + chain.ids
            positions: list[Position] = []
            while len(positions) < chain.wanted:
                positions.append(position(model, ids, listed=alternatives > 0))
                ids = [*ids, positions[-1].pick.id]
                if positions[-1].pick.token.end:
                    break
            chain.feed(positions)
        proposals.append(chain.proposal())
    return proposals


@dataclass
class DraftStream:
    """A draft under way at the toy server."""

    model: Model
    command: StartDraft
    ids: list[int]
    keeps_ids: bool
    also: Callable[[bytes, Token], tuple[Token, ...]] = lambda *_: ()
    ready: list[Token | DraftEnd] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draft = Draft(self.command.max_tokens)
        self.bytes = len(self.command.text)
        self.text = self.command.text

    def next(self) -> Token | DraftEnd:
        """The next item that the decoder gets to see."""
        while not self.ready:
            if self.draft.over:
                continuation = [*self.ids, *self.draft.ids] if self.keeps_ids else None
                return DraftEnd("end" if self.draft.ended else "limit", continuation)
            pick = position(self.model, self.ids + self.draft.ids).pick
            self.ready += self.draft.feed(pick.id, pick.token)
        item = self.ready.pop(0)
        if isinstance(item, Token):
            item = replace(item, alternatives=self.also(self.text, item))
            self.text += item.data
        return item


class BrokenError(Exception):
    """What a toy server says where it breaks."""


@dataclass
class Limits:
    """Where toy servers break: a draft that gets beyond so many bytes, a request that asks beyond so many.

    `fails`: whether an assistant breaks where it is asked, at a byte of the response, about some of the draft's tokens.
    """

    draft: int | None = None
    ask: int | None = None
    fails: Callable[[int, int, tuple[bytes, ...]], bool] = lambda *_: False


@dataclass
class Outcome:
    """What came out, and what was asked on the way."""

    text: bytes
    emitted: list[Placed]
    finish: Finish
    decoder: CoSDDecoder
    asks: list[Ask]
    drafts: list[StartDraft]
    most_ahead: int
    error: Exception | None = None


class Run:
    """One fused answer under a schedule. `late`: what was cancelled may still speak."""

    def __init__(
        self, prompt: bytes, draft: Model, assistants: Sequence[Model], decoder: CoSDDecoder, **options: Any
    ) -> None:
        self.prompt = prompt
        self.draft = draft
        self.assistants = assistants
        self.decoder = decoder
        self.keeps_ids: bool = options["keeps_ids"]
        self.late: bool = options["late"]
        self.limits: Limits = options["limits"]
        self.pace: Pace = options.get("pace", Pace())
        self.also: Callable[[bytes, Token], tuple[Token, ...]] = options.get("also", lambda *_: ())
        self.lately: Callable[[], bool] = options.get("lately", lambda: False)
        self.streams: dict[int, DraftStream] = {}
        self.waiting: dict[int, Ask] = {}
        self.outcome = Outcome(b"", [], Finish("length", ""), decoder, [], [], 0)
        self.ended = False

    def obey(self, commands: Sequence[Command]) -> None:
        """Does what the decoder wants done."""
        for command in commands:
            assert not self.ended, "a command after the end"
            match command:
                case StartDraft():
                    self.start(command)
                case Ask():
                    self.check_ask(command)
                    self.outcome.asks.append(command)
                    self.waiting[command.ask] = command
                case CancelDraft():
                    if not self.late:
                        del self.streams[command.draft]
                case CancelAsk():
                    if not self.late:
                        del self.waiting[command.ask]
                case Emit():
                    assert command.tokens
                    self.outcome.emitted.extend(command.tokens)
                case Finish():
                    self.ended, self.outcome.finish = True, command
                case Fail():
                    self.ended, self.outcome.error = True, command.error
        self.check()

    def start(self, command: StartDraft) -> None:
        """A draft begins: only where something may still come of it."""
        if command.draft in self.decoder.schedule.hedges.under_way:
            self.check_hedge(command)
        else:
            self.check_draft(command)
        self.outcome.drafts.append(command)
        ids = command.continuation or encode(self.draft, self.prompt, command.text)
        self.streams[command.draft] = DraftStream(self.draft, command, ids, self.keeps_ids, self.also)

    def check_hedge(self, command: StartDraft) -> None:
        """A draft ahead of a verdict that is still out, with room for a token."""
        unit = self.decoder.schedule.hedges.under_way[command.draft].unit
        assert unit in self.decoder.units and unit.state is not State.JUDGED
        assert 1 <= command.max_tokens < self.decoder.response.max_tokens
        assert command.text[: unit.start] == self.decoder.response.text[: unit.start]
        assert len(command.text) > unit.start and not command.own and command.continuation is None

    def check_draft(self, command: StartDraft) -> None:
        response = self.decoder.response
        assert command.max_tokens >= 1
        assert len(response.tokens) + command.max_tokens <= response.max_tokens
        assert response.over is None
        assert not any(unit.contested and unit.waiting for unit in self.decoder.units)
        assert command.text.endswith(b"".join(command.own))
        assert all(one.source == DRAFT for one in response.tokens[len(response.tokens) - len(command.own) :])
        if self.keeps_ids and command.continuation is None:
            assert command.own == ()

    def check_ask(self, command: Ask) -> None:
        """Nothing is asked that cannot matter, given what is known."""
        decoder = self.decoder
        _, asked = decoder.schedule.questions.under_way[command.ask]
        assert len(asked) == len(command.questions) > 0
        for (unit, _), question in zip(asked, command.questions, strict=True):
            assert question.tokens == (unit.token.data,)
            end = question.start + sum(map(len, question.tokens))
            assert command.text[question.start : end] == b"".join(question.tokens)
            assert decoder.judge.contestable(unit.token, question.start)
            before = list(decoder.units)[: list(decoder.units).index(unit)]
            assert not any(other.contested and other.waiting for other in before)

    def check(self) -> None:
        """What holds between any two events."""
        decoder = self.decoder
        for assistant in range(decoder.assistants):
            asks = decoder.schedule.questions.under_way.values()
            assert sum(of == assistant for of, _ in asks) <= self.pace.in_flight
        complete = self.ended and self.outcome.error is None
        assert len(decoder.schedule.hedges.under_way) <= (0 if complete else self.pace.hedge)
        if not self.ended:
            for hedge in decoder.schedule.hedges.under_way.values():
                assert hedge.unit in decoder.units and hedge.unit.state is not State.JUDGED
            for _, asked in decoder.schedule.questions.under_way.values():
                assert any(unit.waiting and unit in decoder.units for unit, _ in asked)
            assert not (decoder.response.stopped and decoder.schedule.drafts.under_way is not None)
        ahead = sum(one.source == DRAFT for one in decoder.response.tokens[decoder.response.settled :])
        self.outcome.most_ahead = max(self.outcome.most_ahead, ahead)

    def happen(self, choose: Choose) -> None:
        """One event, of those that could be next."""
        happenings = self.happenings()
        assert happenings, "nothing can happen, and the answer is not complete"
        kind, number = happenings[choose(len(happenings))]
        self.decoder.late = self.lately()
        self.let(kind, number)

    def happenings(self) -> list[tuple[str, int]]:
        """The events that could come next."""
        return [("draft", number) for number in self.streams] + [("answer", number) for number in self.waiting]

    def let(self, kind: str, number: int) -> None:
        """Let one of these happen."""
        if kind == "draft":
            self.draft_on(number)
        else:
            self.answer(number)

    def draft_on(self, number: int) -> None:
        """A draft writes its next token, ends, or breaks."""
        stream = self.streams[number]
        item = stream.next()
        stream.bytes += len(item.data) if isinstance(item, Token) else 0
        if self.limits.draft is not None and stream.bytes > self.limits.draft:
            del self.streams[number]
            self.obey(self.decoder.draft_failed(number, BrokenError("draft")))
        elif isinstance(item, Token):
            self.obey(self.decoder.drafted(number, item))
        else:
            del self.streams[number]
            self.obey(self.decoder.draft_ended(number, item))

    def answer(self, number: int) -> None:
        """A request to an assistant is answered, or breaks as a whole."""
        ask = self.waiting.pop(number)
        limit, fails = self.limits.ask, self.limits.fails
        if any(
            (limit is not None and question.start > limit) or fails(ask.assistant, question.start, question.tokens)
            for question in ask.questions
        ):
            self.obey(self.decoder.ask_failed(number, BrokenError("ask")))
            return
        model = self.assistants[ask.assistant]
        self.obey(self.decoder.answered(number, propose(model, self.prompt, ask.text, ask.questions, ask.alternatives)))


def run(
    prompt: bytes,
    draft: Model,
    assistants: Sequence[Model],
    verifier: Verifier,
    choose: Choose,
    *,
    max_tokens: int,
    keeps_ids: bool = True,
    late: bool = True,
    limits: Limits | None = None,
    also: Callable[[bytes, Token], tuple[Token, ...]] = lambda *_: (),
    lately: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> Outcome:
    """One fused answer: events as `choose` says, until it is complete or has failed.

    `lately` says of each event whether it is heard late. `settings` are those of `CoSD`, and those of its `Pace`.
    """
    pace = Pace(**{one.name: settings.pop(one.name) for one in fields(Pace) if one.name in settings})
    settings |= {"assistants": len(assistants), "pace": pace, "prompt": prompt.decode()}
    decoder = CoSDDecoder(verifier, max_tokens=max_tokens, **settings)
    options = {"keeps_ids": keeps_ids, "late": late, "limits": limits or Limits(), "also": also, "pace": pace}
    options["lately"] = lately
    decoder.late = lately()
    one = Run(prompt, draft, assistants, decoder, **options)
    one.obey(decoder.start())
    while not one.ended:
        one.happen(choose)
    one.outcome.text = bytes(decoder.response.text)
    return one.outcome
