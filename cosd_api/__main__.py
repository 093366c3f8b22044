"""`python -m cosd_api` is `cosd`."""

from __future__ import annotations

from cosd_api.cli import main

if __name__ == "__main__":
    main()
