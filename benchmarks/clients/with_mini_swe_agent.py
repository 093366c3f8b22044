"""mini-swe-agent, with its own prompts. Its commands are not run, because so small a model writes nonsense."""

from __future__ import annotations

import importlib
from typing import Any

from features import FORCING, KEY, MODEL, URL, answer, called, tell

agents: Any = importlib.import_module("minisweagent.agents.default")
config: Any = importlib.import_module("minisweagent.config")
environments: Any = importlib.import_module("minisweagent.environments.local")
models: Any = importlib.import_module("minisweagent.models.litellm_model")


class Told(environments.LocalEnvironment):  # type: ignore[misc]
    """Answers the first command, and takes the second for the end of the task."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[str] = []

    def execute(self, action: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        self.commands.append(action["command"])
        text = "rivers.txt" if len(self.commands) == 1 else "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\ndone"
        output = {"output": text, "returncode": 0, "exception_info": ""}
        self._check_finished(output)
        return output


def task() -> dict[str, Any]:
    given = config.get_config_from_spec("mini")
    options = {"api_base": URL, "api_key": KEY, "max_retries": 0, "max_tokens": 300, **FORCING}
    model = models.LitellmModel(
        **{**given["model"], "model_name": f"openai/{MODEL}", "model_kwargs": options, "cost_tracking": "ignore_errors"}
    )
    templates = {name: given["agent"][name] for name in ("system_template", "instance_template")}
    told = Told()
    found = agents.DefaultAgent(model, told, step_limit=3, **templates).run("List the files of this folder.")
    assert found["exit_status"] == "Submitted", found
    return answer(called("bash", {"command": told.commands[-1]}))


tell({"a task: a call, its result, and the end": task})
