"""`cosd compare`: compares single models, every way to fuse them, and baselines, on a user's own questions."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Self, TypedDict

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cosd_api import Example
from cosd_api.cli.comparing import ComparingOptions
from cosd_api.cli.console import guarded, say
from cosd_api.cli.options import with_options
from cosd_api.comparison.advice import WORTH
from cosd_api.comparison.compare import compare as compare_answers
from cosd_api.comparison.prices import ComparisonEstimate
from cosd_api.comparison.report import (
    comparison_report,
)
from cosd_api.comparison.result import (
    Comparison,
)
from cosd_api.comparison.settings import ComparisonOptions, Tally
from cosd_api.extend import counted, duration, paragraph, run_async, write_whole
from cosd_api.report.terminal import visible
from cosd_providers import Provider, ProviderError

__all__ = ["Confirming", "Left", "compare"]

ANSWERS, RESULT, PAGE, SETTINGS = "answers.jsonl", "comparison.json", "report.html", "fusion.yaml"
"""The files in the folder of a comparison: the answers so far, the result, its page, and the advised fusion."""
_COUNTED = ("questions", "answered", "right", "failed", "billed", "asked", "spent", "money")
_LINES = 10
"""The number of progress lines to print if standard error is not a terminal."""


@with_options(ComparingOptions)
def compare(
    options: ComparingOptions,
    questions: Annotated[
        Path,
        typer.Argument(metavar="QUESTIONS", help='Lines of {"prompt": ..., "answer": ...}, as for cosd collect.'),
    ],
    limit: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Only the first N questions of the file.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for the answers, the result, a page and the advised settings; created if it does not exist. "
            "The same command resumes.",
            file_okay=False,
        ),
    ] = None,
    development: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Share of the questions that set the random gate and self-consistency; a fifth if cosd is compared, "
            "otherwise none.",
        ),
    ] = None,
    pairs: Annotated[
        bool,
        typer.Option("--pairs", help="Also fuse each pair of three models, to see if the third is worth its price."),
    ] = False,
    advise: Annotated[
        bool, typer.Option("--advise", help="Print only the paragraph of advice, and leave out the baselines.")
    ] = False,
    worth: Annotated[
        float, typer.Option(min=0.001, max=1, metavar="GAIN", help="Least gain in accuracy that is worth fusing for.")
    ] = WORTH,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")] = False,
) -> None:
    """Find out, on your own questions, whether fusing two or more models is worth it.

    Each model answers alone. Then the models answer together with every method that the servers support, and each model
    in turn is the draft. Baseline methods answer, too. All answers are graded. The estimated cost and the progress go
    to standard error, and the table to standard output; its last paragraph says whether to fuse the models, and how. If
    fusing is advised, the folder of --out gets the settings file of that fusion, for cosd fuse --config. You are asked
    to confirm the cost unless you give --yes or --max-billed-tokens. Without a terminal, one of these options is
    required, unless all answers are known from an earlier run. Exit codes: 0 on success; 1 if a server failed, or the
    comparison is not complete; 2 for wrong usage or an invalid file; 130 when interrupted.
    """
    with guarded(), ExitStack() as run:
        wanted = options.questions(questions, limit)
        scratch = None if out is not None else run.enter_context(TemporaryDirectory())
        path = (out or Path(scratch or "")) / ANSWERS
        settings, (draft, assistants) = options.settings(path), options.models()
        own: _OwnOptions = {"development": development, "pairs": pairs, "baselines": not advise}
        confirming = Confirming.of(options, path if out is not None else None)
        folder = _folder(out) if out is not None and not options.dry_run else None
        with resumable(None if folder is None else folder / ANSWERS):
            try:
                found = run_async(_compare, wanted, draft, assistants, own, settings | {"confirm": confirming})
            except KeyboardInterrupt:
                if not as_json and path.exists() and path.read_bytes().count(b"\n") > 1:  # more than a header
                    so_far = run_async(_known, wanted, *options.models(), own, settings | {"dry_run": True})
                    print(visible(comparison_report(so_far.model_copy(update={"stopped": "it was interrupted"}))))
                raise
        if confirming.declined:
            raise typer.Exit(0 if options.dry_run else 1)
        if folder is not None:
            (folder / RESULT).write_text(found.model_dump_json() + "\n", encoding="utf-8")
            write_whole(folder / PAGE, _page(found, wanted))
        advice = found.advice(worth=worth)
        if advise:
            text = advice.model_dump_json() if as_json else visible(paragraph(str(advice)))
        else:
            text = found.model_dump_json() if as_json else visible(comparison_report(found, worth))
        print(text, flush=True)
        if folder is not None:
            say(f"wrote {folder}")
            if advice.decision == "fuse":
                advice.save(folder / SETTINGS, draft=draft, assistant=assistants)
                say(f"to use the advised fusion: cosd fuse --config {folder / SETTINGS}")
        if found.stopped is not None:
            say(f"not complete: {found.stopped}")
            raise typer.Exit(1)


class _OwnOptions(TypedDict):
    """The arguments of `compare` besides its settings."""

    development: float | None
    pairs: bool
    baselines: bool


async def _compare(
    examples: list[Example],
    draft: Provider,
    assistants: list[Provider],
    own: _OwnOptions,
    settings: ComparisonOptions,
) -> Comparison:
    with shown() as progress:
        return await compare_answers(
            examples, draft=draft, assistant=assistants, **own, **settings | {"progress": progress}
        )


async def _known(
    examples: list[Example],
    draft: Provider,
    assistants: list[Provider],
    own: _OwnOptions,
    settings: ComparisonOptions,
) -> Comparison:
    """Compare the answers that are already known. If `settings` contain `dry_run`, no model is asked."""
    return await compare_answers(examples, draft=draft, assistant=assistants, **own, **settings)


def _page(found: Comparison, examples: list[Example]) -> str:
    from cosd_api.comparison.page import comparison_page  # noqa: PLC0415 - only needed here

    return comparison_page(found, examples=examples)


def _folder(out: Path) -> Path:
    """Create the folder if it does not exist, and return it.

    Raises:
        typer.BadParameter: the folder cannot be created.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{out} cannot be made: {error.strerror}", param_hint="--out") from error
    return out


