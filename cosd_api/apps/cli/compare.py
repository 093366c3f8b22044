"""`cosd compare`: compares single models, every way to fuse them, and baselines, on a user's own questions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from cosd_api import Example
from cosd_api import compare as compare_answers
from cosd_api.apps.cli.console import files_of, guarded, progress, say
from cosd_api.apps.cli.options import (
    AssistantModels,
    AssistantUrls,
    ChosenUnit,
    DraftModel,
    DraftUrl,
    MaxTokens,
    StopTexts,
    connect_assistants,
    connect_server,
    with_options,
)
from cosd_api.apps.comparison import Comparison, ComparisonEstimate
from cosd_api.apps.comparison.comparing import NOT_CONFIRMED
from cosd_api.apps.comparison.contestants import VARIANTS
from cosd_api.apps.comparison.graders import GRADERS, grader_named
from cosd_api.apps.comparison.prices import prices_from
from cosd_api.apps.comparison.standings import WORTH
from cosd_api.apps.comparison.tables import comparison_page, comparison_report
from cosd_api.apps.report.phrases import visible
from cosd_api.apps.training.dataset import read_examples
from cosd_api.common.event_loop import run_async
from cosd_api.common.wording import paragraph
from cosd_api.settings import DEFAULT_MAX_TOKENS
from cosd_api.verification import write_whole
from cosd_providers import ProviderError

__all__ = ["MostBilled", "PriceTexts", "compare", "resumable"]

ANSWERS, RESULT, PAGE = "answers.jsonl", "comparison.json", "report.html"
"""The files in the folder of a comparison: the answers so far, the result and its page."""

MostBilled = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Stop before all servers have read and written more tokens.")
]
PriceTexts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=IN,OUT",
        help="Prices of a million tokens read and written: draft=0.2,0.6 and assistant=3,15 (if there are several, "
        "'assistant 1=3,15').",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparingOptions:
    """The servers, methods, limits and the grader of a comparison."""

    grader: Annotated[
        str,
        typer.Option(
            metavar="NAME", help=f"Decides if an answer is right: {', '.join(GRADERS)}, or your own module:function."
        ),
    ] = "exact"
    ignore_case: Annotated[bool, typer.Option("--ignore-case", help="For exact and contains.")] = False
    command: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="For command: it gets an example and `text` as JSON."),
    ] = None
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="For command: limit for one answer; 60 by default.")
    ] = None
    draft: DraftUrl
    assistant: AssistantUrls
    draft_model: DraftModel = None
    assistant_model: AssistantModels = None
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,...",
            help=f"Methods, separated by commas; may be repeated; all by default. Variants: {', '.join(VARIANTS)}.",
        ),
    ] = None
    one_way: Annotated[bool, typer.Option("--one-way", help="Leave out fusions in which an assistant drafts.")] = False
    max_billed_tokens: MostBilled = None
    prices: PriceTexts = None
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS
    stop: StopTexts = None
    unit: ChosenUnit = None
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed for everything that is drawn.")] = 0
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Answers at the same time.")] = 4

    def settings(self) -> dict[str, Any]:
        """Return the arguments of `compare` that are given by these options, without the models.

        Raises:
            SettingError: a setting is invalid.
        """
        own = {"ignore_case": self.ignore_case or None, "command": self.command, "time_limit": self.time_limit}
        names = [name.strip() for one in self.methods or [] for name in one.split(",")]
        return {
            "methods": "all" if names in ([], ["all"]) else names,
            "both_ways": not self.one_way,
            "grader": grader_named(self.grader, **{name: one for name, one in own.items() if one is not None}),
            "max_tokens": self.max_tokens,
            "stop": self.stop,
            "seed": self.seed,
            "unit": self.unit,
            "concurrency": self.concurrency,
            "max_billed_tokens": self.max_billed_tokens,
            "prices": prices_from(self.prices) if self.prices else None,
        }

    def models(self) -> dict[str, Any]:
        """Create the providers of the draft and the assistants. No request is sent yet.

        Raises:
            typer.BadParameter: a URL is invalid, or only some assistants' models are named.
        """
        draft = connect_server(self.draft, self.draft_model, "--draft")
        return {"draft": draft, "assistant": connect_assistants(self.assistant, self.assistant_model)}


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
            help="Folder for the answers, the result and a page; created if it does not exist. The same command "
            "resumes.",
            file_okay=False,
        ),
    ] = None,
    advise: Annotated[
        bool, typer.Option("--advise", help="Print only the paragraph of advice, and leave out the baselines.")
    ] = False,
    worth: Annotated[
        float, typer.Option(min=0.001, max=1, metavar="GAIN", help="Least gain in accuracy that is worth fusing for.")
    ] = WORTH,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask the models, whatever it costs.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the estimated cost, and answer no question.")
    ] = False,
) -> None:
    """Find out, on your own questions, whether fusing two or more models is worth it.

    Each model answers alone. Then the models answer together with every method that the servers support, and each
    model in turn is the draft. Baseline methods answer, too. All answers are graded. The estimated cost goes
    to standard error, and the table to standard output; its last paragraph says whether to fuse the models, and how.
    Without --yes or --max-billed-tokens, the command ends after the estimate, unless all answers are known from an
    earlier run. Exit codes: 0 on success; 1 if a server failed, or the comparison is not complete; 2 for wrong usage or
    an invalid file; 130 when interrupted.
    """
    with guarded(), ExitStack() as run:
        with files_of("QUESTIONS"):
            examples = read_examples(questions)[:limit]
        path = (out or Path(run.enter_context(TemporaryDirectory()))) / ANSWERS
        given = {**options.settings(), "path": path, "baselines": not advise}
        sure = yes or options.max_billed_tokens is not None

        def confirm(estimate: ComparisonEstimate) -> bool:
            if dry_run:
                print(estimate)
            else:
                say(str(estimate))
            return dry_run or sure or not estimate.answers

        if out is not None and not dry_run:
            with files_of("--out"):
                out.mkdir(parents=True, exist_ok=True)
        with resumable(None if out is None or dry_run else path):
            asked = {**options.models(), **given, "confirm": confirm, "dry_run": dry_run}
            found = run_async(_compared, examples, asked)
        if dry_run:
            return
        if found.stopped == NOT_CONFIRMED:
            say("no question was asked: give --yes, or a limit, --max-billed-tokens")
            raise typer.Exit(1)
        advice = found.advice(worth=worth)
        if as_json:
            print((advice if advise else found).model_dump_json(), flush=True)
        else:
            print(visible(paragraph(str(advice)) if advise else comparison_report(found, advice)), flush=True)
        if out is not None:
            (out / RESULT).write_text(found.model_dump_json() + "\n", encoding="utf-8")
            write_whole(out / PAGE, comparison_page(found, advice))
            say(f"wrote {out}")
        if found.stopped is not None:
            say(f"not complete: {found.stopped}")
            raise typer.Exit(1)


@contextmanager
def resumable(answers: Path | None) -> Iterator[None]:
    """After an interrupt or a server's failure, print how to resume; `answers` is the file with finished answers."""
    try:
        yield
    except (KeyboardInterrupt, ProviderError):
        if answers is not None and answers.exists() and answers.stat().st_size:
            say(f"finished answers are in {answers}: run the same command again to resume")
        raise


async def _compared(examples: list[Example], given: dict[str, Any]) -> Comparison:
    with progress("answers") as show:
        return await compare_answers(examples, **given, progress=show)
