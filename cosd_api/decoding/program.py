"""The run of an answer by a program: a coroutine that asks the models and appends what they wrote."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from cosd_api.decoding.answer_job import AnswerJob
from cosd_api.decoding.commands import Contender, DecidedSegment, Finish, Placed, Report, cut_short
from cosd_api.decoding.model import Lost, Model, Shared, Stream
from cosd_api.decoding.passage import Passage, WrittenPart
from cosd_api.decoding.response import Response
from cosd_api.errors import FusionError
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Token
from cosd_providers.messages import Message

_T = TypeVar("_T")


class Over(BaseException):
    """The answer is complete, which ends its program. Only the engine catches this."""


class Answer:
    """One answer in progress, which a program asks its models for and appends to; an implementation of `Run`.

    As soon as the answer is complete, every method that adds to it raises `Over`, which ends the program. If a program
    does not catch a `Lost`, the first model writes the rest of the answer.

    As everywhere in `decoding`, a `source` is a model's index minus one.

    Args:
        job: the models, limits, settings and record of the answer.
        write: the program, called with the answer and all its models. It appends until the answer is over.

    Attributes:
        calls: the counts of the requests so far.
        chance: source of the answer's random numbers.
        count: number of models, including lost models.
        segments: the decided segments so far.
        warnings: the program's warnings, which are added to the result.
        weights: the models' weights for the result, if the program determined them.
    """

    def __init__(self, job: AnswerJob, write: Callable[..., Awaitable[None]], shared: Shared | None = None) -> None:
        self._job, self._write = job, write
        self._shared = shared or Shared.of(job)
        self.calls, self.chance = self._shared.calls, self._shared.chance
        self.count = len(job.turns)
        self.segments: list[DecidedSegment] = []
        self.warnings: list[str] = []
        self.weights: Mapping[int, float] | None = None
        self._models = [Model(self, self._shared, index) for index in range(self.count)]
        self._response = Response(job.max_tokens, job.stop)
        self._finished: Finish | None = None
        self._parts: list[WrittenPart] = []
        self._scratch = shared is not None

    # ------------------------------------------------------------------------------------------------------- a run

    @property
    def finished(self) -> Finish | None:
        """The end of the answer; None until the answer is complete."""
        return self._finished

    async def run(self) -> None:
        """Run until the answer ends; see `Run.run`.

        Raises:
            FusionError: the program returned before the answer was complete.
        """
        try:
            await self._shared.tasks.run(self._run)
        finally:
            self._models.clear()  # they refer to the answer: its memory would have to wait for the garbage collector
        if self._finished is None:
            words = "the method returned before its answer was over"
            raise FusionError(f"{words}: write() has to append until the answer is complete, or to call answer.end()")

    async def _run(self) -> None:
        try:
            try:
                await self._write(self, *self._models)
            except Lost:
                await self._models[0].finish("no other model is heard")
        except Over:
            pass
        except BaseExceptionGroup as group:  # of a program's own tasks
            if group.split(Over)[1] is not None:
                raise

    def stop_here(self, finish: Finish) -> None:
        """End the answer after its emitted tokens. This has no effect on a complete answer."""
        if self._finished is None:
            self._response.keep_emitted(finish)
            self._finished = finish

    def report(self) -> Report:
        """The report on the answer so far."""
        return Report(
            text=bytes(self._response.text),
            judged=False,
            lost=self._shared.lost,
            segments=tuple(self.segments),
            warnings=tuple(self.warnings),
            weights=self.weights,
        )

    # --------------------------------------------------------------------------------------- the answer and its prompt

    @property
    def text(self) -> bytes:
        """The answer so far."""
        return bytes(self._response.text)

    @property
    def left(self) -> int:
        """The number of tokens that may still be written."""
        return self._job.max_tokens - len(self._response.tokens)

    @property
    def over(self) -> bool:
        """Test whether the answer is complete."""
        return self._finished is not None

    @property
    def ended(self) -> bool:
        """Test whether the answer ended with a model's end of sequence."""
        return self.over and bool(self._response.tokens) and self._response.tokens[-1].token.end

    @property
    def written(self) -> int:
        """The number of tokens so far that a model that fails now has heard; 0 for a scratch copy."""
        return 0 if self._scratch else len(self._response.tokens)

    @property
    def sources(self) -> list[int]:
        """The indices of the models that wrote the answer, in the order in which the user gave them."""
        return sorted({one.source + 1 for one in self._response.tokens})

    def name(self, model: int) -> str:
        """The name in results of the model with this index."""
        return self._job.names[model]

    @property
    def conversation(self) -> Sequence[Message] | None:
        """The prompt, if it is a conversation."""
        return self._job.program.conversation

    @property
    def prompt(self) -> str:
        """The prompt as plain text; see `AnswerJob.plain`."""
        return self._job.program.plain[0].prompt

    def stops(self, tokens: Sequence[Token]) -> bool:
        """Test whether the last of these tokens completes a stop string."""
        finder, new, tail = self._response.stops, len(tokens[-1].data), b""
        for token in reversed(tokens):
            tail = token.data + tail
            if len(tail) >= finder.longest + new:
                break
        return finder.find(bytearray(tail), new) is not None

    def alone(self, passage: Passage) -> Passage:
        """A passage as it would be if it were the whole answer: without a stop string and the text after it."""
        response = Response(self._job.max_tokens, self._job.stop)
        for token in passage.tokens:
            if response.over is None:
                response.place(Placed(token))
        response.finish()
        return replace(passage, tokens=tuple(placed.token for placed in response.tokens))

    # -------------------------------------------------------------------------------------------------- its models

    @property
    def models(self) -> list[Model]:
        """The models that are not lost, in the order in which the user gave them."""
        return [self._models[index] for index in self._shared.alive]

    async def all(
        self, ask: Callable[[Model], Awaitable[_T]], models: Iterable[Model] | None = None
    ) -> dict[Model, _T]:
        """Ask all models at the same time, except those that are lost.

        Args:
            ask: called with each model.
            models: the models to ask; by default, all models.

        Returns:
            The result of each model, in the order in which the user gave the models. Models that fail are left out.
        """
        found: dict[Model, _T] = {}
        asked = self.models if models is None else [one for one in models if one.alive]

        async def one(model: Model) -> None:
            with suppress(Lost, Over):
                found[model] = await ask(model)

        await concurrently([partial(one, model) for model in asked])
        self._check()
        return {model: found[model] for model in asked if model in found}

    # ------------------------------------------------------------------------------------------------ what it becomes

    def append(self, passage: Passage, why: str | DecidedSegment, *, whole: bool = False, own: bool = True) -> None:
        """Write a passage as one segment. If its model cannot continue, the answer is complete.

        Args:
            passage: the passage.
            why: the reason in words, or the decision about the segment if several texts were compared.
            whole: whether the passage is a whole answer, which completes this answer.
            own: whether the model wrote exactly these tokens; if so, they remain on its path.

        Raises:
            Over: the answer is complete.
        """
        if isinstance(why, DecidedSegment):
            self._add(passage, passage.tokens, why, own=own)
            self._settle(why)
            self.end_if_stuck(passage)
        else:
            with self.segment(passage, why) as segment:
                segment.append(passage.tokens)
                self.end_if_stuck(passage)
        if whole:  # it has `max_tokens` tokens as the server counts them
            self._end(Finish("length", "max_tokens"))

    def choose(self, token: Token, model: Model, why: DecidedSegment, of: Passage, at: int) -> bool:
        """Write one token at the place of token `at` of a passage, as one segment; return True if they are the same.

        Raises:
            Over: the answer is complete.
        """
        self._add(replace(of, model=model), [token], why)
        self._settle(why)
        return (token.data, token.end) == (of.tokens[at].data, of.tokens[at].end)

    @contextmanager
    def segment(self, of: Passage | Stream, why: str | DecidedSegment) -> Iterator[OpenSegment]:
        """A segment that is written token by token. Its reason may be extended meanwhile.

        Args:
            of: the passage or the stream of the model that writes the segment.
            why: the reason in words, or the decision to choose the model. The winner's text is added when it is known.
        """
        if isinstance(why, str):
            why = DecidedSegment((Contender((of.model.index - 1,), b"", False),), 0, why)
        self._check()
        start, before = len(self.text), len(self._parts)

        def add(tokens: Sequence[Token], reason: str) -> None:
            self._add(of, tokens, replace(why, reason=reason))
            self._settle(None)

        segment = OpenSegment(add, why.reason)
        try:
            yield segment
        finally:
            if len(self._parts) > before or self.over:
                won = replace(why.candidates[why.winner], text=self.text[start:], end=self.ended)
                candidates = [won if one is why.candidates[why.winner] else one for one in why.candidates]
                self.segments.append(replace(why, candidates=tuple(candidates), reason=segment.why))

    def end_if_stuck(self, of: Passage | Stream) -> None:
        """Complete the answer if the model that wrote a passage or a stream cannot continue it.

        Raises:
            Over: the answer is complete.
        """
        if of.stuck and of.end is not None:
            self._end(cut_short(of.end))

    def end(self, why: str, stop_reason: str) -> None:
        """Complete the answer with its current text, and warn that it ends early.

        Args:
            why: the warning.
            stop_reason: the `stop_reason` of the result.

        Raises:
            Over: the answer is complete.
        """
        self.warn(why)
        self._end(Finish("length", stop_reason))

    def warn(self, words: str) -> None:
        """Add a warning to the result, unless the result already has this warning."""
        if words not in self.warnings:
            self.warnings.append(words)

    # ------------------------------------------------------------------------------------------------- scratch copies

    async def scratch(self, write: Callable[[Answer], Awaitable[None]]) -> Answer:
        """Let a program write another answer to the same prompt, which is not emitted but may be copied into this one.

        Raises:
            ProviderError: a model failed, and the answer cannot continue without it; or a limit is reached.
        """
        other = Answer(self._job, write, self._shared.fresh())
        other.warnings = self.warnings
        try:
            with suppress(Over):
                await write(other)
        finally:
            other._models.clear()
        return other

    def copy(self, other: Answer, segment: DecidedSegment) -> None:
        """Write the text of a scratch copy as one segment. If the copy is complete, this answer is also complete.

        Raises:
            Over: the answer is complete.
        """
        for part in other._parts:
            self._place(replace(part, compared=len(segment.candidates) > 1))
        self._settle(segment)
        if other.finished is not None:
            self._end(other.finished)

    # ---------------------------------------------------------------------------------------------------- the engine

    def _add(self, of: Passage | Stream, tokens: Sequence[Token], why: DecidedSegment, *, own: bool = True) -> None:
        self._check()
        part = WrittenPart(tokens, of.model.index, of.number, why.reason, len(why.candidates) > 1)
        self._place(part, own=own)

    def _place(self, part: WrittenPart, *, own: bool = True) -> None:
        self._parts.append(part)
        for token in part.tokens:
            if self._response.over is None:
                if own:
                    self._shared.paths.write(part.model, self.text, token)
                now = self._job.timeline.now()
                one = Placed(token, part.model - 1, draft=part.number, at=now, reason=part.reason)
                one.unit, one.round = len(self.segments), len(self.segments) + 1
                one.verified, one.asked = not self._shared.lost, part.compared
                self._response.place(one)

    def _settle(self, segment: DecidedSegment | None) -> None:
        if segment is not None:
            self.segments.append(segment)
        if self._response.over is not None:
            self._end(self._response.over)
        self._emit(self._response.settle(len(self._response.tokens)))

    def _end(self, finish: Finish) -> None:
        if self._finished is None:
            self._response.over = self._finished = finish
            self._emit(self._response.finish())
        self._check()

    def _check(self) -> None:
        if self.over:
            raise Over

    def _emit(self, tokens: Sequence[Placed]) -> None:
        if tokens and not self._scratch:
            self._job.emit(tokens)


class OpenSegment:
    """A segment that is written token by token; see `Answer.segment`.

    Attributes:
        why: the reason for the segment, which may be extended.
    """

    def __init__(self, add: Callable[[Sequence[Token], str], None], why: str) -> None:
        self.why = why
        self._add = add

    def append(self, tokens: Sequence[Token]) -> None:
        """Write tokens, which are final.

        Raises:
            Over: the answer is complete.
        """
        self._add(tokens, self.why)
