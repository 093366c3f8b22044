"""Trained gates: verifiers that decide by a probability of deferral, each kept in a JSON file."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import ConfigDict, ValidationError

from cosd_api.errors import SettingError
from cosd_api.verification.place import Place, PlaceVerifier
from cosd_api.verification.trained_file import TrainedFile, write_whole

if TYPE_CHECKING:
    from cosd_api.verification.deferral import Deferral

__all__ = ["TrainedGate"]


class TrainedGate(PlaceVerifier):
    """A gate: replaces where the probability of deferral is above `eta`."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", defer_build=True)

    _file: ClassVar[TrainedFile]
    """The kind of file that it is kept in."""
    _indent: ClassVar[int | None] = None

    if TYPE_CHECKING:  # each has it in its own place among its fields
        eta: float

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a gate from its JSON file.

        Raises:
            OSError: the file cannot be read.
            SettingError: it is not a gate of this schema; the message names the file and says what is wrong.
        """
        try:
            return cls.model_validate(cls._file.read(Path(path)))
        except ValidationError as error:
            raise SettingError(f"{path} is not {cls._file.thing}: {cls._fault(error)}") from None

    def save(self, path: str | Path) -> None:
        """Write the gate as JSON: the whole file, or none.

        Raises:
            OSError: the file cannot be written; an old one is unchanged.
        """
        write_whole(Path(path), self.model_dump_json(indent=self._indent) + "\n")

    @staticmethod
    @abstractmethod
    def _fault(error: ValidationError) -> str:
        """The first thing that is wrong with a gate, in words."""

    @abstractmethod
    def at(self, place: Place) -> Deferral:
        """The decision at a place."""

    def contestable(self, p: float) -> bool:  # noqa: ARG002 - p alone says nothing
        """True if there may be a place where it replaces."""
        return self.eta < 1
