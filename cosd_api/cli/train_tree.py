"""`cosd train-tree`: a decision tree that says whose word stands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import anyio
import typer

from cosd_api.cli.data import Data, KeptSamples, MaybeAssistantUrls, MaybeDraftUrl, resumable, samples_of
from cosd_api.cli.guard import guarded, say
from cosd_api.cli.options import AssistantModels, DraftModel, all_connected, check_writable, connected
from cosd_api.report.terminal import visible
from cosd_api.training.fit import DEEPEST, check_sklearn, train_tree

__all__ = ["run_train_tree"]


def run_train_tree(
    data: Data,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="Gets the tree; one that is there is replaced."),
    ],
    draft: MaybeDraftUrl = None,
    assistant: MaybeAssistantUrls = None,
    draft_model: DraftModel = None,
    assistant_model: AssistantModels = None,
    samples: KeptSamples = None,
    depth: Annotated[
        int | None,
        typer.Option(
            min=1, max=DEEPEST, metavar="N", help="Questions in a row at most; by default what does best held out."
        ),
    ] = None,
    min_leaf: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Places that an answer stands for at least, likewise.")
    ] = None,
    keep_agreeing: Annotated[
        bool, typer.Option("--keep-agreeing", help="Train on places too where both models are right.")
    ] = False,
    class_weights: Annotated[
        bool, typer.Option(help="Let the draft's right places weigh as much in all as the assistant's.")
    ] = True,
    folds: Annotated[int, typer.Option(min=2, metavar="N", help="Parts that examples are held out in.")] = 5,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the folds and the tree.")] = 0,
) -> None:
    """Train a decision tree that says whose word stands; cosd fuse --tree takes it.

    Three examples are enough. From five on the tree is compared with the rule, on examples that were held out: standard
    output gets the tree and that table, and standard error what speaks against the tree. Samples take no query. Exit
    codes: 0; 1 a server failed; 2 usage, or data that there is nothing to learn from; 130 interrupted.
    """
    with guarded():
        # Whatever may be missing is said before anything long runs.
        check_sklearn()
        check_writable(output, "--output", data, samples)
        writer = None if draft is None else connected(draft, draft_model, None, "--draft")
        others = all_connected(assistant or [], assistant_model or [], None)
        with resumable(samples):
            found = anyio.run(samples_of, data, writer, others, samples)
        training = train_tree(
            found,
            depth=depth,
            min_leaf=min_leaf,
            keep_agreeing=keep_agreeing,
            class_weight="balanced" if class_weights else None,
            folds=folds,
            seed=seed,
        )
        training.tree.save(output)
        print(visible(training.report()))
        sys.stdout.flush()
        for warning in training.warnings:
            say(f"note: {warning}")
        say(f"wrote {output}")
