"""The command and what all its parts share."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from cosd_api.cli.chat import chat
from cosd_api.cli.collect import run_collect
from cosd_api.cli.demo import demo
from cosd_api.cli.explain import explain
from cosd_api.cli.fuse import fuse
from cosd_api.cli.guard import start_logging
from cosd_api.cli.probe import run_probe
from cosd_api.cli.servers import servers
from cosd_api.cli.train_tree import run_train_tree
from cosd_api.cli.tune import run_tune
from cosd_api.version import __version__

__all__ = ["app", "run"]

app = typer.Typer(
    name="cosd",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(fuse)
app.command()(chat)
app.command("collect")(run_collect)
app.command()(demo)
app.command()(explain)
app.command("probe")(run_probe)
app.command()(servers)
app.command("train-tree")(run_train_tree)
app.command("tune")(run_tune)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"cosd-api {__version__}")
        raise typer.Exit


@app.callback()
def cosd(
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Fuse language models over HTTP while they write (Collaborative Speculative Decoding)."""
    start_logging()


def run() -> None:
    """Runs the command and exits with its code."""
    _speak_utf8()
    app(prog_name="cosd")


def _speak_utf8() -> None:
    """Answers hold any character: pipes carry them as UTF-8 everywhere, and none may end the command."""
    encoding = None if "PYTHONIOENCODING" in os.environ else "utf-8"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else encoding, errors="backslashreplace")