@dataclass
class Confirming:
    """A callback that shows the estimated cost and asks the user to confirm it.

    Attributes:
        dry_run: whether to print the estimate and then decline it.
        yes: whether to accept the estimate without asking the user.
        declined: whether the estimate was declined, by the user or because of `dry_run`.
    """

    dry_run: bool
    yes: bool
    declined: bool = False

    @classmethod
    def of(cls, options: ComparingOptions, answers: Path | None) -> Self:
        """Create the callback for a command.

        Args:
            options: the options of the command.
            answers: the file with earlier answers. If it exists, it may contain all answers, so `check` is called only
                when the estimate is known.

        Raises:
            typer.BadParameter: see `check`.
        """
        made = cls(dry_run=options.dry_run, yes=options.yes or options.max_billed_tokens is not None)
        if answers is None or not answers.exists():
            made.check()
        return made

    def check(self) -> None:
        """Check that the user can confirm the cost if a confirmation is needed.

        Raises:
            typer.BadParameter: a confirmation is needed, but there is no terminal.
        """
        if not (self.yes or self.dry_run or sys.stdin.isatty()):
            words = "there is no terminal to confirm the cost: give --yes, or a limit, --max-billed-tokens"
            raise typer.BadParameter(words, param_hint="--yes")

    def __call__(self, estimate: ComparisonEstimate) -> bool:
        """Show the estimate and ask the user to confirm it.

        Returns:
            True if the comparison may begin.

        Raises:
            typer.BadParameter: see `check`.
            KeyboardInterrupt: the user interrupted the question.
        """
        if self.dry_run:
            print(estimate)
        else:
            say(str(estimate))
        if estimate.answers:
            self.check()
        self.declined = self.dry_run or (not self.yes and estimate.answers > 0 and not _goes_on())
        return not self.declined


def _goes_on() -> bool:
    """Ask the user to confirm. An interrupt ends the question at once, even if an event loop is running.

    Raises:
        KeyboardInterrupt: the user interrupted the question.
    """
    interrupted: list[int] = []

    def interrupt(number: int, frame: object) -> None:  # noqa: ARG001
        interrupted.append(number)
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, interrupt) if in_main else None
    try:
        return typer.confirm("Continue?", default=True, err=True)
    except typer.Abort:  # an interrupt, or the end of the input
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        if in_main:
            signal.signal(signal.SIGINT, before)


