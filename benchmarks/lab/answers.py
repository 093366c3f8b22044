"""Steps that ask models: a task's questions, a tree learned from a few questions, and the answers of several models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio

from benchmarks.lab.controls import Distant, shuffled
from benchmarks.lab.models import MODEL
from benchmarks.lab.tasks import TASKS
from benchmarks.lab.ways import WAYS
from benchmarks.lab.worlds import World
from cosd_api import CoSD, SettingError, TreeVerifier, collect, compare, train_tree
from cosd_api.comparison.compare import DEVELOPMENT
from cosd_api.comparison.result import Comparison
from cosd_api.demo.servers import serve
from cosd_api.forcing.samples import Example
from cosd_api.methods.base import Method
from cosd_api.training.dataset import read_examples
from cosd_providers import connect
from cosd_providers.contract import Provider

__all__ = ["QUESTIONS", "answers", "comparison_in", "questions", "served", "tree"]

QUESTIONS = "questions.jsonl"
"""The file that a step of `questions` writes."""

_TREE, _COMPARISON = "tree.json", "comparison.json"


def questions(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the questions of a task. The settings are `task`, `world`, `seed`, `count` and `split`."""
    wanted = World(settings["world"]), settings["seed"], settings["count"], settings["split"]
    drawn = TASKS[settings["task"]].items(*wanted)
    lines = [one.model_dump_json(exclude_none=True) + "\n" for one in drawn]
    (folder / QUESTIONS).write_text("".join(lines), encoding="utf-8")


@contextmanager
def served(*models: Path) -> Iterator[list[str]]:
    """Run a server per model and yield the URLs, the draft's first. A model fused with itself gets two servers.

    Each server has one slot, which reads the common part of a list of prefixes only once. With more slots, each prefix
    would go to a different slot, which would read the whole prefix; that takes two to four times as long.
    """
    with ExitStack() as stack:
        yield [
            stack.enter_context(serve(one / MODEL, name=f"model {at}", slots=1)).url for at, one in enumerate(models)
        ]


def tree(folder: Path, settings: Mapping[str, Any], *, draft: Path, examples: Path, **assistants: Path) -> None:
    """Learn a tree that decides between models from `count` questions, as the paper does (section 3.2).

    The samples of several assistants are combined. If one of the models is never the only one that is right, twice as
    many questions are used. Samples are stored as they arrive, so an interrupted step can resume.
    """
    several = read_examples(examples / QUESTIONS)

    async def learn() -> None:
        with served(draft, *assistants.values()) as (first, *others):
            count = settings["count"]
            while True:
                samples = [
                    await collect(several[:count], draft=first, assistant=url, path=folder / f"samples-{at}.jsonl")
                    for at, url in enumerate(others)
                ]
                try:
                    train_tree(samples).tree.save(folder / _TREE)
                except SettingError:
                    if count >= len(several):
                        raise
                    count *= 2
                else:
                    return

    anyio.run(learn)


def answers(folder: Path, settings: Mapping[str, Any], *, draft: Path, asked: Path, **others: Path) -> None:
    """Compare every way to fuse some models, and each model alone, on one task; the journal is `answers.jsonl`.

    Each way in `settings["trees"]` is CoSD with the tree learned by the named step. All further inputs are assistants.
    """
    examples = read_examples(asked / QUESTIONS)
    methods = {name: WAYS[name] for name in settings["ways"] if name in WAYS}
    for name, step in settings["trees"].items():
        methods[name] = CoSD(verifier=TreeVerifier.load(others.pop(step) / _TREE))

    async def ask() -> Comparison:
        with served(draft, *others.values()) as urls:
            return await _compared(urls, examples, methods, folder / "answers.jsonl", settings)

    found = anyio.run(ask)
    if found.stopped is not None:
        raise RuntimeError(f"the comparison in {folder} was not completed: {found.stopped}")
    (folder / _COMPARISON).write_text(found.model_dump_json(), encoding="utf-8")


async def _compared(
    urls: Sequence[str],
    examples: Sequence[Example],
    methods: Mapping[str, Method],
    journal: Path,
    settings: Mapping[str, Any],
) -> Comparison:
    """Run one comparison. `settings` has arguments of `compare`, `shuffled`, and each request's delay in `seconds`."""
    models: list[Provider] = [*map(connect, urls)]
    if settings["seconds"]:
        models = [Distant(one, settings["seconds"]) for one in models]
    drafting, *assistants = models
    if settings["shuffled"]:
        assistants = [shuffled(one, examples) for one in assistants]
    return await compare(
        examples,
        draft=drafting,
        assistant=assistants,
        methods=methods,
        grader=TASKS[settings["task"]].GRADER,
        path=journal,
        development=DEVELOPMENT,
        **{name: settings[name] for name in ("both_ways", "baselines", "max_tokens", "concurrency")},
    )


def comparison_in(folder: Path) -> Comparison:
    """Read the comparison that a step of `answers` has written."""
    return Comparison.model_validate_json((folder / _COMPARISON).read_text(encoding="utf-8"))
