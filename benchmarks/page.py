"""`docs/benchmark.md` and the README's table, from what the sections have kept: no figure is copied by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.report import HERE, RESULTS, Table

PAGE = HERE.parent / "docs" / "benchmark.md"

HEADLINE = "Acceptance 0.9, round trip 20 ms, 512 tokens of context"

_SECTIONS = {
    "simulated": "A simulated pair",
    "cpu": "The client's processor time",
    "live": "Two small models on llama.cpp",
    "vllm": "The same on vLLM",
    "strategies": "Ways to ask an assistant",
    "trees": "Trees and a tuned rule",
}

_BEGINNING = """# What a fusion costs

`make bench` measures all of this; `make bench ARGS="simulated --plot"` one section, and draws the picture;
`make bench ARGS=--page` writes this page from what was kept in `benchmarks/results`, where every repetition is.
Compare within a table: its rows were measured in one run.

- **(a)** is this library, with its defaults or with the setting that is named.
- **(b)** is Algorithm 1 as printed: rounds of *K* draft tokens, all of them verified in one request.
- **(c)** asks about one position at a time.
- **(d)** is the draft alone, writing the same text.
- **The floor** is what any method needs that drafts first and replaces singly: (d), and for each replacement one
  verification and one restart of the draft. Hedged drafts go below it, since they begin before the verdict.

The texts of (a), (b) and (c) are equal, or the benchmark ends with an error.
"""


def tables(section: str, folder: Path = RESULTS) -> list[Table]:
    """What a section has kept; nothing where it was never run to its end."""
    path = folder / f"{section}.json"
    if not path.exists():
        return []
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return [Table(**one) for one in kept["tables"]]


def page(folder: Path = RESULTS) -> str:
    """The whole page."""
    parts = [_BEGINNING]
    for section, title in _SECTIONS.items():
        found = tables(section, folder)
        if found:
            parts.append(f"## {title}\n")
            parts += [f"{table.markdown()}\n" for table in found]
    return "\n".join(parts)


def summary(folder: Path = RESULTS) -> str:
    """The README's table: time and price of the headline case."""
    time, price = (_rows(f"Simulated, {what}. {HEADLINE}", folder) for what in ("time", "price"))
    paid = {row[0]: row for row in price}
    rows: list[list[Any]] = []
    for name, seconds, times_alone in (row[:3] for row in time):
        _, _, asked, _, draft_read, assistant_read, drafted = paid.get(name, [None] * 7)[:7]
        rows.append([name, seconds.split(" ", 1)[0], times_alone, asked, assistant_read, draft_read, drafted])
    columns = ["method", "seconds", "x draft alone", "requests to the assistant", "tokens it reads", "the draft reads"]
    return Table("", [*columns, "and writes"], rows).markdown().removeprefix("### \n\n")


def learned(folder: Path = RESULTS) -> str:
    """The README's table of trees: right answers of the first pair, by kind of question."""
    whole, *_ = tables("trees", folder)
    pair = whole.rows[0][0]
    kept = [at for at, column in enumerate(whole.columns) if column not in ("pair", "draft's tokens kept")]
    rows = [[row[at] for at in kept] for row in whole.rows if row[0] == pair]
    return Table("", [whole.columns[at] for at in kept], rows).markdown().removeprefix("### \n\n")


def _rows(title: str, folder: Path) -> list[list[Any]]:
    [table] = [table for table in tables("simulated", folder) if table.title == title]
    return [[*row] for row in table.rows]
