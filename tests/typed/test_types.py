"""The wheel's types, as a user's type checker sees them. Part of `make check`: `make test` installs no type checker."""

from __future__ import annotations

import json
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from support.shipped import Environment, build_sdist, build_wheel, install

SAMPLE = Path(__file__).with_name("sample.py")

#: pyright says what is strict in its configuration alone.
STRICT = {
    "typeCheckingMode": "strict",
    "reportUnnecessaryTypeIgnoreComment": "error",
    "enableTypeIgnoreComments": False,
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("typed")
    # Extras whose classes some of ours extend or take.
    made = install(build_wheel(build_sdist(folder), folder), folder, "gateway", "langchain", "telemetry")
    shutil.copy(SAMPLE, made.desk)
    (made.desk / "pyrightconfig.json").write_text(json.dumps(STRICT), encoding="utf-8")
    return made


def pyright(made: Environment, *arguments: str) -> tuple[int, str]:
    program = shutil.which("pyright", path=sysconfig.get_path("scripts"))
    assert program, "pyright is not installed here: make check"
    done = made.run(program, *arguments, PYRIGHT_PYTHON_IGNORE_WARNINGS="1")
    return done.returncode, done.stdout


def test_mypy_takes_the_sample(installed: Environment) -> None:
    flags = ["--strict", "--warn-unreachable", "--config-file=", "--no-incremental", f"--cache-dir={installed.folder}"]
    done = installed.run(sys.executable, "-m", "mypy", *flags, f"--python-executable={installed.python}", SAMPLE.name)
    assert (done.returncode, done.stdout) == (0, "Success: no issues found in 1 source file\n")


def test_pyright_takes_the_sample(installed: Environment) -> None:
    code, said = pyright(installed, f"--pythonpath={installed.python}", SAMPLE.name)
    assert (code, said) == (0, "0 errors, 0 warnings, 0 informations\n")


@pytest.mark.parametrize("face", ["cosd_api", "cosd_providers"])
def test_no_public_type_is_unknown(installed: Environment, face: str) -> None:
    """pyright's own measure of a typed package. It takes the environment that is the first on the path."""
    _, said = pyright(installed, "--verifytypes", face, "--ignoreexternal", "--outputjson")
    found = json.loads(said)["typeCompleteness"]
    assert found["pyTypedPath"]
    assert Path(found["pyTypedPath"]).is_relative_to(installed.packages)
    assert found["exportedSymbolCounts"]["withKnownType"] > 100
    unknown = [
        (symbol["name"], [said["message"] for said in symbol["diagnostics"]])
        for symbol in found["symbols"]
        if not symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"]
    ]
    assert unknown == []
