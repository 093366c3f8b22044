"""Draws docs/demo.svg, the output of `cosd demo` as a picture that loads no fonts: `python docs/generate_demo.py`."""

from __future__ import annotations

import io
import re
import sys
from functools import partial
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from cosd_api.apps.demo.servers import bundled_three
from cosd_api.apps.demo.walkthrough import show
from cosd_api.common.event_loop import run_async

PICTURE = Path(__file__).with_name("demo.svg")
WITHOUT_FONTS = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)

if __name__ == "__main__":
    sys.argv[0] = "cosd"  # the command that the demo names
    # Not a terminal, so that no unfinished answer is recorded.
    screen = Console(file=io.StringIO(), record=True, width=80, color_system="truecolor", highlight=False, markup=False)
    with bundled_three() as running:
        run_async(partial(show, screen, running))
    screen.save_svg(str(PICTURE), title="cosd demo", code_format=WITHOUT_FONTS)
