"""`cosd explain`: shows why each token of a recorded answer is there, in the terminal or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cosd_api import Trace, TraceError
from cosd_api.apps.cli.console import files_of, guarded, say
from cosd_api.apps.cli.options import check_writable
from cosd_api.apps.report.phrases import visible
from cosd_api.apps.report.terminal import show, summary
from cosd_api.types import CustomVerifier

__all__ = ["explain"]


def explain(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="File written by `cosd fuse --trace FILE` or `result.trace.save`.")
    ],
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write one page for a browser instead; an existing file is replaced."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also list the places where the models agreed.")] = False,
) -> None:
    """Show why each token of an answer is there.

    The answer, with marked replacements, and a table of the decisions are printed to standard output. With --html, a
    page is written instead: the answer with a card for each token, a timeline of all requests, and their cost. The page
    loads nothing from the network. Exit codes: 0 on success; 2 if the file is not a trace, or a file cannot be read or
    written.
    """
    if html is not None and everything:
        raise typer.BadParameter("is for the table: a page has a card for every token", param_hint="--all")
    with guarded():
        try:
            with files_of("TRACE"):
                result = Trace.load(trace).result
        except TraceError as error:
            raise typer.BadParameter(visible(str(error)), param_hint="TRACE") from error
        if html is not None:
            check_writable(html, "--html", trace)
        if not isinstance(result.settings.verifier, CustomVerifier):
            try:
                result.trace.replay()
            except TraceError as error:  # the trace is shown nevertheless
                say(f"note: a replay gives a different result: {error}")
        if html is not None:
            from cosd_api.apps.report.page import page  # noqa: PLC0415 - only needed here

            with files_of("--html"):
                html.write_text(page(result), encoding="utf-8", newline="\n")
            say(f"wrote {html}")
            return
        show(result, everything=everything)
        for warning in result.warnings:
            say(f"note: {warning}")
        say(summary(result))
