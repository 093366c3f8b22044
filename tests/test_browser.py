"""How the tests in a browser get their Chromium (browser.install), without any Chromium."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from browser import install

pytestmark = pytest.mark.skipif(os.name == "nt", reason="programs without an ending")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the path, empty."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(path: Path) -> str:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_what_is_there_is_taken(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("something was run"))
    chrome = program(programs / "google-chrome")
    assert install.browser() == chrome
    chromium = program(programs / "chromium")
    assert install.browser() == chromium
    monkeypatch.setenv("COSD_CHROMIUM", chrome)
    assert install.browser() == chrome


def test_a_name_that_is_no_program(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(programs / "chromium")
    monkeypatch.setenv("COSD_CHROMIUM", "chromiun")
    with pytest.raises(install.InstallError, match="COSD_CHROMIUM is 'chromiun', which is no program"):
        install.browser()


def test_who_may_not_install_is_told_what_to_do(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    program(programs / "apt-get")
    with pytest.raises(install.InstallError, match="may not install one: install Chromium"):
        install.browser()


def test_it_is_installed_by_root(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    program(programs / "apt-get")
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        if "install" in command:
            program(programs / "chromium")
        return subprocess.CompletedProcess(command, 100 if "update" in command else 0)  # half a list is often enough

    monkeypatch.setattr(subprocess, "run", run)
    assert install.browser() == str(programs / "chromium")
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    assert ran == [[*apt, "update"], [*apt, "install", "-y", "--no-install-recommends", "chromium"]]


def test_a_failure_is_one_line(programs: Path) -> None:
    environment = {"PATH": str(programs), "COSD_CHROMIUM": "nowhere"}
    command = [sys.executable, install.__file__]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "make test-browser: COSD_CHROMIUM is 'nowhere', which is no program\n"
