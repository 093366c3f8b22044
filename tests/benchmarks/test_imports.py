"""The section on imports: its rows, and what counts as a dependency."""

from __future__ import annotations

import pytest

from benchmarks import imports
from benchmarks.report import Options


@pytest.mark.extended
def test_dependencies_are_the_modules_of_other_packages() -> None:
    found = imports.dependencies("import cosd_api")
    assert {"anyio", "httpx", "pydantic", "tenacity"} <= set(found)
    assert not any(name.partition(".")[0] in ("cosd_api", "cosd_providers", "json") for name in found)


async def test_each_way_to_begin_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([0.2, 0.3] * 5 * len(imports.CASES))
    monkeypatch.setattr(imports, "seconds", lambda _: next(took))
    (table,) = await imports.run(Options(quick=True))
    assert [row[:4] for row in table.rows] == [[name, 300, 200, "1.50"] for name in imports.CASES]
