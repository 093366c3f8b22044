"""`cosd advise`: a paragraph of advice about two or more models, and the settings file of the advised fusion."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cosd_api import Example
from cosd_api.cli.compare import Confirming, resumable, shown
from cosd_api.cli.comparing import ComparingOptions
from cosd_api.cli.console import guarded, say
from cosd_api.cli.options import check_writable, with_options
from cosd_api.comparison.advising import advise as advise_on
from cosd_api.comparison.looks import LEAST_QUESTIONS, WORTH, Looks
from cosd_api.comparison.result import Advice
from cosd_api.comparison.settings import ComparisonOptions
from cosd_api.extend import paragraph, run_async, write_whole
from cosd_api.report.terminal import visible
from cosd_providers import Provider

__all__ = ["advise"]


@with_options(ComparingOptions)
def advise(
    options: ComparingOptions,
    questions: Annotated[
        Path,
        typer.Argument(metavar="QUESTIONS", help='Lines of {"prompt": ..., "answer": ...}, as for cosd compare.'),
    ],
    limit: Annotated[
        int, typer.Option(min=LEAST_QUESTIONS, metavar="N", help="Only the first N questions of the file.")
    ] = 100,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Settings file to write if fusing is advised."),
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep the answers here, as JSON lines. The same command resumes."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Page to write: the advice, the models, all ways to fuse, failures, methods left out."
        ),
    ] = None,
    worth: Annotated[
        float, typer.Option(min=0.001, max=1, metavar="GAIN", help="Least gain in accuracy that is worth fusing for.")
    ] = WORTH,
    looks: Annotated[
        Looks,
        typer.Option(help="Look after a quarter, a half and all of the questions, or only at the end."),
    ] = "auto",
    choosing: Annotated[
        float | None, typer.Option(metavar="SHARE", hidden=True, help="Without effect: all questions choose and test.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the advice as one JSON document.")] = False,
) -> None:
    """Find out from a hundred questions whether to fuse two or more models, and how.

    Each model and each possible fusion of the models answer a quarter of the questions, then half of them, and then
    all, but only until the advice is clear. The advice is one paragraph on standard output: how to fuse, with the gain
    and the cost; or which model to use alone; or that the result is undecided, with the number of questions that would
    decide it. The estimated cost, and a line after each stage, go to standard error. You are asked to confirm the cost
    unless you give --yes or --max-billed-tokens. Without a terminal, one of these options is required, unless all
    answers are known from an earlier run. Exit codes: 0 with any advice; 1 if a server failed, or the command was
    stopped; 2 for wrong usage or an invalid file; 130 when interrupted.
    """
    with guarded():
        wanted, settings = options.questions(questions, limit), options.settings(answers)
        for path, name, others in (
            (answers, "--answers", ()),
            (out, "--out", (answers,)),
            (report, "--report", (answers, out)),
        ):
            if path is not None and not options.dry_run:
                check_writable(path, name, questions, *others)
        if choosing is not None:
            say("--choosing is ignored, and ends with release 0.2: all questions choose and test")
        draft, assistants = options.models()
        confirming = Confirming.of(options, answers)
        with resumable(answers):
            found = run_async(_advise, wanted, draft, assistants, worth, looks, settings | {"confirm": confirming})
        if options.dry_run:
            return
        print(found.model_dump_json() if as_json else visible(paragraph(str(found))), flush=True)
        for words in found.notes:
            say(f"note: {words}")
        if report is not None and not confirming.declined:
            _write_page(found, report)
        if confirming.declined or found.decision == "unknown":
            raise typer.Exit(1)
        if out is not None and found.decision == "fuse":
            found.save(out, draft=draft, assistant=assistants)
            say(f"wrote {out}: use it with cosd fuse --config {out}")
        elif out is not None:
            say(f"{out} was not written: fusing is not advised")


def _write_page(found: Advice, path: Path) -> None:
    from cosd_api.comparison.page import advice_page  # noqa: PLC0415 - only needed here

    write_whole(path, advice_page(found))
    say(f"wrote {path}")


async def _advise(
    examples: list[Example],
    draft: Provider,
    assistants: list[Provider],
    worth: float,
    looks: Looks,
    settings: ComparisonOptions,
) -> Advice:
    with shown() as progress:
        return await advise_on(
            examples,
            draft=draft,
            assistant=assistants,
            worth=worth,
            looks=looks,
            noted=say,
            **settings | {"progress": progress},
        )
