"""`cosd probe`: what servers can really do, before they are fused."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.text import Text

from cosd_api.cli.guard import guarded, say
from cosd_api.report.terminal import has_colour, visible
from cosd_providers.errors import ProviderError
from cosd_providers.probe import PROMPT, Card, probe, unit_of

__all__ = ["run_probe"]

_WIDTH = 80


def run_probe(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="One server, or several that may be fused.")],
    model: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Which model; one for each URL, in their order.")
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What kind of server, where that is not seen; one for each URL."),
    ] = None,
    prompt: Annotated[
        str, typer.Option(metavar="TEXT", help="What a short draft goes on from; best answered in one sentence.")
    ] = PROMPT,
    save: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Keep the card, for connect(url, card=FILE); one for each URL.", dir_okay=False
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the cards as one JSON document, with how each line was found.")
    ] = False,
) -> None:
    """Find out what servers can really do, by questions whose answers are known.

    It costs some dozens of short requests for each server, which are counted. Exit codes: 0; 1 a server failed, or can
    neither draft nor assist; 2 usage.
    """
    _check_counts(len(urls), (model, "--model"), (engine, "--engine"), (save, "--save"))
    with guarded():
        cards = anyio.run(_probed, urls, model or [], engine or [], prompt)
        for card, path in zip(cards, save or [], strict=False):
            if card is not None:
                _save(card, path)
        found = [card for card in cards if card is not None]
        if as_json:
            unit = unit_of(found) if len(found) > 1 else None
            document = {"cards": [card.model_dump(mode="json") for card in found], "unit": unit}
            print(json.dumps(document, ensure_ascii=False), flush=True)
        else:
            _show(found)
        if len(found) < len(urls) or not all(card.can_draft or card.can_assist for card in found):
            raise typer.Exit(1)


def _save(card: Card, path: Path) -> None:
    try:
        card.save(path)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--save") from error


async def _probed(urls: Sequence[str], models: Sequence[str], engines: Sequence[str], prompt: str) -> list[Card | None]:
    """A card for each server, in order; None for one that failed, which is said."""
    cards: list[Card | None] = []
    for url, model, engine in zip_longest(urls, models, engines):
        if sys.stderr.isatty():
            say(f"asking {url}")
        try:
            cards.append(await probe(url, prompt=prompt, model=model, engine=engine))
        except ProviderError as error:
            say(str(error))
            cards.append(None)
        except ValueError as error:
            hint = "--engine" if str(error).startswith("there is no engine") else "URL"
            raise typer.BadParameter(str(error), param_hint=hint) from error
    return cards


def _show(cards: Sequence[Card]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    colour = has_colour(console)
    for number, card in enumerate(cards):
        if number:
            console.print()
        for line in visible(str(card)).split("\n"):
            style = _style(line, card) if colour else ""
            console.print(Text(line, style))
    if len(cards) > 1:
        console.print()
        console.print(textwrap.fill(_together(cards), _WIDTH))


def _style(line: str, card: Card) -> str:
    """Green or red for what follows, bold for the server."""
    if line.startswith("as a draft "):
        return "green" if card.can_draft else "red"
    if line.startswith("as an assistant "):
        return "green" if card.can_assist else "red"
    return "bold" if line.startswith(card.endpoint) else ""


def _together(cards: Sequence[Card]) -> str:
    """What a fusion of them would judge by."""
    if unit_of(cards) == "token":
        return 'Together: one tokenizer, so that a fusion judges token by token (unit="token").'
    if all(card.encoding is not None for card in cards):
        return 'Together: different tokenizers, so that a fusion judges word by word (unit="word").'
    return 'Together: not all of them show their tokenizer: a fusion judges word by word (unit="word").'


def _check_counts(urls: int, *options: tuple[Sequence[object] | None, str]) -> None:
    for given, what in options:
        if given and len(given) != urls:
            raise typer.BadParameter(f"{len(given)} given for {urls} URLs: give one for each", param_hint=what)
