"""`examples/lm_eval_model.py` under lm-evaluation-harness itself: tasks of our own over the bundled models."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cosd_api import Fusion
from cosd_api.apps.demo.servers import Pair
from support.scripts import EXAMPLES

FILE = str(EXAMPLES / "lm_eval_model.py")
GONE = "http://127.0.0.1:9"

#: Scripted models, which count the drafts in progress, and what they refuse.
ANSWERS = """
import json
from lm_eval.api.instance import Instance
from cosd_api import SettingError
from cosd_providers.testing import ScriptedProvider
from lm_eval_model import FusionLM

class Counted(ScriptedProvider):
    most = 0

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "open_requests":
            Counted.most = max(Counted.most, value)

SAID = {"Q": [(" a", 0.9), (" b", 0.9), "\\n"]}

def ask(model, given, count=1):
    requests = [Instance("generate_until", {}, ("Q", given), 0, ("task", at, 1)) for at in range(count)]
    return model.generate_until(requests)

def made(**settings):
    models = {name: Counted.from_texts(SAID, request_delay=0.05) for name in ("draft", "assistant")}
    return FusionLM(**models, batch_size=1, concurrency=3, **settings)

found = {"texts": ask(made(), {"until": ["\\n", ""], "max_gen_toks": 9}, 7), "most": Counted.most}
found["short"] = ask(made(max_gen_toks=1), {})
found["nucleus"] = ask(made(), {"until": "\\n", "top_p": 0.9, "do_sample": False, "temperature": 0.8})
found["refused"] = []
for temperature, given in (
    (None, {"temperature": 0.2}), (1, {}), (None, {"repetition_penalty": 1.1}), (1, {"do_sample": True, "top_p": 0.9})
):
    try:
        ask(made(temperature=temperature) if temperature else made(), given)
    except SettingError as error:
        found["refused"].append([str(error), *error.__notes__])
print(json.dumps(found))
"""


def harness(
    desk: Any, arguments: str, tasks: str, *more: str
) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """The results of a run, and the samples of each task."""
    words = ["--model", "cosd", "--model_args", arguments, "--tasks", tasks, "--include_path", ".", *more]
    desk.run("python", FILE, *words, "--output_path", "out", "--log_samples")
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
    messages = ["--apply_chat_template", "--system_instruction", "Answer the question."]
    more = ["--use_cache", "cache", *(messages if chat else [])]
    results, samples = harness(desk, f"draft={pair.sums},assistant={pair.facts}", "cosd_bundled", *more)
    answers = [one["resps"][0][0] for one in samples["cosd_bundled"]]
    assert len(answers) == 8
    assert all(answer.strip() and "\n" not in answer for answer in answers)
    assert results["results"]["cosd_bundled"]["exact_match,stripped"] >= 0
    assert (results["chat_template"] == "each model's own") is chat
    prompts = [one["arguments"]["gen_args_0"]["arg_0"] for one in samples["cosd_bundled"]]
    assert all(("Answer the question." in prompt) is chat for prompt in prompts)
    _, repeated = harness(desk, f"draft={GONE},assistant={GONE}", "cosd_bundled", *more)  # nothing is asked
    assert [one["resps"][0][0] for one in repeated["cosd_bundled"]] == answers


def test_limits_of_a_settings_file_and_the_request_that_failed(desk: Any, pair: Pair) -> None:
    settings = {"draft": pair.sums, "assistants": [pair.facts], "limits": {"max_billed_tokens": 5}}
    (desk.folder / "pair.json").write_text(json.dumps(settings))
    words = ["--model", "cosd", "--model_args", "config=pair.json", "--tasks", "cosd_bundled", "--include_path", "."]
    *_, error, note = desk.run("python", FILE, *words, fails=True).splitlines()
    assert "BudgetError" in error and "max_billed_tokens" in error
    assert note.startswith("in generate_until, task cosd_bundled, document ")


def test_requests_at_a_time_and_what_is_refused(desk: Any) -> None:
    found = json.loads(desk.run("python", "-c", ANSWERS).splitlines()[-1])
    assert (found["texts"], found["most"]) == ([" a b"] * 7, 3)
    assert (found["short"], found["nucleus"]) == ([" a"], [" a b"])
    give = "give --gen_kwargs "
    none = "a fusion has no such setting. Leave it out of generation_kwargs"
    note = "in generate_until, task task, document 0"
    assert found["refused"] == [
        [f"the task draws at temperature 0.2, and this fusion is greedy: {give}do_sample=False", note],
        [f"the task is greedy, and this fusion draws at temperature 1: {give}do_sample=True,temperature=1", note],
        [f"repetition_penalty: {none}", note],
        [f"top_p: {none}", note],
    ]


async def test_log_likelihoods_are_those_of_the_fusion(desk: Any, three: Mapping[str, str]) -> None:
    servers = {"draft": three["sums"], "assistant": three["words"]}
    arguments = ",".join(f"{name}={url}" for name, url in servers.items())
    _, samples = harness(desk, f"{arguments},unit=token", "cosd_choice,cosd_rolling")
    async with Fusion(draft=three["sums"], assistant=three["words"], unit="token") as fusion:
        for sample in samples["cosd_choice"]:
            totals = [float(resp[0][0]) for resp in sample["resps"]]
            texts = [f" {text}" for text in sample["doc"]["choices"]]
            direct = [(await fusion.log_likelihood(sample["doc"]["prompt"], text)).total for text in texts]
            assert all(math.isclose(*two, rel_tol=0.02) for two in zip(totals, direct, strict=True))
            assert sample["acc"] == (totals[0] > totals[1])
    assert all(float(sample["resps"][0][0]) < 0 for sample in samples["cosd_rolling"])
