"""The `cosd` command and its subcommands. A subcommand's module is imported only when the subcommand runs."""

from __future__ import annotations

import io
import logging
import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from cosd_api import __version__
from cosd_api.common.event_loop import event_loop_name
from cosd_providers.http.clients import http_stack

__all__ = ["app", "run"]

# The name of each command, its function, and the first line of its help, so that `cosd --help` imports no command.
_COMMANDS = {
    "fuse": ("fuse:fuse", "Answer one prompt with fused models."),
    "chat": (
        "chat:chat",
        "Hold a conversation: each model reads it through its own chat template, and together they write the answers.",
    ),
    "serve": (
        "serve:serve",
        "Serve fusions over OpenAI's protocol: /v1/chat/completions, /v1/completions, /v1/responses.",
    ),
    "batch": ("batch:batch", "Answer the prompts in a file, and write the answers to another file."),
    "probe": ("probe:probe_servers", "Find out what servers can do, from questions with known answers."),
    "explain": ("explain:explain", "Show why each token of an answer is there."),
    "compare": ("compare:compare", "Find out, on your own questions, whether fusing two or more models is worth it."),
    "collect": ("training:collect", "Compare two models at every place of known answers."),
    "train-tree": (
        "training:train",
        "Train a decision tree that chooses between draft and assistant, for cosd fuse --tree.",
    ),
    "train-deferral": (
        "training:train_gate",
        "Train a gate that hands single tokens to the assistant, for cosd fuse --method defer --set gate=FILE.",
    ),
    "tune": ("training:tune_rule", "Find the alpha and beta with which the rule decides best."),
    "servers": (
        "demo:servers",
        "Run the three bundled models, or a real model and two fine-tuned versions of it, on llama.cpp servers.",
    ),
    "demo": ("demo:demo", "Start three small models and fuse them: two answers in full, and a table of many."),
}
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _unwrapped(text: str) -> str:
    """Put each paragraph of a docstring on one line, so that the help is wrapped only at the terminal's width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


class _Command(TyperCommand):
    """A subcommand whose module is imported only when it runs or shows its own help."""

    def __init__(self, name: str, target: str, summary: str) -> None:
        super().__init__(name, help=summary)
        self._target = target

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the command, and create its context."""
        module, function = self._target.split(":")
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        command = getattr(import_module(f"cosd_api.apps.cli.{module}"), function)
        single.command(self.name, help=_unwrapped(command.__doc__ or ""))(command)
        return get_command(single).make_context(info_name, args, parent, **extra)


class _Group(TyperGroup):
    """The group of all subcommands."""

    def __init__(self, **settings: Any) -> None:
        commands = {name: _Command(name, target, summary) for name, (target, summary) in _COMMANDS.items()}
        settings["commands"] = commands
        super().__init__(**settings)


app = typer.Typer(
    name="cosd",
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"cosd-api {__version__} ({http_stack()}, {event_loop_name()})")
        raise typer.Exit


@app.callback()
def cosd(
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Fuse language models over HTTP while they write (Collaborative Speculative Decoding)."""
    _start_logging()


def run() -> None:
    """Run the command and exit with its code."""
    _write_utf8()
    app(prog_name="cosd")


def _start_logging() -> None:
    """Log to standard error at the level that `COSD_LOG` names, if this variable is set.

    Only this project's loggers are configured, because other libraries would log keys and prompts at these levels.

    Raises:
        typer.BadParameter: the level is unknown.
    """
    wanted = os.environ.get("COSD_LOG", "")
    if not wanted:
        return
    if wanted.lower() not in _LEVELS:
        raise typer.BadParameter(f"COSD_LOG is {wanted!r}; it can be {', '.join(_LEVELS)}")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("cosd_api", "cosd_providers"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(_LEVELS[wanted.lower()])


def _write_utf8() -> None:
    """Write UTF-8 to pipes on every system, and escape characters that the terminal cannot show."""
    encoding = None if "PYTHONIOENCODING" in os.environ else "utf-8"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else encoding, errors="backslashreplace")
