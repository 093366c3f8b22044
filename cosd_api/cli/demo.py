"""`cosd demo`: two small models on real servers, alone and fused."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer

from cosd_api.cli.guard import guarded
from cosd_api.cli.servers import Models
from cosd_api.demo.run import console, show
from cosd_api.demo.servers import bundled_pair

__all__ = ["demo"]


def demo(
    questions: Annotated[
        int, typer.Option(min=1, help="Mixed questions in the table; half as many of each other kind are added.")
    ] = 20,
    seed: Annotated[int, typer.Option(help="Which questions.")] = 0,
    models: Models = None,
) -> None:
    """Start two small models and fuse them: one question in full, and a table of many."""

    async def run() -> None:
        await show(console(), pair, mixed=questions, seed=seed)

    with guarded(), bundled_pair(models) as pair:
        anyio.run(run)
