"""`cosd collect`, `cosd train-tree`, `cosd train-deferral` and `cosd tune`: samples, trees, gates and thresholds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cosd_api import Example, RuleVerifier
from cosd_api.cli.console import guarded, progress, say
from cosd_api.cli.options import (
    AssistantModels,
    ChosenUnit,
    DraftModel,
    DraftUrl,
    MaxTokens,
    StopTexts,
    check_writable,
    connect_assistants,
    connect_server,
    with_options,
)
from cosd_api.extend import DEFAULT_LISTED, DEFAULT_MAX_TOKENS, MOST_LISTED, Unit, run_async
from cosd_api.report.heatmap import check_plots, heatmap, save_heatmaps
from cosd_api.report.terminal import has_colour, visible
from cosd_api.training.answers import tune_answers
from cosd_api.training.collect import OnError
from cosd_api.training.collect import collect as collect_samples
from cosd_api.training.dataset import Samples, read_examples
from cosd_api.training.evaluation import QUARTERS, check_grid
from cosd_api.training.fit import DEEPEST, train_tree
from cosd_api.training.fit_deferral import train_deferral
from cosd_api.training.json_lines import SAMPLES, file_kind
from cosd_api.training.report import GridTuning
from cosd_api.training.tuning import tune
from cosd_providers import ContextLengthError, Provider, ProviderError

__all__ = ["collect", "train", "train_gate", "tune_rule"]

"""The values of a hidden option from the time when gates on hidden states belonged to a separate method."""

_SHOWN = 3  # the largest number of failed examples that are listed


def collect(
    examples: Annotated[
        Path,
        typer.Argument(
            metavar="EXAMPLES",
            help='Lines of {"prompt": ..., "answer": ...}: the right answer as a model would write it, with the space '
            "before it.",
        ),
    ],
    draft: DraftUrl,
    assistant: Annotated[
        list[str],
        typer.Option(envvar="COSD_ASSISTANT_URL", metavar="URL", help="Server of the assistant; only one."),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="File for the samples; examples that it has are skipped."),
    ],
    draft_model: DraftModel = None,
    assistant_model: AssistantModels = None,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Examples at the same time.")] = 8,
    on_error: Annotated[
        OnError, typer.Option(help="If a server fails at an example: fail, or leave the example out.")
    ] = "raise",
    unit: ChosenUnit = None,
    listed: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_LISTED, metavar="N", help="Also collect data for train-deferral: N tokens per place."
        ),
    ] = None,
    hidden_states: Annotated[
        bool, typer.Option("--hidden-states", help="Also collect data for train-deferral --hidden-states.")
    ] = False,
) -> None:
    """Compare two models at every place of known answers.

    For each example, one request is sent to each server if the servers score text or accept several texts at once. If
    the tokenizers differ, a second request is sent to the assistant's server. Each example is saved as soon as it is
    done, and the same command resumes an interrupted run. The counts are printed to standard output. Exit codes: 0 on
    success; 1 if a server failed; 2 for wrong usage or an invalid file; 130 when interrupted.
    """
    with guarded():
        try:
            wanted = read_examples(examples)
        except OSError as error:
            raise typer.BadParameter(f"{examples}: {error.strerror}", param_hint="EXAMPLES") from error
        check_writable(output, "--output")
        writer = connect_server(draft, draft_model, "--draft")
        others = connect_assistants(assistant, assistant_model)
        with _resumable(output):
            options = (concurrency, on_error, unit, listed, hidden_states)
            samples = run_async(_collect, wanted, writer, others, output, *options)
        for warning in samples.warnings:
            say(f"note: {warning}")
        for one in samples.failed[:_SHOWN]:
            say(f"left out example {one.number}: {one.error}")
        if len(samples.failed) > _SHOWN:
            say(f"left out {len(samples.failed) - _SHOWN} more")
        print(visible(samples.report()), flush=True)
        say(f"wrote {output}")


async def _collect(
    examples: list[Example],
    draft: Provider,
    assistants: list[Provider],
    path: Path | None,
    concurrency: int = 8,
    on_error: OnError = "raise",
    unit: Unit | None = None,
    listed: int | None = None,
    hidden_states: bool = False,
) -> Samples:
    with progress("asking about examples") as shown:
        return await collect_samples(
            examples,
            draft=draft,
            assistant=assistants,
            path=path,
            concurrency=concurrency,
            progress=shown,
            on_error=on_error,
            unit=unit,
            listed=listed,
            hidden_states=hidden_states,
        )


@contextmanager
def _resumable(path: Path | None) -> Iterator[None]:
    """After an interrupt or a server's failure, print how to resume, and the example that was in progress."""
    try:
        yield
    except (KeyboardInterrupt, ProviderError) as error:
        if path is not None and path.exists():
            say(f"finished examples are in {path}: run the same command again to resume")
        notes = getattr(error, "__notes__", [])  # the notes name the example
        if notes and isinstance(error, ContextLengthError):
            say("cosd collect --on-error skip leaves out examples that are too long")
        for note in notes:
            say(note)
        raise


