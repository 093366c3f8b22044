"""The `cosd` command. It needs the extra `cli`: `pip install "cosd-api[cli]"`.

Exit codes: 0 on success; 1 after a failure, with one line on standard error; 2 for wrong usage; 130 when interrupted.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

_NEEDED = {"typer", "rich"}
_INSTALL = 'the cosd command needs more packages: pip install "cosd-api[cli]"'


def main() -> None:
    """Run the command with the arguments of the process, and exit."""
    try:
        from cosd_api.cli.app import run  # noqa: PLC0415 - its requirements may be missing

        run()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _NEEDED:
            raise
        print(f"cosd: {_INSTALL}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
