"""Trained gates: verifiers that decide by a probability of deferral, each kept in a JSON file."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import ConfigDict, ValidationError

from cosd_api.errors import SettingError
from cosd_api.verification.place import Place, PlaceVerifier
from cosd_api.verification.rule import exactly, shortened
from cosd_api.verification.trained_file import TrainedFile, write_whole
from cosd_providers.contract import Token

__all__ = ["Deferral", "TrainedGate", "sigmoid"]


@dataclass(frozen=True, slots=True)
class Deferral:
    """The verifier for one draft token.

    Attributes:
        eta: see `TrainedGate`.
        coin: the probability of deferral there.
    """

    eta: float
    coin: float

    def replaces(self, p: float, q: float) -> bool:  # noqa: ARG002 - the gate decides by neither
        """True if the probability of deferral is above `eta`."""
        return self.coin > self.eta

    def contestable(self, p: float) -> bool:  # noqa: ARG002
        """The same: below it the assistant is not asked."""
        return self.coin > self.eta

    def explain(self, p: float, q: float) -> str:  # noqa: ARG002
        """The comparison as it came out, e.g. `"deferral 0.71 > 0.38"`."""
        above = self.coin > self.eta
        (coin,) = shortened([self.coin], lambda short: (short[0] > self.eta) == above)
        return f"deferral {coin} {'>' if above else '<='} {exactly(self.eta)}"


class TrainedGate(PlaceVerifier):
    """A gate: replaces if the probability of deferral is above `eta`."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", defer_build=True)

    _file: ClassVar[TrainedFile]
    """The kind of file that holds it."""
    _indent: ClassVar[int | None] = None
    _on: ClassVar[str] = ""
    """The features that it uses, for its condition."""

    if TYPE_CHECKING:  # each has it in its own place among its fields
        eta: float

    @property
    def condition(self) -> str:
        """The condition in words."""
        return f"a trained gate{self._on}: replaces where the probability of deferral > {self.eta:g}"

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a gate from its JSON file.

        Raises:
            OSError: the file cannot be read.
            SettingError: the file is not a gate of this schema; the message names the file and the fault.
        """
        try:
            return cls.model_validate(cls._file.read(Path(path)))
        except ValidationError as error:
            raise SettingError(f"{path} is not {cls._file.thing}: {cls._fault(error)}") from None

    def save(self, path: str | Path) -> None:
        """Write the gate as JSON: the whole file, or none.

        Raises:
            OSError: the file cannot be written; an old file is unchanged.
        """
        write_whole(Path(path), self.model_dump_json(indent=self._indent) + "\n")

    @staticmethod
    @abstractmethod
    def _fault(error: ValidationError) -> str:
        """The first thing that is wrong with a gate, in words."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """The gate in words, for reports."""

    @abstractmethod
    def probability(self, token: Token) -> float:
        """The probability of deferral at one of the draft's tokens."""

    def at(self, place: Place) -> Deferral:
        """The decision at a place: by the recorded probability of deferral, or by the probability at the draft's token
        there.

        Raises:
            SettingError: the place has neither.
        """
        if place.coin is not None:
            return Deferral(self.eta, place.coin)
        if place.token is None:
            name = type(self).__name__
            raise SettingError(f"no probability of deferral is recorded there, so {name} cannot decide")
        return Deferral(self.eta, self.probability(place.token))

    def contestable(self, p: float) -> bool:  # noqa: ARG002 - p alone says nothing
        """True if there may be a place where it replaces."""
        return self.eta < 1


def sigmoid(logit: float) -> float:
    """The logistic function."""
    return 1 / (1 + math.exp(-logit)) if logit > 0 else math.exp(logit) / (1 + math.exp(logit))
