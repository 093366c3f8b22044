"""Command-line options for the verifiers whose settings are numbers. The options are derived from these settings."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter
from itertools import groupby
from typing import Annotated, Any, Literal

import typer
from pydantic.fields import FieldInfo

from cosd_api import RuleVerifier
from cosd_api.common.wording import in_words
from cosd_api.verification import KINDS, numbers_of

__all__ = ["DEFAULT", "NUMBERS", "VERIFIERS", "verifier_parameters"]

DEFAULT = "rule"
"""The kind of the default verifier."""
VERIFIERS: Mapping[str, Mapping[str, FieldInfo]] = {
    kind: found for kind in KINDS if (found := numbers_of(kind)) is not None
}
"""The settings of all verifiers that have only numbers as settings, or no settings. The keys are the verifier's kind
and the setting's name. Each setting is an option of the same name."""
_OF_PAPER = f"The paper's rule: --alpha {RuleVerifier.paper().alpha:g} --beta {RuleVerifier.paper().beta:g}."
SEED = "seed"
"""The name of the setting that verifiers and answers have in common."""
NUMBERS = tuple(dict.fromkeys([*(name for several in VERIFIERS.values() for name in several), SEED]))
"""The names of all settings in `VERIFIERS`, and the seed."""


def verifier_parameters() -> list[Parameter]:
    """Create the option for the kind of the verifier, and one option for each setting."""
    kinds: Any = Literal[tuple(VERIFIERS)]
    found = [_parameter("verifier", kinds, typer.Option(help=f"{_choice()} {_OF_PAPER}"))]
    for name in NUMBERS:
        users = {kind: fields[name] for kind, fields in VERIFIERS.items() if name in fields}
        annotation = next((field.annotation for field in users.values()), int)
        metavar = "N" if annotation is int and name != SEED else None
        found.append(_parameter(name, annotation, typer.Option(help=_help(name, users), metavar=metavar)))
    return found


def _parameter(name: str, annotation: Any, option: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation | None, option])


def _choice() -> str:
    """Write the help for the verifier's kind: all kinds with their settings. Kinds with equal settings are grouped."""
    groups: list[str] = []
    for settings, alike in groupby(VERIFIERS, key=lambda kind: tuple(VERIFIERS[kind])):
        kinds = " or ".join(f"the {kind}" if kind == DEFAULT else kind for kind in alike)
        groups.append(f"{kinds} ({', '.join(settings)})" if settings else kinds)
    *most, last = groups
    return f"Decide by {', '.join(most)}, or {last}." if most else f"Decide by {last}."


def _help(name: str, users: Mapping[str, FieldInfo]) -> str:
    """Write the help for a setting: its description, its default, and the verifiers that have it.

    The verifiers are left out if the default verifier has the setting.
    """
    words = next((field.description for field in users.values() if field.description), name)
    if name == SEED:
        drawn = "Seed for methods that draw"
        return f"{drawn}; for {in_words([*users])}: {words}." if users else f"{drawn}."
    defaults = {kind: "" if field.is_required() else f"{field.default:g} by default" for kind, field in users.items()}
    if len({*defaults.values()}) > 1:
        several = [f"{kind} ({default})" if default else kind for kind, default in defaults.items()]
        return f"For {in_words(several)}: {words}."
    [default] = {*defaults.values()}
    words = f"{words}; {default}." if default else f"{words}."
    return f"{words[0].upper()}{words[1:]}" if DEFAULT in users else f"For {in_words([*users])}: {words}"
