"""`cosd probe`: finds out what servers can do, before their models are fused."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer

from cosd_api.apps.cli.console import files_of, guarded, say
from cosd_api.apps.report.phrases import visible
from cosd_api.common.event_loop import run_async
from cosd_api.extend import Routes
from cosd_providers import ProbeReport, ProviderError, probe
from cosd_providers.probe import PROBE_PROMPT, definition_of
from cosd_providers.probe.report import in_digits

__all__ = ["probe_servers"]

_WIDTH = 80
_NO_SPACES = "text without spaces is judged only if the tokenizer is given, connect(url, tokenizer=...)"


def probe_servers(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="A server, or the servers of a fusion.")],
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Model on a server; repeat it for each URL, in their order."),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Kind of a server, if it is not recognised; repeat it for each URL."),
    ] = None,
    prompt: Annotated[
        str, typer.Option(metavar="TEXT", help="Prompt for a short draft, best answered in one sentence.")
    ] = PROBE_PROMPT,
    save: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Save the report as JSON, for connect(url, report=FILE); repeat it for each URL.",
            dir_okay=False,
        ),
    ] = None,
) -> None:
    """Find out what servers can do, from questions with known answers.

    A few dozen short requests are sent to each server, and their number is reported. Exit codes: 0 on success; 1 if a
    server failed, or can be neither a draft nor an assistant; 2 for wrong usage.
    """
    for given, option in ((model, "--model"), (engine, "--engine"), (save, "--save")):
        if given and len(given) != len(urls):
            words = f"{len(given)} given for {len(urls)} URLs: give one for each"
            raise typer.BadParameter(words, param_hint=option)
    with guarded():
        reports = run_async(_probed, urls, model or [], engine or [], prompt)
        found = [report for report in reports if report is not None]
        with files_of("--save"):
            for report, path in zip(reports, save or [], strict=False):
                if report is not None:
                    report.save(path)
        if found:
            _show(found)
        if len(found) < len(urls) or not all(report.can_draft or report.can_assist for report in found):
            raise typer.Exit(1)


async def _probed(
    urls: Sequence[str], models: Sequence[str], engines: Sequence[str], prompt: str
) -> list[ProbeReport | None]:
    """Probe the servers and return their reports, in order. For a server that failed, print a line and return None."""
    reports: list[ProbeReport | None] = []
    for url, model, engine in zip_longest(urls, models, engines):
        if sys.stderr.isatty():
            say(f"asking {url}")
        try:
            reports.append(await probe(url, prompt=prompt, model=model, engine=engine))
        except ProviderError as error:
            say(str(error))
            reports.append(None)
        except ValueError as error:
            hint = "--engine" if str(error).startswith("there is no engine") else "URL"
            raise typer.BadParameter(str(error), param_hint=hint) from error
    return reports


def _show(reports: Sequence[ProbeReport]) -> None:
    print("\n\n".join(visible(str(report)) for report in reports), flush=True)
    if len(reports) > 1:
        found, routes = definition_of(reports), _routes(reports)
        tie = "" if found.tie is None else f" Ties: tie={in_digits(found.tie)}."
        more = '; unit="literal" is equation 3 as printed' if (found.contexts, found.unit) == ("ids", "word") else ""
        spaces = f"; {_NO_SPACES}" if "text" in routes.assistants else ""
        words = f'{routes.in_words(_names(reports))}, because {found.reason}{spaces} (unit="{found.unit}"{more})'
        print(f"\n{textwrap.fill(f'Together: {words}.{tie}', _WIDTH)}", flush=True)


def _routes(reports: Sequence[ProbeReport]) -> Routes:
    """The routes of a fusion by the method cosd in which the first server drafts."""
    draft, *assistants = [report.vocabulary for report in reports]
    takes_ids = [report.vocabulary is not None for report in reports]
    return Routes.of(takes_ids, [one == draft for one in assistants], unit=definition_of(reports).unit)


def _names(reports: Sequence[ProbeReport]) -> list[str]:
    """The names of the models in a result."""
    several = len(reports) > 2
    return ["draft", *(f"assistant {at}" if several else "assistant" for at in range(1, len(reports)))]
