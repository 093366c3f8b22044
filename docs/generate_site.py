"""Write the sources of the site into `build/docs`: `python docs/generate_site.py`. mkdocs then builds `build/site`.

The sources are the pages of `docs/`, with links that work outside the repository, and the reference, which is generated
from the docstrings and is not stored in the repository. The navigation is taken from the tables in `docs/README.md`.
The pages do not depend on mkdocs, so they can also be built with another site generator.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
BUILD = ROOT / "build"
PICTURES = ("*.png", "*.svg")
REFERENCE = "reference.md"
SOURCES = ("cosd_api/", "providers/cosd_providers/")
PUBLIC = "cosd_api/__init__.py"
"""The file to which pages link for the list of public names; on the site, these links lead to the reference."""

_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_GROUP = re.compile(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"^### `(\w+)`$", re.MULTILINE)


class DeadLinkError(ValueError):
    """A page links to a file of the repository that does not exist."""


def navigation(text: str) -> list[dict[str, Any]]:
    """Return the navigation: the start page, and each of its groups with the pages to which the group's table links."""
    groups: list[dict[str, Any]] = [{"Documentation": "README.md"}]
    for title, body in _GROUP.findall(text):
        rows = "\n".join(line for line in body.splitlines() if line.startswith("| ["))
        pages = [(words, _page(target)) for words, target in _LINK.findall(rows)]
        groups.append({title: [{words: page} for words, page in pages if page]})
    return groups


def _page(target: str) -> str | None:
    """Return the page of the site to which a link on the start page leads; None if it does not lead to such a page."""
    return REFERENCE if target == f"../{PUBLIC}" else target if re.fullmatch(r"[\w-]+\.md", target) else None


def linked(text: str, names: frozenset[str], repository: str) -> str:
    """Return a page of `docs/` with links that work on the site. Code blocks are not changed.

    A link to a source file leads to the reference if the link's text is a public name. Every other link to a file
    outside `docs/` leads to the repository. If the repository's URL is unknown, the link is replaced with its text and
    the file's path.

    Args:
        text: the text of the page.
        names: the public names that have a heading in the reference.
        repository: the URL of the repository, or an empty string.

    Raises:
        DeadLinkError: the page links to a file that does not exist.
    """

    def replaced(found: re.Match[str]) -> str:
        words, target = found.groups()
        path, mark, fragment = target.partition("#")
        if not path.startswith("../"):
            return found[0]
        file = (DOCS / path).resolve()
        if not (file.is_relative_to(ROOT) and file.exists()):
            raise DeadLinkError(target)
        inside, name = file.relative_to(ROOT).as_posix(), words.strip("`")
        if inside == PUBLIC:
            return f"[{words}]({REFERENCE})"
        if inside.startswith(SOURCES) and name in names:
            return f"[{words}]({REFERENCE}#{name.lower()})"
        if repository:
            return f"[{words}]({repository}/{'tree' if file.is_dir() else 'blob'}/main/{inside}{mark}{fragment})"
        return f"{words} (`{inside}`)"

    return "".join(part if code else _LINK.sub(replaced, part) for code, part in _parts(text))


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """Split a text into its parts, in order; the flag is True for code blocks."""
    at = 0
    for fence in _FENCE.finditer(text):
        yield False, text[at : fence.start()]
        yield True, fence[0]
        at = fence.end()
    yield False, text[at:]


def repository_url() -> str:
    """Return `COSD_REPOSITORY_URL`, or else `Repository` under `[project.urls]` in `pyproject.toml`, or else ''."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: str = os.environ.get("COSD_REPOSITORY_URL") or project.get("urls", {}).get("Repository", "")
    return found.rstrip("/")


def write(folder: Path, repository: str) -> None:
    """Write the pages and pictures into a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    reference = runpy.run_path(str(DOCS / "generate_reference.py"))["page"]()
    names = frozenset(_NAME.findall(reference))
    for path in sorted(DOCS.glob("*.md")):
        try:
            page = linked(path.read_text(encoding="utf-8"), names, repository)
        except DeadLinkError as error:
            raise DeadLinkError(f"{path.name} links to {error}, which does not exist") from None
        (folder / path.name).write_text(page, encoding="utf-8")
    (folder / REFERENCE).write_text(reference, encoding="utf-8")
    for pattern in PICTURES:
        for path in DOCS.glob(pattern):
            shutil.copy(path, folder)


def main() -> None:
    """Write the pages and the configuration for mkdocs, which adds the navigation to `mkdocs.yml`."""
    repository = repository_url()
    write(BUILD / "docs", repository)
    start = (DOCS / "README.md").read_text(encoding="utf-8")
    configuration = {"INHERIT": "../mkdocs.yml", "repo_url": repository or None, "nav": navigation(start)}
    (BUILD / "mkdocs.yml").write_text(json.dumps(configuration, indent=2), encoding="utf-8")  # JSON is YAML


if __name__ == "__main__":
    main()
