"""`cosd collect`, `cosd train-tree`, `cosd train-deferral` and `cosd tune`: samples, trees, gates and thresholds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cosd_api import RuleVerifier
from cosd_api.apps.cli.console import guarded, progress, say
from cosd_api.apps.cli.options import (
    AssistantModels,
    ChosenUnit,
    DraftModel,
    DraftUrl,
    MaxTokens,
    StopTexts,
    check_writable,
    connect_assistants,
    connect_server,
)
from cosd_api.apps.report.phrases import visible
from cosd_api.apps.training.answer_tuning import AnswerTuning, tune_answers
from cosd_api.apps.training.collect import OnError
from cosd_api.apps.training.collect import collect as collect_samples
from cosd_api.apps.training.dataset import Samples, read_examples
from cosd_api.apps.training.evaluation import QUARTERS, check_grid
from cosd_api.apps.training.fit import DEEPEST, Training, train_tree
from cosd_api.apps.training.fit_deferral import DeferralTraining, train_deferral
from cosd_api.apps.training.tuning import GridTuning, tune
from cosd_api.common.event_loop import run_async
from cosd_api.settings import DEFAULT_MAX_TOKENS
from cosd_api.verification import MOST_LISTED
from cosd_providers import ContextLengthError, ProviderError

__all__ = ["collect", "train", "train_gate", "tune_rule"]

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

        async def work() -> Samples:
            with progress("asking about examples") as shown:
                return await collect_samples(
                    wanted,
                    draft=writer,
                    assistant=others,
                    path=output,
                    concurrency=concurrency,
                    progress=shown,
                    on_error=on_error,
                    unit=unit,
                    listed=listed,
                    hidden_states=hidden_states,
                )

        with _resumable(output):
            samples = run_async(work)
        for warning in samples.warnings:
            say(f"note: {warning}")
        for one in samples.failed[:_SHOWN]:
            say(f"left out example {one.number}: {one.error}")
        if len(samples.failed) > _SHOWN:
            say(f"left out {len(samples.failed) - _SHOWN} more")
        print(visible(samples.report()), flush=True)
        say(f"wrote {output}")


@contextmanager
def _resumable(path: Path) -> Iterator[None]:
    """After an interrupt or a server's failure, print how to resume, and the example that was in progress."""
    try:
        yield
    except (KeyboardInterrupt, ProviderError) as error:
        if path.exists():
            say(f"finished examples are in {path}: run the same command again to resume")
        notes = getattr(error, "__notes__", [])  # the notes name the example
        if notes and isinstance(error, ContextLengthError):
            say("cosd collect --on-error skip leaves out examples that are too long")
        for note in notes:
            say(note)
        raise


Data = Annotated[Path, typer.Argument(metavar="DATA", help="Samples from cosd collect.")]


def _load(path: Path) -> Samples:
    """Load the samples from a file, and print their warnings.

    Raises:
        typer.BadParameter: the file cannot be read, or it has examples.
        SettingError: the file is of another kind, or damaged.
    """
    try:
        samples = Samples.load(path)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="DATA") from error
    for warning in samples.warnings:
        say(f"note: {warning}")
    return samples


