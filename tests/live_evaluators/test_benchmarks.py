"""The benchmarks of both papers by the installed lm-eval's own definitions: see tests/evaluators/benchmarks.py."""

from __future__ import annotations

import json
import re
from typing import Any

from support.shipped import ROOT

SERVED = {
    *("mmlu", "mmlu, chat", "tinyMMLU", "gsm8k", "gsm8k, chat", "gsm8k_cot", "tinyGSM8k"),
    *("humaneval", "humaneval_instruct", "humaneval_64"),
    *("truthfulqa_gen", "truthfulqa_mc1", "truthfulqa_mc2", "hellaswag"),
    *("math", "mgsm", "mgsm_cot", "drop", "coqa", "triviaqa"),
}


def test_the_benchmarks_of_both_papers_are_served(desk: Any) -> None:
    """A fusion in which one model knows the answers has all of them right."""
    shown = desk.run("python", str(ROOT / "tests" / "evaluators" / "benchmarks.py"), str(desk.folder))
    found = {line["name"]: line for line in map(json.loads, re.findall(r'^\{"name": .*\}$', shown, re.MULTILINE))}
    assert set(found) == SERVED
    wrong = {name: line for name, line in found.items() if line["score"] != 1}
    assert wrong == {}
    drawn = found["humaneval_64"]
    assert drawn["refused"].startswith("the task draws at temperature 0.2, and this fusion is greedy")
    assert len(drawn["answers"]) == 64 and len({*drawn["answers"]}) > 1
