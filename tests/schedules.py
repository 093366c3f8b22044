"""Runs the decoder against toy models under any schedule of events, without I/O.

Every step, something chooses what happens next: a draft under way writes its next token or ends, or an assistant
answers one of the requests that wait. Cancelled drafts and requests may still speak: the decoder must drop that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cosd_api.alignment import Unit
from cosd_api.decoding.commands import DRAFT, Ask, CancelAsk, CancelDraft, Emit, Finish, Placed, StartDraft
from cosd_api.decoding.cosd import CoSD
from cosd_api.verification import Verifier
from cosd_providers.contract import DraftEnd, Proposal, Question, Token
from cosd_providers.scoring import Chain, Choice, Draft, Position
from cosd_providers.text import sendable
from toys import Model

Choose = Callable[[int], int]
"""Takes how many things could happen next; says which one does."""


def position(model: Model, ids: Sequence[int]) -> Position:
    """What a server with this model writes after `ids`: the lowest id of the most probable, and all that tie."""
    probs, vocabulary = model.next(ids), model.vocabulary
    top = max(probs)

    def choice(one: int) -> Choice:
        end = one == vocabulary.end
        prob = None if end and model.hides_end else probs[one]
        return Choice(one, Token(vocabulary.tokens[one], prob, end=end))

    best = [choice(one) for one, prob in enumerate(probs) if prob == top]
    return Position(best[0], best)


def encode(model: Model, prompt: bytes, text: bytes) -> list[int]:
    """The model's encoding of prompt and response as one text, as it reaches a server."""
    return list(model.vocabulary.encode(prompt + sendable(text).encode()))


def propose(model: Model, prompt: bytes, text: bytes, questions: Sequence[Question]) -> list[Proposal | None]:
    """What an adapter answers: chains of greedy tokens, in as many rounds as they need."""
    proposals = []
    for question in questions:
        chain = Chain(question)
        start = encode(model, prompt, text[: question.start])
        while not chain.enough:
            ids = start + chain.ids
            positions: list[Position] = []
            while len(positions) < chain.wanted:
                positions.append(position(model, ids))
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
    ready: list[Token | DraftEnd] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draft = Draft(self.command.max_tokens)

    def next(self) -> Token | DraftEnd:
        """The next item that the decoder gets to see."""
        while not self.ready:
            if self.draft.over:
                continuation = [*self.ids, *self.draft.ids] if self.keeps_ids else None
                return DraftEnd("end" if self.draft.ended else "limit", continuation)
            pick = position(self.model, self.ids + self.draft.ids).pick
            self.ready += self.draft.feed(pick.id, pick.token)
        return self.ready.pop(0)


@dataclass
class Outcome:
    """What came out, and what was asked on the way."""

    text: bytes
    emitted: list[Placed]
    finish: Finish
    decoder: CoSD
    asks: list[Ask]
    drafts: list[StartDraft]
    most_ahead: int


def run(  # noqa: C901 - one happening after another
    prompt: bytes,
    draft: Model,
    assistants: Sequence[Model],
    verifier: Verifier,
    choose: Choose,
    *,
    unit: Unit,
    max_tokens: int,
    keeps_ids: bool = True,
    late: bool = True,
    **settings: Any,
) -> Outcome:
    """One fused answer. `late`: what was cancelled may still speak."""
    decoder = CoSD(verifier, unit=unit, max_tokens=max_tokens, assistants=len(assistants), **settings)
    streams: dict[int, DraftStream] = {}
    waiting: dict[int, Ask] = {}
    outcome = Outcome(b"", [], Finish("length", ""), decoder, [], [], 0)
    ended = False

    def obey(commands: Sequence[object]) -> None:
        nonlocal ended
        for command in commands:
            assert not ended, "a command after the end"
            match command:
                case StartDraft():
                    outcome.drafts.append(command)
                    ids = command.continuation or encode(draft, prompt, command.text)
                    streams[command.draft] = DraftStream(draft, command, ids, keeps_ids)
                case Ask():
                    outcome.asks.append(command)
                    waiting[command.ask] = command
                case CancelDraft():
                    if not late:
                        del streams[command.draft]
                case CancelAsk():
                    if not late:
                        del waiting[command.ask]
                case Emit():
                    outcome.emitted.extend(command.tokens)
                case Finish():
                    ended = True
                    outcome.finish = command

    obey(decoder.start())
    while not ended:
        happenings = [("draft", number) for number in streams] + [("answer", number) for number in waiting]
        assert happenings, "nothing can happen, and the answer is not complete"
        kind, number = happenings[choose(len(happenings))]
        if kind == "draft":
            item = streams[number].next()
            if isinstance(item, Token):
                obey(decoder.drafted(number, item))
            else:
                del streams[number]
                obey(decoder.draft_ended(number, item))
        else:
            ask = waiting.pop(number)
            obey(decoder.answered(number, propose(assistants[ask.assistant], prompt, ask.text, ask.questions)))
        ahead = sum(one.source == DRAFT for one in decoder.response.tokens[decoder.response.settled :])
        outcome.most_ahead = max(outcome.most_ahead, ahead)
    outcome.text = bytes(decoder.response.text)
    return outcome
