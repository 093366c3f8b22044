"""Export a comparison to files: the table as CSV, all answers as JSON lines, and the page."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cosd_api import Example
from cosd_api.comparison.page import comparison_page
from cosd_api.comparison.questions import questions_by_key
from cosd_api.comparison.result import Comparison
from cosd_api.comparison.standings import Standing

__all__ = ["PAGE", "RESULTS", "TABLE", "answers_jsonl", "standings_csv", "write_exports"]

PAGE, TABLE, RESULTS = "report.html", "table.csv", "results.jsonl"
"""Names of the files that `write_exports` writes."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def standings_csv(found: Comparison) -> str:
    """Format the table of standings as CSV, with a header line.

    Shares are between 0 and 1, times are in seconds, and unknown cells are empty. Columns whose names end in `_draft`
    or `_assistant` (or `_assistant_1` and so on) belong to one endpoint. A name that a spreadsheet would read as a
    formula is preceded by an apostrophe.
    """
    limits = _limits(found)
    rows = [{**_columns(one, found), **limits, "stop": json.dumps(found.stop)} for one in found.standings]
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _limits(found: Comparison) -> dict[str, Any]:
    """The columns with the limits of the answers; every line repeats them, so that the table can be reproduced."""
    return {"max_tokens": found.max_tokens, "stop": [*found.stop], "seed": found.seed, "unit": found.unit}


def _columns(one: Standing, found: Comparison) -> dict[str, Any]:
    places = one.replaced
    by = {
        f"{kind}_{name.replace(' ', '_')}": values.get(name)
        for kind, values in (
            ("requests", one.requests),
            ("read", one.read),
            ("cached", one.cached),
            ("written", one.written),
        )
        for name in found.models
    }
    return {
        "name": one.name,
        "kind": one.kind,
        "reverse": one.reverse,
        **({"first": one.first, "without": one.without} if found.more_assistants else {}),
        "better_model": one.name == found.better,
        "answered": one.answered,
        "failed": one.failed,
        "right": one.right,
        "right_of_asked": one.of_asked,
        "accuracy": one.accuracy.value,
        "accuracy_low": one.accuracy.low,
        "accuracy_high": one.accuracy.high,
        **_apart(one, found),
        "better_than_all_models": one.better_than_all,
        "same_texts_as": one.same_texts_as,
        "acceptance": one.acceptance,
        "seconds": one.seconds,
        "first_token_seconds": one.first_token,
        "answer_tokens": one.tokens,
        **by,
        "billed": one.billed,
        "money": one.money,
        **{f"places_{name}": places and getattr(places, name) for name in ("assistant", "draft", "neither", "unknown")},
        "put_right": places and places.answers.won,
        "spoilt": places and places.answers.lost,
        "on_frontier": one.on_frontier,
    }


def _apart(one: Standing, found: Comparison) -> dict[str, Any]:
    """The columns with the differences from each model; all columns about one model are adjacent."""
    columns: dict[str, Any] = {}
    for name in found.models:
        apart, end = one.differences.get(name), name.replace(" ", "_")
        interval = None if apart is None else apart.interval
        columns |= {
            f"difference_to_{end}": apart and apart.value,
            f"difference_low_{end}": interval and interval.low,
            f"difference_high_{end}": interval and interval.high,
            f"p_{end}": apart and apart.p,
            **{f"{kind}_{end}": apart and getattr(apart.counts, kind) for kind in ("both", "won", "lost", "neither")},
        }
    return columns


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case float():
            return repr(value) if math.isfinite(value) else ""
        case str() if value.startswith(_FORMULA):
            return f"'{value}"
        case _:
            return str(value)


def answers_jsonl(found: Comparison, examples: Iterable[Example] = ()) -> str:
    """Format all answers as JSON lines, each with question, contestant, text, grade, cost, replaced places and limits.

    Args:
        found: the comparison.
        examples: the questions; if they are given, each line also has `prompt` and `reference`.
    """
    several = [*examples]
    asked = questions_by_key(several) if several else {}
    held, limits = set(found.development), _limits(found)
    lines: list[str] = []
    for one in found.answers:
        line: dict[str, Any] = {"question": one.question, "development": one.question in held}
        if (example := asked.get(one.question)) is not None:
            given: Mapping[str, Any] = example.model_dump(mode="json", include={"prompt", "answer"})
            line |= {"prompt": given["prompt"], "reference": given["answer"]}
        line |= one.model_dump(mode="json", exclude={"type", "key", "graded", "question"})
        line["limits"] = limits
        lines.append(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
    return "".join(lines)


def write_exports(found: Comparison, folder: str | Path, examples: Iterable[Example] = ()) -> list[Path]:
    """Write the page, the table and the answers into a folder, replacing earlier files; return the paths.

    Raises:
        OSError: a file cannot be written.
    """
    several = [*examples]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        PAGE: comparison_page(found, examples=several),
        TABLE: standings_csv(found),
        RESULTS: answers_jsonl(found, several),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return [folder / name for name in texts]
