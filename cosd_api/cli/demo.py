"""`cosd demo`: two small models on real servers, alone and fused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import anyio
import typer

from cosd_api.cli.guard import guarded
from cosd_api.cli.servers import Models
from cosd_api.demo.run import console, save_picture, show
from cosd_api.demo.servers import bundled_pair

__all__ = ["demo"]


def demo(
    questions: Annotated[
        int, typer.Option(min=1, help="Mixed questions in the table; half as many of each other kind are added.")
    ] = 20,
    seed: Annotated[int, typer.Option(help="Which questions.")] = 0,
    models: Models = None,
    svg: Annotated[Path | None, typer.Option(help="Save what was shown as a picture.", dir_okay=False)] = None,
) -> None:
    """Start two small models and fuse them: one question in full, and a table of many."""
    screen = console(record=svg is not None)

    async def run() -> None:
        await show(screen, pair, mixed=questions, seed=seed)

    with guarded():
        with bundled_pair(models) as pair:
            anyio.run(run)
        if svg is not None:
            save_picture(screen, svg)
