"""Puts a real llama-cpp-python into a folder of the user's cache, once, for `make test-llama-cpp-python`.

    python tests/llama_cpp_python/install.py      prints the folder to standard output, all else to standard error

The folder is $COSD_LLAMA_CPP_PYTHON_ENV, or one named after the versions in $XDG_CACHE_HOME/cosd-api. There is no wheel
of it: it is compiled, which needs a C++ compiler and takes about eight minutes. Standard library only.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a script it has its own folder there

import environments
from environments import InstallError

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
NAME = "llama-cpp-python"
VARIABLE = "COSD_LLAMA_CPP_PYTHON_ENV"
GIGABYTES = 2
"""Room that compiling needs; the installation takes 0.3 in the end."""

_RECIPE = 1
"""To be raised when what is done here, beside the pins, changes: everybody's installation is then made anew."""

_OURS = ".cosd-llama-cpp-python"
"""Marks a folder that was made here: no other one is ever emptied."""


def default_folder() -> Path:
    """Where it goes."""
    return environments.folder_for(VARIABLE, f"{NAME}-{environments.pinned(REQUIREMENTS, NAME)}")


def install(folder: Path) -> None:
    """Makes the folder ready; does nothing where it is.

    Raises:
        InstallError: it cannot be done.
    """
    fingerprint = environments.fingerprint_of(_RECIPE, REQUIREMENTS)
    if environments.has_stamp(folder, fingerprint):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with environments.locked(folder.with_name(folder.name + ".lock"), NAME) as lock:
        if environments.has_stamp(folder, fingerprint):  # by the run that was waited for
            return
        started = time.monotonic()
        version = environments.pinned(REQUIREMENTS, NAME)
        environments.say(f"Compiling {NAME} {version} into {folder} (about 8 minutes, only this once) ...")
        environments.start_afresh(folder, _OURS, NAME, GIGABYTES, VARIABLE)
        python = str(folder / "bin" / "python")
        pip = [sys.executable, "-m", "pip", "--python", python, "--no-input", "--disable-pip-version-check"]
        if environments.run([*pip, "install", "-qq", "--no-deps", "--requirement", str(REQUIREMENTS)], lock).returncode:
            raise InstallError(f"pip could not install {NAME}; it says why above. It needs a C++ compiler")
        check = environments.run([python, "-c", "import llama_cpp.server.app"], lock, quiet=True)
        if check.returncode:
            said = (check.stdout or "").strip().rpartition("\n")[2]
            raise InstallError(f"{NAME} was installed but does not start: {said or f'code {check.returncode}'}")
        (folder / ".ready").write_text(fingerprint)
        environments.say(f"{NAME} is ready, after {time.monotonic() - started:.0f} s. To be rid of it: rm -rf {folder}")


if __name__ == "__main__":
    environments.main("test-llama-cpp-python", default_folder, install)
