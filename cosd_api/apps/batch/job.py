"""A batch job: a fusion answers every line of one file, and the answers are written to another file.

A later run can continue an unfinished batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosd_api import Fusion, SettingError
from cosd_api.apps.batch.lines import BatchLine, near_each_other, read_batch
from cosd_api.apps.batch.output import LineIndex, OutputFile
from cosd_api.apps.batch.reply import Reply, answer, stopped
from cosd_api.apps.batch.summary import BatchSummary, Usages, billed_tokens, loaded, together_cost
from cosd_api.common.bounded_map import bounded_map
from cosd_api.common.wording import counted
from cosd_api.extend import SharedLimit
from cosd_api.settings import DEFAULT_MAX_TOKENS

WINDOW = 1000
"""The number of lines that are sorted together, so that lines with a common beginning are sent one after the other."""

_IN_A_ROW = 16
"""A batch stops when this number of lines in a row, or twice `concurrency` if that is more, have failed because of a
server."""


@dataclass
class BatchJob:
    """One run of a batch.

    Attributes:
        source: the input file; see `cosd_api.apps.batch.lines`.
        target: the output file; input lines whose answers it already contains are not sent again.
        concurrency: the number of lines that are processed at the same time.
        retry_failed: whether to retry lines that failed in an earlier run.
        max_billed_tokens: the limit on billed tokens for the whole batch, including earlier runs; None for no limit.
        progress: called with the number of finished lines and the number of all lines, at the start and after every
            line.
    """

    source: Path
    target: Path
    concurrency: int = 8
    retry_failed: bool = False
    max_billed_tokens: int | None = None
    progress: Callable[[int, int], None] | None = None

    async def run(self, fusion: Fusion) -> BatchSummary:
        """Answer the lines that have no answer yet.

        Args:
            fusion: an open fusion; its `limits` apply to every answer.

        Raises:
            OSError: a file cannot be read or written.
            SettingError: a file is invalid, or the output was written by a different fusion. No line was sent.
            ProviderError: an endpoint failed before the first line was sent.
        """
        with ExitStack() as stack:
            index = stack.enter_context(LineIndex())
            self._enter(index)
            facts = await fusion.endpoints.discover()
            models = {one.name: one.model for one in (facts.draft, *facts.assistants)}
            # The output is opened last, so that no file is created if an error occurs above.
            output = stack.enter_context(OutputFile(self.target, index))
            written_by = fusion.settings.method.name, tuple(models.values())
            _check_same(self.target, output, written_by)
            batch = _BatchRun(self, fusion, index, output, written_by)
            await batch.ask()
            output.compact()
            return batch.summary()

    def _enter(self, index: LineIndex) -> None:
        """Read and check the whole input once, before any line is sent."""
        if self.source.exists() and not self.source.is_file():
            words = "it is not a regular file, and a batch reads its input twice"
            raise SettingError(f"{self.source}: {words}. Write the lines to a file first")
        with index.changing():
            for line in read_batch(self.source):
                if (first := index.enter(line.custom_id, line.number)) is not None:
                    words = f"its custom_id is that of line {first}: give each line one of its own"
                    raise SettingError(f"{self.source}, line {line.number}: {words}")
        if not any(index.counts().values()):
            raise SettingError(f"{self.source} has no lines")


def _check_same(path: Path, output: OutputFile, mine: tuple[str, tuple[str, ...]]) -> None:
    """Check that the lines in the output were written by this fusion's models and method."""
    if output.written_by is not None and output.written_by != mine:
        (method, models), (my_method, my_models) = output.written_by, mine
        words = f"{path} holds answers of {' and '.join(models)} by the method {method}"
        raise SettingError(f"{words}, not of {' and '.join(my_models)} by {my_method}: give another file (-o)")


