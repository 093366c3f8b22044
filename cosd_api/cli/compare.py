"""`cosd compare`: both models, every way to fuse them, and baselines on a user's own questions."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from cosd_api.alignment import Unit
from cosd_api.cli.console import guarded, say
from cosd_api.cli.options import (
    AssistantModels,
    DraftModel,
    DraftUrl,
    MaxTokens,
    connect_assistants,
    connect_server,
    with_options,
)
from cosd_api.comparison.asking import Tally
from cosd_api.comparison.contestants import VERIFIERS, Chosen
from cosd_api.comparison.graders import GRADERS, grader_named
from cosd_api.comparison.grading import Grader
from cosd_api.comparison.prices import ComparisonEstimate, prices_from
from cosd_api.comparison.questions import mapping_from, read_questions
from cosd_api.comparison.report import comparison_report
from cosd_api.comparison.result import Comparison
from cosd_api.comparison.run import DEVELOPMENT
from cosd_api.comparison.run import compare as compare_answers
from cosd_api.report.terminal import visible
from cosd_api.settings import DEFAULT_MAX_TOKENS
from cosd_api.training.dataset import Example
from cosd_api.wording import counted
from cosd_providers.contract import Provider
from cosd_providers.errors import ProviderError

__all__ = [
    "AnswersAtOnce",
    "BilledTokens",
    "Confirmed",
    "Confirming",
    "FieldNames",
    "GraderOptions",
    "JudgedUnit",
    "OtherServer",
    "SeedOfDraws",
    "StopTexts",
    "chosen_methods",
    "compare",
    "resumable",
    "shown",
]

ANSWERS, RESULT = "answers.jsonl", "comparison.json"
"""Files in the folder of a comparison: the journal, and the result."""
_COUNTED = ("questions", "answered", "right", "failed", "billed")
_LINES = 10
"""Lines of progress where standard error is no terminal."""


@dataclass(frozen=True, slots=True)
class GraderOptions:
    """A grader by its name and its settings."""

    grader: Annotated[
        str,
        typer.Option(
            metavar="NAME", help=f"What a right answer is: {', '.join(GRADERS)}, or module:function of your own."
        ),
    ] = "exact"
    ignore_case: Annotated[bool, typer.Option("--ignore-case", help="For exact and contains.")] = False
    pattern: Annotated[str | None, typer.Option(metavar="REGEX", help="For regex.")] = None
    field: Annotated[str | None, typer.Option(metavar="PATH", help="For json: the field, as result.0.name.")] = None
    judge: Annotated[str | None, typer.Option(metavar="URL", help="For judge: the server of the model.")] = None
    run_programs: Annotated[
        bool, typer.Option("--run-programs", help="For program: run what models write, on this machine.")
    ] = False
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="For program: the longest that one may run.")
    ] = None

    def made(self) -> Grader:
        """The grader.

        Raises:
            SettingError: there is no such grader, or a setting is missing or means nothing to it.
        """
        given = asdict(self)
        name = given.pop("grader")
        return grader_named(name, **{key: one for key, one in given.items() if one is not None and one is not False})


# Options that `cosd advise` has, too.
OtherServer = Annotated[
    list[str],
    typer.Option(envvar="COSD_ASSISTANT_URL", metavar="URL", help="Server of the other model; only one."),
]
FieldNames = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="FIELD=NAME", help="Name of a field in the file, as prompt=question; repeat it."),
]
BilledTokens = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Stop before more tokens are read and written by both servers."),
]
StopTexts = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="An answer ends before this text; may be repeated.")
]
JudgedUnit = Annotated[
    Unit | None, typer.Option(help="The unit that is judged; by default found by comparing the tokenizers.")
]
SeedOfDraws = Annotated[int, typer.Option(min=0, metavar="N", help="Seed of what is drawn.")]
AnswersAtOnce = Annotated[int, typer.Option(min=1, metavar="N", help="Answers at the same time.")]
Confirmed = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask if the estimate is all right.")]


@with_options(GraderOptions)
def compare(
    options: GraderOptions,
    questions: Annotated[
        Path,
        typer.Argument(metavar="QUESTIONS", help='On each line {"prompt": ..., "answer": ...}, as for cosd collect.'),
    ],
    draft: DraftUrl,
    assistant: OtherServer,
    draft_model: DraftModel = None,
    assistant_model: AssistantModels = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,...",
            help=f"Methods, with commas between them or repeated; all by default. Also {', '.join(VERIFIERS)}.",
        ),
    ] = None,
    one_way: Annotated[
        bool, typer.Option("--one-way", help="Leave out that the assistant drafts and the draft assists.")
    ] = False,
    fields: FieldNames = None,
    limit: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Only the first N questions of the file.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for the answers, the result and a report as a page; made if it is not there. The same command "
            "resumes.",
            file_okay=False,
        ),
    ] = None,
    max_billed_tokens: BilledTokens = None,
    prices: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=IN,OUT|FILE",
            help="Prices of a million tokens read and written: draft=0.2,0.6 and assistant=3,15, or a JSON file. A "
            "third number is that of tokens read from a cache.",
        ),
    ] = None,
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS,
    stop: StopTexts = None,
    unit: JudgedUnit = None,
    development: Annotated[
        float, typer.Option(min=0, max=1, metavar="SHARE", help="Questions that choose the better model.")
    ] = DEVELOPMENT,
    seed: SeedOfDraws = 0,
    concurrency: AnswersAtOnce = 4,
    yes: Confirmed = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the estimate, and ask the models nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")] = False,
) -> None:
    """Find out if fusing two models is worth it, on your own questions.

    Both models answer alone, by every method that the servers can serve (either model drafting), and by baselines;
    the answers are graded. Standard error gets the estimated cost, which is to be confirmed (--yes; without a terminal
    --yes or --max-billed-tokens is required), and the progress. Standard output gets the table. Exit codes: 0; 1 a
    server failed, or the comparison is not complete; 2 wrong usage, or an invalid file; 130 interrupted.
    """
    with guarded():
        try:
            wanted = read_questions(questions, mapping_from(fields or []))[:limit]
        except OSError as error:
            raise typer.BadParameter(f"{questions}: {error.strerror}", param_hint="QUESTIONS") from error
        try:
            priced = prices_from(prices) if prices else None
        except OSError as error:
            raise typer.BadParameter(f"{error.filename}: {error.strerror}", param_hint="--prices") from error
        if len(assistant) > 1:
            words = (
                f"a comparison is of two models, and these are {len(assistant) + 1}: give one --assistant, and compare "
            )
            words += "each other pair by a command of its own, with a folder (--out) of its own"
            raise typer.BadParameter(words, param_hint="--assistant")
        writer = connect_server(draft, draft_model, "--draft")
        (other,) = connect_assistants(assistant, assistant_model)
        confirming = Confirming(dry_run=dry_run, yes=yes or max_billed_tokens is not None)
        confirming.check()
        folder = _folder(out) if out is not None and not dry_run else None
        settings: dict[str, Any] = {
            "methods": chosen_methods(methods),
            "both_ways": not one_way,
            "grader": options.made(),
            "path": None if out is None else out / ANSWERS,
            "max_tokens": max_tokens,
            "stop": stop,
            "seed": seed,
            "unit": unit,
            "development": development,
            "concurrency": concurrency,
            "max_billed_tokens": max_billed_tokens,
            "prices": priced,
            "confirm": confirming,
            "dry_run": dry_run,
        }
        with resumable(None if folder is None else folder / ANSWERS):
            found = anyio.run(_compare, wanted, writer, other, settings)
        if confirming.declined:
            raise typer.Exit(0 if dry_run else 1)
        if folder is not None:
            (folder / RESULT).write_text(found.model_dump_json() + "\n", encoding="utf-8")
            _export(found, folder, wanted)
        print(found.model_dump_json() if as_json else visible(comparison_report(found)), flush=True)
        if folder is not None:
            say(f"wrote {folder}")
        if found.stopped is not None:
            say(f"not complete: {found.stopped}")
            raise typer.Exit(1)


async def _compare(
    examples: list[Example], draft: Provider, assistant: Provider, settings: dict[str, Any]
) -> Comparison:
    with shown() as progress:
        return await compare_answers(examples, draft=draft, assistant=assistant, progress=progress, **settings)


def _export(found: Comparison, folder: Path, examples: list[Example]) -> None:
    """Write the page, the table and the answers for other programs."""
    from cosd_api.comparison.exports import write_exports  # noqa: PLC0415 - only needed here

    write_exports(found, folder, examples)


def chosen_methods(given: list[str] | None) -> Chosen:
    """The methods that were named."""
    names = [name.strip() for one in given or [] for name in one.split(",")]
    return "all" if names in ([], ["all"]) else names


def _folder(out: Path) -> Path:
    """The folder, which is there now.

    Raises:
        typer.BadParameter: it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{out} cannot be made: {error.strerror}", param_hint="--out") from error
    return out


