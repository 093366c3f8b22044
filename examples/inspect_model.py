r"""Inspect with a fusion as its model: questions in a file, each with a text that the answer has to include.

    pip install inspect-ai
    python examples/inspect_model.py questions.jsonl --draft http://gpu1:8080 --assistant http://gpu2:8080

Each line of the file has a ``prompt`` and an ``answer``. Replace the task by your own: any task works that needs
neither tools nor images. ``inspect view`` shows the logs. A settings file (docs/settings.md) in place of the servers,
``--config pair.yaml``, also chooses the verifier and limits of each answer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from inspect_ai import Task, eval_async, task
from inspect_ai.dataset import FieldSpec, json_dataset
from inspect_ai.model import GenerateConfig, Model, ModelAPI, ModelOutput, ModelUsage, modelapi
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, system_message

from cosd_api import Fusion, FusionResult, SettingError
from cosd_providers import ContextLengthError, ProviderError

STOP = {"stop": "stop", "length": "max_tokens", "content_filter": "content_filter"}
REFUSED = ("top_p", "top_k", "frequency_penalty", "presence_penalty", "logit_bias", "num_choices", "response_schema")


@modelapi("cosd")
class FusionAPI(ModelAPI):
    """A fusion that is open. Inspect's prompts are messages, which each model reads through its own chat template."""

    def __init__(self, model_name: str, fusion: Fusion) -> None:
        super().__init__(model_name)
        self.fusion = fusion

    async def generate(self, input: list[Any], tools: list[Any], tool_choice: Any, config: Any) -> Any:  # noqa: A002, ARG002
        """Write one answer. If a model's context is full, the answer is the text so far, with the error."""
        messages = [{"role": one.role, "content": one.text} for one in input]
        try:
            result = await self.fusion.generate(messages, **self.limits_of(tools, config))
        except ContextLengthError as error:
            return self.output(error.partial, "model_length", str(error))
        return self.output(result, STOP.get(result.finish_reason, "unknown"))

    def limits_of(self, tools: list[Any], config: Any) -> Any:
        """The limits of an answer, from a task's configuration; refuse what a fusion does not have."""
        refused = [name for name in REFUSED if getattr(config, name) not in (None, 1)]
        if tools or refused:
            raise SettingError(
                f"{', '.join(['tools'] * bool(tools) + refused)}: a fusion has no such setting. Leave it out"
            )
        own = self.fusion.settings.temperature
        if config.temperature not in (None, own):
            words = f"the task's temperature is {config.temperature:g}, and this fusion's {own:g}"
            raise SettingError(f"{words}: leave it out, or draw with --temperature 1")
        found = {"max_tokens": config.max_tokens, "stop": config.stop_seqs, "seed": config.seed if own else None}
        return {name: value for name, value in found.items() if value is not None}

    def output(self, result: FusionResult | None, reason: str, error: str | None = None) -> Any:
        text = "" if result is None else result.text
        output = ModelOutput.from_content(self.model_name, text, stop_reason=reason, error=error)
        if result is not None:
            used = result.usage.values()
            read, wrote = sum(one.prompt_tokens for one in used), sum(one.completion_tokens for one in used)
            output.usage = ModelUsage(input_tokens=read, output_tokens=wrote, total_tokens=read + wrote)
            output.metadata = {"acceptance_rate": result.acceptance_rate, "warnings": list(result.warnings)}
        return output

    def should_retry(self, ex: BaseException) -> bool:
        """Inspect asks again after errors that may be temporary."""
        return isinstance(ex, ProviderError) and ex.retryable


@task
def questions(path: Path, system: str | None, config: GenerateConfig) -> Task:
    fields = FieldSpec(input="prompt", target="answer")
    steps = [generate()] if system is None else [system_message(system), generate()]
    return Task(dataset=json_dataset(str(path), fields), solver=steps, scorer=includes(), config=config)


async def evaluate(args: argparse.Namespace) -> str | None:
    """Run the task; return a message if it failed."""
    settings: dict[str, Any] = {"temperature": args.temperature} if args.temperature else {}
    servers = {"draft": args.draft, "assistant": args.assistant}
    fusion = Fusion(**servers, **settings) if args.config is None else Fusion.load(args.config, **settings)
    config = GenerateConfig(max_tokens=args.max_tokens, stop_seqs=args.stop)
    async with fusion:
        model = Model(FusionAPI("fusion", fusion), GenerateConfig(max_connections=args.concurrency))
        [log] = await eval_async(questions(args.questions, args.system, config), model=model)
    return None if log.status == "success" else f"error: the evaluation has the status {log.status}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Inspect evaluates a fusion.")
    parser.add_argument("questions", type=Path, help="file of questions: lines with a prompt and an answer")
    for role in ("draft", "assistant"):
        url = os.environ.get(f"COSD_{role.upper()}_URL")
        parser.add_argument(f"--{role}", metavar="URL", default=url, help=f"a server; or set COSD_{role.upper()}_URL")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings file with servers of its own")
    parser.add_argument("--temperature", type=float, help="1 to draw the answers, by a method that draws")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--stop", nargs="*", metavar="TEXT", help="texts before which an answer ends")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="limit of each answer (256)")
    parser.add_argument("--concurrency", type=int, default=8, metavar="N", help="answers at the same time (8)")
    args = parser.parse_args()
    if args.config is None and not (args.draft and args.assistant):
        parser.error("give --draft and --assistant, or --config")
    try:
        sys.exit(asyncio.run(evaluate(args)))
    except (ProviderError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
