"""`Dataset.map_batches` and `datasets.map` with `FusionActor`, on a real cluster of two nodes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anyio

from cosd_api import Fusion
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair
from ray_cluster.running import HERE, TwoNodes, ended, python
from support.shipped import ROOT
from toys.batches import input_file

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
    with python(str(HERE / "killed.py"), nodes.address, str(LINES), folder=tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:  # Ray prints, too
            if line == "third\n":
                nodes.tell("kill")
                break
        shown = ended(process, tmp_path)
    nodes.tell("add")
    (found,) = (json.loads(line)["answers"] for line in shown.splitlines() if line.startswith('{"answers"'))
    assert len({prompt for prompt, _, _ in found}) == len(found) == LINES  # each is there once
    assert {(text, error) for _, text, error in found} == {(" yes.", "")}


def test_the_example(nodes: TwoNodes, pair: Pair, tmp_path: Path) -> None:
    asked = sample("mixed", 6, seed=3)
    rows: list[dict[str, Any]] = [{"prompt": one.prompt, "number": at} for at, one in enumerate(asked)]
    source = input_file(tmp_path / "in.jsonl", [*rows, {"prompt": "", "number": 6}])
    config = settings(tmp_path, pair, concurrency=4)
    script = str(ROOT / "examples" / "batch_on_ray.py")
    start = f"import os, runpy, sys; os.environ['RAY_ADDRESS'] = {nodes.address!r}; sys.argv = sys.argv[1:]; "
    command = ["-c", f"{start}runpy.run_path({script!r}, run_name='__main__')", script, str(source)]
    with python(*command, str(tmp_path / "out"), "--config", str(config), folder=tmp_path) as process:
        ended(process, tmp_path)
    files = sorted((tmp_path / "out").glob("*.json"))
    found = {row["number"]: row for one in files for row in map(json.loads, one.read_text().splitlines())}
    local = anyio.run(fuse_all, [one.prompt for one in asked], config)
    assert [found[at]["text"] for at in range(6)] == local and not any(found[at]["error"] for at in range(6))
    assert found[6]["text"] == "" and found[6]["error"].startswith("prompt is refused: it must be text")
    with python(*command, "none", "--config", str(config), "--actors", "5", folder=tmp_path) as process:
        ended(process, tmp_path, code=1)
    words = "draft: its limit of 4 requests at a time cannot be divided among 5 actors: use 4, or fewer"
    assert words in (tmp_path / "stderr.txt").read_text()


async def fuse_all(prompts: list[str], config: Path) -> list[str]:
    """The answers of a fusion of this process."""
    async with Fusion.load(config) as fusion:
        return [(await fusion.generate(prompt)).text for prompt in prompts]


def test_the_program_of_the_page_runs(nodes: TwoNodes, pair: Pair, tmp_path: Path) -> None:
    (program,) = (one for one in BLOCKS if "from datasets" in one)
    settings(tmp_path, pair, concurrency=4)
    (tmp_path / "program.py").write_text(program)
    with python("program.py", folder=tmp_path) as process:
        shown = ended(process, tmp_path)
    assert shown.splitlines()[-2:] == [ANSWER, " The capital of France is Paris and the total is 42."]
