"""Entry point of `python -m cosd_api`, which is the command `cosd`."""

from __future__ import annotations

from cosd_api.apps.cli import main

if __name__ == "__main__":
    main()
