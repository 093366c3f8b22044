"""Finds a Chromium for `make test-browser`, or installs Debian's where that is allowed.

    python tests/browser/install.py      prints its path to standard output, all else to standard error

Taken is $COSD_CHROMIUM, or the first of chromium, chromium-browser and google-chrome on the path. Otherwise the package
`chromium` is installed with apt-get, by root. Playwright's own download of a browser is never used. Standard library
only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a script it has its own folder there

from environments import InstallError, say

__all__ = ["NAMES", "InstallError", "browser", "found"]

NAMES = ("chromium", "chromium-browser", "google-chrome")
_SECONDS = 900
_HELP = (
    "install Chromium (on Debian and Ubuntu: apt-get install chromium), or name one that is there: "
    "make test-browser COSD_CHROMIUM=/path/to/chromium"
)


def found() -> str | None:
    """A Chromium that is there.

    Raises:
        InstallError: $COSD_CHROMIUM names none.
    """
    named = os.environ.get("COSD_CHROMIUM")
    if not named:
        return next(filter(None, map(shutil.which, NAMES)), None)
    path = shutil.which(named)
    if path is None:
        raise InstallError(f"COSD_CHROMIUM is {named!r}, which is no program")
    return path


def browser() -> str:
    """A Chromium, installed if there was none.

    Raises:
        InstallError: there is none, and none may be installed here.
    """
    path = found()
    if path is not None:
        return path
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise InstallError(f"there is no Chromium, and this user may not install one: {_HELP}")
    say("Installing Debian's package chromium (100 MB, only this once) ...")
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
        command = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=_SECONDS, check=False)
        if done.returncode and arguments[0] == "install":  # an update may fail in part and still be enough
            raise InstallError(f"apt-get could not install chromium; it says why above. Or {_HELP}")
    path = found()
    if path is None:
        raise InstallError(f"apt-get installed chromium, and there is none on the path: {_HELP}")
    return path


def main() -> None:
    """Prints the path."""
    try:
        path = browser()
    except (InstallError, OSError, subprocess.TimeoutExpired) as error:
        sys.exit(f"make test-browser: {error}")
    except KeyboardInterrupt:
        sys.exit("make test-browser: interrupted")
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
