"""Facts of a server as a file, so that they need not be found out again."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

__all__ = ["Snapshot"]

_SCHEMA = 2


class Snapshot(BaseModel):
    """The facts that an adapter needs to use a server. It holds no key, no header and no prompt.

    Attributes:
        schema_version: version of this format.
        endpoint: the server's URL.
        engine: the `engine` of `connect`; None for a provider of the user's own.
        options: other options of `connect`.
        model: the model's id.
        facts: from the adapter's `snapshot()`; None where it could not use the server.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    schema_version: Literal[2] = 2
    endpoint: str
    engine: str | None
    options: dict[str, str] = {}
    model: str
    facts: dict[str, Any] | None = None

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Reads a file written by `ProbeReport.save`.

        Raises:
            OSError: the file cannot be read.
            ValueError: it does not hold a probe report, or one of another version.
        """
        try:
            data = from_json(Path(path).read_bytes())
        except ValueError as error:
            raise ValueError(f"{path} is not a probe report: it is not JSON") from error
        if isinstance(data, dict) and ("reports" in data or "cards" in data):
            words = "it is the output of cosd probe --json; give the file of --save FILE or report.save(FILE)"
            raise ValueError(f"{path} is not a probe report: {words}")
        version = data.get("schema_version") if isinstance(data, dict) else None  # pyright: ignore[reportUnknownVariableType]
        if version not in (None, _SCHEMA):
            hint = "probe the server again, e.g. cosd probe URL --save FILE"
            raise ValueError(f"{path} has a probe report of version {version}, not {_SCHEMA}: {hint}")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"{path} is not a probe report: {where}: {first['msg']}") from None
