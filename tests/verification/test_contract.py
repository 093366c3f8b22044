"""The needs that a verifier states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from cosd_api import (
    AgreementVerifier,
    DiffVerifier,
    MatchVerifier,
    RandomVerifier,
    RuleVerifier,
    SurpriseVerifier,
    TreeVerifier,
    fuse,
)
from cosd_api.extend import Needs, Place, Verifier
from cosd_api.verification import coin_of, decides_by_place, needs_of, tie_of, verifier_at
from cosd_providers import UnsupportedError
from toys import lima


class Own:
    """A verifier of one's own, with the three methods alone."""

    def replaces(self, p: float, q: float) -> bool:
        return p < q

    def contestable(self, p: float) -> bool:
        return p < 1

    def explain(self, p: float, q: float) -> str:
        return ""


class Stating(Own):
    needs: ClassVar[Needs] = Needs(q=False, alternatives=2, window=3)


TREE = TreeVerifier.model_validate({"nodes": [{"value": 1}]})


@pytest.mark.parametrize(
    ("verifier", "needs"),
    [
        (Own(), Needs()),
        (RuleVerifier(), Needs()),
        (DiffVerifier(), Needs()),
        (TREE, Needs()),
        (AgreementVerifier(), Needs(q=False)),
        (MatchVerifier(), Needs(q=False, ties=False)),
        (RandomVerifier(rate=0.25), Needs(q=False, contested=0.25)),
        (SurpriseVerifier(gamma=0.25, window=3), Needs(alternatives=4, window=3)),
        (Stating(), Needs(q=False, alternatives=2, window=3)),
    ],
)
def test_the_needs_of_a_verifier(verifier: Verifier, needs: Needs) -> None:
    assert needs_of(verifier) == needs
    assert isinstance(verifier, Verifier)


class Unsure(Own):
    needs: ClassVar[Needs] = Needs(q=False)

    def replaces(self, p: float, q: float) -> bool:
        return p < 0.5


async def test_a_fusion_heeds_the_needs() -> None:
    draft, asked, silent = lima.draft(), lima.assistant(), lima.assistant(probs=False)
    await fuse("Q:", draft=draft, assistant=asked, verifier=Stating(), unit="literal")
    assert {call.alternatives for call in asked.calls} == {2}
    assert (await fuse("Q:", draft=draft, assistant=silent, verifier=Unsure())).text == lima.FUSED
    with pytest.raises(UnsupportedError, match="which the verifier compares"):
        await fuse("Q:", draft=draft, assistant=silent, verifier=Own())


@dataclass(frozen=True)
class Tossed(Own):
    coin: float


class Tossing(Own):
    def at(self, place: Place) -> Tossed:
        return Tossed((place.start or 0) / 10)


def test_the_verifier_for_a_place_and_its_coin() -> None:
    here = verifier_at(Tossing(), Place(b"", 4))
    assert (decides_by_place(Tossing()), coin_of(here)) == (True, 0.4)
    rule = RuleVerifier()
    assert (decides_by_place(rule), verifier_at(rule, Place()), coin_of(rule)) == (False, rule, None)


def test_a_verifier_that_replaces_whatever_differs_has_no_tie() -> None:
    several = (RuleVerifier(), MatchVerifier(), AgreementVerifier(alpha=2), AgreementVerifier(), Tossing())
    assert [tie_of(one, 0.5) for one in several] == [0.5, 0, 0, 0.5, 0.5]
