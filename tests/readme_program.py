"""Runs the README's first program as it stands: `make dist` does, in an environment that has the wheel alone.

python tests/readme_program.py README.md
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def main(readme: str) -> None:
    """Run it."""
    found = re.search(r"```python\n(from cosd_api import fuse_sync.*?)```", readme, re.DOTALL)
    if found is None:
        sys.exit("the README has no program that begins with `from cosd_api import fuse_sync`")
    sys.stdout.write(found[1])
    exec(compile(found[1], "README.md", "exec"), {})


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_text(encoding="utf-8"))
