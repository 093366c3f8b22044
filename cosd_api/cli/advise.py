"""`cosd advise`: one paragraph on a pair of models, and the settings file of what it advises."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import anyio
import typer

from cosd_api.cli.compare import (
    AnswersAtOnce,
    BilledTokens,
    Confirmed,
    Confirming,
    FieldNames,
    GraderOptions,
    JudgedUnit,
    OtherServer,
    SeedOfDraws,
    StopTexts,
    chosen_methods,
    resumable,
    shown,
)
from cosd_api.cli.console import guarded, say
from cosd_api.cli.options import (
    AssistantModels,
    DraftModel,
    DraftUrl,
    MaxTokens,
    check_writable,
    connect_assistants,
    connect_server,
    with_options,
)
from cosd_api.comparison.advice import Advice
from cosd_api.comparison.advice import advise as advise_on
from cosd_api.comparison.choice import CHOOSING, LEAST_QUESTIONS
from cosd_api.comparison.contestants import VERIFIERS
from cosd_api.comparison.prices import prices_from
from cosd_api.comparison.questions import mapping_from, read_questions
from cosd_api.report.terminal import visible
from cosd_api.settings import DEFAULT_MAX_TOKENS
from cosd_api.training.dataset import Example
from cosd_api.verification.trained_file import write_whole
from cosd_api.wording import paragraph
from cosd_providers.contract import Provider

__all__ = ["advise"]


@with_options(GraderOptions)
def advise(
    options: GraderOptions,
    questions: Annotated[
        Path,
        typer.Argument(metavar="QUESTIONS", help='On each line {"prompt": ..., "answer": ...}, as for cosd compare.'),
    ],
    draft: DraftUrl,
    assistant: OtherServer,
    draft_model: DraftModel = None,
    assistant_model: AssistantModels = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,...",
            help=f"Methods to choose from, with commas between them; all by default. Also {', '.join(VERIFIERS)}.",
        ),
    ] = None,
    one_way: Annotated[bool, typer.Option("--one-way", help="The assistant does not draft.")] = False,
    fields: FieldNames = None,
    limit: Annotated[
        int, typer.Option(min=LEAST_QUESTIONS, metavar="N", help="Only the first N questions of the file.")
    ] = 100,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Settings file to write, where fusing is advised."),
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep the answers here, as JSON lines. The same command resumes."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Page to write: the advice, the test, all ways, what failed or was left out."
        ),
    ] = None,
    max_billed_tokens: BilledTokens = None,
    prices: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=IN,OUT|FILE", help="Prices of a million tokens, as for cosd compare."),
    ] = None,
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS,
    stop: StopTexts = None,
    unit: JudgedUnit = None,
    choosing: Annotated[
        float, typer.Option(min=0.1, max=0.9, metavar="SHARE", help="Questions that choose; the others test.")
    ] = CHOOSING,
    seed: SeedOfDraws = 0,
    concurrency: AnswersAtOnce = 4,
    yes: Confirmed = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the estimate, and ask the models nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the advice as one JSON document.")] = False,
) -> None:
    """Find out from a hundred questions if two models are to be fused, and how.

    Every way to fuse answers two fifths of the questions; the one with the most right answers, and each model alone,
    answer the rest. Standard output gets one paragraph: fuse, how, what it gains and costs; or use this one model
    alone. Standard error gets the estimated cost of both parts, which is to be confirmed (--yes; without a terminal
    --yes or --max-billed-tokens is required). Exit codes: 0 whatever is advised; 1 a server failed, or it was stopped;
    2 wrong usage, or an invalid file; 130 interrupted.
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
            raise typer.BadParameter("advice is on two models: give one assistant", param_hint="--assistant")
        for path, name, others in (
            (answers, "--answers", ()),
            (out, "--out", (answers,)),
            (report, "--report", (answers, out)),
        ):
            if path is not None and not dry_run:
                check_writable(path, name, questions, *others)
        writer = connect_server(draft, draft_model, "--draft")
        (other,) = connect_assistants(assistant, assistant_model)
        confirming = Confirming(dry_run=dry_run, yes=yes or max_billed_tokens is not None)
        confirming.check()
        settings: dict[str, Any] = {
            "methods": chosen_methods(methods),
            "both_ways": not one_way,
            "choosing": choosing,
            "grader": options.made(),
            "path": answers,
            "max_tokens": max_tokens,
            "stop": stop,
            "seed": seed,
            "unit": unit,
            "concurrency": concurrency,
            "max_billed_tokens": max_billed_tokens,
            "prices": priced,
            "confirm": confirming,
            "dry_run": dry_run,
        }
        with resumable(answers):
            found = anyio.run(_advise, wanted, writer, other, settings)
        if dry_run:
            return
        print(found.model_dump_json() if as_json else visible(paragraph(str(found))), flush=True)
        if report is not None and not confirming.declined:
            _write_page(found, report)
        if confirming.declined or found.decision == "unknown":
            raise typer.Exit(1)
        if out is not None and found.decision == "fuse":
            found.save(out, draft=writer, assistant=other)
            say(f"wrote {out}: cosd fuse --config {out} takes it")
        elif out is not None:
            say(f"{out} was not written: there is nothing to fuse")


def _write_page(found: Advice, path: Path) -> None:
    from cosd_api.comparison.advice_page import advice_page  # noqa: PLC0415 - only needed here

    write_whole(path, advice_page(found))
    say(f"wrote {path}")


async def _advise(examples: list[Example], draft: Provider, assistant: Provider, settings: dict[str, Any]) -> Advice:
    with shown() as progress:
        return await advise_on(examples, draft=draft, assistant=assistant, progress=progress, **settings)
