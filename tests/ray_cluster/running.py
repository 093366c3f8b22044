"""Processes of the environment that has Ray, and the cluster that one of them is."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.shipped import ROOT

__all__ = ["HERE", "TwoNodes", "ended", "python"]

#: Read here: no test sees a COSD_ variable (see tests/conftest.py).
ENVIRONMENT = os.environ.get("COSD_RAY_ENV")
HERE = ROOT / "tests" / "ray_cluster"


def python(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    """A process of the environment, which has this library from the checkout."""
    if not ENVIRONMENT:
        pytest.fail("these tests need COSD_RAY_ENV, the folder of Ray: run `make test-ray`")
    paths = os.pathsep.join(str(ROOT / one) for one in (".", "providers", "tests"))
    more = {
        "PYTHONPATH": paths,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "120",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"),
    }
    with (folder / "stderr.txt").open("w") as errors:
        return subprocess.Popen(
            [str(Path(ENVIRONMENT) / "bin" / "python"), *arguments],
            cwd=folder,
            env={**os.environ, **more},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )


def ended(process: subprocess.Popen[str], folder: Path, code: int = 0) -> str:
    """Wait for a process; returns all that it printed."""
    shown, _ = process.communicate()
    assert process.returncode == code, shown + (folder / "stderr.txt").read_text()
    return shown


@dataclass(frozen=True)
class TwoNodes:
    """A cluster of two nodes with two processors each.

    Attributes:
        address: of its head.
        process: the one that does what it is told.
    """

    address: str
    process: subprocess.Popen[str]

    def tell(self, words: str) -> None:
        """`kill` the second node, or `add` one."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"
