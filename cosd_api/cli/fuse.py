"""`cosd fuse`: one prompt, one fused answer."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import anyio
import typer
from pydantic import ValidationError
from rich.console import Console

from cosd_api.alignment import Unit
from cosd_api.cli.guard import guarded, say
from cosd_api.fusion import DEFAULT_MAX_TOKENS, Fusion
from cosd_api.report.terminal import ASSISTANT, has_colour, summary, visible
from cosd_api.result import FusedToken, FusionResult
from cosd_api.settings import Asking, Bounds, OnAssistantError, OnBudget
from cosd_api.verification import AgreementVerifier, RuleVerifier, TreeVerifier
from cosd_providers import connect
from cosd_providers.contract import Provider
from cosd_providers.errors import ProviderError

__all__ = ["fuse"]


def fuse(
    prompt: Annotated[
        str, typer.Argument(help="The text to go on from; - reads it from standard input, less one line end.")
    ],
    draft: Annotated[
        str, typer.Option(envvar="COSD_DRAFT_URL", metavar="URL", help="Server of the model that writes.")
    ],
    assistant: Annotated[
        list[str],
        typer.Option(
            envvar="COSD_ASSISTANT_URL",
            metavar="URL",
            help="Server of a model that is asked; may be repeated (in the variable: spaces between).",
        ),
    ],
    draft_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which model of the draft's server, where it has several.")
    ] = None,
    assistant_model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="The same of the assistants: one for each, in their order."),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="The draft is unsure below this probability; 0.5 by default.")
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(help="An assistant must be surer than this times the draft; 0.5 by default."),
    ] = None,
    agreement: Annotated[
        bool,
        typer.Option(
            "--agreement",
            help="Only alpha decides, where the two differ: for an assistant that tells no probabilities.",
        ),
    ] = False,
    tree: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A trained decision tree (JSON) decides, in place of alpha and beta."),
    ] = None,
    unit: Annotated[
        Unit | None, typer.Option(help="What is judged together; by default the tokenizers are compared.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Of the answer.")] = DEFAULT_MAX_TOKENS,
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
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="For the whole answer; no limit by default.")
    ] = None,
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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary on standard error.")] = False,
) -> None:
    """Fuse one answer.

    Standard output gets the answer as it becomes final, and nothing else; a line end is added if it has none. All
    else goes to standard error. Exit codes: 0; 1 a server failed or a limit was reached (what was verified by then is
    on standard output); 2 usage; 130 interrupted. With --json standard output gets one document when all is over: after
    exit code 1 it is what there is of the result, with finish_reason "error" or "budget", or nothing.
    """
    with guarded():
        fusion = Fusion(
            draft=_connect(draft, draft_model, _seconds(read_timeout, "--read-timeout"), "--draft"),
            assistant=_assistants(assistant, assistant_model or [], _seconds(read_timeout, "--read-timeout")),
            verifier=_by_agreement(alpha, beta, tree) if agreement else _verifier(alpha, beta, tree),
            unit=unit,
            draft_length=draft_length,
            max_ahead=max_ahead,
            hedge=hedge,
            in_flight=in_flight,
            batch_wait=batch_wait,
            ask=ask,
            on_assistant_error=on_assistant_error,
        )
        bounds = Bounds.checked(
            max_tokens, stop, _seconds(timeout, "--timeout"), max_requests, max_billed_tokens, on_budget
        )
        try:
            result = anyio.run(_answer, fusion, _prompt(prompt), bounds, _Writer(silent=as_json))
        except ProviderError as error:
            if as_json and error.partial is not None:
                print(error.partial.model_dump_json(), flush=True)
            raise
        if as_json:
            print(result.model_dump_json(), flush=True)
        if not quiet:
            for warning in result.warnings:
                say(f"note: {warning}")
            say(summary(result))


async def _answer(fusion: Fusion, prompt: str, bounds: Bounds, writer: _Writer) -> FusionResult:
    try:
        async with fusion, fusion.stream(prompt, **asdict(bounds)) as stream:
            async for token in stream:
                writer.write(token)
            return stream.result
    finally:
        writer.end()


class _Writer:
    """Writes tokens to standard output as they come.

    On a terminal the assistants' words are green (unless `NO_COLOR` is set) and nothing in the answer can steer the
    terminal. Anything else gets the text as it is.
    """

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent
        self._last = ""
        self._terminal = Console(highlight=False) if sys.stdout.isatty() else None

    def write(self, token: FusedToken) -> None:
        """Writes one token."""
        if self._silent or not token.text:
            return
        self._last = token.text
        if self._terminal is None:
            print(token.text, end="", flush=True)
        else:
            style = ASSISTANT if token.source != "draft" and has_colour(self._terminal) else None
            self._terminal.out(visible(token.text), style=style, end="")

    def end(self) -> None:
        """The next line, unless the answer has ended one itself or there is none."""
        if self._last and not self._last.endswith("\n"):
            print(flush=True)


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


def _seconds(given: float | None, option: str) -> float | None:
    if given is not None and not 0 < given < math.inf:
        raise typer.BadParameter(f"{given:g} is no number of seconds above 0", param_hint=option)
    return given


def _connect(url: str, model: str | None, timeout: float | None, option: str) -> Provider:
    try:
        return connect(url, model=model) if timeout is None else connect(url, model=model, timeout=timeout)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _assistants(urls: list[str], models: list[str], timeout: float | None) -> list[Provider]:
    if models and len(models) != len(urls):
        words = f"{len(models)} given for {len(urls)} assistants: give one for each, in their order, or none"
        raise typer.BadParameter(words, param_hint="--assistant-model")
    return [_connect(url, model, timeout, "--assistant") for url, model in zip_longest(urls, models)]


def _by_agreement(alpha: float | None, beta: float | None, tree: Path | None) -> AgreementVerifier:
    if beta is not None or tree is not None:
        raise typer.BadParameter("agreement takes alpha alone, no beta and no tree", param_hint="--agreement")
    try:
        return AgreementVerifier() if alpha is None else AgreementVerifier(alpha=alpha)
    except ValidationError as error:
        raise typer.BadParameter(_first(error), param_hint="--alpha") from error


def _verifier(alpha: float | None, beta: float | None, tree: Path | None) -> RuleVerifier | TreeVerifier:
    if tree is None:
        given = {name: value for name, value in (("alpha", alpha), ("beta", beta)) if value is not None}
        try:
            return RuleVerifier.model_validate(given)
        except ValidationError as error:
            raise typer.BadParameter(_first(error), param_hint="--alpha/--beta") from error
    if alpha is not None or beta is not None:
        raise typer.BadParameter("a tree decides without alpha and beta: give one or the other", param_hint="--tree")
    try:
        return TreeVerifier.load(tree)
    except OSError as error:
        raise typer.BadParameter(f"{tree}: {error.strerror}", param_hint="--tree") from error
    except ValidationError as error:
        raise typer.BadParameter(f"{tree} is no tree: {_first(error)}", param_hint="--tree") from error


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    words = first["msg"].removeprefix("Value error, ")
    return f"{where}: {words}" if where else words
