"""Options of the verifiers are derived: what they are called, what they take, and what the help says of them."""

from __future__ import annotations

from inspect import Parameter
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from cosd_api.apps.cli.options import SharedOptions, option_names
from cosd_api.apps.cli.verifier_options import verifier_parameters

PAPER = "The paper's rule: --alpha 0.5 --beta 0.5."
HELP = {
    "verifier": "Decide by the rule (alpha, beta), agreement (alpha), diff (tau), match, random (rate, seed), or "
    f"surprise (gamma, beta, window). {PAPER}",
    "alpha": "For rule (0.9 by default) and agreement (0.5 by default): the draft is unsure below this probability.",
    "beta": "For rule (1 by default) and surprise (0.5 by default): an assistant's probability must exceed this times "
    "the draft's.",
    "tau": "For diff: margin, between 0 and 1; 0 by default.",
    "rate": "For random: share of the differing words that are replaced, between 0 and 1.",
    "seed": "Seed for methods that draw; for random: another one tosses other coins.",
    "gamma": "For surprise: the assistant finds a token improbable below this; 0.1 by default.",
    "window": "For surprise: tokens that are asked about together; 16 by default.",
}


def option(parameter: Parameter) -> Any:
    """The description of an option for typer."""
    return parameter.annotation.__metadata__[0]


def test_the_help() -> None:
    found = verifier_parameters()
    assert {one.name: option(one).help for one in found} == HELP
    assert [one.name for one in found] == [*HELP]
    assert {one.name: option(one).metavar for one in found if option(one).metavar} == {"window": "N"}


def test_they_stand_where_they_stood_among_the_others() -> None:
    names = option_names(SharedOptions)
    at = names.index("verifier")
    assert names[at - 1 : at + len(HELP) + 1] == ["method_settings", *HELP, "agreement"]


class Odds(BaseModel):
    """A verifier that is registered."""

    kind: Literal["odds"] = "odds"
    k: float = Field(default=2.0, description="how many times")
    alpha: float = 0.25
    least: int = Field(description="the least")


def test_a_verifier_that_is_registered_has_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {name: field for name, field in Odds.model_fields.items() if name != "kind"}
    monkeypatch.setattr("cosd_api.apps.cli.verifier_options.VERIFIERS", {"odds": fields})
    monkeypatch.setattr("cosd_api.apps.cli.verifier_options.NUMBERS", (*fields, "seed"))
    assert {one.name: option(one).help for one in verifier_parameters()} == {
        "verifier": f"Decide by odds (k, alpha, least). {PAPER}",
        "k": "For odds: how many times; 2 by default.",
        "alpha": "For odds: alpha; 0.25 by default.",
        "least": "For odds: the least.",
        "seed": "Seed for methods that draw.",
    }
