"""Installs lm-eval and inspect-ai into a folder of the user's cache, once, for `make test-evaluators`.

    python tests/evaluators/install.py      prints the folder to standard output, all else to standard error

The folder is $COSD_EVALUATORS_ENV, or one named after lm-eval's and Python's version in $XDG_CACHE_HOME/cosd-api. What
this library requires is installed beside them; the library itself is not. Standard library only.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a script it has its own folder there

from environments import Recipe

RECIPE = Recipe(
    name="Evaluators",
    target="test-evaluators",
    package="lm-eval",
    variable="COSD_EVALUATORS_ENV",
    requirements=Path(__file__).with_name("requirements.txt"),
    gigabytes=1,
    announcement="1 GB, two minutes",
    check="import lm_eval.api.model, inspect_ai.model, httpx, jinja2, pydantic",
)

if __name__ == "__main__":
    RECIPE.main()