def train(
    data: Data,
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
    this comparison are printed to standard output, and reasons to doubt the tree to standard error. Exit codes: 0 on
    success; 2 for wrong usage, or data with nothing to learn from; 130 when interrupted.
    """
    with guarded():
        check_writable(output, "--output", data)
        training = train_tree(
            _load(data),
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
        _report(training)
        if unsafe is not None and not force:
            say(f"{output} was not written: the tree replaces words where the draft is confident ({unsafe}).")
            say("These examples teach no rule: collect more, or give --force to write the tree all the same.")
            raise typer.Exit(2)
        say(f"wrote {output}")


def train_gate(
    data: Data,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="File for the gate; an existing one is replaced."),
    ],
    hidden_states: Annotated[
        bool, typer.Option("--hidden-states", help="Train a gate on the draft's hidden states, not on its lists.")
    ] = False,
    folds: Annotated[int, typer.Option(min=2, metavar="N", help="Folds in which examples are held out.")] = 5,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the folds.")] = 0,
) -> None:
    """Train a gate that hands single tokens to the assistant, for cosd fuse --method defer --set gate=FILE.

    The samples come from cosd collect --listed, or, with --hidden-states, from cosd collect --hidden-states. The gate
    and its results on held-out examples are printed to standard output, and reasons to doubt the gate to standard
    error. Exit codes: 0 on success; 2 for wrong usage, or data with nothing to learn from; 130 when interrupted.
    """
    with guarded():
        check_writable(output, "--output", data)
        training = train_deferral(_load(data), hidden_states=hidden_states, folds=folds, seed=seed)
        training.gate.save(output)
        _report(training)
        say(f"wrote {output}")


def _report(training: Training | DeferralTraining) -> None:
    print(visible(training.report()), flush=True)
    for warning in training.warnings:
        say(f"note: {warning}")


def tune_rule(
    data: Data,
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
    draft: Annotated[
        str | None,
        typer.Option(envvar="COSD_DRAFT_URL", metavar="URL", help="Server of the draft model, for --answers."),
    ] = None,
    assistant: Annotated[
        list[str] | None,
        typer.Option(envvar="COSD_ASSISTANT_URL", metavar="URL", help="Server of the assistant, for --answers."),
    ] = None,
    draft_model: DraftModel = None,
    assistant_model: AssistantModels = None,
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS,
    stop: StopTexts = None,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Answers at the same time.")] = 8,
    folds: Annotated[int, typer.Option(min=2, metavar="N", help="Folds in which examples are held out.")] = 5,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the folds and the interval.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print each result as one JSON document.")] = False,
) -> None:
    """Find the alpha and beta with which the rule decides best.

    No server is needed, except for --answers. The output is a table of the share of right decisions for each pair of
    alpha and beta, and the recommended pair with its gain on held-out examples. With --answers, every example is also
    answered with every pair, and an answer counts as right if it contains the example's target. Exit codes: 0 on
    success; 1 if a server failed; 2 for wrong usage or insufficient data.
    """
    with guarded():
        alphas, betas = alpha or QUARTERS, beta or QUARTERS
        check_grid(alphas, betas)
        if answers and (draft is None or not assistant):
            raise typer.BadParameter("fuses the examples: give --draft and --assistant", param_hint="--answers")
        found = _load(data)
        tuned: GridTuning = tune(found, alphas=alphas, betas=betas, folds=folds, seed=seed)
        _show(tuned, as_json=as_json)
        if answers and draft is not None:
            writer = connect_server(draft, draft_model, "--draft")
            others = connect_assistants(assistant or [], assistant_model)

            async def work() -> AnswerTuning:
                with progress("fusing") as shown:
                    return await tune_answers(
                        [one.example for one in found.examples],
                        draft=writer,
                        assistant=others,
                        alphas=alphas,
                        betas=betas,
                        max_tokens=max_tokens,
                        stop=stop,
                        concurrency=concurrency,
                        progress=shown,
                        folds=folds,
                        seed=seed,
                    )

            tuned = run_async(work)
            _show(tuned, as_json=as_json)
        # With --answers, the last result counts right answers, which matter more than right decisions.
        if not as_json:
            _recommend(tuned)


def _show(tuned: GridTuning, *, as_json: bool) -> None:
    """Print the table, the findings and the warnings, but not the recommendation."""
    print(tuned.model_dump_json() if as_json else f"{tuned.grid()}\n\n{tuned.findings()}\n", flush=True)
    for warning in tuned.warnings:
        say(f"note: {warning}")


def _recommend(tuned: GridTuning) -> None:
    print(tuned.advice(), flush=True)
    if tuned.recommended != RuleVerifier():
        alpha, beta = (repr(bound).removesuffix(".0") for bound in (tuned.best.alpha, tuned.best.beta))  # all digits
        print(f"To use it: cosd fuse ... --alpha {alpha} --beta {beta}")
