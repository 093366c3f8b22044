"""`cosd demo` and `cosd servers`: the bundled models on llama.cpp servers."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from cosd_api.cli.console import guarded
from cosd_api.demo.run import console, program, save_picture, show
from cosd_api.demo.servers import bundled_three
from cosd_api.extend import run_async

__all__ = ["demo", "servers"]

Models = Annotated[
    Path | None,
    typer.Option(
        help="Another folder with sums.gguf, facts.gguf and words.gguf.",
        file_okay=False,
        exists=True,
        show_default=False,
    ),
]

_POLL_SECONDS = 0.2


def demo(
    questions: Annotated[
        int, typer.Option(min=1, help="Mixed questions in the table; half as many of each other kind are added.")
    ] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the questions.")] = 0,
    models: Models = None,
    svg: Annotated[Path | None, typer.Option(help="Save the output as a picture.", dir_okay=False)] = None,
) -> None:
    """Start three small models and fuse them: two questions in full, a table of many."""
    screen = console(record=svg is not None)

    async def run() -> None:
        await show(screen, running, mixed=questions, seed=seed)

    with guarded():
        with bundled_three(models) as running:
            run_async(run)
        if svg is not None:
            save_picture(screen, svg)


def servers(models: Models = None) -> None:
    """Start the three bundled models on llama.cpp servers, until interrupted.

    Standard output gets a line for each: its name, a tab, its URL. End it with Ctrl-C or SIGTERM: all servers stop,
    and the exit code is 0.
    """
    with guarded():
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            with bundled_three(models) as running:
                for name, url in running.items():
                    print(f"{name}\t{url}", flush=True)
                print(_example(running.sums, running.facts), file=sys.stderr, flush=True)
                while True:
                    time.sleep(_POLL_SECONDS)
                    running.check()
        except KeyboardInterrupt:
            return


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _example(draft: str, assistant: str) -> str:
    question = r"'Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:'"
    called = program()
    command = shlex.quote(called) if called == sys.argv[0] else called
    return (
        f"\nTry, in another terminal:\n\n  printf {question} |\n"
        f"    {command} fuse - --draft {draft} --assistant {assistant}\n\nCtrl-C stops them."
    )
