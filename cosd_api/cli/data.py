"""What commands train and tune on: decision samples, or examples that are asked about first; and their options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from cosd_api.cli.guard import say
from cosd_api.cli.options import check_writable
from cosd_api.training.collect import collect
from cosd_api.training.dataset import Example, Samples, read_examples
from cosd_api.training.json_lines import SAMPLES, file_kind
from cosd_providers.contract import Provider
from cosd_providers.errors import ContextLengthError, ProviderError

__all__ = ["Data", "KeptSamples", "MaybeAssistantUrls", "MaybeDraftUrl", "progress", "resumable", "samples_of"]

Data = Annotated[
    Path,
    typer.Argument(metavar="DATA", help="Samples that were collected, or examples, which are asked about first."),
]
MaybeDraftUrl = Annotated[
    str | None,
    typer.Option(envvar="COSD_DRAFT_URL", metavar="URL", help="Server of the model that writes, where it is asked."),
]
MaybeAssistantUrls = Annotated[
    list[str] | None,
    typer.Option(envvar="COSD_ASSISTANT_URL", metavar="URL", help="Server of the other model, likewise."),
]
KeptSamples = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Keeps what is asked about examples; what is in it is not asked about again."),
]


async def samples_of(
    data: Path, draft: Provider | None, assistants: Sequence[Provider], keep: Path | None = None
) -> Samples:
    """The samples in a file; those of a file of examples are collected, and kept in another where one is named.

    Raises:
        typer.BadParameter: it cannot be read, or the other not written; or it has examples, and the servers are not
            given.
        SettingError: it is neither, or broken.
        ProviderError: a server failed.
    """
    if keep is not None:
        check_writable(keep, "--samples")
    try:
        found = Samples.load(data) if file_kind(data) == SAMPLES else read_examples(data)
    except OSError as error:
        raise typer.BadParameter(f"{data}: {error.strerror}", param_hint="DATA") from error
    samples = found if isinstance(found, Samples) else await _collected(data, found, draft, assistants, keep)
    if samples is found and keep is not None:
        raise typer.BadParameter(f"{data} holds samples already", param_hint="--samples")
    for warning in samples.warnings:
        say(f"note: {warning}")
    return samples


async def _collected(
    data: Path, examples: list[Example], draft: Provider | None, assistants: Sequence[Provider], keep: Path | None
) -> Samples:
    if draft is None or not assistants:
        words = f"{data} has examples, which two models are asked about first: give --draft and --assistant"
        raise typer.BadParameter(words, param_hint="DATA")
    with progress("asking about examples") as shown:
        return await collect(examples, draft=draft, assistant=assistants, path=keep, progress=shown)


@contextmanager
def resumable(kept: Path | None) -> Iterator[None]:
    """Says, where work is interrupted or a server fails, at which example that was and how to go on."""
    try:
        yield
    except (KeyboardInterrupt, ProviderError) as error:
        if kept is not None and kept.exists():
            say(f"what was done is in {kept}: the same command goes on from there")
        notes = getattr(error, "__notes__", [])  # at which example it was
        if notes and isinstance(error, ContextLengthError):
            say("cosd collect --on-error skip leaves out examples that are too long")
        for note in notes:
            say(note)
        raise


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, where that is a terminal; it is told how many of how many are done."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
