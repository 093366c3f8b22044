"""A task of Inspect over questions of the bundled models."""

from inspect_ai import Task, task
from inspect_ai.dataset import FieldSpec, json_dataset
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import includes
from inspect_ai.solver import generate


@task
def bundled() -> Task:
    """Questions, each with the words that an answer has to include."""
    questions = json_dataset("questions.jsonl", FieldSpec(input="prompt", target="answer"))
    config = GenerateConfig(max_tokens=40, temperature=0, stop_seqs=["\n"])
    return Task(dataset=questions, solver=generate(), scorer=includes(), config=config)
