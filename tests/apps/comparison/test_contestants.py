"""The methods that a comparison makes of names and objects."""

from __future__ import annotations

from cosd_api import Average, CoSD, MatchVerifier, RuleVerifier, Speculative
from cosd_api.apps.comparison.contestants import VARIANTS, contestants_of


def test_all_methods_include_forms_that_are_told_to_draw_or_to_match() -> None:
    found, without = contestants_of("all")
    names = [one.name for one in found]
    assert {*VARIANTS} <= {*names} and len({*names}) == len(names)
    assert {"average-drawn", "average-drawn, reversed", "cosd-match", "cosd-match, reversed"} <= {*names}
    assert "speculative" not in names and "average, reversed" not in names
    assert {one.name: one.reason for one in without}["speculative"].endswith("its greedy text is that of cosd-match")


def test_an_object_has_the_name_of_its_settings() -> None:
    rules = [CoSD(), *(CoSD(verifier=one) for one in (RuleVerifier.paper(), RuleVerifier(alpha=0.4)))]
    given = [Average(), Average(temperature=1), CoSD(verifier=MatchVerifier()), Speculative(temperature=1), *rules]
    found, _ = contestants_of(given, both_ways=False)
    names = ["average", "average-drawn", "cosd-match", "speculative", "cosd", "cosd-paper", "cosd-rule"]
    assert [one.name for one in found] == names
    assert [one.method for one in found] == given
