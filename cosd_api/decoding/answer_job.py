"""The run of one answer, as a stream sees it, and the job with everything that a method needs for the run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cosd_api.alignment import Unit
from cosd_api.budget import Budget
from cosd_api.decoding.commands import Finish, Placed, Report
from cosd_api.decoding.pace import Pace, Rate
from cosd_api.decoding.route import Routes
from cosd_api.decoding.speeds import Speeds
from cosd_api.decoding.timeline import Timeline
from cosd_providers.messages import Message, RenderedPrompt


async def never() -> bool:
    """Return False: the draft does not return."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftJob:
    """The part of a job that concerns methods which judge a draft.

    Attributes:
        unit: the unit in which tokens are judged.
        pace: the pace of drafting.
        skip: whether to skip questions whose answers cannot change the text.
        tie: largest difference of log probabilities at which an assistant's two most probable ids count as equal.
        cuts: for each model, the draft first, whether a token begins at every single space between two visible
            characters, the first of which is no symbol (`vocabulary.crosses_space`); False if unknown.
        ends: the known end-of-sequence ids of the draft and of the assistants that judge its ids.
        rate: how often the drafts of this fusion are replaced.
        speeds: the speeds of the models in this fusion.
        fails_over: returns whether an assistant writes on alone after the draft failed with the given error.
        draft_is_back: asks the draft's server whether it serves the same model again.
        down: the error with which the draft failed before the answer began.
    """

    unit: Unit = "word"
    pace: Pace = field(default_factory=Pace)
    skip: bool = True
    tie: float = 0.0
    cuts: Sequence[bool] = ()
    ends: Container[int | None] = ()
    rate: Rate = field(default_factory=Rate)
    speeds: Speeds = field(default_factory=Speeds)
    fails_over: Callable[[Exception], bool] = lambda _: False
    draft_is_back: Callable[[], Awaitable[bool]] = never
    down: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramJob:
    """The part of a job that concerns methods which are programs.

    Attributes:
        plain: the models with the prompt as plain text, without any chat template. The plain text of a conversation is
            the text of its messages, separated by blank lines.
        conversation: the prompt, if it is a conversation.
        render: renders another conversation for the model with the given index.
        seed: seed of the random draws.
    """

    plain: Sequence[RenderedPrompt] = ()
    conversation: Sequence[Message] | None = None
    render: Callable[[int, Sequence[Message]], Awaitable[RenderedPrompt]] | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerJob:
    """The models, limits, settings and record of one answer.

    Attributes:
        routes: the way in which the models are decoded.
        turns: the models with their rendered prompts, the draft first.
        names: the models' names in results.
        budget: the limits on the cost of all models together.
        emit: called with tokens when they become final.
        timeline: the record of the requests.
        max_tokens: maximum number of tokens in the answer, including the end of sequence.
        stop: stop strings (as UTF-8); the answer ends before the first of these strings.
        survives: returns whether the answer continues without a model that failed with the given error.
        without: the assistants that were lost before the answer began, by index, with the reason.
        room: returns an event to wait for if the reader of the answer is too slow, else None.
        drafts: for methods that judge a draft.
        program: for methods that are programs.
    """

    routes: Routes
    turns: Sequence[RenderedPrompt]
    names: Sequence[str]
    budget: Budget
    emit: Callable[[Sequence[Placed]], None]
    timeline: Timeline
    max_tokens: int
    stop: Sequence[bytes] = ()
    survives: Callable[[Exception], bool] = lambda _: False
    without: Mapping[int, Exception] = field(default_factory=dict[int, Exception])
    room: Callable[[], asyncio.Event | None] | None = None
    drafts: DraftJob = field(default_factory=DraftJob)
    program: ProgramJob = field(default_factory=ProgramJob)


class CallCounts(Protocol):
    """The counts of an answer's requests and drafted tokens, as in `FusionResult`."""

    draft_requests: int
    assistant_requests: int
    drafted_tokens: int
    reencoded: bool


class Run(Protocol):
    """One answer in progress, by any method."""

    @property
    def calls(self) -> CallCounts:
        """The counts of the requests so far."""
        ...

    @property
    def finished(self) -> Finish | None:
        """The end of the answer; None until the answer is complete."""
        ...

    async def run(self) -> None:
        """Run until the answer ends.

        Raises:
            ProviderError: an endpoint failed, and the answer cannot continue without it. All other requests are
                cancelled.
        """
        ...

    def stop_here(self, finish: Finish) -> None:
        """End the answer after its emitted tokens. This has no effect on a complete answer."""
        ...

    def report(self) -> Report:
        """The report on the answer so far."""
        ...
