"""`examples/inspect_model.py` under Inspect itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cosd_api.apps.demo.servers import Pair
from support.scripts import EXAMPLES

FILE = str(EXAMPLES / "inspect_model.py")

#: Answers of scripted models, and what they refuse.
ANSWERS = """
import asyncio, json
from inspect_ai.model import ChatMessageUser, GenerateConfig, Model
from inspect_ai.tool import ToolInfo
from cosd_api import Fusion, SettingError
from cosd_providers import InvalidRequestError, ServerError
from cosd_providers.testing import ScriptedProvider
from inspect_model import FusionAPI

SAID = {"user: Q\\nassistant: ": [(" a", 0.9), (" b", 0.9), (" c", 0.9)]}

async def main():
    found = {"refused": []}
    for name, context in (("whole", None), ("full", 8)):
        draft = ScriptedProvider.from_texts(SAID, name="draft", context=context)
        async with Fusion(draft=draft, assistant=ScriptedProvider.from_texts(SAID)) as fusion:
            api = FusionAPI("pair", fusion)
            model, asked = Model(api, GenerateConfig()), [ChatMessageUser(content="Q")]
            for tokens in (1, 9):
                output = await model.generate(asked, config=GenerateConfig(max_tokens=tokens))
                found[f"{name} {tokens}"] = (output.completion, output.stop_reason, output.error)
            tool = ToolInfo(name="add", description="adds")
            for given, tools in (({"temperature": 0.7}, []), ({"top_p": 0.9, "num_choices": 2}, []), ({}, [tool])):
                try:
                    await api.generate(asked, tools, "auto", GenerateConfig(**given))
                except SettingError as error:
                    found["refused"].append(str(error))
            found["retried"] = [api.should_retry(ServerError("busy", retryable=True)),
                                api.should_retry(InvalidRequestError("no")), api.should_retry(ValueError("no"))]
    print(json.dumps(found))

asyncio.run(main())
"""


def test_a_task_over_the_bundled_models(desk: Any, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSPECT_DISPLAY", "plain")
    servers = ("--draft", pair.sums, "--assistant", pair.facts)
    limits = ("--max-tokens", "40", "--stop", "\n", "--system", "Answer the question.")
    desk.run("python", FILE, "questions.jsonl", *servers, *limits)
    (path,) = (desk.folder / "logs").glob("*.eval")
    log = json.loads(desk.run("inspect", "log", "dump", str(path)))
    assert log["status"] == "success"
    assert [one["messages"][0]["content"] for one in log["samples"]] == ["Answer the question."] * 8
    outputs = [one["output"] for one in log["samples"]]
    texts = [one["choices"][0]["message"]["content"] for one in outputs]
    assert all(text.strip() and "\n" not in text for text in texts)
    assert all(one["usage"]["total_tokens"] > 0 and one["metadata"]["acceptance_rate"] <= 1 for one in outputs)
    (score,) = log["results"]["scores"]
    assert score["name"] == "includes"


def test_answers_and_what_is_refused(desk: Any) -> None:
    found = json.loads(desk.run("python", "-c", ANSWERS).splitlines()[-1])
    assert found["whole 1"] == [" a", "max_tokens", None]
    assert found["whole 9"] == [" a b c", "stop", None]
    text, reason, error = found["full 9"]
    assert (text, reason) == ("", "model_length") and "the draft takes at most 7" in error
    assert found["retried"] == [True, False, False]
    assert found["refused"][:3] == [
        "the task's temperature is 0.7, and this fusion's 0: leave it out, or draw with --temperature 1",
        "top_p, num_choices: a fusion has no such setting. Leave it out",
        "tools: a fusion has no such setting. Leave it out",
    ]


def test_what_is_wrong_is_one_line(desk: Any) -> None:
    shown = desk.run(
        "python", FILE, "questions.jsonl", "--draft", "gpu1", "--assistant", "http://127.0.0.1:9", fails=True
    )
    assert shown.splitlines()[-1].startswith("error: 'gpu1' is not a URL")
