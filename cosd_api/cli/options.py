"""Options that several commands take, and what becomes of them: servers and a verifier."""

from __future__ import annotations

import errno
import math
import os
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from cosd_api.errors import SettingError
from cosd_api.verification import AgreementVerifier, RuleVerifier, TreeVerifier
from cosd_providers import connect
from cosd_providers.contract import Provider

__all__ = [
    "Agreement",
    "Alpha",
    "AssistantModels",
    "AssistantUrls",
    "Beta",
    "DraftModel",
    "DraftUrl",
    "MaxTokens",
    "Timeout",
    "Tree",
    "all_connected",
    "check_writable",
    "chosen_verifier",
    "connected",
    "seconds",
]

DraftUrl = Annotated[str, typer.Option(envvar="COSD_DRAFT_URL", metavar="URL", help="Server of the model that writes.")]
AssistantUrls = Annotated[
    list[str],
    typer.Option(
        envvar="COSD_ASSISTANT_URL",
        metavar="URL",
        help="Server of a model that is asked; may be repeated (in the variable: spaces between).",
    ),
]
DraftModel = Annotated[
    str | None, typer.Option(metavar="NAME", help="Which model of the draft's server, where it has several.")
]
AssistantModels = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="The same of the assistants: one for each, in their order."),
]
Alpha = Annotated[float | None, typer.Option(help="The draft is unsure below this probability; 0.5 by default.")]
Beta = Annotated[
    float | None, typer.Option(help="An assistant must be surer than this times the draft; 0.5 by default.")
]
Agreement = Annotated[
    bool,
    typer.Option(
        "--agreement",
        help="Only alpha decides, where the two differ: for an assistant that tells no probabilities.",
    ),
]
Tree = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A trained decision tree (JSON) decides, in place of alpha and beta."),
]
MaxTokens = Annotated[int, typer.Option(min=1, metavar="N", help="Of the answer.")]
Timeout = Annotated[float | None, typer.Option(metavar="SECONDS", help="For the whole answer; no limit by default.")]


def seconds(given: float | None, option: str) -> float | None:
    """A time as it was given.

    Raises:
        typer.BadParameter: it is no number of seconds above 0.
    """
    if given is not None and not 0 < given < math.inf:
        raise typer.BadParameter(f"{given:g} is no number of seconds above 0", param_hint=option)
    return given


def check_writable(path: Path, option: str, *read: Path | None) -> None:
    """Sees, before anything long runs, whether a file can be written; nothing is written yet.

    Raises:
        typer.BadParameter: it cannot, or it is one of those that are `read`.
    """
    if path.resolve() in {one.resolve() for one in read if one is not None}:
        raise typer.BadParameter(f"{path} is read, and would be lost: name another file", param_hint=option)
    code = 0
    if path.is_dir():
        code = errno.EISDIR
    elif not path.parent.is_dir():
        code = errno.ENOENT
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        code = errno.EACCES
    if code:
        raise typer.BadParameter(f"{path} cannot be written: {os.strerror(code)}", param_hint=option)


def connected(url: str, model: str | None, timeout: float | None, option: str) -> Provider:
    """The model behind a URL; nothing is sent yet.

    Raises:
        typer.BadParameter: it is no URL of a server.
    """
    try:
        return connect(url, model=model) if timeout is None else connect(url, model=model, timeout=timeout)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def all_connected(urls: list[str], models: list[str], timeout: float | None) -> list[Provider]:
    """The assistants. Raises as `connected`, and where only some of the models are named."""
    if models and len(models) != len(urls):
        words = f"{len(models)} given for {len(urls)} assistants: give one for each, in their order, or none"
        raise typer.BadParameter(words, param_hint="--assistant-model")
    return [connected(url, model, timeout, "--assistant") for url, model in zip_longest(urls, models)]


def chosen_verifier(
    alpha: float | None, beta: float | None, tree: Path | None, *, agreement: bool
) -> RuleVerifier | TreeVerifier | AgreementVerifier:
    """The verifier that the options ask for.

    Raises:
        typer.BadParameter: they do not go together, or one of them is no such number or file.
    """
    return _by_agreement(alpha, beta, tree) if agreement else _by_probabilities(alpha, beta, tree)


def _by_agreement(alpha: float | None, beta: float | None, tree: Path | None) -> AgreementVerifier:
    if beta is not None or tree is not None:
        raise typer.BadParameter("agreement takes alpha alone, no beta and no tree", param_hint="--agreement")
    try:
        return AgreementVerifier() if alpha is None else AgreementVerifier(alpha=alpha)
    except ValidationError as error:
        raise typer.BadParameter(_first(error), param_hint="--alpha") from error


def _by_probabilities(alpha: float | None, beta: float | None, tree: Path | None) -> RuleVerifier | TreeVerifier:
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
    except SettingError as error:
        raise typer.BadParameter(str(error), param_hint="--tree") from error


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    words = first["msg"].removeprefix("Value error, ")
    return f"{where}: {words}" if where else words
