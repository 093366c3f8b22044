"""Installs Ray and datasets into a folder of the user's cache, once, for `make test-ray`.

    python tests/ray_cluster/install.py      prints the folder to standard output, all else to standard error

The folder is $COSD_RAY_ENV, or one named after Ray's and Python's version in $XDG_CACHE_HOME/cosd-api. What this
library requires is installed beside them; the library itself is not. Standard library only.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a script it has its own folder there

from environments import Recipe

RECIPE = Recipe(
    name="Ray",
    target="test-ray",
    package="ray",
    variable="COSD_RAY_ENV",
    requirements=Path(__file__).with_name("requirements.txt"),
    gigabytes=1.2,
    announcement="0.8 GB, a minute or two",
    check="import ray.data, datasets, pandas, typer, httpx, pydantic",
)

if __name__ == "__main__":
    RECIPE.main()
