"""Rules of the house that no linter knows: privacy between modules, names, the first words of docstrings.

`make check` runs them, and `make test-all`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import cosd_api
import cosd_api.extend
import cosd_api.types
import house

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "cosd_api", ROOT / "providers" / "cosd_providers")
MODULES = sorted(str(path.relative_to(ROOT)) for package in PACKAGES for path in package.rglob("*.py"))

pytestmark = pytest.mark.extended

PUBLIC = {"_asdict", "_exit", "_replace"}  # of the standard library
FIRST = re.compile(r"(What|Whether|How|Which|When|Where|Why|It|One that)\b")


@cache
def tree(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text(encoding="utf-8"))


def private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in {"_", *PUBLIC}


def own_names(module: ast.Module) -> set[str]:
    """Names that a module gives to its own things: functions, classes, variables and attributes."""
    own: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            own.add(node.attr)
    return own


def is_self(node: ast.expr) -> bool:
    """`self`, `cls` or `super()`, whose attributes a class shares with its bases."""
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, ast.Name) and node.id in ("self", "cls", "super")


def reaches(module: ast.Module) -> Iterator[str]:
    """The private names of other modules that a module uses."""
    own = own_names(module)
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom):
            yield from (f"from {node.module} import {one.name}" for one in node.names if private(one.name))
        elif (
            isinstance(node, ast.Attribute) and private(node.attr) and not is_self(node.value) and node.attr not in own
        ):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def docstrings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings, those below variables among them."""
    for node in ast.walk(module):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            text = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield statement.lineno, text.value


@pytest.mark.parametrize("module", MODULES)
def test_nobody_reaches_into_the_privates_of_another_module(module: str) -> None:
    found = list(reaches(tree(module)))
    assert found == []


@pytest.mark.parametrize("module", MODULES)
def test_docstrings_begin_with_a_noun_or_a_verb(module: str) -> None:
    found = [(line, text.strip()[:60]) for line, text in docstrings(tree(module)) if FIRST.match(text.strip())]
    assert found == []


APPS = [one for one in MODULES if one.startswith("cosd_api/apps/")]
OPEN = re.compile(
    r"cosd_api(\.(types|extend|settings|checks|common\.\w+|config|forcing|methods|structured|telemetry|tools|verification))?|cosd_providers.*"
)
"""The modules from which applications may import: public modules, helpers, packages as such, and `cosd_providers`."""


@pytest.mark.parametrize("module", APPS)
def test_an_application_imports_public_names_only(module: str) -> None:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            assert not any(one.name.startswith(("cosd_api.", "cosd_providers.")) for one in node.names), node.lineno
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("cosd_api", "cosd_providers"):
            if str(node.module).startswith("cosd_api.apps."):
                continue
            assert OPEN.fullmatch(str(node.module)), node.module
            door = import_module(str(node.module))
            for name in {one.name for one in node.names} - {"__version__"}:
                assert name in getattr(door, "__all__", [name]), f"{node.module}.{name} is not public"


OUTSIDE = [ROOT / "cosd_api/apps", *(ROOT / folder for folder in ("benchmarks", "docs", "examples", "tests"))]


def users(door: str) -> dict[str, set[str]]:
    """The files outside the core that import each name of a public module; code in pages counts."""
    found: dict[str, set[str]] = defaultdict(set)
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for file in (*(file for folder in OUTSIDE for file in folder.rglob("*.py")), *pages):
        text = file.read_text(encoding="utf-8")
        for names in re.findall(rf"from {door.replace('.', '[.]')} import (\([^)]*\)|[^\n]*)", text):
            for name in re.findall(r"\w+", names):
                found[name].add(str(file.relative_to(ROOT)))
    return found


@pytest.mark.parametrize("door", [cosd_api, cosd_api.extend])
def test_every_public_name_has_a_user_outside_the_core(door: ModuleType) -> None:
    found = users(door.__name__)
    assert [name for name in door.__all__ if not found[name]] == []


def test_a_file_name_stands_in_one_folder() -> None:
    """Otherwise it has to name its subject. Both packages have errors."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        places[Path(module).name].append(module)
    several = {
        name: where for name, where in places.items() if len(where) > 1 and "__" not in name and name != "errors.py"
    }
    assert several == {}


def test_no_class_name_stands_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


HABITS = {"behind": 63, "what is": 26, "nobody": 0, "stands": 14, "those of": 8}
"""Odd habits of our English, and how often they may be left in the sources, code and messages included. A count that
has fallen becomes the new limit."""


@pytest.mark.parametrize("habit", HABITS)
def test_odd_habits_of_language_only_get_fewer(habit: str) -> None:
    """Write *after* for order, name the thing or the actor, repeat the noun."""
    odd = re.compile(rf"\b{habit}\b", re.IGNORECASE)
    found = sum(len(odd.findall((ROOT / one).read_text(encoding="utf-8"))) for one in MODULES)
    assert found <= HABITS[habit], f"{habit!r}: {found}; name the actor and the thing instead"


def test_a_house_above_its_budget_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = house.measured()
    monkeypatch.setattr(house, "measured", lambda: {**found, "lines of source": 10**6})
    with pytest.raises(SystemExit, match=r"above the budget in tests/house.toml: lines of source\. Remove something"):
        house.main()
    assert "lines of source           1,000,000 of" in capsys.readouterr().out
