"""`cosd fuse`: one prompt, one fused answer."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import anyio
import typer

from cosd_api.alignment import Unit
from cosd_api.cli.guard import guarded, say
from cosd_api.cli.options import (
    Agreement,
    Alpha,
    AssistantModels,
    AssistantUrls,
    Beta,
    DraftModel,
    DraftUrl,
    MaxTokens,
    Timeout,
    Tree,
    all_connected,
    check_writable,
    chosen_verifier,
    connected,
    seconds,
)
from cosd_api.cli.writer import Writer
from cosd_api.fusion import Fusion
from cosd_api.report.decisions import show
from cosd_api.report.terminal import summary
from cosd_api.result import FusionResult
from cosd_api.settings import DEFAULT_MAX_TOKENS, AnswerLimits, Asking, OnAssistantError, OnBudget, Tuning
from cosd_providers.errors import ProviderError

__all__ = ["fuse"]


def fuse(
    prompt: Annotated[
        str, typer.Argument(help="The text to go on from; - reads it from standard input, less one line end.")
    ],
    draft: DraftUrl,
    assistant: AssistantUrls,
    draft_model: DraftModel = None,
    assistant_model: AssistantModels = None,
    alpha: Alpha = None,
    beta: Beta = None,
    agreement: Agreement = False,
    tree: Tree = None,
    unit: Annotated[
        Unit | None, typer.Option(help="What is judged together; by default the tokenizers are compared.")
    ] = None,
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="The answer ends before this text; may be repeated. A line end: $'\\n'."),
    ] = None,
    draft_length: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="Rounds of so many draft tokens; by default one stream."),
    ] = None,
    max_ahead: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens drafted beyond what is verified; by default any."),
    ] = None,
    hedge: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Drafts started ahead of a verdict, at a time: faster, and more tokens."),
    ] = 0,
    in_flight: Annotated[int, typer.Option(min=1, metavar="N", help="Requests to one assistant at a time.")] = 1,
    batch_wait: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="That a question waits for more: fewer requests, and slower."),
    ] = 0.0,
    ask: Annotated[
        Asking,
        typer.Option(help="What assistants are asked about: what could change the text, or everything."),
    ] = "contestable",
    timeout: Timeout = None,
    read_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="For each wait for a server, between two bytes; 600 by default."),
    ] = None,
    max_requests: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="To all servers together, those sent again included.")
    ] = None,
    max_billed_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Read and written by all servers together.")
    ] = None,
    on_budget: Annotated[
        OnBudget,
        typer.Option(help="At one of these three limits: fail, or end the answer with what is verified."),
    ] = "raise",
    on_assistant_error: Annotated[
        OnAssistantError,
        typer.Option(help="When an assistant has failed for good: fail, or go on without it."),
    ] = "raise",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole result as one JSON document instead of the text.")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Print the answer with its replaced words marked, and why, instead of the text."
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep why each token is there, as JSON lines; `cosd explain FILE` shows it."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary on standard error.")] = False,
) -> None:
    """Fuse one answer.

    Standard output gets the answer as it becomes final, and nothing else; a line end is added if it has none. All
    else goes to standard error. Exit codes: 0; 1 a server failed or a limit was reached (what was verified by then is
    on standard output); 2 usage; 130 interrupted. With --json standard output gets one document when all is over: after
    exit code 1 it is what there is of the result, with finish_reason "error" or "budget", or nothing. So it is with
    --explain, which prints the answer marked as in Table 6 of the paper, and with the file of --trace.
    """
    with guarded():
        if as_json and explain:
            raise typer.BadParameter("is for people, and --json for programs: give one of them", param_hint="--explain")
        if trace is not None:
            check_writable(trace, "--trace", tree)
        fusion = Fusion(
            draft=connected(draft, draft_model, seconds(read_timeout, "--read-timeout"), "--draft"),
            assistant=all_connected(assistant, assistant_model or [], seconds(read_timeout, "--read-timeout")),
            verifier=chosen_verifier(alpha, beta, tree, agreement=agreement),
            unit=unit,
            draft_length=draft_length,
            ask=ask,
            on_assistant_error=on_assistant_error,
            tuning=Tuning(hedge=hedge, in_flight=in_flight, batch_wait=batch_wait, max_ahead=max_ahead),
        )
        limits = AnswerLimits.checked(
            max_tokens=max_tokens,
            stop=stop,
            timeout=seconds(timeout, "--timeout"),
            max_requests=max_requests,
            max_billed_tokens=max_billed_tokens,
            on_budget=on_budget,
        )
        try:
            result = anyio.run(_answer, fusion, _prompt(prompt), limits, Writer(silent=as_json or explain))
        except ProviderError as error:
            if error.partial is not None:
                _show(error.partial, as_json=as_json, explain=explain, trace=trace)
            raise
        _show(result, as_json=as_json, explain=explain, trace=trace)
        if not quiet:
            for warning in result.warnings:
                say(f"note: {warning}")
            say(summary(result))


def _show(result: FusionResult, *, as_json: bool, explain: bool, trace: Path | None) -> None:
    """What is shown and kept of an answer once it is over, or of what there is of one."""
    if trace is not None:  # first: whoever reads standard output may have left
        result.trace.save(trace)
    if as_json:
        print(result.model_dump_json(), flush=True)
    if explain:
        show(result)


async def _answer(fusion: Fusion, prompt: str, limits: AnswerLimits, writer: Writer) -> FusionResult:
    try:
        async with fusion, fusion.stream(prompt, **asdict(limits)) as stream:
            async for token in stream:
                writer.write(token)
            return stream.result
    finally:
        writer.end()


def _prompt(given: str) -> str:
    if given != "-":
        return given
    if sys.stdin.isatty():
        say("reading the prompt from standard input")
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"standard input is not UTF-8 text at byte {error.start}") from None
    # Editors and echo end a text with a line end that is no part of a prompt; models take it for one.
    return text.removesuffix("\n").removesuffix("\r")
