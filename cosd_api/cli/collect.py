"""`cosd collect`: decision samples of two models, to train a tree on and to tune thresholds by."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import anyio
import typer

from cosd_api.cli.data import progress, resumable
from cosd_api.cli.guard import guarded, say
from cosd_api.cli.options import (
    AssistantModels,
    DraftModel,
    DraftUrl,
    all_connected,
    check_writable,
    connected,
)
from cosd_api.report.terminal import visible
from cosd_api.training.collect import OnError, collect
from cosd_api.training.dataset import Samples, read_examples

__all__ = ["run_collect"]

_SHOWN = 3  # examples that failed, in words


def run_collect(
    examples: Annotated[
        Path,
        typer.Argument(
            metavar="EXAMPLES",
            help='On each line {"prompt": ..., "answer": ...}: the right answer as a model would write it, with the '
            "space before it.",
        ),
    ],
    draft: DraftUrl,
    assistant: Annotated[
        list[str],
        typer.Option(envvar="COSD_ASSISTANT_URL", metavar="URL", help="Server of the other model; one alone."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Keeps the samples; what is in it is not asked about again."
        ),
    ],
    draft_model: DraftModel = None,
    assistant_model: AssistantModels = None,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Examples under way at once.")] = 8,
    on_error: Annotated[
        OnError, typer.Option(help="When a server has failed at an example: fail, or leave the example out.")
    ] = "raise",
) -> None:
    """Find out what two models would have written where, in answers that are known.

    Both are held to each right answer: one request to each server, where it scores text or takes several at once, and a
    second one to the assistant's where the tokenizers differ. Each example is in the file as soon as it is done: a run
    that was interrupted goes on when it is given again. Standard output gets what was counted. Exit codes: 0; 1 a
    server failed; 2 usage, or a file that is none of these; 130 interrupted.
    """
    with guarded():
        try:
            wanted = read_examples(examples)
        except OSError as error:
            raise typer.BadParameter(f"{examples}: {error.strerror}", param_hint="EXAMPLES") from error
        check_writable(output, "--output")
        writer = connected(draft, draft_model, None, "--draft")
        others = all_connected(assistant, assistant_model or [], None)

        async def work() -> Samples:
            with progress("asking about examples") as shown:
                return await collect(
                    wanted,
                    draft=writer,
                    assistant=others,
                    path=output,
                    concurrency=concurrency,
                    progress=shown,
                    on_error=on_error,
                )

        with resumable(output):
            samples = anyio.run(work)
        _show(samples)
        say(f"wrote {output}")


def _show(samples: Samples) -> None:
    for warning in samples.warnings:
        say(f"note: {warning}")
    for one in samples.failed[:_SHOWN]:
        say(f"left out example {one.number}: {one.error}")
    if len(samples.failed) > _SHOWN:
        say(f"left out {len(samples.failed) - _SHOWN} more")
    print(visible(samples.report()), flush=True)
