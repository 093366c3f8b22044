"""Files that commands train and tune on: decision samples, or examples that are asked about first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import Progress

from cosd_api.cli.guard import say
from cosd_api.cli.options import check_writable
from cosd_api.training.collect import collect
from cosd_api.training.examples import Example, read_examples
from cosd_api.training.kept import holds_samples
from cosd_api.training.samples import Samples
from cosd_providers.contract import Provider

__all__ = ["progress", "samples_of"]


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
        found = Samples.load(data) if holds_samples(data) else read_examples(data)
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
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, where that is a terminal; it is told how many of how many are done."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
