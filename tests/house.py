"""The size of the house: `python tests/house.py` prints it, and fails if it is above the budget in `house.toml`.

Whoever needs more raises the budget there, in the same commit, and says why.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import cosd_api
import cosd_api.extend
import cosd_api.types
import cosd_providers

ROOT = Path(__file__).parent.parent


def sources(*folders: str) -> Iterator[Path]:
    return (path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def lines(*folders: str) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources(*folders))


def measured() -> dict[str, int]:
    """The size of each part, in the order of the budget."""
    pages = [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]
    return {
        "lines of source": lines("cosd_api", "providers"),
        "files of source": sum(1 for _ in sources("cosd_api", "providers")),
        "lines of tests": lines("tests"),
        "lines of benchmarks": lines("benchmarks"),
        "words of pages": sum(len(path.read_text(encoding="utf-8").split()) for path in pages),
        "names of cosd_api": len(cosd_api.__all__),
        "names of cosd_api.types": len(cosd_api.types.__all__),
        "names of cosd_api.extend": len(cosd_api.extend.__all__),
        "names of cosd_providers": len(cosd_providers.__all__),
    }


def main() -> None:
    """Print the sizes beside the budget."""
    budget: dict[str, int] = tomllib.loads((ROOT / "tests" / "house.toml").read_text(encoding="utf-8"))
    found = measured()
    assert list(found) == list(budget), "house.toml has other parts"
    rows = [f"{part:<25} {size:>7,} of {budget[part]:>7,}\n" for part, size in found.items()]
    sys.stdout.writelines(rows)
    over = [part for part, size in found.items() if size > budget[part]]
    if over:
        words = f"above the budget in tests/house.toml: {', '.join(over)}"
        sys.exit(f"{words}. Remove something, or raise it with a reason")


if __name__ == "__main__":
    main()
