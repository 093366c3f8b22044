"""The `cosd` command. Its own requirements are an extra: `pip install "cosd-api[cli]"`.

Exit codes: 0; 1 when something failed (one line on standard error says what); 2 when the command was not given as
it should be; 130 when it was interrupted.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

_NEEDED = {"typer", "rich"}
_INSTALL = 'the cosd command needs a little more: pip install "cosd-api[cli]"'


def main() -> None:
    """Runs the command with the arguments of the process, and exits."""
    try:
        from cosd_api.cli.app import run  # noqa: PLC0415 - it may not be there, and that has an answer

        run()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _NEEDED:
            raise
        print(f"cosd: {_INSTALL}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
