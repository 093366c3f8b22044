"""Trained gates, which are verifiers that decide by a probability of deferral. Each gate is stored in a JSON file."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from cosd_api.errors import SettingError
from cosd_api.verification.decision_place import Place, PlaceVerifier
from cosd_api.verification.rule import exactly, shortened
from cosd_api.verification.trained_file import TrainedFile, write_whole
from cosd_providers.contract import Token

__all__ = ["Deferral", "TrainedGate", "sigmoid"]


@dataclass(frozen=True, slots=True)
class Deferral:
    """The verifier that decides about one draft token.

    Attributes:
        eta: the threshold of the gate.
        coin: the probability of deferral at the token.
    """

    eta: float
    coin: float

    def replaces(self, p: float, q: float) -> bool:  # noqa: ARG002 - the gate does not use the probabilities
        """Return True if the probability of deferral is above `eta`."""
        return self.coin > self.eta

    def contestable(self, p: float) -> bool:  # noqa: ARG002
        """Return True if the probability of deferral is above `eta`; otherwise the assistant is not asked."""
        return self.coin > self.eta

    def explain(self, p: float, q: float) -> str:  # noqa: ARG002
        """Describe the comparison and its outcome, for example `"deferral 0.71 > 0.38"`."""
        above = self.coin > self.eta
        (coin,) = shortened([self.coin], lambda short: (short[0] > self.eta) == above)
        return f"deferral {coin} {'>' if above else '<='} {exactly(self.eta)}"


class TrainedGate(PlaceVerifier):
    """Base class of trained gates, which replace a draft token if the probability of deferral is above `eta`."""

    _file: ClassVar[TrainedFile]
    """The kind of file in which the gate is stored."""
    _indent: ClassVar[int | None] = None
    _on: ClassVar[str] = ""
    """A phrase that names the gate's features, for `condition`."""

    if TYPE_CHECKING:  # each subclass declares `eta` itself, which lets it choose the order of its fields
        eta: float

    @property
    def condition(self) -> str:
        """The condition for a replacement, in words."""
        return f"a trained gate{self._on}: replaces where the probability of deferral > {self.eta:g}"

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a gate from its JSON file.

        Raises:
            OSError: the file cannot be read.
            SettingError: the file is not a gate of this schema; the message names the file and the problem.
        """
        return cls._file.load(cls, Path(path))

    def save(self, path: str | Path) -> None:
        """Write the gate as a JSON file. The file is written completely or not at all.

        Raises:
            OSError: the file cannot be written; an existing file is unchanged.
        """
        write_whole(Path(path), self.model_dump_json(indent=self._indent) + "\n")

    @property
    @abstractmethod
    def summary(self) -> str:
        """A description of the gate, for reports."""

    @abstractmethod
    def probability(self, token: Token) -> float:
        """Compute the probability of deferral at one of the draft's tokens."""

    def at(self, place: Place) -> Deferral:
        """Return the verifier for a place, with the recorded probability of deferral, or a newly computed one.

        Raises:
            SettingError: the place has neither a recorded probability of deferral nor a token to compute it from.
        """
        if place.coin is not None:
            return Deferral(self.eta, place.coin)
        if place.token is None:
            name = type(self).__name__
            raise SettingError(f"no probability of deferral is recorded there, so {name} cannot decide")
        return Deferral(self.eta, self.probability(place.token))

    def contestable(self, p: float) -> bool:  # noqa: ARG002 - the gate does not use `p`
        """Return True if `eta` is below 1; with 1, no token is ever replaced."""
        return self.eta < 1


def sigmoid(logit: float) -> float:
    """Compute the logistic function of `logit` without overflow."""
    return 1 / (1 + math.exp(-logit)) if logit > 0 else math.exp(logit) / (1 + math.exp(logit))