@contextmanager
def resumable(answers: Path | None) -> Iterator[None]:
    """After an interrupt or a server's failure, print how to resume; `answers` is the file with finished answers."""
    try:
        yield
    except (KeyboardInterrupt, ProviderError):
        if answers is not None and answers.exists() and answers.stat().st_size:
            say(f"finished answers are in {answers}: run the same command again to resume")
        raise


@contextmanager
def shown() -> Iterator[Callable[[Sequence[Tally]], None]]:
    """Show the progress on standard error: a table on a terminal, otherwise a few lines of text.

    The table appears when the yielded function is first called.
    """
    if not _on_terminal():
        yield _Plain()
        return
    left = Left()
    live = Live(console=Console(stderr=True), transient=True, refresh_per_second=4)

    def show(tallies: Sequence[Tally]) -> None:
        words = left(tallies)
        table = _table(tallies, live.console.size.height - bool(words))
        live.update(Group(table, Text(f"{words} left")) if words else table)
        live.start()  # started only now, because a live table erases the user's input; later calls have no effect

    try:
        yield show
    finally:
        live.stop()


def _on_terminal() -> bool:
    return sys.stderr.isatty()


class Left:
    """Forecasts the remaining time, tokens and money from the answers of this run so far.

    A contestant's remaining answers are assumed to need as many tokens as its earlier answers did on average, or as the
    answers of all contestants did if it has none yet. A token is assumed to take the average time so far. Answers that
    were known before the run do not count.

    Args:
        clock: a function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start: float | None = None

    def __call__(self, tallies: Sequence[Tally]) -> str:
        """Return the forecast in words. The first call starts the clock.

        The text is empty as long as there is no new answer, and when no answers are left.
        """
        now = self._clock()
        self._start = now if self._start is None else self._start
        asked, spent = sum(one.asked for one in tallies), sum(one.spent for one in tallies)
        left = sum(one.left for one in tallies)
        if not (asked and spent and left):
            return ""
        tokens = sum(one.left * (one.spent / one.asked if one.asked else spent / asked) for one in tallies)
        seconds = (now - self._start) * tokens / spent
        paid = sum(one.money for one in tallies)
        money = sum(one.left * (one.money / one.asked if one.asked else paid / asked) for one in tallies)
        words = f"about {duration(seconds)} and {counted(round(tokens), 'billed token')}"
        return f"{words} (price {money:,.4g})" if money else words


class _Plain:
    """Prints the progress as lines of text, one for each tenth of the answers."""

    def __init__(self) -> None:
        self._next, self._total = 1, 0
        self._left = Left()

    def __call__(self, tallies: Sequence[Tally]) -> None:
        """Print a line if another tenth of the answers is done."""
        left = self._left(tallies)
        total, done = sum(one.questions for one in tallies), sum(one.answered + one.failed for one in tallies)
        if total != self._total:  # a contestant was left out or questions were added, so the tenths have changed
            self._total, self._next = total, done * _LINES // max(1, total) + 1
        if not total or done * _LINES < self._next * total:
            return
        self._next = done * _LINES // total + 1
        failed = sum(one.failed for one in tallies)
        words = f"{done:,} of {counted(total, 'answer')}, {sum(one.billed for one in tallies):,} billed tokens"
        say(words + (f", {failed:,} failed" if failed else "") + (f"; {left} left" if left else ""))


def _table(tallies: Sequence[Tally], height: int) -> Table:
    """Create the table of progress. If there are too many rows, unfinished contestants are preferred.

    The contestants that do not fit share one row.

    Args:
        tallies: the tallies of all contestants.
        height: the height of the terminal, in lines.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True, overflow="ellipsis")
    for head in ("answered", "of", "right", "failed", "billed tokens"):
        table.add_column(head, justify="right", no_wrap=True)
    room = max(1, height - 2)  # one line is for the column heads, and one for the cursor
    several = [*enumerate(tallies)]
    if len(several) > room:
        several.sort(key=lambda one: one[1].answered + one[1].failed >= one[1].questions)
        rest = [one for _, one in several[room - 1 :]]
        several = sorted(several[: room - 1], key=lambda one: one[0])
        numbers = {name: sum(getattr(one, name) for one in rest) for name in _COUNTED}
        several.append((-1, Tally(f"and {len(rest)} more", **numbers)))
    for _, one in several:
        right = f"{one.right / one.answered:.0%}" if one.answered else ""
        cells = (one.answered, one.questions, right, one.failed or "", f"{one.billed:,}")
        table.add_row(visible(one.name), *map(str, cells))
    return table
