"""Grade one HumanEval answer: run the program that a model wrote, and then its tests, here and as this user.

`cosd_api`'s grader `command` starts this program for each answer: it reads the example and the answer as JSON on
standard input, and exits with 0 if the tests pass, else with 1. There is no sandbox: use a container.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile

SECONDS = 10
given = json.load(sys.stdin)
fenced = re.search(r"^```[^\n]*\n(.*?)(?:^```|\Z)", given["text"], re.DOTALL | re.MULTILINE)
written = fenced[1] if fenced else given["text"]
begun = given["prompt"] if isinstance(given["prompt"], str) and not fenced else ""
# The last line shows that the program did not end before its tests.
program = f"{begun}{written}\n{given['tests']}\nprint('passed', end='')\n"
with tempfile.TemporaryDirectory() as folder:
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", program], cwd=folder, timeout=SECONDS, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired:
        sys.exit(1)
sys.exit(0 if done.returncode == 0 and done.stdout.endswith(b"passed") else 1)
