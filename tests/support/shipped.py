"""What is shipped, as a user gets it: built here, and installed into an environment that holds nothing else."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
NAME = "cosd-api"


def build_sdist(folder: Path) -> Path:
    """The source distribution of this tree, unpacked."""
    archive = _build("sdist", ROOT, folder / "sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    return source


def build_wheel(source: Path, folder: Path) -> Path:
    """The wheel of an unpacked source distribution: so nothing may be missing there."""
    return _build("wheel", source, folder / "wheel")


def _build(target: str, source: Path, folder: Path) -> Path:
    """Builds without the network, with the hatchling of this environment."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the wheel and what it requires, and an empty folder to work in."""

    folder: Path
    desk: Path

    @property
    def programs(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    @property
    def python(self) -> Path:
        return self.programs / "python"

    @property
    def packages(self) -> Path:
        paths = {"base": str(self.folder), "platbase": str(self.folder)}
        return Path(sysconfig.get_path("purelib", "venv", vars=paths))

    def run(self, program: str | Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment, by its name, or any other; its working folder is the desk."""
        found = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        first = str(self.programs) + os.pathsep + found.get("PATH", "")
        return subprocess.run(
            [str(self.programs / program), *arguments],
            cwd=self.desk,
            env=found | {"PATH": first, "VIRTUAL_ENV": str(self.folder), "PYTHONUTF8": "1"} | environment,
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=100,
        )


def install(wheel: Path, folder: Path, *extras: str) -> Environment:
    """Installs the wheel with pip, and beside it exactly what it declares, out of this environment.

    There is no network to fetch anything from, and this environment as a whole would hide what is not declared, and
    has the tree itself on its path.
    """
    made = Environment(folder / "environment", folder / "desk")
    made.desk.mkdir(parents=True)
    venv.create(made.folder, symlinks=os.name != "nt", with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(made.python), "--disable-pip-version-check"]
    command = [*pip, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    # What is declared is read where it was installed: the metadata of this environment may be older than the tree.
    (ours,) = importlib.metadata.distributions(name=NAME, path=[str(made.packages)])
    for needed in _required(ours, extras):
        _lend(needed, made.packages)
    return made


def _required(ours: importlib.metadata.Distribution, extras: Sequence[str]) -> list[importlib.metadata.Distribution]:
    """Requirements of a distribution with some extras, and theirs, out of this environment."""
    found = {NAME: ours}
    waiting = [(NAME, ""), *((NAME, extra) for extra in extras)]
    seen: set[tuple[str, str]] = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        one = found.setdefault(name, importlib.metadata.distribution(name) if name not in found else found[name])
        for requirement in map(Requirement, one.requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": wanted}):
                named = canonicalize_name(requirement.name)
                waiting += [(named, asked) for asked in ("", *requirement.extras)]
    return [one for name, one in found.items() if name != NAME]


def _lend(one: importlib.metadata.Distribution, packages: Path) -> None:
    """The files of an installed distribution, as links where the system has them: some are large."""
    for file in one.files or []:
        source, target = Path(str(file.locate())), packages / file
        if ".." in file.parts or not source.is_file():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.symlink_to(source.resolve())
        except OSError:
            shutil.copy2(source, target)
