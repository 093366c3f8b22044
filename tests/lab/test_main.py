"""The command of the laboratory keeps a whole run, and never puts less in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.lab import __main__ as lab
from benchmarks.lab.runs import Run, RunsFile, read_runs
from lab_runs import run

pytestmark = pytest.mark.usefixtures("few_draws")


def _drawn(found: object, picture: Path) -> None:
    picture.write_text("<svg/>", encoding="utf-8")


class Folders:
    """Results, documents and steps in a temporary folder, and what was finished there."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.results, self.docs, self.work = (tmp_path / name for name in ("results", "docs", "work"))
        self.docs.mkdir()
        self.runs: list[Run] = []
        self.to_come: list[str] = []
        monkeypatch.setattr(lab, "RESULTS", self.results)
        monkeypatch.setattr(lab, "PAGES", self.docs)
        monkeypatch.setattr(lab, "SHORT", tmp_path / "laboratory.md")
        monkeypatch.setattr(lab, "finished", self._finished)
        monkeypatch.setattr("benchmarks.lab.page.draw", _drawn)
        monkeypatch.setattr("benchmarks.lab.page.draw_pairs", _drawn)

    def main(self, *arguments: str) -> None:
        lab.main(["--quick", *arguments, "--work", str(self.work)])

    def _finished(self, size: Any, *_: object, every_way: bool) -> RunsFile:
        about = {"size": size.name, "items": size.items, "hash": "0" * 64, "date": "2026-01-01", "seconds": 61}
        return RunsFile(self.runs, about | {"machine": "Linux", "likelihoods": [], "to_come": self.to_come})


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    return Folders(tmp_path, monkeypatch)


async def test_a_whole_run_is_kept_and_less_does_not_replace_it(folders: Folders) -> None:
    folders.runs = [await run(), await run("n1")]
    folders.main("--so-far")  # everything is finished
    kept, page = folders.results / "quick.jsonl.xz", folders.docs / "quick.md"
    before = kept.read_bytes(), page.read_bytes()
    assert [one.cell for one in read_runs(kept).runs] == ["a-b", "n1"]
    assert {one.name for one in folders.docs.iterdir()} == {
        "quick.md",
        "quick-tables.md",
        "claims.md",
        "quick.svg",
        "quick-pairs.svg",
    }
    folders.runs, folders.to_come = folders.runs[:1], ["n1: bio"]
    folders.main("--so-far")
    folders.to_come = []
    folders.main("--so-far", "--items", "10")
    assert (kept.read_bytes(), page.read_bytes()) == before
    assert "| cells and studies | `a-b` |" in (folders.work / "quick-100" / "quick.md").read_text(encoding="utf-8")
    assert read_runs(folders.work / "quick-10" / "quick.jsonl.xz").about["items"] == 10
    assert read_runs(kept).about["items"] == 100 and len(read_runs(kept).runs) == 2
    folders.to_come = [f"step {at}" for at in range(12)]
    folders.main("--so-far", "--keep")
    assert [one.cell for one in read_runs(kept).runs] == ["n1", "a-b"]  # what it has nothing for stays
    kept.write_bytes(before[0])
    page.unlink()
    folders.main("--page")
    assert page.read_bytes() == before[1]


def test_where_nothing_is_finished_or_kept_nothing_is_written(
    folders: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    for argument, words in (("--so-far", "nothing is finished in"), ("--page", "no run of the size quick is kept in")):
        with pytest.raises(SystemExit):
            folders.main(argument)
        assert words in capsys.readouterr().err
    assert not [*folders.docs.iterdir()] and not folders.results.exists()
