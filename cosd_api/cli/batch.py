"""`cosd batch`: answers the prompts in a file, and writes the answers to another file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cosd_api import Fusion, Tuning
from cosd_api.batch.job import WINDOW, BatchJob
from cosd_api.batch.summary import BatchSummary, BatchTally
from cosd_api.cli.compare import MostBilled, PriceTexts, resumable
from cosd_api.cli.console import guarded, say
from cosd_api.cli.options import ChosenTie, ChosenUnit, SharedOptions, StopTexts, check_writable, with_options
from cosd_api.comparison.prices import prices_from
from cosd_api.extend import AnswerOptions, OnAssistantError, run_async
from cosd_api.report.terminal import visible

__all__ = ["batch"]

_LINES = 10
"""The number of progress lines to print if standard error is not a terminal."""


@with_options(SharedOptions)
def batch(
    options: SharedOptions,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help='Lines of {"prompt": ...}, {"messages": [...]}, or requests in the format of OpenAI\'s batches.',
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FILE", help="File for the answers. The same command resumes.", dir_okay=False
        ),
    ],
    unit: ChosenUnit = None,
    tie: ChosenTie = None,
    stop: StopTexts = None,
    on_assistant_error: Annotated[
        OnAssistantError,
        typer.Option(help="If an assistant fails despite retries: let the line fail, or continue without it."),
    ] = "raise",
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Retry the lines that failed in an earlier run.")
    ] = False,
    max_billed_tokens: MostBilled = None,
    prices: PriceTexts = None,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Lines in progress at the same time.")] = 8,
    reorder: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Lines that are sorted together, so that the servers' prefix caches serve lines that begin alike; 1 "
            "keeps the order of the file.",
        ),
    ] = WINDOW,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON document.")] = False,
) -> None:
    """Answer the prompts in a file, and write the answers to another file.

    For each input line, a line with an answer or an error is written to the output, in the order of completion. After
    an interruption, the same command resumes the batch. --max-billed-tokens limits the whole batch, including earlier
    runs. The progress goes to standard error, and the summary to standard output. Exit codes: 0 on success; 1 if lines
    failed or were not asked, or a server failed; 2 for wrong usage or an invalid file; 130 when interrupted.
    """
    with guarded():
        check_writable(out, "--out", source, options.config, options.tree)
        fusion = options.fusion(unit=unit, tie=tie, on_assistant_error=on_assistant_error, tuning=Tuning())
        fusion.limits = _limits(options, fusion, stop)
        job = BatchJob(
            source,
            out,
            concurrency=concurrency,
            window=reorder,
            retry_failed=retry_failed,
            max_billed_tokens=max_billed_tokens,
            prices=prices_from(prices) if prices else None,
        )
        with resumable(out):
            try:
                found = run_async(_answer, fusion, job)
            except OSError as error:
                if error.filename is None or Path(error.filename) not in (source, out):
                    raise
                if Path(error.filename) == source:
                    raise typer.BadParameter(f"{source}: {error.strerror}", param_hint="IN") from error
                say(f"{out} cannot be written: {error.strerror}. What it holds is kept: run the same command to resume")
                raise typer.Exit(1) from error
        print(found.model_dump_json() if as_json else visible(str(found)), flush=True)
        if found.stopped is not None:
            say(f"not complete: {found.stopped}")
        elif found.failed:
            say("run the command again with --retry-failed to retry the failed lines")
        if not found.complete:
            raise typer.Exit(1)


def _limits(options: SharedOptions, fusion: Fusion, stop: list[str] | None) -> AnswerOptions:
    """Return the limits for every line. They include `max_tokens` only if the user or the settings file sets it."""
    checked = asdict(options.limits(fusion, stop=stop or None))
    found: dict[str, Any] = {name: one for name, one in checked.items() if one not in (None, (), {})}
    if not (options.given("max_tokens") or "max_tokens" in fusion.limits):
        del found["max_tokens"]
    limits: AnswerOptions = {**found}  # type: ignore[typeddict-item]
    return limits


async def _answer(fusion: Fusion, job: BatchJob) -> BatchSummary:
    with _shown() as progress:
        job.progress = progress
        async with fusion:
            return await job.run(fusion)


@contextmanager
def _shown() -> Iterator[Callable[[BatchTally], None]]:
    """Show the progress on standard error: a bar on a terminal, otherwise a few lines of text."""
    if not _on_terminal():
        yield _ProgressLines()
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(tally: BatchTally) -> None:
            bar.update(task, completed=tally.done, total=tally.lines, description=_words(tally))

        yield show


def _on_terminal() -> bool:
    return sys.stderr.isatty()


def _words(tally: BatchTally) -> str:
    """Describe the speed, the acceptance rate and the cost so far."""
    seconds = max(tally.seconds, 1e-9)
    parts = [f"{(tally.answered + tally.failed) / seconds:.3g} lines/s", f"{tally.tokens / seconds:,.0f} tokens/s"]
    if tally.acceptance_rate is not None:
        parts.append(f"acceptance {tally.acceptance_rate:.0%}")
    parts.append(f"{tally.billed_tokens:,} billed tokens")
    if tally.money is not None:
        parts.append(f"price {tally.money:,.4g}")
    if failed := tally.known_failed + tally.failed:
        parts.append(f"{failed:,} failed")
    return ", ".join(parts)


class _ProgressLines:
    """Prints the progress as lines of text, one for each tenth of the batch."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, tally: BatchTally) -> None:
        """Print a line if another tenth of the batch is done."""
        if not self._next:
            self._next = tally.done * _LINES // tally.lines + 1
        if tally.done * _LINES >= self._next * tally.lines:
            self._next = tally.done * _LINES // tally.lines + 1
            say(f"{tally.done:,} of {tally.lines:,} lines, {_words(tally)}")
