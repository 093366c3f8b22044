"""`cosd batch`: answers the prompts in a file, and writes the answers to another file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cosd_api import Fusion
from cosd_api.apps.batch.job import BatchJob
from cosd_api.apps.batch.summary import BatchSummary
from cosd_api.apps.cli.compare import MostBilled, resumable
from cosd_api.apps.cli.console import guarded, progress, say
from cosd_api.apps.cli.options import SharedOptions, check_writable, with_options
from cosd_api.apps.report.phrases import visible
from cosd_api.common.event_loop import run_async

__all__ = ["batch"]


@with_options(SharedOptions, "unit", "tie", "stop", "on_assistant_error", "on_draft_error")
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
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Retry the lines that failed in an earlier run.")
    ] = False,
    max_billed_tokens: MostBilled = None,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Lines in progress at the same time.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON document.")] = False,
) -> None:
    """Answer the prompts in a file, and write the answers to another file.

    For each input line, a line with an answer or an error is written to the output, in the order of completion. After
    an interruption, the same command resumes the batch. --max-billed-tokens limits the whole batch, including earlier
    runs. The summary is printed to standard output. Exit codes: 0 on success; 1 if lines
    failed or were not asked, or a server failed; 2 for wrong usage or an invalid file; 130 when interrupted.
    """
    with guarded():
        check_writable(out, "--out", source, options.config, options.tree)
        fusion = options.fusion_of_many()
        job = BatchJob(
            source,
            out,
            concurrency=concurrency,
            retry_failed=retry_failed,
            max_billed_tokens=max_billed_tokens,
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


async def _answer(fusion: Fusion, job: BatchJob) -> BatchSummary:
    with progress("lines") as show:
        job.progress = show
        async with fusion:
            return await job.run(fusion)
