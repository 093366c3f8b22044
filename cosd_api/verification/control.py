"""Replacement at random: the control that every verifier has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field

from cosd_api.errors import SettingError
from cosd_api.verification.contract import Needs
from cosd_api.verification.place import Place, PlaceVerifier
from cosd_api.verification.rule import exactly, shortened


class RandomVerifier(PlaceVerifier):
    """Replaces a share of the differing tokens at random: a control, which switches between the models blindly.

    A coin decides at each place. It is a hash of the seed, the draft model's prompt, and the byte offset in the answer
    of the first judged draft token, and of nothing else. So the answer is the same each time. It depends neither on
    timing nor on any setting that trades cost for time. An assistant is asked only if the coin falls below `rate`.

    Attributes:
        rate: the share of the differing tokens that are replaced, in [0, 1].
        seed: the seed of the coins; each seed gives other coins.

    Raises:
        pydantic.ValidationError: `rate` is not a number in [0, 1].
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    basis: ClassVar[str] = "decides by the place, not by p and q"

    kind: Literal["random"] = "random"
    rate: float = Field(ge=0, le=1, description="share of the differing words that are replaced, between 0 and 1")
    seed: int = Field(default=0, description="another one tosses other coins")

    @property
    def needs(self) -> Needs:
        """No probability of the assistant, which is asked about the share `rate` of the draft's tokens."""
        return Needs(q=False, contested=self.rate)

    @property
    def condition(self) -> str:
        """The condition in words."""
        return f"a control: replaces {100 * self.rate:g} % of the differences at random (seed {self.seed})"

    def at(self, place: Place) -> Coin:
        """Return the verifier for a place, with the coin that is recorded there or is tossed now.

        Raises:
            SettingError: no coin is recorded at the place, and its prompt or offset is unknown.
        """
        if place.coin is not None:
            return Coin(self.rate, place.coin)
        if place.prompt is None or place.start is None:
            raise SettingError("no coin is recorded there, so RandomVerifier cannot decide")
        digest = blake2b(b"%d %d " % (self.seed, place.start) + place.prompt, digest_size=8).digest()
        return Coin(self.rate, (int.from_bytes(digest) >> 11) / 2**53)

    def contestable(self, p: float) -> bool:  # noqa: ARG002 - the probabilities change nothing
        """True if `rate` is above 0, so that a token may be replaced at some place."""
        return self.rate > 0


@dataclass(frozen=True, slots=True)
class Coin:
    """The verifier for one place, with the coin that was tossed there.

    Attributes:
        rate: the number below which the coin replaces.
        coin: the coin, a number in [0, 1).
    """

    rate: float
    coin: float

    def replaces(self, p: float, q: float) -> bool:  # noqa: ARG002 - the probabilities change nothing
        """True if `coin < rate`."""
        return self.coin < self.rate

    def contestable(self, p: float) -> bool:  # noqa: ARG002
        """True if `coin < rate`, as in `replaces`; otherwise no answer changes the text."""
        return self.coin < self.rate

    def explain(self, p: float, q: float) -> str:  # noqa: ARG002
        """Describe the comparison with its outcome, e.g. `"coin 0.03 < 0.1"`."""
        below = self.coin < self.rate
        (coin,) = shortened([self.coin], lambda short: (short[0] < self.rate) == below)
        return f"coin {coin} {'<' if below else '>='} {exactly(self.rate)}"
