"""The run of one answer, as a stream sees it, and everything that a method is given for it."""

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
    """The models, limits, settings and record of one answer.

    Attributes:
        turns: the models with their rendered prompts, the draft first.
        plain: the models with the prompt as plain text, without any chat template. For a conversation that is the text
            of its messages, with blank lines between them.
        conversation: the prompt, if it is a conversation.
        render: renders another conversation for the model at an index.
        names: names of the models in results.
        budget: the limits on what all models together may cost.
        emit: called with tokens when they become final.
        timeline: the record of the requests.
        max_tokens: highest number of tokens in the answer, its end of sequence included.
        stop: stop strings (as UTF-8), before which the answer ends.
        unit: the tokens that are judged together, for methods that judge a draft.
        survives: returns whether the answer continues without a model that failed with this error.
        without: the assistants that were lost before the answer began, by index, with the reason.
        pace: the schedule, for methods that draft.
        skip: whether to leave out questions whose answers cannot matter.
        tie: largest difference of log probabilities at which an assistant's two most probable ids count as equal.
        across: whether Algorithm 1 runs on models with different ids, each asked after its own encoding.
        shares: for each assistant, whether it has the draft's ids; empty if none has.
        ends: the known end-of-sequence ids of models that are asked after ids.
        by_ids: for each model, whether methods that write ask it after the ids of its own path (`decoding.paths`).
        same_ids: whether all models have the same ids.
        seed: seed of the random draws.
        room: returns an event to wait for if the reader of the answer is too slow, else None.
        lateness: how late this process hears verdicts, measured in all answers of the fusion.
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
        """The requests so far."""
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
        """End the answer after its emitted tokens; without effect on a complete answer."""
        ...

    def report(self) -> Report:
        """The facts about the answer so far."""
        ...