@dataclass
class Confirming:
    """Shows the estimate, and asks if it is all right.

    Attributes:
        declined: whether it was not.
    """

    dry_run: bool
    yes: bool
    declined: bool = False

    def check(self) -> None:
        """Check, before anything is sent, that somebody can be asked.

        Raises:
            typer.BadParameter: nobody can.
        """
        if not (self.yes or self.dry_run or sys.stdin.isatty()):
            words = "there is no terminal to confirm the cost: give --yes, or a bound, --max-billed-tokens"
            raise typer.BadParameter(words, param_hint="--yes")

    def __call__(self, estimate: ComparisonEstimate) -> bool:
        """Show it, and ask.

        Raises:
            KeyboardInterrupt: somebody has interrupted the question.
        """
        if self.dry_run:
            print(estimate)
        else:
            say(str(estimate))
        self.declined = self.dry_run or (not self.yes and estimate.answers > 0 and not _goes_on())
        return not self.declined


def _goes_on() -> bool:
    """Ask; an interrupt ends the question, which the handler of a running event loop would only note.

    Raises:
        KeyboardInterrupt: it was interrupted.
    """
    interrupted: list[int] = []

    def interrupt(number: int, frame: object) -> None:  # noqa: ARG001
        interrupted.append(number)
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, interrupt) if in_main else None
    try:
        return typer.confirm("Go on?", default=True, err=True)
    except typer.Abort:  # an interrupt, or the end of the input
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        if in_main:
            signal.signal(signal.SIGINT, before)


