"""Installs a real llama-cpp-python into a folder of the user's cache, once, for `make test-llama-cpp-python`.

    python tests/llama_cpp_python/install.py      prints the folder to standard output, all else to standard error

The folder is $COSD_LLAMA_CPP_PYTHON_ENV, or one named after the versions in $XDG_CACHE_HOME/cosd-api. It has no wheel:
it is compiled, which needs a C++ compiler and takes about eight minutes. Standard library only.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a script it has its own folder there

from environments import Recipe

RECIPE = Recipe(
    name="llama-cpp-python",
    target="test-llama-cpp-python",
    package="llama-cpp-python",
    variable="COSD_LLAMA_CPP_PYTHON_ENV",
    requirements=Path(__file__).with_name("requirements.txt"),
    gigabytes=2,
    announcement="compiled, about 8 minutes",
    check="import llama_cpp.server.app",
    advice="It needs a C++ compiler.",
)

if __name__ == "__main__":
    RECIPE.main()
