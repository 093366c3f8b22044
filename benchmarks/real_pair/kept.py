"""The kept results of a cell, compressed: the comparisons for all questions together and by family, and the journal.

A later run with more questions continues from the journal, on any machine.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from cosd_api.apps.comparison.standings import Comparison

RESULTS = Path(__file__).parent / "results"
ALL = "all"
"""The name of the comparison on the questions of all families together."""


def kept(name: str, seed: int, folder: Path = RESULTS) -> Path:
    """The file that contains a cell's result."""
    return folder / f"{name}-{seed}.json.xz"


def keep(found: Mapping[str, Comparison], path: Path) -> None:
    """Write the comparisons. The answers are written only once, with the comparison for all questions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    several = {name: one if name == ALL else one.model_copy(update={"answers": ()}) for name, one in found.items()}
    text = json.dumps({name: one.model_dump(mode="json") for name, one in several.items()})
    path.write_bytes(lzma.compress(text.encode(), preset=9))


@cache
def read(path: Path) -> dict[str, Comparison]:
    """Read the kept comparisons."""
    several = json.loads(lzma.decompress(path.read_bytes()))
    return {name: Comparison.model_validate(one) for name, one in several.items()}


def keep_journal(journal: Path, kept_result: Path) -> None:
    """Copy the journal, compressed, next to the result."""
    _beside(kept_result).write_bytes(lzma.compress(journal.read_bytes(), preset=9))


def restore_journal(journal: Path, kept_result: Path) -> None:
    """Restore the kept journal, unless a journal already exists."""
    if not journal.exists() and _beside(kept_result).exists():
        journal.parent.mkdir(parents=True, exist_ok=True)
        journal.write_bytes(lzma.decompress(_beside(kept_result).read_bytes()))


def _beside(kept_result: Path) -> Path:
    return kept_result.with_name(kept_result.name.replace(".json.xz", ".jsonl.xz"))
