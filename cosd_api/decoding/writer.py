"""The run of an answer for methods that are plain coroutines, which write segment by segment or all at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from cosd_api.decoding.asker import Asker
from cosd_api.decoding.commands import DecidedSegment, Finish, Placed, Report, cut_short
from cosd_api.decoding.passage import Passage, WrittenPart
from cosd_api.decoding.response import Response
from cosd_api.decoding.run import AnswerJob
from cosd_api.errors import FusionError
from cosd_providers.contract import DraftEnd, Token
from cosd_providers.messages import Message


class AnswerWriter(Asker):
    """One answer in progress, through which a method asks the models and writes the text; an implementation of `Run`.

    As everywhere in `decoding`, a `source` is a model's index minus one.

    Args:
        job: the models, limits, settings and record of the answer.
        write: the method, which writes until the answer is `over`.

    Attributes:
        segments: the decided segments so far.
        warnings: the method's warnings, which are added to the result.
        weights: the models' weights for the result, if the method determined them.
    """

    def __init__(self, job: AnswerJob, write: Callable[[AnswerWriter], Awaitable[None]]) -> None:
        super().__init__(job)
        self.segments: list[DecidedSegment] = []
        self.warnings: list[str] = []
        self.weights: Mapping[int, float] | None = None
        self._write = write
        self._response = Response(job.max_tokens, job.stop)
        self._finished: Finish | None = None
        self._pieces: list[WrittenPart] = []
        self._scratch = False

    # ------------------------------------------------------------------------------------------------------- a run

    @property
    def finished(self) -> Finish | None:
        """The end of the answer; None until the answer is complete."""
        return self._finished

    async def run(self) -> None:
        """Run until the answer ends; see `Run.run`.

        Raises:
            FusionError: the method returned before the answer was complete.
        """
        await self._tasks.run(self._write, self)
        if self._finished is None:
            words = "the method returned before its answer was over"
            raise FusionError(f"{words}: write() has to write until writer.over, or to call writer.end(Finish(...))")

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
            lost=self._lost,
            segments=tuple(self.segments),
            warnings=tuple(self.warnings),
            weights=self.weights,
        )

    # --------------------------------------------------------------------------------------------- the written text

    @property
    def text(self) -> bytes:
        """The answer so far."""
        return bytes(self._response.text)

    @property
    def heard_until(self) -> int:
        """The number of verified leading tokens, as in `Asker.heard_until`. Tokens of a scratch copy do not count."""
        return 0 if self._scratch else len(self._response.tokens)

    @property
    def conversation(self) -> Sequence[Message] | None:
        """The prompt, if it is a conversation."""
        return self._job.conversation

    @property
    def prompt(self) -> str:
        """The prompt as plain text; see `AnswerJob.plain`."""
        return self._job.plain[0].prompt

    @property
    def left(self) -> int:
        """The number of tokens that may still be written."""
        return self._job.max_tokens - len(self._response.tokens)

    @property
    def over(self) -> bool:
        """Test whether the answer is complete."""
        return self._finished is not None

    def name(self, model: int) -> str:
        """A model's name in results."""
        return self._job.names[model]

    def warn(self, words: str) -> None:
        """Add a warning to the result, unless the result already has this warning."""
        if words not in self.warnings:
            self.warnings.append(words)

    def stops(self, tokens: Sequence[Token]) -> bool:
        """Test whether the last of these tokens completes a stop string."""
        finder, new, tail = self._response.stops, len(tokens[-1].data), b""
        for token in reversed(tokens):
            tail = token.data + tail
            if len(tail) >= finder.longest + new:
                break
        return finder.find(bytearray(tail), new) is not None

    def response_of(self, tokens: Sequence[Token]) -> Response:
        """A complete response that consists of these tokens alone, with the limits and stop strings of this answer."""
        response = Response(self._job.max_tokens, self._job.stop)
        for token in tokens:
            if response.over is None:
                response.place(Placed(token))
        response.finish()
        return response

    def write(
        self,
        tokens: Sequence[Token],
        model: int,
        *,
        number: int = 0,
        segment: DecidedSegment | None = None,
        reason: str | None = None,
        own: bool = True,
    ) -> None:
        """Write a segment, or the next part of an open segment, as final tokens.

        Args:
            tokens: the tokens.
            model: index of the model that wrote them.
            number: number of the request that produced the tokens.
            segment: the decision about the segment. None leaves the segment open until it is added to `segments`.
            reason: reason for the tokens, if they are part of an open segment.
            own: whether the model wrote exactly these tokens; if so, they remain on its path.
        """
        reason = reason if segment is None else segment.reason
        compared = segment is not None and len(segment.candidates) > 1
        self._place(WrittenPart(tokens, model, number, reason, compared), own=own)
        self._settle(segment)

    def _place(self, piece: WrittenPart, *, own: bool = True) -> None:
        self._pieces.append(piece)
        for token in piece.tokens:
            if self._response.over is None:
                if own:
                    self._paths.write(piece.model, self.text, token)
                now = self._job.timeline.now()
                one = Placed(token, piece.model - 1, draft=piece.number, at=now, reason=piece.reason)
                one.unit, one.round = len(self.segments), len(self.segments) + 1
                one.verified, one.asked = not self._lost, piece.compared
                self._response.place(one)

    def _settle(self, segment: DecidedSegment | None) -> None:
        if segment is not None:
            self.segments.append(segment)
        if self._response.over is not None:
            self.end(self._response.over)
        else:
            self._emit(self._response.settle(len(self._response.tokens)))

    async def relay(self, model: int, segment: DecidedSegment) -> None:
        """Let a model write the rest of the answer alone, as one segment. Each token is final as soon as it arrives.

        If the model fails and the answer may continue without it, the model is lost, as in `ask_all`. Its tokens are
        kept, and the answer is not complete.

        Args:
            model: index of the model.
            segment: the decision to choose the model. The winner's text is added when it is known.

        Raises:
            ProviderError: the model failed, and the answer cannot continue without it; or a limit is reached.
        """
        start, before = len(self._response.text), len(self._pieces)

        def take(item: Token | DraftEnd, number: int) -> bool:
            if isinstance(item, DraftEnd):
                self.end_with(Passage((), number, item))
            else:
                self._place(WrittenPart([item], model, number, segment.reason, len(segment.candidates) > 1))
                self._settle(None)
            return self.over

        try:
            await self.read(model, self.text, take, max_tokens=self.left)
        except Exception as error:
            if not model or not self._job.survives(error):
                raise
            self._lose(model, error)
        finally:
            won = replace(segment.candidates[segment.winner], text=self.text[start:], end=self.ended)
            others = [won if at == segment.winner else one for at, one in enumerate(segment.candidates)]
            if len(self._pieces) > before or self.over:
                self.segments.append(replace(segment, candidates=tuple(others)))

    def scratch_copy(self) -> AnswerWriter:
        """Make a writer for another answer to the same prompt, which is not emitted but may be copied into this one."""
        other = self.fresh()
        other._response = Response(self._job.max_tokens, self._job.stop)
        other._finished, other._scratch = None, True
        other.segments, other._pieces = [], []
        return other

    def copy(self, other: AnswerWriter, segment: DecidedSegment) -> None:
        """Write the text of a scratch copy as one segment. If the copy is complete, this answer is also complete."""
        for piece in other._pieces:
            self._place(replace(piece, compared=len(segment.candidates) > 1))
        self._settle(segment)
        if other.finished is not None:
            self.end(other.finished)

    @property
    def ended(self) -> bool:
        """Test whether the answer ended with a model's end of sequence."""
        return self.over and bool(self._response.tokens) and self._response.tokens[-1].token.end

    @property
    def sources(self) -> list[int]:
        """The indices of the models that wrote the answer, in the order in which the user gave them."""
        return sorted({one.source + 1 for one in self._response.tokens})

    def end(self, finish: Finish) -> None:
        """Complete the answer with its current text."""
        if self._finished is None:
            self._response.over = self._finished = finish
            self._emit(self._response.finish())

    def end_with(self, passage: Passage) -> None:
        """Complete the answer if the model that wrote a passage cannot continue it."""
        if passage.end is not None and passage.end.reason in ("context", "filter"):
            self.end(cut_short(passage.end))

    def _emit(self, tokens: Sequence[Placed]) -> None:
        if tokens and not self._scratch:
            self._job.emit(tokens)
