"""Tests under lm-eval and inspect-ai themselves: `make test-evaluators` runs them, nothing else collects them.

In this folder a skip is a failure.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from cosd_api.apps.demo.questions import sample
from support.no_skips import mark_live, pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401 - hooks
from support.scripts import EXAMPLES
from support.shipped import ROOT, build_sdist, build_wheel

#: Read here: no test sees a COSD_ variable (see tests/conftest.py).
ENVIRONMENT = os.environ.get("COSD_EVALUATORS_ENV")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two tools that import half a gigabyte, over live servers."""
    mark_live(items, __file__, 300)


@dataclass(frozen=True)
class Desk:
    """A folder with questions and tasks, and the tools with our wheel beside them.

    Attributes:
        folder: the working folder.
        library: our wheel, unpacked.
    """

    folder: Path
    library: Path

    def run(self, program: str, *arguments: str, fails: bool = False) -> str:
        """The output of a program of the environment, which ends with exit code 0, or with 1 if it fails."""
        assert ENVIRONMENT is not None
        path = os.pathsep.join(map(str, (self.library, EXAMPLES)))
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(self.folder / "hf"), "PYTHONPATH": path}
        done = subprocess.run(
            [str(Path(ENVIRONMENT) / "bin" / program), *arguments],
            cwd=self.folder,
            env={**os.environ, **offline},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == (1 if fails else 0), done.stdout
        return done.stdout


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheel, unpacked."""
    if not ENVIRONMENT:
        pytest.fail("these tests need COSD_EVALUATORS_ENV, the folder of both tools: run `make test-evaluators`")
    folder = tmp_path_factory.mktemp("library")
    wheel = build_wheel(build_sdist(folder / "sdist"), folder)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


@pytest.fixture
def desk(library: Path, tmp_path: Path) -> Desk:
    """Questions of the bundled models, each with two answers to choose from, and the tasks over them."""
    shutil.copytree(ROOT / "tests" / "evaluators" / "tasks", tmp_path, dirs_exist_ok=True)
    questions = [*sample("mixed", 4, seed=3), *sample("capital", 4, seed=3)]
    lines = [
        {
            "prompt": one.prompt,
            "answer": one.answer.strip(),
            "choices": [one.answer.strip(), "Who knows?"],
            "gold": 0,
        }
        for one in questions
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "questions.jsonl").write_text(text, encoding="utf-8")
    return Desk(tmp_path, library)
