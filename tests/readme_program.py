"""Runs the README's first program on two bundled models: `make dist` does, in an environment that has the wheel alone.

python tests/readme_program.py README.md
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cosd_api.demo.servers import bundled_pair


def main(readme: str) -> None:
    """Run it with the URLs of two servers in place of the README's."""
    found = re.search(r"```python\n(from cosd_api import fuse_sync.*?)```", readme, re.DOTALL)
    if found is None:
        sys.exit("the README has no program that begins with `from cosd_api import fuse_sync`")
    with bundled_pair() as pair:
        program = found[1].replace("http://gpu1:8080", pair.sums).replace("http://gpu2:8080", pair.facts)
        sys.stdout.write(program)
        exec(compile(program, "README.md", "exec"), {})


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_text(encoding="utf-8"))
