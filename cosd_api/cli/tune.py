"""`cosd tune`: which alpha and beta to use."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console

from cosd_api.cli.data import progress, samples_of
from cosd_api.cli.guard import guarded, say
from cosd_api.cli.options import AssistantModels, DraftModel, MaxTokens, all_connected, check_writable, connected
from cosd_api.fusion import DEFAULT_MAX_TOKENS
from cosd_api.report.heatmap import Heatmap, check_plots, heatmap, save_heatmaps
from cosd_api.report.terminal import has_colour
from cosd_api.training.answers import AnswerTuning, tune_answers
from cosd_api.training.evaluation import lacking, places_of
from cosd_api.training.grid import PAPER, QUARTERS, Tuned, check_grid
from cosd_api.training.growing import check_sklearn
from cosd_api.training.samples import Samples
from cosd_api.training.tuning import Tuning, tune

__all__ = ["run_tune"]

_WIDTH = 80


def run_tune(
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="Samples that were collected, or examples, which are asked about first."),
    ],
    draft: Annotated[
        str | None,
        typer.Option(
            envvar="COSD_DRAFT_URL", metavar="URL", help="Server of the model that writes, where it is asked."
        ),
    ] = None,
    assistant: Annotated[
        list[str] | None,
        typer.Option(envvar="COSD_ASSISTANT_URL", metavar="URL", help="Server of the other model, likewise."),
    ] = None,
    draft_model: DraftModel = None,
    assistant_model: AssistantModels = None,
    samples: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Keeps what is asked about examples; what is in it is not asked about again."
        ),
    ] = None,
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
        check_sklearn()
        if png is not None:
            check_plots()
            check_writable(png, "--png", data, samples)
        writer = None if draft is None else connected(draft, draft_model, None, "--draft")
        others = all_connected(assistant or [], assistant_model or [], None)
        if answers and (writer is None or not others):
            raise typer.BadParameter("fuses the examples: give --draft and --assistant", param_hint="--answers")

        async def work() -> None:
            found = await samples_of(data, writer, others, samples)
            tuned = tune(found, alphas=alphas, betas=betas, folds=folds, seed=seed)
            panels = [_panel("decision accuracy", tuned)]
            _show(panels[0], _decisions(tuned), _comparison(tuned, found))
            best = tuned.best
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
                panels.append(_panel("right answers", answered))
                print()
                _show(panels[1], _answers(answered))
                best = answered.best
            first, second = (repr(bound).removesuffix(".0") for bound in (best.alpha, best.beta))  # to the last digit
            print(f"\nTo use it: cosd fuse ... --alpha {first} --beta {second}")
            if png is not None:
                save_heatmaps(panels, png)
                say(f"wrote {png}")

        anyio.run(work)


def _panel(title: str, tuned: Tuned) -> Heatmap:
    return Heatmap(title, tuned.accuracy, (tuned.best.alpha, tuned.best.beta))


def _show(panel: Heatmap, *texts: str) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(heatmap(panel, colour=has_colour(console)))
    for text in texts:
        print(f"\n{text}")


def _decisions(tuned: Tuning) -> str:
    places = f"{_count(tuned.labelled, 'place')} of {_count(tuned.examples, 'example')}"
    right = f"With it {tuned.best_accuracy:.1%} of the decisions are right"
    return _filled(
        f"{_recommended(tuned)} {right}{_interval(tuned)}, at {places} where just one of the models is.", tuned
    )


def _answers(tuned: AnswerTuning) -> str:
    kept = tuned.acceptance_rate[tuned.best.alpha][tuned.best.beta]
    right = f"With it {tuned.best_accuracy:.1%} of {_count(tuned.examples, 'answer')} are right"
    words = f"{_recommended(tuned)} {right}{_interval(tuned)}, and {kept:.0%} of the draft's tokens are kept."
    return _filled(words, tuned)


def _recommended(tuned: Tuned) -> str:
    return f"Recommended: alpha {tuned.best.alpha:g} and beta {tuned.best.beta:g}."


def _interval(tuned: Tuned) -> str:
    if tuned.interval is None:
        return ""
    low, high = tuned.interval
    if low == high:  # nothing else is in the data to be drawn
        return " (no interval: all examples say the same)"
    return f" (95 % interval: {low:.1%} to {high:.1%})"


def _filled(words: str, tuned: Tuned) -> str:
    """The words, and how much is to be thought of them."""
    if tuned.best == PAPER:
        words += " It is the paper's own pair."
    elif tuned.gain_interval is not None:
        low, high = (f"{100 * bound:+.1f}" for bound in tuned.gain_interval)
        words += (
            f" That is {100 * tuned.gain:+.1f} points against the paper's (0.5, 0.5) (95 % interval: {low} to {high})."
        )
    if tuned.best_share is None:
        words += " It is a single example, which tells nothing of others."
    else:
        words += f" It came out best in {tuned.best_share:.0%} of {tuned.resamples} resamples of the examples."
    return textwrap.fill(words, _WIDTH)


def _comparison(tuned: Tuning, samples: Samples) -> str:
    if tuned.comparison is not None:
        return str(tuned.comparison)
    return textwrap.fill(f"Nothing is compared on held-out examples: {lacking(places_of(samples))}.", _WIDTH)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
