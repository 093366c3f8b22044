"""`cosd fuse`: answers one prompt with fused models."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from cosd_api import Fusion, FusionResult, SettingError
from cosd_api.apps.cli.console import Writer, files_of, guarded, say
from cosd_api.apps.cli.options import SharedOptions, check_writable, seconds, with_options
from cosd_api.apps.cli.spending import bounded
from cosd_api.apps.report.terminal import show, summary
from cosd_api.common.event_loop import run_async
from cosd_api.settings import AnswerLimits
from cosd_api.structured import ResponseFormat
from cosd_providers import Message, ProviderError
from cosd_providers.messages import after_own, checked_messages

__all__ = ["fuse"]


@with_options(
    SharedOptions,
    "unit",
    "tie",
    "stop",
    "draft_length",
    "max_ahead",
    "ask",
    "max_requests",
    "max_billed_tokens",
    "on_budget",
    "on_assistant_error",
    "on_draft_error",
)
def fuse(
    options: SharedOptions,
    prompt: Annotated[
        str,
        typer.Argument(
            help="The text to continue; - reads it, or a JSON list of messages, from standard input, without a final "
            "line end."
        ),
    ],
    chat: Annotated[
        bool,
        typer.Option("--chat", help="The prompt is a user's message: each model reads it through its chat template."),
    ] = False,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A system message for all models; implies --chat.")
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Restrict the answer to a JSON schema or to another response_format; FILE has it as JSON.",
        ),
    ] = None,
    regex: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN", help="Restrict the answer to a regular expression, which it matches as a whole."
        ),
    ] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Restrict the answer to this text or another --choice; repeat it for each."),
    ] = None,
    read_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Limit on each wait for a server, between two bytes; 600 by default."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole result as one JSON document instead of the text.")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Print instead the answer with marked replacements, and their reasons."),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Record why each token is there, as JSON lines; `cosd explain FILE` shows it."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary and no notes on standard error.")] = False,
) -> None:
    """Answer one prompt with fused models.

    Only the answer is printed to standard output: each part as soon as it is final, and a line end after the answer if
    it has none. Everything else goes to standard error. Exit codes: 0 on success; 1 if a server failed or a limit was
    reached (the text verified so far is on standard output); 2 for wrong usage; 130 when interrupted. With --json, one
    document is printed at the end. With exit code 1, this document is the partial result, with finish_reason "error" or
    "budget"; if there is no partial result, no document is printed. Likewise, --trace and --explain report the partial
    result if there is one. --explain marks the answer as in Table 6 of the paper.
    """
    with guarded():
        if as_json and explain:
            raise typer.BadParameter("cannot be combined with --json: give one of them", param_hint="--explain")
        if trace is not None:
            check_writable(trace, "--trace", options.tree, options.config, schema)
        fusion = options.fusion(seconds(read_timeout, "--read-timeout"))
        limits = replace(options.limits(fusion), response_format=_format(schema, regex, choice))
        limits.seeded(fusion.settings.method)  # raises an error if the method cannot keep to a format
        try:
            asked = _asked(prompt, system, chat=chat or bool(limits.own))
            result = run_async(_answer, fusion, asked, limits, Writer(silent=as_json or explain), quiet)
        except ProviderError as error:
            if error.partial is not None:
                _show(error.partial, as_json=as_json, explain=explain, trace=trace)
            raise
        _show(result, as_json=as_json, explain=explain, trace=trace)
        if not quiet:
            for warning in result.warnings:
                say(f"note: {warning}{' (--chat)' if 'the prompt is raw text' in warning else ''}")
            say(summary(result))


def _show(result: FusionResult, *, as_json: bool, explain: bool, trace: Path | None) -> None:
    """Print and save a complete or partial answer."""
    if trace is not None:  # saved first, because printing fails if the reader of standard output is gone
        result.trace.save(trace)
    if as_json:
        print(result.model_dump_json(), flush=True)
    if explain:
        show(result)


async def _answer(
    fusion: Fusion,
    prompt: str | list[Message],
    limits: AnswerLimits,
    writer: Writer,
    quiet: bool,
) -> FusionResult:
    try:
        async with fusion:
            limits = await bounded(fusion, prompt, limits, told=quiet)
            async with fusion.stream(prompt, **limits.options()) as stream:
                async for token in stream:
                    writer.write(token)
                return stream.result
    finally:
        writer.end()


def _format(schema: Path | None, regex: str | None, choices: list[str] | None) -> ResponseFormat | None:
    """Return the format of the answer.

    Raises:
        typer.BadParameter: the file cannot be read, the format is invalid, or several are given.
    """
    forms: dict[str, Any] = {
        "--schema": None if schema is None else _object(schema),
        "--regex": None if regex is None else {"type": "regex", "pattern": regex},
        "--choice": choices or None,
    }
    option, *more = [name for name, one in forms.items() if one is not None] or [""]
    if more:
        raise typer.BadParameter(f"cannot be combined with {option}: give one of them", param_hint=more[0])
    try:
        return ResponseFormat.of(forms.get(option))
    except SettingError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _object(path: Path) -> dict[str, Any]:
    try:
        with files_of("--schema"):
            found: object = json.loads(path.read_bytes())
    except ValueError as error:
        raise typer.BadParameter(f"{path} is not JSON: {error}", param_hint="--schema") from None
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{path} is not a JSON object", param_hint="--schema")
    return cast("dict[str, Any]", found)


def _asked(given: str, system: str | None, *, chat: bool) -> str | list[Message]:
    """Return the prompt: a text, the conversation on standard input, or the text as a user's message."""
    text = _read(given)
    messages = _messages(text) if given == "-" else None
    if messages is None and not (chat or system is not None):
        return text
    first = [] if system is None else [Message("system", system)]
    return [*after_own(first, messages or [Message("user", text)])]


def _messages(text: str) -> list[Message] | None:
    """Parse a conversation in JSON; return None for any other text.

    Raises:
        typer.BadParameter: the text is a JSON list of objects, but one of the objects is not a message.
    """
    try:
        found: object = json.loads(text) if text.lstrip().startswith("[") else None
    except ValueError:
        return None
    if not (isinstance(found, list) and found and all(isinstance(one, dict) for one in cast("list[object]", found))):
        return None
    try:
        return [*checked_messages(cast("object", found))]
    except ValueError as error:
        raise typer.BadParameter(f"the list of messages on standard input: {error}") from None


def _read(prompt: str) -> str:
    if prompt != "-":
        return prompt
    if sys.stdin.isatty():
        say("reading the prompt from standard input")
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"standard input is not UTF-8 text at byte {error.start}") from None
    # Editors and `echo` add a line end, which a model would read as part of the prompt.
    return text.removesuffix("\n").removesuffix("\r")
