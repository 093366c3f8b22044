"""The model `cosd` under lm-evaluation-harness itself: tasks of our own over the bundled models."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cosd_api import Fusion
from cosd_api.demo.servers import Pair


def harness(
    desk: Any, arguments: str, tasks: str, *more: str
) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """The results of a run, and the samples of each task."""
    words = ["--model", "cosd", "--model_args", arguments, "--tasks", tasks, "--include_path", ".", *more]
    desk.run("python", "-m", "cosd_api.integrations.lm_eval", *words, "--output_path", "out", "--log_samples")
    results = max(desk.folder.glob("out/*/results_*.json"), key=lambda path: path.name)
    stamp = results.stem.removeprefix("results_")
    samples = {
        task: [json.loads(line) for line in read(results.with_name(f"samples_{task}_{stamp}.jsonl"))]
        for task in tasks.split(",")
    }
    return json.loads(results.read_text(encoding="utf-8")), samples


def read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("chat", [False, True], ids=["text", "messages"])
def test_generate_until_and_the_cache_of_answers(desk: Any, pair: Pair, chat: bool) -> None:
    more = ["--use_cache", "cache", *(["--apply_chat_template"] if chat else [])]
    arguments = f"draft={pair.sums},assistant={pair.facts}"
    results, samples = harness(desk, arguments, "cosd_bundled", *more)
    answers = [one["resps"][0][0] for one in samples["cosd_bundled"]]
    assert len(answers) == 8
    assert all(answer.strip() and "\n" not in answer for answer in answers)
    assert results["config"]["cosd_usage"]["draft"]["requests"] >= len(answers)
    assert results["results"]["cosd_bundled"]["exact_match,stripped"] >= 0
    assert (results["chat_template"] == "each model's own") is chat
    again, repeated = harness(desk, arguments, "cosd_bundled", *more)
    assert again["config"]["cosd_usage"] == {}  # nothing was asked
    assert [one["resps"][0][0] for one in repeated["cosd_bundled"]] == answers


async def test_log_likelihoods_are_those_of_the_fusion(desk: Any, three: Mapping[str, str]) -> None:
    servers = {"draft": three["sums"], "assistant": three["words"]}
    arguments = ",".join(f"{name}={url}" for name, url in servers.items())
    _, samples = harness(desk, f"{arguments},unit=token,max_length=40", "cosd_choice,cosd_rolling")
    async with Fusion(draft=three["sums"], assistant=three["words"], unit="token") as fusion:
        for sample in samples["cosd_choice"]:
            totals = [float(resp[0][0]) for resp in sample["resps"]]
            texts = [f" {text}" for text in sample["doc"]["choices"]]
            direct = [(await fusion.log_likelihood(sample["doc"]["prompt"], text)).total for text in texts]
            assert all(math.isclose(*two, rel_tol=0.02) for two in zip(totals, direct, strict=True))
            assert sample["acc"] == (totals[0] > totals[1])
    assert all(float(sample["resps"][0][0]) < 0 for sample in samples["cosd_rolling"])


def test_newer_versions_find_the_model_by_its_entry_point(desk: Any) -> None:
    code = """
from importlib.metadata import entry_points
(entry,) = entry_points(group="lm_eval.models")
kind = entry.load()
assert entry.value == f"{kind.__module__}:{kind.__name__}", entry
from lm_eval.api.registry import get_model
assert get_model("cosd") is kind and get_model("dummy") is not kind
"""
    desk.run("python", "-c", code)
