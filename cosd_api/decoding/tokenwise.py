"""The run of an answer by a program that judges a draft token by token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from cosd_api.alignment import Decision
from cosd_api.decoding.answer_job import AnswerJob
from cosd_api.decoding.commands import DRAFT, DecidedSegment, Placed, Report
from cosd_api.decoding.model import Model
from cosd_api.decoding.pace import Pace
from cosd_api.decoding.program import Answer
from cosd_providers.contract import Token


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenVerdict:
    """The judgement of one draft token.

    Attributes:
        decisions: the decisions about the assistants' answers at this place.
        winner: the decision that replaced the draft's token, if any.
        replaced: the draft's token, if it was replaced.
        verified: whether the answers of all assistants that could have changed the token were known.
        asked: whether an assistant was asked.
        reason: reason for the token, in words, if it does not follow from the decisions.
    """

    decisions: tuple[Decision, ...] = ()
    winner: Decision | None = None
    replaced: Token | None = None
    verified: bool = True
    asked: bool = False
    reason: str | None = None


class TokenwiseAnswer(Answer):
    """One answer in progress in which each token, whether the draft's or a replacement, is a unit.

    Attributes:
        pace: the pace of drafting.
        skip: whether to skip questions whose answers cannot change the text.
        unanswered: number of places at which an assistant gave no answer.
    """

    def __init__(self, job: AnswerJob, write: Callable[..., Awaitable[None]]) -> None:
        super().__init__(job, write)
        self.pace: Pace = job.drafts.pace
        self.skip = job.drafts.skip
        self.unanswered = 0
        self._replaced = self._restarts = 0
        self._ended_replaced = False

    @property
    def complete(self) -> bool:
        """Test whether no assistant is lost."""
        return not self._shared.lost

    def put(
        self, token: Token, model: Model, judged: TokenVerdict, *, number: int, segment: DecidedSegment | None = None
    ) -> None:
        """Write one final token from the request `number` of a model. With `segment`, the token forms a segment.

        Raises:
            Over: the answer is complete.
        """
        if self._ended_replaced:
            self._restarts += 1
        at = len(self._response.tokens)
        placed = Placed(
            token,
            model.index - 1,
            asked=judged.asked,
            decisions=judged.decisions,
            winner=judged.winner,
            replaced=() if judged.replaced is None else (judged.replaced,),
            verified=judged.verified,
            draft=number,
            at=self._job.timeline.now(),
            reason=judged.reason,
            unit=at,
            round=1 + self._restarts,
        )
        self._ended_replaced = judged.replaced is not None
        self._replaced += self._ended_replaced
        self._shared.paths.write(model.index, self.text, token)
        self._response.place(placed)
        self._settle(segment)

    def report(self) -> Report:
        """The report on the answer so far."""
        return replace(
            super().report(),
            judged=True,
            kept=sum(one.source == DRAFT for one in self._response.tokens),
            replaced=self._replaced,
            replacements=self._replaced,
            iterations=1 + self._restarts,
            unanswered=self.unanswered,
        )
