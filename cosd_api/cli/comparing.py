"""The options of `cosd compare` besides its own: questions, servers, methods, limits and the grader."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from cosd_api import Example
from cosd_api.cli.options import (
    AssistantModels,
    AssistantUrls,
    ChosenUnit,
    DraftModel,
    DraftUrl,
    MaxTokens,
    StopTexts,
    connect_assistants,
    connect_server,
)
from cosd_api.comparison.contestants import VARIANTS
from cosd_api.comparison.graders import GRADERS, grader_named
from cosd_api.comparison.grading import Grader
from cosd_api.comparison.prices import Price, prices_from
from cosd_api.comparison.questions import mapping_from, read_questions
from cosd_api.comparison.settings import ComparisonOptions
from cosd_api.extend import DEFAULT_MAX_TOKENS
from cosd_providers import Provider

__all__ = ["ComparingOptions", "GraderOptions", "MostBilled", "PriceTexts", "priced"]

MostBilled = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Stop before all servers have read and written more tokens.")
]
PriceTexts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=IN,OUT|FILE",
        help="Prices of a million tokens read and written: draft=0.2,0.6 and assistant=3,15 (if there are several, "
        "'assistant 1=3,15'), or a JSON file. A third number is the price of tokens read from a cache.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderOptions:
    """The name and the settings of a grader."""

    grader: Annotated[
        str,
        typer.Option(
            metavar="NAME", help=f"Decides if an answer is right: {', '.join(GRADERS)}, or your own module:function."
        ),
    ] = "exact"
    ignore_case: Annotated[bool, typer.Option("--ignore-case", help="For exact and contains.")] = False
    command: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="For command: it gets an example and `text` as JSON."),
    ] = None
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="For command: limit for one answer; 60 by default.")
    ] = None

    def made(self) -> Grader:
        """Create the grader.

        Raises:
            SettingError: there is no such grader, a setting is missing, or the grader has no such setting.
        """
        given = {one.name: getattr(self, one.name) for one in fields(GraderOptions)}
        name = given.pop("grader")
        return grader_named(name, **{key: one for key, one in given.items() if one is not None and one is not False})


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparingOptions(GraderOptions):
    """The servers, methods, limits and other options of a comparison."""

    draft: DraftUrl
    assistant: AssistantUrls
    draft_model: DraftModel = None
    assistant_model: AssistantModels = None
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,...",
            help=f"Methods, separated by commas; may be repeated; all by default. Variants: {', '.join(VARIANTS)}.",
        ),
    ] = None
    one_way: Annotated[bool, typer.Option("--one-way", help="Leave out fusions in which an assistant drafts.")] = False
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="FIELD=NAME", help="Name of a field in the file, e.g. prompt=question; may be repeated."
        ),
    ] = None
    max_billed_tokens: MostBilled = None
    prices: PriceTexts = None
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS
    stop: StopTexts = None
    unit: ChosenUnit = None
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed for everything that is drawn.")] = 0
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Answers at the same time.")] = 4
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask to confirm the estimated cost.")] = False
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the estimated cost and time, and answer no question. A few short requests measure each model's "
            "speed.",
        ),
    ] = False

    def questions(self, path: Path, limit: int | None) -> list[Example]:
        """Read the first `limit` questions of a file, or all if `limit` is None.

        Raises:
            typer.BadParameter: the file cannot be read.
            SettingError: the file is invalid.
        """
        try:
            return read_questions(path, mapping_from(self.fields or []))[:limit]
        except OSError as error:
            raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="QUESTIONS") from error

    def models(self) -> tuple[Provider, list[Provider]]:
        """Create the providers of the draft and the assistants. No request is sent yet.

        Raises:
            typer.BadParameter: a URL is invalid, or only some assistants' models are named.
        """
        draft = connect_server(self.draft, self.draft_model, "--draft")
        return draft, connect_assistants(self.assistant, self.assistant_model)

    def settings(self, path: Path | None) -> ComparisonOptions:
        """Return the settings of a run that stores its answers in the file `path`.

        Raises:
            typer.BadParameter: a file of prices cannot be read.
            SettingError: a setting is invalid.
        """
        names = [name.strip() for one in self.methods or [] for name in one.split(",")]
        return {
            "methods": "all" if names in ([], ["all"]) else names,
            "both_ways": not self.one_way,
            "grader": self.made(),
            "path": path,
            "max_tokens": self.max_tokens,
            "stop": self.stop,
            "seed": self.seed,
            "unit": self.unit,
            "concurrency": self.concurrency,
            "max_billed_tokens": self.max_billed_tokens,
            "prices": priced(self.prices),
            "dry_run": self.dry_run,
        }


def priced(texts: list[str] | None) -> dict[str, Price] | None:
    """Read the prices from the values of an option; return None if the option is not given.

    Raises:
        typer.BadParameter: a file of prices cannot be read.
        SettingError: the prices are invalid.
    """
    try:
        return prices_from(texts) if texts else None
    except OSError as error:
        raise typer.BadParameter(f"{error.filename}: {error.strerror}", param_hint="--prices") from error
