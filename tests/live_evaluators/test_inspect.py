"""The provider `cosd` under Inspect itself, which finds it by its entry point: a task of our own."""

from __future__ import annotations

import json
from typing import Any

from cosd_api.demo.servers import Pair


def test_a_task_over_the_bundled_models(desk: Any, pair: Pair) -> None:
    servers = ["-M", f"draft={pair.sums}", "-M", f"assistant={pair.facts}", "-M", "alpha=0.6"]
    shown = ["--display", "plain", "--log-format", "json", "--log-dir", "logs"]
    desk.run("inspect", "eval", "inspect_task.py", "--model", "cosd/pair", *servers, *shown)
    (path,) = (desk.folder / "logs").glob("*.json")
    log = json.loads(path.read_text(encoding="utf-8"))
    assert log["status"] == "success"
    outputs = [one["output"] for one in log["samples"]]
    assert len(outputs) == 8
    assert all(one["choices"][0]["message"]["content"].strip() for one in outputs)
    assert all(one["usage"]["total_tokens"] > 0 and one["metadata"]["acceptance_rate"] <= 1 for one in outputs)
    (score,) = log["results"]["scores"]
    assert score["name"] == "includes"