@dataclass(frozen=True, slots=True)
class DataOptions:
    """The data for training or tuning, and the servers that are needed if the data are examples."""

    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="Samples from cosd collect, or examples, which are collected first."),
    ]
    draft: Annotated[
        str | None,
        typer.Option(envvar="COSD_DRAFT_URL", metavar="URL", help="Server of the draft model, for examples."),
    ] = None
    assistant: Annotated[
        list[str] | None,
        typer.Option(envvar="COSD_ASSISTANT_URL", metavar="URL", help="Server of the assistant, for examples."),
    ] = None
    draft_model: DraftModel = None
    assistant_model: AssistantModels = None
    samples: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for the samples; examples that it has are skipped."),
    ] = None

    def servers(self) -> tuple[Provider | None, list[Provider]]:
        """Create the providers of the draft and the assistants that are given. No request is sent yet."""
        draft = None if self.draft is None else connect_server(self.draft, self.draft_model, "--draft")
        return draft, connect_assistants(self.assistant or [], self.assistant_model)

    async def load(
        self,
        draft: Provider | None,
        assistants: list[Provider],
        unit: Unit | None = None,
        listed: int | None = None,
        hidden_states: bool = False,
    ) -> Samples:
        """Load the samples stored in the file, or collect new samples from the file's examples.

        Raises:
            typer.BadParameter: a file cannot be read or written, or the file has examples but no servers are given.
            SettingError: the file contains neither samples nor examples, or is damaged.
            ProviderError: a server failed.
        """
        if self.samples is not None:
            check_writable(self.samples, "--samples")
        try:
            found = Samples.load(self.data) if file_kind(self.data) == SAMPLES else read_examples(self.data)
        except OSError as error:
            raise typer.BadParameter(f"{self.data}: {error.strerror}", param_hint="DATA") from error
        if isinstance(found, Samples):
            if self.samples is not None:
                raise typer.BadParameter(f"{self.data} already has samples", param_hint="--samples")
            samples = found
        elif draft is None or not assistants:
            words = f"{self.data} has examples, not samples: give --draft and --assistant to collect the samples"
            raise typer.BadParameter(words, param_hint="DATA")
        else:
            wants: dict[str, Any] = {"listed": listed, "hidden_states": hidden_states}
            samples = await _collect(found, draft, assistants, self.samples, unit=unit, **wants)
        for warning in samples.warnings:
            say(f"note: {warning}")
        return samples


@with_options(DataOptions)
def train(
    options: DataOptions,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="File for the tree; an existing one is replaced."),
    ],
    depth: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=DEEPEST,
            metavar="N",
            help="Limit on the depth of the tree; by default, cross-validation chooses it.",
        ),
    ] = None,
    min_leaf: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Smallest number of places per leaf; by default, cross-validation chooses it."
        ),
    ] = None,
    keep_agreeing: Annotated[
        bool, typer.Option("--keep-agreeing", help="Also train on places where both models are right.")
    ] = False,
    class_weights: Annotated[
        bool, typer.Option(help="Give places where the draft is right the same total weight as the other places.")
    ] = True,
    folds: Annotated[int, typer.Option(min=2, metavar="N", help="Folds of the cross-validation.")] = 5,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the folds and the tree.")] = 0,
    force: Annotated[
        bool, typer.Option("--force", help="Write the tree even if it replaces words where the draft is confident.")
    ] = False,
) -> None:
    """Train a decision tree that chooses between draft and assistant, for cosd fuse --tree.

    Three examples are enough. With five or more, the tree is compared with the rule on held-out examples. The tree and
    this comparison are printed to standard output, and reasons to doubt the tree to standard error. If DATA contains
    samples, no server is needed. Exit codes: 0 on success; 1 if a server failed; 2 for wrong usage, or data with
    nothing to learn from; 130 when interrupted.
    """
    with guarded():
        check_writable(output, "--output", options.data, options.samples)
        servers = options.servers()
        with _resumable(options.samples):
            found = run_async(options.load, *servers)
        training = train_tree(
            found,
            depth=depth,
            min_leaf=min_leaf,
            keep_agreeing=keep_agreeing,
            class_weight="balanced" if class_weights else None,
            folds=folds,
            seed=seed,
        )
        unsafe = training.unsafe
        if unsafe is None or force:
            training.tree.save(output)
        print(visible(training.report()))
        sys.stdout.flush()
        for warning in training.warnings:
            say(f"note: {warning}")
        if unsafe is not None and not force:
            say(f"{output} was not written: the tree replaces words where the draft is confident ({unsafe}).")
            say("These examples teach no rule: collect more, or give --force to write the tree all the same.")
            raise typer.Exit(2)
        say(f"wrote {output}")


