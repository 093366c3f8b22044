"""`cosd servers`: the two bundled models on llama.cpp servers, until interrupted."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from cosd_api.cli.guard import guarded
from cosd_api.demo.run import program
from cosd_api.demo.servers import bundled_pair

__all__ = ["Models", "servers"]

Models = Annotated[
    Path | None,
    typer.Option(
        help="Another folder with sums.gguf and facts.gguf.", file_okay=False, exists=True, show_default=False
    ),
]

_LOOK_SECONDS = 0.2


def servers(models: Models = None) -> None:
    """Start the two bundled models on llama.cpp servers, until interrupted.

    Standard output gets one line for each: its name, a tab, its URL. Ctrl-C (or SIGTERM) is the way to end this: both
    servers stop, and the exit code is 0.
    """
    with guarded():
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            with bundled_pair(models) as pair:
                for name, url in pair.items():
                    print(f"{name}\t{url}", flush=True)
                print(_example(pair.sums, pair.facts), file=sys.stderr, flush=True)
                while True:
                    time.sleep(_LOOK_SECONDS)
                    pair.check()
        except KeyboardInterrupt:
            return


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _example(draft: str, assistant: str) -> str:
    question = r"'Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:'"
    return (
        f"\nTry, in another terminal:\n\n  printf {question} |\n"
        f"    {_command()} fuse - --draft {draft} --assistant {assistant}\n\nCtrl-C stops both."
    )


def _command() -> str:
    """The command as this user can call it, from a shell."""
    called = program()
    return shlex.quote(called) if called == sys.argv[0] else called
