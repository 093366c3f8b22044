"""Draws in a server's own way: taken by methods that count whole answers, refused by those that need a distribution."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from cosd_api import SettingError, Speculative
from cosd_api.apps.comparison.contestants import SelfConsistency
from cosd_api.extend import Method
from cosd_api.methods.base import EXAMPLES, METHODS
from cosd_providers import Capabilities, UnsupportedError
from cosd_providers.contract import ServerInfo
from toys.samples import sample_method

EXACT = Capabilities(True, True, True, True, top_k=99, score_top_k=99, sampling=True)
OWN_WAY = replace(EXACT, sampling=False, draws=True)
GREEDY = replace(EXACT, sampling=False)


def models(draft: Capabilities, assistant: Capabilities) -> Any:
    able = {"draft": draft, "assistant": assistant}
    return [(name, ServerInfo(f"http://{name}", "", "", None, None, can)) for name, can in able.items()]


def drawing() -> dict[str, Method]:
    """Every method that draws, or can."""
    found: dict[str, Method] = {"sampled_draft=False": Speculative(temperature=1, sampled_draft=False)}
    for name in (*METHODS, *EXAMPLES):
        with suppress(SettingError):
            found[name] = sample_method(name).at_temperature(1)
    return found


DRAWING = drawing()


def test_the_methods_that_draw() -> None:
    assert {*DRAWING} == {"average", "cosd", "sampled_draft=False", "speculative", "switch"}


@pytest.mark.parametrize("name", sorted({*DRAWING} - {"switch"}))
def test_methods_that_need_a_distribution_refuse_them(name: str) -> None:
    method = DRAWING[name]
    method.examine(models(EXACT, EXACT), "token")
    for able in (models(OWN_WAY, OWN_WAY), models(EXACT, OWN_WAY)):
        words = "does not draw tokens from the model's own distribution, which .* needs"
        with pytest.raises(UnsupportedError, match=words) as found:
            method.examine(able, "token")
        assert "cosd probe shows" in found.value.hint


@pytest.mark.parametrize(
    ("method", "name"), [(DRAWING["switch"], "draft"), (SelfConsistency(samples=2), "better model")]
)
def test_methods_that_count_answers_take_them_with_a_warning(method: Method, name: str) -> None:
    words = f"{name} draws in its server's own way: perhaps not from the model's own distribution"
    [warning] = method.examine(models(OWN_WAY, EXACT), None)
    assert warning == f"{words}, and perhaps other tokens for the same seed"
    assert method.examine(models(EXACT, EXACT), None) == ()
    with pytest.raises(UnsupportedError, match=f"the {name} does not draw tokens, which .* needs"):
        method.examine(models(GREEDY, EXACT), None)
