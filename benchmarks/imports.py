"""Processor time of `import cosd_api` in a fresh interpreter, and the part of that time that the dependencies take."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import sysconfig

from benchmarks.report import Cell, Options, Table

__all__ = ["run"]

TARGET = 1.5
"""Target for the processor time of the import, as a multiple of the time that its dependencies alone take."""

_COMMAND = (
    "import sys; sys.argv = ['cosd', {!r}]; from cosd_api.apps.cli import main\ntry: main()\nexcept SystemExit: pass"
)
CASES = {
    "import cosd_providers": "import cosd_providers",
    "import cosd_api": "import cosd_api",
    "cosd --version": _COMMAND.format("--version"),
    "cosd --help": _COMMAND.format("--help"),
}

_ABOUT = (
    "The table shows the processor time of a fresh interpreter in milliseconds, including its start, as the median of "
    "alternating runs. *Dependencies* is the time to import only those modules of other packages that the command "
    f"loads. Target: a ratio of at most {TARGET}."
)


async def run(options: Options) -> list[Table]:
    """Return a table with one row for each entry point."""
    rows: list[list[Cell]] = []
    figures: dict[str, dict[str, list[float]]] = {}
    for name, code in CASES.items():
        options.say(f"imports: {name}")
        needed = dependencies(code)
        taken: dict[str, list[float]] = {"own": [], "dependencies": []}
        for _ in range(5 if options.quick else 25):
            taken["dependencies"].append(seconds(f"import {', '.join(needed)}"))
            taken["own"].append(seconds(code))
        own, theirs = (1000 * statistics.median(taken[one]) for one in ("own", "dependencies"))
        rows.append([name, round(own), round(theirs), f"{own / theirs:.2f}", len(needed)])
        figures[name] = taken
    columns = ["", "ms", "ms: dependencies", "ratio", "modules of dependencies"]
    return [Table("Imports", columns, rows, [_ABOUT], figures)]


def dependencies(code: str) -> list[str]:
    """The modules of other packages that a piece of code imports."""
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    listing = (
        "import sys\nfor name, module in sys.modules.items(): print('module', name, getattr(module, '__file__', ''))"
    )
    done = subprocess.run([sys.executable, "-c", f"{code}\n{listing}"], capture_output=True, text=True, check=True)
    found = [line.split(" ", 2)[1:] for line in done.stdout.splitlines() if line.startswith("module ")]
    installed = [name for name, file in found if file.startswith(tuple(folders)) and not name.startswith("_")]
    return [name for name in installed if name.partition(".")[0] not in ("cosd_api", "cosd_providers")]


def seconds(code: str) -> float:
    """Processor seconds of a fresh interpreter that runs a piece of code."""
    before = os.times()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