@contextmanager
def resumable(answers: Path | None) -> Iterator[None]:
    """After an interrupt or a server's failure, say how to resume; `answers` is the file that they are in."""
    try:
        yield
    except (KeyboardInterrupt, ProviderError):
        if answers is not None and answers.exists() and answers.stat().st_size:
            say(f"finished answers are in {answers}: run the same command again to resume")
        raise


@contextmanager
def shown() -> Iterator[Callable[[Sequence[Tally]], None]]:
    """Progress on standard error: a table that fills up on a terminal, from the first call on; else some lines."""
    if not _on_terminal():
        yield _Plain()
        return
    live = Live(console=Console(stderr=True), transient=True, refresh_per_second=4)

    def show(tallies: Sequence[Tally]) -> None:
        live.update(_table(tallies, live.console.size.height))
        live.start()  # not before: a live table wipes what is typed at a question; started already, it goes on

    try:
        yield show
    finally:
        live.stop()


def _on_terminal() -> bool:
    return sys.stderr.isatty()


class _Plain:
    """Progress in lines: one for each tenth of the answers."""

    def __init__(self) -> None:
        self._next, self._total = 1, 0

    def __call__(self, tallies: Sequence[Tally]) -> None:
        """Print a line, where the next tenth is done."""
        total, done = sum(one.questions for one in tallies), sum(one.answered + one.failed for one in tallies)
        if total != self._total:  # a contestant was left out, or there is more to ask
            self._total, self._next = total, done * _LINES // max(1, total) + 1
        if not total or done * _LINES < self._next * total:
            return
        self._next = done * _LINES // total + 1
        failed = sum(one.failed for one in tallies)
        words = f"{done:,} of {counted(total, 'answer')}, {sum(one.billed for one in tallies):,} billed tokens"
        say(words + (f", {failed:,} failed" if failed else ""))


def _table(tallies: Sequence[Tally], height: int) -> Table:
    """The table that fills up, in so many lines: where it has more, first those that are not done, and one line more.

    Args:
        tallies: of all contestants.
        height: of the terminal, in lines.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True, overflow="ellipsis")
    for head in ("answered", "of", "right", "failed", "billed tokens"):
        table.add_column(head, justify="right", no_wrap=True)
    room = max(1, height - 2)  # below the heads, with the cursor's line free
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
