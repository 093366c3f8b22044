"""Commands of docs/lm-eval.md and docs/inspect.md, run as they are printed there."""

from __future__ import annotations

import re
import shlex
import shutil
from typing import Any

from cosd_api.apps.demo.servers import Pair
from support.shipped import ROOT

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_commands_run(desk: Any, pair: Pair) -> None:
    blocks: dict[str, str] = {}
    for page in ("lm-eval", "inspect"):
        for language, block in FENCE.findall((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")):
            blocks[language or page] = block
    for name in ("lm_eval_model.py", "inspect_model.py"):
        shutil.copy(ROOT / "examples" / name, desk.folder)
    for language, name in (("yaml", "capitals.yaml"), ("json", "questions.jsonl")):
        (desk.folder / name).write_text(blocks[language], encoding="utf-8")
    for page, shows in (("lm-eval", "|capitals|"), ("inspect", "includes")):
        command = blocks[page].replace("http://gpu1:8080", pair.sums).replace("http://gpu2:8080", pair.facts)
        shown = desk.run(*shlex.split(command.replace("\\\n", " ")))
        assert shows in shown
    assert list(desk.folder.glob("results/*/samples_capitals_*.jsonl"))
    assert list(desk.folder.glob("logs/*.eval"))
