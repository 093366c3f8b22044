"""Random replacement, the control that every verifier has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar, Literal

from pydantic import Field

from cosd_api.errors import SettingError
from cosd_api.verification.decision_place import Place, PlaceVerifier
from cosd_api.verification.rule import exactly, shortened
from cosd_api.verification.verifier import Needs


class RandomVerifier(PlaceVerifier):
    """Replaces a share of the differing tokens at random: a control that switches between the models blindly.

    A random number, the coin, decides at each place. The coin is a hash of the seed, the draft model's prompt, and the
    byte offset of the first judged draft token in the answer. So a repeated request has the same answer, which depends
    neither on timing nor on any setting that trades cost for time. An assistant is asked only if the coin is below
    `rate`.

    Attributes:
        rate: the share of the differing tokens that are replaced, in [0, 1].
        seed: the seed of the coins; different seeds lead to different coins.

    Raises:
        pydantic.ValidationError: `rate` is not a number in [0, 1].
    """

    basis: ClassVar[str] = "decides by the place, not by p and q"

    kind: Literal["random"] = "random"
    rate: float = Field(ge=0, le=1, description="share of the differing words that are replaced, between 0 and 1")
    seed: int = Field(default=0, description="another one tosses other coins")

    @property
    def needs(self) -> Needs:
        """The assistant is asked about the share `rate` of the draft's tokens; its probabilities are not needed."""
        return Needs(q=False, contested=self.rate)

    @property
    def condition(self) -> str:
        """The condition for a replacement, in words."""
        return f"a control: replaces {100 * self.rate:g} % of the differences at random (seed {self.seed})"

    def at(self, place: Place) -> Coin:
        """Return the verifier for a place, with the coin that the place records, or else with a new coin.

        Raises:
            SettingError: the place records no coin, and its prompt or offset is unknown.
        """
        if place.coin is not None:
            return Coin(self.rate, place.coin)
        if place.prompt is None or place.start is None:
            raise SettingError("no coin is recorded there, so RandomVerifier cannot decide")
        digest = blake2b(b"%d %d " % (self.seed, place.start) + place.prompt, digest_size=8).digest()
        return Coin(self.rate, (int.from_bytes(digest) >> 11) / 2**53)

    def contestable(self, p: float) -> bool:  # noqa: ARG002 - the probabilities change nothing
        """Return True if `rate` is above 0; with 0, no token is ever replaced."""
        return self.rate > 0


@dataclass(frozen=True, slots=True)
class Coin:
    """The verifier for one place, with the coin that decides at this place.

    Attributes:
        rate: the token is replaced if the coin is below this number.
        coin: a number in [0, 1).
    """

    rate: float
    coin: float

    def replaces(self, p: float, q: float) -> bool:  # noqa: ARG002 - the probabilities change nothing
        """Return True if `coin < rate`."""
        return self.coin < self.rate

    def contestable(self, p: float) -> bool:  # noqa: ARG002
        """Return True if `coin < rate`, as `replaces` does; otherwise the assistant cannot change the text."""
        return self.coin < self.rate

    def explain(self, p: float, q: float) -> str:  # noqa: ARG002
        """Describe the comparison and its outcome, for example `"coin 0.03 < 0.1"`."""
        below = self.coin < self.rate
        (coin,) = shortened([self.coin], lambda short: (short[0] < self.rate) == below)
        return f"coin {coin} {'<' if below else '>='} {exactly(self.rate)}"
