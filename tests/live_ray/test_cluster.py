"""`cosd batch --engine ray`, `Dataset.map_batches` and `datasets.map` on a real cluster of two nodes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from batches import input_file, read, texts
from commands import cosd
from cosd_api.demo.questions import sample
from cosd_api.demo.servers import Pair
from ray_cluster.running import HERE, TwoNodes, ended, python
from shipped import ROOT

LINES = 60
PAGE = (ROOT / "docs" / "batch.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ANSWER = " The capital of Peru is Lima and the total is 42."


def settings(folder: Path, pair: Pair, **limits: Any) -> Path:
    """A settings file of both models."""
    path = folder / "fusion.yaml"
    models = [{"url": one, "limits": limits} for one in (pair.sums, pair.facts)]
    path.write_text(json.dumps({"draft": models[0], "assistants": models[1:], "limits": {"stop": "\n"}}))
    return path


def test_a_node_is_killed_in_the_middle(nodes: TwoNodes, tmp_path: Path) -> None:
    with python(str(HERE / "killed.py"), nodes.address, str(LINES), str(tmp_path), folder=tmp_path) as process:
        assert process.stdout is not None
        if process.stdout.readline() == "third\n":
            nodes.tell("kill")
        shown = ended(process, tmp_path)
    nodes.tell("add")
    (found,) = (json.loads(line) for line in shown.splitlines() if line.startswith('{"summary"'))  # Ray prints, too
    assert found["lost"] > 0
    summary = found["summary"]
    assert (summary["answered"], summary["failed"], summary["missing"]) == (LINES, 0, 0)
    answers = texts(tmp_path / "out.jsonl")  # each is there once
    assert len(answers) == LINES and {*answers.values()} == {" yes."}


def test_the_command(nodes: TwoNodes, pair: Pair, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"custom_id": f"{at}", "prompt": one.prompt} for at, one in enumerate(sample("mixed", 6, seed=3))
    ]
    source = input_file(tmp_path / "in.jsonl", [*rows, {"custom_id": "bad", "prompt": "Q", "temperature": 1}])
    config = settings(tmp_path, pair, concurrency=4)
    command = ["batch", str(source), "--config", str(config), "--reorder", "1", "--max-billed-tokens", "100000"]
    done = cosd(*command, "-o", str(tmp_path / "local.jsonl"))
    assert done.exit_code == 1, done.output
    more = ["-o", str(tmp_path / "out.jsonl"), "--engine", "ray", "--ray-address", nodes.address]
    with python("-m", "cosd_api", *command, *more, "--actors", "2", folder=tmp_path) as process:
        shown = ended(process, tmp_path, code=1)
    assert shown.startswith("6 lines of 7 answered, 1 failed\n")
    here, there = read(tmp_path / "local.jsonl"), read(tmp_path / "out.jsonl")
    assert {name: (row["text"], row["error"]) for name, row in there.items()} == {
        name: (row["text"], row["error"]) for name, row in here.items()
    }
    assert "temperature" in there["bad"]["error"]["message"]
    with python("-m", "cosd_api", *command, *more, "--actors", "5", folder=tmp_path) as process:
        ended(process, tmp_path, code=2)
    words = re.sub(r"[\s│╭╮╰╯─]+", " ", (tmp_path / "stderr.txt").read_text())
    assert "draft: its limit of 4 requests at a time cannot be divided among 5 actors: take 4, or fewer" in words


@pytest.mark.parametrize("library", ["import ray", "from datasets"])
def test_programs_of_the_page_run(library: str, nodes: TwoNodes, pair: Pair, tmp_path: Path) -> None:
    (program,) = (one for one in BLOCKS if library in one)
    settings(tmp_path, pair, concurrency=4)
    (tmp_path / "program.py").write_text(program)
    start = f"import os, runpy; os.environ['RAY_ADDRESS'] = {nodes.address!r}; runpy.run_path('program.py')"
    with python("-c", start, folder=tmp_path) as process:
        shown = ended(process, tmp_path)
    assert shown.splitlines()[-2:] == [ANSWER, " The capital of France is Paris and the total is 42."]