@dataclass
class _BatchRun:
    """One run of a job.

    Attributes:
        job: the job.
        fusion: the open fusion that answers.
        index: the state of every line.
        output: the output file.
        written_by: the method and the models, which are recorded in every output line.
    """

    job: BatchJob
    fusion: Fusion
    index: LineIndex
    output: OutputFile
    written_by: tuple[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        self._before = self.index.counts()
        self._cost_before = self.output.usage
        self._started = time.monotonic()
        self._stopped: str | None = None
        self._answered = self._failed = self._tokens = self._kept = self._replaced = 0
        self._failures = 0  # the number of lines in a row that failed because of a server
        self._billed = billed_tokens(self.output.usage)  # includes replies that are not written yet
        self._limit = SharedLimit(self.job.max_billed_tokens, lambda: self._billed, workers=self.job.concurrency)

    async def ask(self) -> None:
        """Answer the lines, and write each reply as soon as it is complete."""
        self._show()
        self._started = time.monotonic()
        async with aclosing(bounded_map(self._work(), self.job.concurrency, "completed")) as complete:
            async for one in complete:
                found = one.result()
                if found is not None:
                    reply, earlier = found
                    self.output.write(reply.line(*self.written_by, earlier))
                    self._take(reply)
                self._show()
        if self._limit.reached:
            self._stopped = self._limit.words()

    def _show(self) -> None:
        if self.job.progress is not None:
            found = self.summary()
            self.job.progress(found.done, found.lines)

    def summary(self) -> BatchSummary:
        """Return the summary of the run so far."""
        lines, known, judged = sum(self._before.values()), self._before["answered"], self._kept + self._replaced
        failed = self._failed + (0 if self.job.retry_failed else self._before["failed"])
        return BatchSummary(
            lines=lines,
            known=known,
            answered=self._answered,
            failed=failed,
            missing=lines - known - self._answered - failed,
            seconds=time.monotonic() - self._started,
            tokens=self._tokens,
            acceptance_rate=self._kept / judged if judged else None,
            usage=together_cost([self.output.usage], self._cost_before),
            total_usage=self.output.usage,
            stopped=self._stopped,
        )

    def _work(self) -> Generator[Coroutine[Any, Any, tuple[Reply, list[Usages]] | None]]:
        """Yield the lines without any answer, then the lines that failed earlier, which may fail again."""
        job = self.job
        for again in (False, True) if job.retry_failed else (False,):
            for line in near_each_other(self._wanted(again=again), WINDOW, job.concurrency):
                if self._stopped is not None:
                    return
                yield self._answer(line)

    def _wanted(self, *, again: bool) -> Iterator[BatchLine]:
        """Read the input again, and yield the lines without any answer, or the lines that failed before this run."""
        changed = SettingError(f"{self.job.source} has changed since it was read: run the command again")
        lines = 0
        for line in read_batch(self.job.source):
            known = self.index.state(line.custom_id, line.number)
            if known is None:
                raise changed
            lines += 1
            failed_before = known.state == "failed" and known.start < self.output.first
            if failed_before if again else known.state in ("new", "cut") and known.start < self.output.first:
                yield line
        if lines != sum(self._before.values()):
            raise changed

    async def _answer(self, line: BatchLine) -> tuple[Reply, list[Usages]] | None:
        """Answer one line within its share of the batch's limit on billed tokens.

        Returns:
            The reply, and the costs of earlier attempts; None if the run was stopped before the first attempt.
        """
        known = self.index.state(line.custom_id, line.number)
        earlier: list[Usages] = [loaded(known.usage if known else None)]
        attempts, least = 0, 0
        while True:
            guess = len(line.asked) + self.fusion.limits.get("max_tokens", DEFAULT_MAX_TOKENS)
            allowed = await self._limit.share("", guess, least, lambda: self._stopped is None)
            if self._limit.reached and self._stopped is None:
                self._stopped = self._limit.words()
            if allowed is None and self._limit.most is not None:
                return (stopped(line, self._limit.words()), earlier) if attempts else None
            self._limit.take(allowed)
            try:
                reply = await answer(self.fusion, line, allowed)
                self._billed += reply.billed_tokens
            finally:
                self._limit.give_back(allowed)
            if not reply.cut:
                self._limit.note("", reply.billed_tokens)
                return reply, earlier
            attempts, least = attempts + 1, (allowed or 0) + 1  # the next attempt needs a larger share
            earlier.append(reply.usage)

    def _take(self, reply: Reply) -> None:
        """Count a reply, and stop after many failures in a row.

        After so many, a server is probably down, and all other lines would fail, too.
        """
        if reply.error is None:
            self._failures = 0
            self._answered += 1
            self._tokens += reply.tokens
            self._kept += reply.kept
            self._replaced += reply.replaced
            return
        self._failed += not reply.cut
        self._failures += reply.server_failed
        if reply.server_failed and self._failures >= max(_IN_A_ROW, 2 * self.job.concurrency) and self._stopped is None:
            words = f"{counted(self._failures, 'line')} in a row failed, the last one with: {reply.error['message']}"
            more = "Check the servers, then run the command again with --retry-failed"
            self._stopped = f"{words}{'' if words.endswith('.') else '.'} {more}"
