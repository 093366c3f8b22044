"""`cosd tune`: which alpha and beta to use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console

from cosd_api.cli.data import (
    Data,
    KeptSamples,
    MaybeAssistantUrls,
    MaybeDraftUrl,
    progress,
    resumable,
    samples_of,
)
from cosd_api.cli.guard import guarded, say
from cosd_api.cli.options import AssistantModels, DraftModel, MaxTokens, all_connected, check_writable, connected
from cosd_api.report.heatmap import check_plots, heatmap, save_heatmaps
from cosd_api.report.terminal import has_colour
from cosd_api.settings import DEFAULT_MAX_TOKENS
from cosd_api.training.answers import tune_answers
from cosd_api.training.evaluation import QUARTERS, check_grid
from cosd_api.training.fit import COMPARING, check_sklearn
from cosd_api.training.report import GridTuning
from cosd_api.training.tuning import tune

__all__ = ["run_tune"]


def run_tune(
    data: Data,
    draft: MaybeDraftUrl = None,
    assistant: MaybeAssistantUrls = None,
    draft_model: DraftModel = None,
    assistant_model: AssistantModels = None,
    samples: KeptSamples = None,
    alpha: Annotated[
        list[float] | None, typer.Option(help="An alpha to try; may be repeated. By default 0.25, 0.5, 0.75 and 1.")
    ] = None,
    beta: Annotated[list[float] | None, typer.Option(help="A beta to try, likewise.")] = None,
    answers: Annotated[
        bool, typer.Option("--answers", help="Fuse every example with every pair, too, and count right answers.")
    ] = False,
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="An answer ends before this text; may be repeated.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Answers under way at once.")] = 8,
    png: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the accuracies into this file, too; one that is there is replaced."),
    ] = None,
    folds: Annotated[int, typer.Option(min=2, metavar="N", help="Of the comparison on held-out examples.")] = 5,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the resamples and the folds.")] = 0,
) -> None:
    """Find the alpha and beta that decide best.

    From samples alone it takes no query: how many of the decisions that they hold each pair would get right, as a map
    from which the best is recommended, and a comparison of rule, tuned rule and tree on held-out examples. With
    --answers every example is fused, and its answers are checked for its target. Exit codes: 0; 1 a server failed;
    2 usage, or data that tell nothing.
    """
    with guarded():
        alphas, betas = alpha or QUARTERS, beta or QUARTERS
        # Whatever may be missing is said before anything long runs.
        check_grid(alphas, betas)
        check_sklearn(COMPARING)
        if png is not None:
            check_plots()
            check_writable(png, "--png", data, samples)
        writer = None if draft is None else connected(draft, draft_model, None, "--draft")
        others = all_connected(assistant or [], assistant_model or [], None)
        if answers and (writer is None or not others):
            raise typer.BadParameter("fuses the examples: give --draft and --assistant", param_hint="--answers")

        async def work() -> None:
            found = await samples_of(data, writer, others, samples)
            results: list[GridTuning] = [tune(found, alphas=alphas, betas=betas, folds=folds, seed=seed)]
            _show(results[0])
            if answers and writer is not None:
                with progress("fusing") as shown:
                    answered = await tune_answers(
                        [one.example for one in found.examples],
                        draft=writer,
                        assistant=others,
                        alphas=alphas,
                        betas=betas,
                        max_tokens=max_tokens,
                        stop=stop,
                        concurrency=concurrency,
                        progress=shown,
                        seed=seed,
                    )
                results.append(answered)
                _show(answered)
            _recommend(results[-1])  # right answers are what is wanted
            if png is not None:
                save_heatmaps([one.panel for one in results], png)
                say(f"wrote {png}")

        with resumable(samples):
            anyio.run(work)


def _show(tuned: GridTuning) -> None:
    """Its report without the recommendation, with colours in the map; and what speaks against it."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(heatmap(tuned.panel, colour=has_colour(console)))
    print(f"\n{tuned.findings()}\n", flush=True)
    for warning in tuned.warnings:
        say(f"note: {warning}")


def _recommend(tuned: GridTuning) -> None:
    print(tuned.advice())
    if tuned.recommended == tuned.best:
        alpha, beta = (repr(bound).removesuffix(".0") for bound in (tuned.best.alpha, tuned.best.beta))  # every digit
        print(f"To use it: cosd fuse ... --alpha {alpha} --beta {beta}")
    sys.stdout.flush()
