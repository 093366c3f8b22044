"""One answer in progress, as a stream runs it, and the material that a method gets for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cosd_api.alignment import Unit
from cosd_api.budget import Budget
from cosd_api.decoding.commands import Finish, Placed, Report
from cosd_api.decoding.lateness import Lateness
from cosd_api.decoding.schedule import Pace
from cosd_api.decoding.timeline import Timeline
from cosd_providers.messages import Message, RenderedPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerJob:
    """Material for one answer: models, limits and record.

    Attributes:
        turns: the models, each with its rendered prompt; the draft first.
        plain: the same models, each with the prompt's plain text, without any chat template: for a conversation, the
            text of its messages with a blank line between them.
        conversation: the prompt, if it is a conversation.
        render: renders another conversation for a model, by its index.
        names: of the models, in results.
        budget: the limits of their common spending.
        emit: takes the tokens as they become final.
        timeline: records the requests.
        max_tokens: length of the answer at most, its end of sequence included.
        stop: strings (as UTF-8) before which the answer ends.
        unit: the tokens judged together, by methods that judge a draft.
        survives: whether the answer continues without a model that failed with an error.
        without: the assistants that were lost before the answer began, by their index, with the reason.
        pace: the schedule of methods that draft.
        skip: whether to leave out questions whose answers cannot matter.
        tie: difference of log probabilities within which an assistant's two most probable ids count as equal.
        across: whether Algorithm 1 runs on models with different ids, each asked after its own encoding.
        shares: of each assistant, whether it has the draft's ids; empty if none has.
        ends: ids that are known to end one of the models, if these are asked after ids.
        by_ids: whether each model is asked after its own path, of ids, by methods that write (`decoding.paths`).
        same_ids: whether all models have the same ids.
        seed: of the random draws.
        room: gives an event to wait for while the reader of the answer is slow, else None; `room` itself is None if the
            answer is not read token by token.
        lateness: of this process, measured in all answers of the fusion.
    """

    turns: Sequence[RenderedPrompt]
    plain: Sequence[RenderedPrompt]
    names: Sequence[str]
    budget: Budget
    emit: Callable[[Sequence[Placed]], None]
    timeline: Timeline
    max_tokens: int
    stop: Sequence[bytes] = ()
    unit: Unit = "word"
    survives: Callable[[Exception], bool] = lambda _: False
    without: Mapping[int, Exception] = field(default_factory=dict[int, Exception])
    pace: Pace = field(default_factory=Pace)
    skip: bool = True
    tie: float = 0.0
    across: bool = False
    shares: Sequence[bool] = ()
    ends: Container[int | None] = ()
    by_ids: Sequence[bool] = ()
    same_ids: bool = False
    conversation: Sequence[Message] | None = None
    render: Callable[[int, Sequence[Message]], Awaitable[RenderedPrompt]] | None = None
    seed: int = 0
    room: Callable[[], asyncio.Event | None] | None = None
    lateness: Lateness = field(default_factory=Lateness)


class CallCounts(Protocol):
    """The requests of an answer, as `FusionResult` counts them."""

    draft_requests: int
    assistant_requests: int
    drafted_tokens: int
    reencoded: bool


class Run(Protocol):
    """One answer in progress, by any method."""

    @property
    def calls(self) -> CallCounts:
        """Its requests so far."""
        ...

    @property
    def finished(self) -> Finish | None:
        """The end of the answer, once it is complete."""
        ...

    async def run(self) -> None:
        """Run to the end of the answer.

        Raises:
            ProviderError: an endpoint failed, and the answer cannot continue without it; everything else is cancelled.
        """
        ...

    def stop_here(self, finish: Finish) -> None:
        """End the answer with its emitted tokens, unless it is complete."""
        ...

    def report(self) -> Report:
        """The answer so far."""
        ...
