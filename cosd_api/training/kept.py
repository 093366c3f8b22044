"""The file that `collect` keeps samples in: a header that says of which models, then a line for each example."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError

from cosd_api.alignment import Unit
from cosd_api.errors import SettingError
from cosd_api.records import Endpoint
from cosd_api.training.data import SAMPLES, Line, Lines, kind_of, lines_of, problem, what_it_is, wrong
from cosd_api.training.examples import Example, ExampleSamples, Sample, Strict
from cosd_api.version import __version__

__all__ = ["Header", "Kept", "holds_samples", "line_of"]

_START = f'{{"kind":"{SAMPLES}"'.encode()
_HINT = ". Take the line out: its example is asked about again"
_OTHER = "give collect another file, or move this one away"


class Header(Strict):
    """The first line: whose samples follow.

    Attributes:
        kind: of the file.
        schema_version: of this form.
        draft: the draft endpoint.
        assistant: the assistant endpoint.
        unit: what was judged together.
        library_version: of cosd-api.
    """

    kind: Literal["cosd-samples"] = SAMPLES
    schema_version: Literal[1] = 1
    draft: Endpoint
    assistant: Endpoint
    unit: Unit
    library_version: str = __version__

    def check_pair(self, other: Header, path: Path) -> None:
        """Sees whether what `other` heads can stand in the file at `path`, which this one heads.

        By the names of the models: where they are served from may change.

        Raises:
            SettingError: it is of other models.
        """
        for mine, theirs in ((self.draft, other.draft), (self.assistant, other.assistant)):
            if mine.model != theirs.model:
                words = f"{path} holds samples with {mine.model} as the {mine.name}, not {theirs.model}"
                raise SettingError(f"{words}: {_OTHER}")
        if self.unit != other.unit:
            words = f"{path} holds samples of unit={self.unit!r}, and these endpoints are judged by {other.unit!r}"
            raise SettingError(f"{words} (is a tokenizer given that was not, or the other way round?): {_OTHER}")


class _Row(Strict):
    """The line of one example."""

    key: str
    prompt: Any
    answer: Any
    target: Any = None
    ends: Any = True
    samples: tuple[Sample, ...]
    skipped: int = Field(ge=0)


@dataclass(frozen=True, slots=True)
class Kept:
    """What such a file holds.

    Attributes:
        header: its first line.
        examples: with their samples.
        lines: as they were read; for `data.Appender`.
    """

    header: Header
    examples: tuple[ExampleSamples, ...]
    lines: Lines

    @property
    def cut(self) -> bool:
        """Whether its last line was cut."""
        return bool(self.lines.rest)

    @classmethod
    def read(cls, path: Path) -> Self | Lines:
        """Reads such a file; where it has not even a header, its lines.

        Raises:
            OSError: it cannot be read.
            SettingError: it is another file, or a newer one, or a line is broken.
        """
        kind = kind_of(path)
        if what_it_is(kind, wanted=SAMPLES) is not None:
            raise _another(path)
        try:
            lines = lines_of(path, may_be_cut=True, hint=_HINT)
        except SettingError:
            if kind != SAMPLES:  # none of its lines is an example's
                raise _another(path) from None
            raise
        if not lines.lines:
            if not lines.rest.startswith(_START[: len(lines.rest)]):
                raise _another(path)
            return lines
        first, *rest = lines.lines
        header = _header(path, first)
        found: dict[str, ExampleSamples] = {}
        for line in rest:
            key, one = _row(path, line)
            found.setdefault(key, one)
        return cls(header, tuple(found.values()), lines)


def line_of(one: ExampleSamples) -> str:
    """The line of one example, without its line feed."""
    fields = {"key": one.example.key, **one.example.model_dump(mode="json")}
    rest = one.model_dump(mode="json", include={"samples", "skipped"})
    return json.dumps({**fields, **rest}, ensure_ascii=False, separators=(",", ":"))


def holds_samples(path: str | Path) -> bool:
    """Whether a file is one of samples, by how it begins; what is in it is not looked at.

    Raises:
        OSError: it cannot be read.
    """
    return kind_of(path) == SAMPLES


def _another(path: Path) -> SettingError:
    what = what_it_is(kind_of(path), wanted=SAMPLES)
    told = "" if what is None else f" (it is {what})"
    return SettingError(f"{path} is no file of samples, and is left as it is{told}: {_OTHER}")


def _header(path: Path, line: Line) -> Header:
    if line.fields.get("kind") != SAMPLES:
        raise _another(path)
    version = line.fields.get("schema_version")
    if isinstance(version, int) and version > Header.model_fields["schema_version"].default:
        raise SettingError(f"{path} is of a newer cosd-api (schema_version {version}): update this one")
    try:
        return Header.model_validate(line.fields)
    except ValidationError as error:
        raise wrong(path, line.number, f"its header is broken: {problem(error, [*Header.model_fields])}") from None


def _row(path: Path, line: Line) -> tuple[str, ExampleSamples]:
    try:
        row = _Row.model_validate(line.fields)
        given = {name: getattr(row, name) for name in Example.model_fields}
        example = Example.model_validate(given)
        one = ExampleSamples(example=example, samples=row.samples, skipped=row.skipped)
    except ValidationError as error:
        words = problem(error, [*_Row.model_fields])
    else:
        if example.key == row.key:
            return row.key, one
        words = "its key is not that of its prompt and answer"
    raise wrong(path, line.number, words + _HINT)
