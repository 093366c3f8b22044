"""The results of the benchmark's sections: tables, and how they are displayed and stored.

A section is a module of this package with `async def run(options: Options) -> list[Table]`. The notes of its tables
explain what is measured; `figures` contains the raw values of all repetitions, for readers of the JSON file.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"

Cell = str | int | float | None
"""The value of a cell. None is shown as an empty cell, a float with three significant digits, and a string
unchanged."""

_PACKAGES = ("anyio", "cosd-api", "httpx", "pydantic", "xllamacpp")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a section.

    Attributes:
        quick: whether to run fewer repetitions and cases, so that all sections together take two minutes.
        command: the command line, for the notes of tables.
        only: the parts of `real` that are measured; empty for all of them.
        prompts, tokens, rounds: the sizes of `real`: prompts, tokens of an answer, and repetitions.
        libraries: other checkouts that `real` compares, by name.
    """

    quick: bool = False
    command: str = "make bench"
    only: Sequence[str] = ()
    prompts: int = 6
    tokens: int = 64
    rounds: int = 3
    libraries: Mapping[str, Path] = field(default_factory=dict[str, Path])

    def say(self, words: str) -> None:
        """Print progress to standard error."""
        print(words, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a report.

    Attributes:
        title: the title, in one line.
        columns: names of the columns, with units; the first column names the row.
        rows: the rows, with one cell for each column.
        notes: notes for the reader, about what was simulated and what was measured.
        figures: raw values, which appear only in the JSON file.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    figures: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: {len(self.columns)} columns, but a row of {len(row)}: {row}")

    def markdown(self) -> str:
        """The table as Markdown, padded for a terminal: words are aligned left, numbers right."""
        cells = [[_shown(cell) for cell in row] for row in self.rows]
        right = [
            all(not isinstance(row[at], str) or _numeric(row[at]) for row in self.rows)
            for at in range(len(self.columns))
        ]
        widths = [max(4, *(len(row[at]) for row in [list(self.columns), *cells])) for at in range(len(self.columns))]
        lines = [_line(self.columns, widths, right)]
        marks = ["-" * (width - 1) + (":" if to_right else "-") for width, to_right in zip(widths, right, strict=True)]
        lines.append("| " + " | ".join(marks) + " |")
        lines.extend(_line(row, widths, right) for row in cells)
        return "\n".join([f"### {self.title}", "", *lines, *(f"\n{note}" for note in self.notes)])


def noted(table: Table) -> str:
    """The rows and the notes as Markdown, without the title."""
    return Table("", table.columns, table.rows, table.notes).markdown().removeprefix("### \n\n")


def bare(table: Table) -> str:
    """The rows alone as Markdown, without the title or the notes."""
    return noted(Table("", table.columns, table.rows))


def between(text: str, name: str, shown: str, command: str) -> str:
    """Replace the part of a page between the two marks called `name`; the opening mark also states `command`."""
    begin, end = f"<!-- {name}: `{command}` writes this table -->\n", f"<!-- end of {name} -->\n"
    before, rest = text.split(begin)
    return f"{before}{begin}{shown}\n{end}{rest.split(end)[1]}"


def machine() -> dict[str, Any]:
    """A description of the machine, without dates, names or paths."""
    packages: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = None
    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": packages,
    }


def save(section: str, tables: Sequence[Table], folder: Path = RESULTS, file: Path | None = None) -> Path:
    """Write a section's tables and figures to `file`, by default one in `folder`; return the file."""
    path = file or folder / f"{section}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    listed = [
        {
            "title": table.title,
            "columns": list(table.columns),
            "rows": [list(row) for row in table.rows],
            "notes": list(table.notes),
            "figures": table.figures,
        }
        for table in tables
    ]
    written = {"section": section, "machine": machine(), "tables": listed}
    text = json.dumps(written, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text.replace('{"title"', '\n{"title"') + "\n", encoding="utf-8")  # each table on a line of its own
    return path


def _shown(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def _numeric(cell: Cell) -> bool:
    return isinstance(cell, str) and (not cell or cell[0].isdigit() or (cell[0] in "+-<≤" and cell[1:2].isdigit()))


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    )
    return "| " + " | ".join(padded) + " |"
