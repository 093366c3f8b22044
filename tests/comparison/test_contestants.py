"""The methods that a comparison makes of names, and of records."""

from __future__ import annotations

from typing import Any

import pytest

from cosd_api import Average, CoSD, MatchVerifier, Speculative
from cosd_api.comparison.contestants import VARIANTS, Contestant, contestants_of, method_of
from cosd_api.extend import Method


def test_all_methods_include_forms_that_are_told_to_draw_or_to_match() -> None:
    found, without = contestants_of("all")
    names = [one.name for one in found]
    assert {*VARIANTS} <= {*names} and len({*names}) == len(names)
    assert {"average-drawn", "average-drawn, reversed", "cosd-match", "cosd-match, reversed"} <= {*names}
    assert "speculative" not in names and "average, reversed" not in names
    assert {one.name: one.reason for one in without}["speculative"].endswith("its greedy text is that of cosd-match")


def test_an_object_has_the_name_of_its_settings() -> None:
    given = [Average(), Average(temperature=1), CoSD(verifier=MatchVerifier()), Speculative(temperature=1)]
    found, _ = contestants_of(given, both_ways=False)
    assert [one.name for one in found] == ["average", "average-drawn", "cosd-match", "speculative"]
    assert [one.method for one in found] == given


@pytest.mark.parametrize(
    ("former", "method"), [("mixture", Average(temperature=1)), ("speculative", CoSD(verifier=MatchVerifier()))]
)
def test_former_names_are_compared_as_what_they_are_now(former: str, method: Method) -> None:
    with pytest.warns(DeprecationWarning, match=former):
        found, _ = contestants_of([former], both_ways=False)
    assert [(one.name, one.method) for one in found] == [(former, method)]


@pytest.mark.parametrize(
    "method",
    [
        Average(ahead=3),
        Average(weights=(2, 1), temperature=1),
        Speculative(temperature=1, test="cosd"),
        CoSD(verifier=MatchVerifier(), unit="token"),
    ],
)
def test_a_method_is_read_from_its_record(method: Method) -> None:
    assert method_of(Contestant("one", "method", method).settings) == method


@pytest.mark.parametrize(
    ("name", "options", "method"),
    [
        ("mixture", {"weights": [2.0, 1.0]}, Average(weights=(2, 1), temperature=1)),
        ("speculative", {"greedy": True}, CoSD(verifier=MatchVerifier())),
        (
            "speculative",
            {"greedy": False, "sampled_draft": False, "test": "ratio", "listed": 9},
            Speculative(temperature=1, sampled_draft=False, listed=9),
        ),
    ],
)
def test_records_with_former_names_are_read_without_a_warning(
    name: str, options: dict[str, Any], method: Method
) -> None:
    assert method_of({"method": name, "options": options, "verifier": None}) == method
