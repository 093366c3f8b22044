"""The sources of the site: every page in its navigation, links that work outside the repository, the reference.

`make docs`, which CI runs, builds the site of them with mkdocs, which checks links and anchors again.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import cosd_api
import cosd_api.extend
import cosd_api.types
import cosd_providers
from support import printed

ROOT = Path(__file__).resolve().parents[1]
MADE: dict[str, Any] = runpy.run_path(str(ROOT / "docs/generate_site.py"))
REPOSITORY = "https://example.org/team/cosd-api"
NAMES = frozenset({"Fusion", "DeferralVerifier"})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, written for a repository with a URL."""
    folder: Path = tmp_path_factory.mktemp("site") / "docs"
    MADE["write"](folder, REPOSITORY)
    return folder


def test_every_page_is_in_one_group_of_the_navigation(site: Path) -> None:
    start, *groups = MADE["navigation"]((ROOT / "docs/README.md").read_text(encoding="utf-8"))
    assert [title for group in groups for title in group] == ["Tutorial", "How to", "Explanation", "Reference"]
    listed = [page for group in groups for pages in group.values() for one in pages for page in one.values()]
    assert sorted([*start.values(), *listed]) == sorted(path.name for path in site.glob("*.md"))


def test_links_lead_somewhere(site: Path) -> None:
    assert {path.name: printed.dead_links(path) for path in site.glob("*.md")} == {
        path.name: [] for path in site.glob("*.md")
    }


def test_no_link_leaves_the_site_but_by_a_url(site: Path) -> None:
    """Links to files of the repository have its URL, and the files exist."""
    into: set[str] = set()
    for path in site.glob("*.md"):
        targets = printed.links(path.read_text(encoding="utf-8"))
        assert [one for one in targets if one.startswith("..")] == [], path.name
        into |= {one.partition("#")[0] for one in targets if one.startswith(REPOSITORY)}
    found = {one.removeprefix(f"{REPOSITORY}/") for one in into}
    assert {one.partition("/")[0] for one in found} == {"blob", "tree"}
    assert all((ROOT / one.split("/main/")[1]).exists() for one in found)


def test_the_reference_has_every_public_name(site: Path) -> None:
    headings = set(re.findall(r"^### `(\w+)`$", (site / "reference.md").read_text(encoding="utf-8"), re.MULTILINE))
    faces = (cosd_api, cosd_api.types, cosd_api.extend, cosd_providers)
    assert {name for face in faces for name in face.__all__ if not name.startswith("_")} - headings == set()


@pytest.mark.parametrize(
    ("target", "repository", "shown"),
    [
        ("[tables](../benchmarks/results)", REPOSITORY, f"[tables]({REPOSITORY}/tree/main/benchmarks/results)"),
        ("[a](../README.md#servers)", REPOSITORY, f"[a]({REPOSITORY}/blob/main/README.md#servers)"),
        ("[a](../README.md#servers)", "", "a (`README.md`)"),
        ("[reference](../cosd_api/__init__.py)", REPOSITORY, "[reference](reference.md)"),
        ("[`Fusion`](../cosd_api/fusion.py)", "", "[`Fusion`](reference.md#fusion)"),
        ("[`Other`](../cosd_api/fusion.py)", "", "`Other` (`cosd_api/fusion.py`)"),
        ("[costs](costs.md#sums), [paper](https://arxiv.org/abs/2502.08020), ![x](demo.svg)", "", None),
        ("```python\n[one](../README.md)\n```", "", None),
    ],
)
def test_links(target: str, repository: str, shown: str | None) -> None:
    assert MADE["linked"](f"{target}\n", NAMES, repository) == f"{shown or target}\n"


@pytest.mark.parametrize("target", ["../nothing.md", "../../README.md"])
def test_a_link_to_no_file_of_the_repository_is_an_error(target: str) -> None:
    with pytest.raises(ValueError, match=re.escape(target)):
        MADE["linked"](f"[a]({target})", NAMES, "")
