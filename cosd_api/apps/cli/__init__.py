"""The `cosd` command.

Exit codes: 0 on success; 1 after a failure, with one line on standard error; 2 for wrong usage; 130 when interrupted.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command with the arguments of the process, and exit."""
    try:
        from cosd_api.apps.cli.entry import run  # noqa: PLC0415 - an interrupt is quiet from the start

        run()
    except KeyboardInterrupt:
        sys.exit(130)
