"""What is shipped: the wheel, the packages' faces, the pins; and that no file tells where it was made."""

import importlib
import importlib.metadata
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

from cosd_api.apps.demo.servers import BUNDLED
from support.shipped import ROOT, build_sdist, build_wheel

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FACES = ["cosd_api", "cosd_providers"]
NEEDED = {"TYPE_CHECKING", "annotations", "deferred"}  # what a face is made with

#: A folder of somebody's machine, as it would be written in text or left in a binary by a tool.
MACHINE_PATH = re.compile(rb"(?<![\w.*-])(?:/(?:home|root|Users)/|[A-Za-z]:\\+Users\\+)[\w.-]+")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of this tree, unpacked."""
    return build_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """The wheel, built from the source distribution: so nothing may be missing there."""
    return zipfile.Path(build_wheel(sdist, tmp_path_factory.mktemp("wheel")))


def names(wheel: zipfile.Path) -> set[str]:
    return set(wheel.root.namelist())


def metadata(wheel: zipfile.Path) -> str:
    (path,) = (name for name in names(wheel) if name.endswith(".dist-info/METADATA"))
    return wheel.joinpath(path).read_text(encoding="utf-8")


@pytest.mark.extended
def test_wheel_holds_the_two_packages_and_nothing_else(wheel: zipfile.Path) -> None:
    tops = {name.partition("/")[0] for name in names(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {*FACES}
    for package, base in (("cosd_api", ROOT), ("cosd_providers", ROOT / "providers")):
        modules = {path.relative_to(base).as_posix() for path in (base / package).rglob("*.py")}
        assert modules
        assert modules | {f"{package}/py.typed"} <= names(wheel)


@pytest.mark.extended
def test_wheel_carries_the_small_models_and_the_data(wheel: zipfile.Path) -> None:
    models = {path.relative_to(ROOT).as_posix() for path in (ROOT / "cosd_api/apps/demo/models").glob("*.gguf")}
    assert {Path(name).stem for name in models} == set(BUNDLED)
    assert all((ROOT / name).stat().st_size <= 2_500_000 for name in models)
    report = {f"cosd_api/apps/report/page.{kind}" for kind in ("css", "js", "html.jinja")}
    demo = {f"cosd_api/apps/demo/{name}" for name in ("questions.json", "world.json", "models/smollm2/questions.jsonl")}
    assert models | report | demo <= names(wheel)
    assert all(wheel.joinpath(name).read_bytes()[:4] == b"GGUF" for name in models)


@pytest.mark.extended
def test_wheel_metadata(wheel: zipfile.Path) -> None:
    text = metadata(wheel)
    assert "License-Expression: MIT\n" in text
    assert "License-File: LICENSE\n" in text
    assert "Classifier: Typing :: Typed\n" in text
    assert "Requires-Python: >=3.11\n" in text
    (scripts,) = (name for name in names(wheel) if name.endswith("entry_points.txt"))
    assert "cosd = cosd_api.apps.cli:main" in wheel.joinpath(scripts).read_text(encoding="utf-8")


@pytest.mark.extended
def test_wheel_declares_what_it_needs(wheel: zipfile.Path) -> None:
    project = PROJECT["project"]
    lines = metadata(wheel).splitlines()
    extras = {line.removeprefix("Provides-Extra: ") for line in lines if line.startswith("Provides-Extra: ")}
    assert extras == set(project["optional-dependencies"])
    declared = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    always = {canonical(one) for one in declared if "extra ==" not in one}
    assert always == {canonical(one) for one in project["dependencies"]}


def canonical(requirement: str) -> str:
    return str(Requirement(requirement))


@pytest.mark.extended
def test_sdist_can_be_tested(sdist: Path) -> None:
    files = (
        "README.md",
        "constraints.txt",
        "Makefile",
        "mkdocs.yml",
        "LICENSE",
        "docs/probe.md",
        "providers/README.md",
    )
    for name in ("tests/conftest.py", "examples", "benchmarks", *files):
        assert (sdist / name).exists(), name


@pytest.mark.parametrize("face", FACES)
def test_all_is_sorted_and_complete(face: str) -> None:
    package = importlib.import_module(face)
    for name in package.__all__:
        assert getattr(package, name) is not None  # also those that are imported at their first use
    public = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and name not in NEEDED and not isinstance(value, ModuleType)
    }
    declared = [name for name in package.__all__ if not name.startswith("_")]
    assert declared == sorted(public)


@pytest.mark.parametrize("face", FACES)
def test_public_names_are_described(face: str) -> None:
    package = importlib.import_module(face)
    silent = [name for name in package.__all__ if callable(value := getattr(package, name)) and not value.__doc__]
    assert not silent


def test_version_is_said_once() -> None:
    package = importlib.import_module("cosd_api")
    assert package.__version__ == importlib.metadata.version("cosd-api") == PROJECT["project"]["version"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {package.__version__}\n" in citation


def test_constraints_pin_everything_by_name_and_version_only() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    shape = re.compile(r"[a-z0-9-]+==[\w.]+( ; .+)?")
    assert [pin for pin in pins if not shape.fullmatch(pin)] == []

    project = PROJECT["project"]
    groups = [*project["optional-dependencies"].values(), *PROJECT["dependency-groups"].values()]
    wanted = project["dependencies"] + [entry for group in groups for entry in group if isinstance(entry, str)]
    required = {re.split(r"[^\w-]", entry)[0] for entry in wanted} - {project["name"]}
    assert required - {pin.partition("==")[0] for pin in pins} == set()


def test_what_is_told_to_install_works_in_a_clone() -> None:
    """The package is on no index: every hint, in messages and pages, is `pip install ".[EXTRA]"` of an extra."""
    folders = ("cosd_api", "providers", "docs", "examples")
    sources = [path for folder in folders for end in ("py", "md") for path in (ROOT / folder).rglob(f"*.{end}")]
    texts = {path: path.read_text(encoding="utf-8") for path in (*sources, ROOT / "README.md")}
    assert [path for path, text in texts.items() if re.search(r"pip install \"?cosd-api\[", text)] == []
    named = {
        one for text in texts.values() for some in re.findall(r'"\.\[([\w,-]+)\]"', text) for one in some.split(",")
    }
    assert named == set(PROJECT["project"]["optional-dependencies"]) - {"all", "fast"}


def tracked_files() -> list[Path]:
    """The files that git tracks; it knows what tools leave behind."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if (path := ROOT / name).is_file()]


def test_no_file_names_a_path_of_a_machine() -> None:
    told = {
        f"{path.relative_to(ROOT)}: {hit.group().decode(errors='replace')}"
        for path in tracked_files()
        for hit in MACHINE_PATH.finditer(path.read_bytes())
    }
    assert told == set()