@with_options(DataOptions)
def train_gate(
    options: DataOptions,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="File for the gate; an existing one is replaced."),
    ],
    hidden_states: Annotated[
        bool, typer.Option("--hidden-states", help="Train a gate on the draft's hidden states, not on its lists.")
    ] = False,
    unit: ChosenUnit = None,
    listed: Annotated[
        int, typer.Option(min=1, max=MOST_LISTED, metavar="N", help="Tokens that the draft lists at each place.")
    ] = DEFAULT_LISTED,
    folds: Annotated[int, typer.Option(min=2, metavar="N", help="Folds in which examples are held out.")] = 5,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the folds.")] = 0,
) -> None:
    """Train a gate that hands single tokens to the assistant, for cosd fuse --method defer --set gate=FILE.

    The models must have the same tokenizer. If DATA contains samples from cosd collect --listed, no server is needed.
    To train on hidden states, give --hidden-states both to cosd collect and to this command. The gate and its results
    on held-out examples are printed to standard output, and reasons to doubt the gate to standard error. Exit codes: 0
    on success; 1 if a server failed; 2 for wrong usage, or data with nothing to learn from; 130 when interrupted.
    """
    with guarded():
        check_writable(output, "--output", options.data, options.samples)
        servers = options.servers()
        with _resumable(options.samples):
            found = run_async(options.load, *servers, unit, None if hidden_states else listed, hidden_states)
        training = train_deferral(found, hidden_states=hidden_states, folds=folds, seed=seed)
        training.gate.save(output)
        print(visible(training.report()))
        sys.stdout.flush()
        for warning in training.warnings:
            say(f"note: {warning}")
        say(f"wrote {output}")


@with_options(DataOptions)
def tune_rule(
    options: DataOptions,
    alpha: Annotated[
        list[float] | None,
        typer.Option(
            help="An alpha to try; may be repeated. By default 0.25, 0.5, 0.75 and 1. The default pair and the paper's "
            "are always tried."
        ),
    ] = None,
    beta: Annotated[
        list[float] | None, typer.Option(help="A beta to try; may be repeated, with the same defaults.")
    ] = None,
    answers: Annotated[
        bool, typer.Option("--answers", help="Also fuse every example with every pair, and count right answers.")
    ] = False,
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS,
    stop: StopTexts = None,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Answers at the same time.")] = 8,
    png: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw the accuracies into this file; an existing one is replaced."),
    ] = None,
    folds: Annotated[int, typer.Option(min=2, metavar="N", help="Folds of the comparison.")] = 5,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the bootstrap and the folds.")] = 0,
) -> None:
    """Find the alpha and beta with which the rule decides best.

    If DATA contains samples, no server is needed. The output is a map of the share of right decisions for each pair of
    alpha and beta, the recommended pair, and a comparison of the rule, the tuned rule and the tree on held-out
    examples. With --answers, every example is also answered with every pair, and an answer counts as right if it
    contains the example's target. Exit codes: 0 on success; 1 if a server failed; 2 for wrong usage or insufficient
    data.
    """
    with guarded():
        alphas, betas = alpha or QUARTERS, beta or QUARTERS
        # Invalid options should be reported before the long work begins.
        check_grid(alphas, betas)
        if png is not None:
            check_plots()
            check_writable(png, "--png", options.data, options.samples)
        draft, assistants = options.servers()
        if answers and (draft is None or not assistants):
            raise typer.BadParameter("fuses the examples: give --draft and --assistant", param_hint="--answers")

        async def work() -> None:
            found = await options.load(draft, assistants)
            results: list[GridTuning] = [tune(found, alphas=alphas, betas=betas, folds=folds, seed=seed)]
            _show(results[0])
            if answers and draft is not None:
                with progress("fusing") as shown:
                    answered = await tune_answers(
                        [one.example for one in found.examples],
                        draft=draft,
                        assistant=assistants,
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
            # With --answers, the last result counts right answers, which matter more than right decisions.
            _recommend(results[-1])
            if png is not None:
                save_heatmaps([one.panel for one in results], png)
                say(f"wrote {png}")

        with _resumable(options.samples):
            run_async(work)


def _show(tuned: GridTuning) -> None:
    """Print the map in colour, the findings and the warnings, but not the recommendation."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(heatmap(tuned.panel, colour=has_colour(console)))
    print(f"\n{tuned.findings()}\n", flush=True)
    for warning in tuned.warnings:
        say(f"note: {warning}")


def _recommend(tuned: GridTuning) -> None:
    print(tuned.advice())
    if tuned.recommended != RuleVerifier():
        alpha, beta = (repr(bound).removesuffix(".0") for bound in (tuned.best.alpha, tuned.best.beta))  # all digits
        print(f"To use it: cosd fuse ... --alpha {alpha} --beta {beta}")
    sys.stdout.flush()
